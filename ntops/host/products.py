"""Matrix products: shapes, ``out=`` and the launch."""

import dataclasses
import functools
import math

import torch

from ntops.host import few_rows, matrix_copy, mm_fma, mm_hopper, output, split_k
from ntops.host.arguments import check_fits, check_tensor, common_device
from ntops.host.dim_order import collapse, contiguous_strides, specialize
from ntops.host.elementwise import elementwise
from ntops.host.product_configs import FEW_ROWS, FMA, HOPPER, POINTERS, Problem
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, result_dtype, scalar_type
from ntops.kernels import mm, mul
from ntops.launch import boundary, config_selection, configuration, recorder
from ntops.launch.configuration import settled
from ntops.launch.devices import on_device
from ntops.launch.kernel_sources import Config, make

_MANY = 128
"""From this many rows and columns of a result on, copying a float32 factor costs less than it saves."""


def check_factors(*, mixed_empty=False, **matrices):
    """Refuse tensors that have no product, by argument name; integer dtypes are refused last, as in torch.

    :param mixed_empty: Whether dtypes may differ if a tensor is empty.
    :raises TypeError: One is not a tensor.
    :raises RuntimeError: Dtypes or devices differ.
    :return: The device of the tensors.
    """
    for name, matrix in matrices.items():
        check_tensor(matrix, name)

    (first_name, first), *others = matrices.items()

    mixed = mixed_empty and not all(matrix.numel() for matrix in matrices.values())

    for name, matrix in others:
        if matrix.dtype is not first.dtype and not mixed:
            raise RuntimeError(
                f"arguments '{first_name}' and '{name}' must have one dtype, not {first.dtype} and {matrix.dtype}"
            )

    return common_device(matrices)


def check_dims(ndim, **tensors):
    """Refuse tensors that do not have ``ndim`` dims, by argument name."""
    for name, tensor in tensors.items():
        if tensor.ndim != ndim:
            raise RuntimeError(f"argument '{name}' must have {ndim} dims, not {tensor.ndim}")


def check_inner(**factors):
    """Refuse factors whose inner sizes differ: the columns of the first and the rows of the second."""
    (left_name, left), (right_name, right) = factors.items()
    rows = right.shape[-2] if right.ndim > 1 else right.shape[0]

    if left.shape[-1] != rows:
        raise RuntimeError(
            f"arguments '{left_name}' {tuple(left.shape)} and '{right_name}' {tuple(right.shape)} cannot be "
            f"multiplied: {left.shape[-1]} columns against {rows} rows"
        )


def product(premake, shape, input, mat2, out=None, *, vectors=(), folded=False, merged=False, added=None, scales=None):
    """Compute the product of two matrices or of each pair of a batch, in ``out`` or a new tensor.

    :param premake: The kernel's ``premake``.
    :param shape: The shape of the result, (*batch, M, N).
    :param input: (*batch, M, K).
    :param mat2: (*batch, K, N).
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :param vectors: The dims, from the end, that the result lacks because an operand was a vector.
    :param folded: Whether ``mat2`` is one matrix for a batch of ``input``, whose rows make a single product, as in
        torch. Rows that are not evenly spaced are copied.
    :param merged: Whether torch views all rows of ``out`` as one matrix, or all elements as one vector.
    :param added: The tensor that ``addmm`` adds, of the shape of the result, or ``None``.
    :param scales: The factors of the product and of ``added``, for ``addmm``.
    :raises NotImplementedError: The dtype is not floating-point, and the product has terms.
    """
    dtype, device = input.dtype, input.device

    # torch multiplies a vector and a matrix as two matrices, and makes ``out`` a matrix, too.
    row = vectors == (-2,) and input.ndim == 2
    taken = torch.Size((1, *shape)) if row else shape

    if out is not None:
        output.check_out(out, dtype, device, exact_dtype=True)
        output.check_written(out, "out", taken)

    # Without terms, CUDA needs no kernel of the dtype, except for the product of two vectors.
    if not dtype.is_floating_point and (multiplies(input, mat2) or len(vectors) == 2):
        raise NotImplementedError(
            f"products of {dtype} matrices do not exist on CUDA; cast them to a floating-point type"
        )

    if out is not None:
        if merged and out.shape == shape and out.numel():
            _check_one_view(out, (-1,) if vectors else (-1, shape[-1]))

        output.resize_out(out, taken, contiguous_strides(taken))

        if row:
            out.squeeze_(0)

    # A program reads inputs while others write, so a result that shares memory with an input goes to new memory first.
    read = [tensor for tensor in (input, mat2, added) if tensor is not None]
    direct = (
        out is not None
        and (not folded or out.is_contiguous())
        and not any(output.shares_memory(out, tensor) for tensor in read)
    )
    result = out if direct else recorder.empty(shape, contiguous_strides(shape), dtype, device)

    if boundary.has_work(result) and not dtype.is_floating_point:
        _without_product(result, added, scales)
    elif boundary.has_work(result):
        matrices = result

        for dim in vectors:
            matrices = matrices.unsqueeze(dim)

        if folded:
            matrices, input = matrices.flatten(0, -2), input.flatten(0, -2)

        _launch(premake, matrices, input, mat2, added, scales)

    return output.given(out, result)


def multiply(premake, result, input, mat2, added=None, scales=None):
    """Write the product of two matrices to ``result``, which may have the compute dtype of half types instead of their
    own.

    :param premake: The kernel's ``premake``, of ``mm``, or of ``addmm`` with ``scales``.
    :param added: What ``addmm`` adds, of the shape of the result: it may be the result, or be expanded.
    """
    if boundary.has_work(result):
        _launch(premake, result, input, mat2, added, scales)


def _check_one_view(out, shape):
    """Refuse an ``out`` that cannot be viewed as one matrix of all rows, or as one vector of all elements."""
    try:
        out.view(shape)
    except RuntimeError:
        raise RuntimeError(
            f"argument 'out' {tuple(out.shape)} with strides {out.stride()} cannot be viewed as {shape}, in which "
            "torch writes this product; give it other strides"
        ) from None


def multiplies(input, mat2):
    """Tell whether a product has any terms: its result may be empty, or its inner size 0."""
    return input.numel() > 0 and mat2.numel() > 0


def _without_product(result, added, scales):
    if added is None:
        result.zero_()
    else:
        check_fits(scales[1], result.dtype, "beta")
        # The factor is cast to the dtype, as in torch: 2.5 is 2 for integers, and True for bool.
        factor = torch.scalar_tensor(scales[1], dtype=result.dtype, device="cpu").item()
        dtype = result_dtype(added, factor)
        operands = {"input": added, "other": factor}
        elementwise(mul.premake, operands, dtype, out=result, compute_dtype=accumulate_dtype(dtype))


def _launch(premake, result, input, mat2, added, scales, chosen=None):
    """Launch a product; where ``chosen`` is ``None``, :func:`~ntops.host.product_configs.config` chooses."""
    ieee = torch.get_float32_matmul_precision() == "highest"
    index = result.device.index or 0
    batch, _ = _collapsed_batch(result, input, mat2)
    fits = mm_hopper.takes_sizes(result, input, ieee, len(batch), index)
    described = fits and mm_hopper.takes_layout(result, mat2, len(batch))
    described = settled("described", described or mm_fma.takes(result, input, ieee, len(batch), index))

    if chosen is None:
        # Broadcast batches run the kernel of bmm, or of mm.
        name = premake.__module__.rpartition(".")[2]
        name = name if name != "matmul" else "bmm" if batch else "mm"
        sizes = *result.shape[-2:], input.shape[-1]
        of_cores = ieee and input.dtype is torch.float32
        problem = Problem(*sizes, input.dtype, of_cores, bool(batch), described, math.prod(batch))
        run = functools.partial(_launch, premake, input=input, mat2=mat2, added=added, scales=scales)
        # The same parts of K give the same bits in both forms, so that the layout changes none.
        alike = fits and not described and not configuration.is_fixed()
        like = config_selection.choose(name, dataclasses.replace(problem, described=True), index) if alike else None
        chosen = config_selection.choose(name, problem, index, run, result)
        chosen = chosen if like is None else dataclasses.replace(chosen, splits=like.splits)

    if added is not None and result.dtype.itemsize > input.dtype.itemsize and chosen.form == POINTERS:
        # A float32 addend takes as many registers as the sums do.
        chosen = dataclasses.replace(chosen, block_m=min(chosen.block_m, 128), block_n=min(chosen.block_n, 128))

    input, mat2 = _laid_out(chosen.form, ieee, index, result, input, mat2)
    batch, strides = _collapsed_batch(result, input, mat2)
    views = {
        name: tensor.as_strided((*batch, *tensor.shape[-2:]), (*own, *tensor.stride()[-2:]))
        for (name, tensor), own in zip({"output": result, "input": input, "mat2": mat2}.items(), strides, strict=True)
    }
    arguments = {"batch": len(batch)}
    numbers = ()

    if scales is not None:
        names = ("alpha", "beta") if added is not None else ("alpha",)
        numbers = tuple(float(scale) for scale in scales[: len(names)])
        number_type = scalar_type(result.dtype)
        arguments = {"with_input": added is not None, "scalars": tuple((name, number_type) for name in names)}

    partial = None
    classes = few_rows.classes_of_terms(chosen, result, input, mat2) if chosen.form == FEW_ROWS else 1

    # The kernel of few rows does nothing else: what addmm does to a product is done where parts are added up.
    if chosen.splits * classes > 1 or (chosen.form == FEW_ROWS and numbers):
        shape = (chosen.splits * classes, *result.shape[-2:])
        partial = recorder.empty(shape, contiguous_strides(shape), accumulate_dtype(result.dtype), result.device)

    if chosen.form != POINTERS:
        with on_device(result.device):
            _launch_form(chosen, index, views, partial, added, numbers, classes)

            if partial is not None:
                split_k.add_up(result, partial, added, numbers, classes)

        return

    calls = [views]

    if partial is not None:
        premake, arguments, calls = mm.premake, {"batch": 1}, split_k.operands(partial, views)
    elif added is not None:
        views["added"] = added

    blocks = ("block_size_m", chosen.block_m), ("block_size_n", chosen.block_n), ("block_size_k", chosen.block_k)
    config = Config(blocks, chosen.num_warps, chosen.num_stages)
    constants = (TRITON_DTYPES[accumulate_dtype(result.dtype)], "ieee" if ieee else "tf32")

    with on_device(result.device):
        for views in calls:
            kernel = make(premake, arguments, config, specialize(views, apart=True))
            kernel(*views.values(), *(numbers if partial is None else ()), *constants)

        if partial is not None:
            split_k.add_up(result, partial, added, numbers)


def _launch_form(chosen, index, views, partial, added, numbers, classes):
    """Launch another form than ``POINTERS``. With ``partial``, it computes the parts of the product alone."""
    after = () if partial is not None else (added, numbers)
    output = views["output"] if partial is None else partial

    if chosen.form == HOPPER:
        mm_hopper.launch(chosen, index, output, views["input"], views["mat2"], *after)
    elif chosen.form == FMA:
        mm_fma.launch(chosen, output, views["input"], views["mat2"], *after)
    else:
        few_rows.launch(chosen, output, views["input"], views["mat2"], classes)


def _laid_out(form, ieee, index, result, input, mat2):
    """Return the factors, copied where this form reads them much faster in other layouts."""
    if form in (FMA, FEW_ROWS) or input.dtype is not torch.float32:
        return input, mat2

    is_large = min(result.shape[-2:]) >= _MANY

    if ieee:
        # The CUDA cores read rows: 512 x 4096 x 4096 takes 1286 us on an H200 with contiguous columns, and 446 us with
        # contiguous rows.
        return input, _k_major(mat2) if is_large and mat2.stride(-1) != 1 else mat2

    if config_selection.device(index).hopper:
        input = _k_major(input) if form == HOPPER or is_large else input
        mat2 = _k_major(mat2.mT).mT if form != HOPPER and is_large else mat2

    return input, mat2


def _k_major(matrices):
    """Return (*, M, K) matrices with K innermost, copied if it is not; an expanded batch is not copied out.

    Hopper's tensor cores take 32-bit tiles with K innermost only; loads transpose other tiles 4 bytes at a time. mm of
    4096^3 took 1706 us so on an H200, 5 times as long as cuBLAS. A copy moves 128 MiB.
    """
    if matrices.stride(-1) == 1:
        return matrices

    batch = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in matrices.stride()[:-2])
    distinct = matrices[batch]

    if distinct.ndim > 3:
        return distinct.contiguous().expand(matrices.shape)

    copied = matrix_copy.aligned(distinct if distinct.ndim == 3 else distinct[None])
    return (copied if distinct.ndim == 3 else copied[0]).expand(matrices.shape)


def _collapsed_batch(*tensors):
    """Return the batch dims, merged where all tensors can walk them as one; no dims for single matrices."""
    shape = tensors[0].shape[:-2]

    if not shape:
        return (), [() for _ in tensors]

    return collapse(shape, [tensor.stride()[:-2] for tensor in tensors])
