"""Matrix products: shapes, ``out=``, configurations and the launch."""

import dataclasses
import functools

import torch

from ntops.host import matrix_copy, mm_hopper, output
from ntops.host.arguments import check_fits, check_tensor, common_device
from ntops.host.dim_order import collapse, contiguous_strides, specialize
from ntops.host.elementwise import elementwise
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, result_dtype, scalar_type
from ntops.kernels import mm, mul, split_k
from ntops.launch import boundary, config_selection, recorder
from ntops.launch.configuration import heuristic, settled
from ntops.launch.devices import next_power_of_2, on_device
from ntops.launch.kernel_sources import Config, make

POINTERS = 1
"""The form of NineToothed's kernel, which runs everywhere."""
HOPPER = 2
"""The form of ``ntops.kernels.mm_hopper``, for operands that descriptors fit: half types and TF32, on Hopper."""

_LARGE, _LARGE_OF_BATCH = 2**22, 2**20
"""The values of M * N * K from which the form is ``HOPPER``. Smaller products take the host longer than the device, and
this form, which makes three descriptors, takes the host the longest. A batch has many small products: 384 of 197 x 64 x
197 take 44 us so, and 62 us in the other form."""


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

        if out.shape == taken:
            output.check_written(out, "out")

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


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a product: a tile of the result and of K, and the compiler's options."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    splits: int = 1
    """The number of parts of K, each of which is a product of its own; the partial products are then added up."""
    form: int = POINTERS
    """``POINTERS`` or ``HOPPER``."""


@dataclasses.dataclass(frozen=True)
class Problem(config_selection.Problem):
    """A product of (M, K) and (K, N) matrices.

    The size of a batch and the strides are not part of it: they change no bit of a result.
    """

    OPTIONS = Options
    SIZES = ("m", "n", "k")

    m: int
    n: int
    k: int
    dtype: torch.dtype
    ieee: bool
    """Whether float32 products are IEEE, not TF32; false for other dtypes, so that they share one entry."""
    batched: bool = False
    """Whether there is a batch of products, which fills the device without splits."""
    described: bool = False
    """Whether the form may be ``HOPPER``."""

    def rule(self, device):
        limits = device.shared_memory, 0 if self.batched else device.multiprocessors
        return config(self.m, self.n, self.k, self.dtype, self.ieee, *limits, self.described)

    def space(self, device):
        found = []

        if self.described:
            found += [Options(*one, form=HOPPER) for one in mm_hopper.known(self.dtype)]

        for block_m, block_n, *others in _space(self):
            if block_m <= max(next_power_of_2(self.m), 32):
                options = Options(block_m, block_n, *others)
                even = 1 if self.batched else _splits(self.m, self.n, self.k, options, device.multiprocessors)
                # Twice as many parts may hide more of the latency; a single part needs no adding up.
                parts = (even, 2 * even, 1) if even > 1 else (1,)
                found += [dataclasses.replace(options, splits=one) for one in parts]

        return found

    def allows(self, options):
        if options.form == HOPPER:
            return self.described and (options.splits == 1 or self._splits(options))

        return options.splits == 1 or self._splits(options)

    def _splits(self, options):
        return not self.batched and _has_parts(options, self.m, self.n, self.k)

    def resources(self, options):
        return resources(options, self.dtype)


def _has_parts(options, m, n, k):
    return options.splits == 1 or k % (16 * options.splits) == 0


_POINTS = ((16, 64), (16, 16384), (33, 33), (64, 64), (65, 65), (65, 65536), (2048, 2048))
_POINTS = (*((*point, 1024) for point in _POINTS), (16, 64, 8192), (16, 16384, 2048))


@heuristic(("m", "n", "k"), _POINTS + mm_hopper.POINTS, _has_parts)
def config(m, n, k, dtype, ieee, shared_memory, multiprocessors, described=False):
    """Choose the options of a product.

    :param m: The rows of the result.
    :param n: The columns of the result.
    :param k: The terms of an element of the result.
    :param dtype: The dtype of the operands.
    :param ieee: Whether float32 products are IEEE, not TF32.
    :param shared_memory: Bytes of shared memory that a program can have on the device.
    :param multiprocessors: The number of multiprocessors to fill by splits; 0 for a batch, which fills them itself.
    :param described: Whether the form may be ``HOPPER``.
    """
    if described and m * n * k >= (_LARGE if multiprocessors else _LARGE_OF_BATCH):
        return Options(*mm_hopper.fastest(m, n, k, dtype, multiprocessors), form=HOPPER)

    few = dtype is torch.float32 and not ieee and m <= 16

    if dtype is torch.float64:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32 and ieee:
        # IEEE products run on the CUDA cores, out of registers.
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32 and m >= 2048 and n >= 2048:
        # The tiles have as many bytes as those of half types; not measured yet.
        block_m, block_n, block_k, num_warps, num_stages = 128, 256, 32, 8, 4
    elif few:
        block_m, block_n, block_k, num_warps, num_stages = 16, 64, 64, 4, 4
    elif dtype is torch.float32:
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 32, 8, 3
    elif m >= 2048 and n >= 2048:
        # 676 TFLOP/s at 4096^3 bf16 on an H200, host time included.
        block_m, block_n, block_k, num_warps, num_stages = 128, 256, 64, 8, 4
    elif m <= 16:
        # The product is bound by reading the other matrix: read it in rows of 128 bytes, many in flight, with K in
        # parts. If its rows are not aligned, 8 x 4096 x 50257 takes 217 us on an H200 (torch 319), and 5 x 1280 x 51866
        # takes 92 us (72).
        block_m, block_n, block_k, num_warps, num_stages = 16, 64, 128, 4, 4
    elif m <= 64 or n <= 64:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 64, 4, 4
    else:
        # If each tile has a multiprocessor of its own, 5 stages are best: 128 x 4096 x 4096 takes 24.6 us on an H200,
        # with 3 stages 26.3.
        alone = -(-m // 128) * -(-n // 128) <= multiprocessors
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 64, 8, 5 if alone else 3

    stage = (block_m + block_n) * block_k * dtype.itemsize
    num_stages = max(min(num_stages, shared_memory // stage), 1)
    options = Options(block_m, block_n, block_k, num_warps, num_stages)
    splits = _splits(m, n, k, options, multiprocessors) if dtype.itemsize == 2 or few else 1

    return dataclasses.replace(options, splits=splits)


def _splits(m, n, k, options, multiprocessors):
    """Return the number of parts of K: equal parts of 1024 terms or more, no more than multiprocessors can take."""
    programs = -(-m // options.block_m) * -(-n // options.block_n)
    # A multiprocessor takes at least two programs of few rows, which wait for memory, and one of many rows.
    most = multiprocessors * (2 if options.block_m <= 64 else 1)
    splits = 1

    while 2 * splits * programs <= most and k % (32 * splits) == 0 and k // (2 * splits) >= 1024:
        splits *= 2

    return splits


# Tiles of the result and of K, warps and stages, the most promising first.
_HALF = (
    (128, 256, 64, 8, 4),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 4),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 64, 4, 4),
    (128, 128, 64, 4, 3),
    (128, 128, 128, 8, 3),
    (128, 256, 128, 8, 2),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 128, 128, 4, 4),
    (64, 256, 64, 4, 4),
    (64, 64, 64, 4, 5),
    (64, 64, 128, 4, 4),
)
# Products of few rows are bound by reading the other matrix: small tiles, for many programs and many loads in flight.
_HALF_SKINNY = (
    (16, 32, 256, 4, 4),
    (16, 32, 128, 4, 5),
    (16, 64, 128, 4, 4),
    (16, 64, 128, 4, 6),
    (16, 64, 256, 8, 4),
    (16, 128, 64, 4, 6),
    (32, 32, 128, 4, 5),
    (32, 64, 128, 4, 4),
)
_TF32 = (
    (128, 128, 32, 8, 4),
    (128, 256, 32, 8, 3),
    (128, 256, 32, 8, 4),
    (256, 128, 32, 8, 3),
    (128, 128, 32, 4, 4),
    (128, 128, 64, 8, 3),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 64, 32, 4, 5),
    (64, 64, 64, 4, 3),
    (16, 64, 64, 4, 4),
    (16, 64, 128, 4, 3),
    (32, 64, 64, 4, 4),
)
_PLAIN = (
    (64, 64, 16, 4, 2),
    (64, 64, 32, 4, 2),
    (64, 128, 16, 8, 3),
    (128, 64, 16, 8, 3),
    (32, 64, 32, 4, 3),
    (32, 32, 32, 4, 3),
    (16, 64, 32, 4, 3),
)


def _space(problem):
    if problem.dtype is torch.float64 or (problem.dtype is torch.float32 and problem.ieee):
        return _PLAIN

    if problem.dtype is torch.float32:
        return _TF32

    return (*_HALF_SKINNY, *_HALF) if min(problem.m, problem.n) <= 64 else _HALF


def resources(options, dtype):
    """Estimate the resources of the options. The constants were read off kernels that Triton 3.7 compiled for sm_90."""
    threads = 32 * options.num_warps
    tiles = (options.block_m + options.block_n) * options.block_k * dtype.itemsize
    sums = options.block_m * options.block_n * max(dtype.itemsize, 4) // 4 // threads

    if options.form == HOPPER:
        # Beside the groups of warps that multiply, one group loads.
        return config_selection.Resources(mm_hopper.shared_memory(options, dtype), 32 + sums, threads + 128)

    # Hopper's tensor cores read tiles of 64 rows from shared memory, so the tiles of all stages are there at once;
    # smaller tiles move to registers before the last stage arrives.
    stages = options.num_stages if options.block_m >= 64 else max(options.num_stages - 1, 1)
    # For each 16 bytes that a thread loads at a time, it holds an address of two registers.
    addresses = 2 * -(-tiles // (16 * threads))

    return config_selection.Resources(tiles * stages, 32 + sums + addresses, threads)


def _launch(premake, result, input, mat2, added, scales, chosen=None):
    """Launch a product; where ``chosen`` is ``None``, :func:`config` chooses."""
    ieee = torch.get_float32_matmul_precision() == "highest"
    index = result.device.index or 0
    batch, _ = _collapsed_batch(result, input, mat2)
    described = settled("described", mm_hopper.takes(result, input, mat2, ieee, len(batch), index))

    if chosen is None:
        # Broadcast batches run the kernel of bmm, or of mm.
        name = premake.__module__.rpartition(".")[2]
        name = name if name != "matmul" else "bmm" if batch else "mm"
        sizes = *result.shape[-2:], input.shape[-1]
        problem = Problem(*sizes, input.dtype, ieee and input.dtype is torch.float32, bool(batch), described)
        run = functools.partial(_launch, premake, input=input, mat2=mat2, added=added, scales=scales)
        chosen = config_selection.choose(name, problem, index, run, result)

    if added is not None and result.dtype.itemsize > input.dtype.itemsize and chosen.form != HOPPER:
        # A float32 addend takes as many registers as the sums do.
        chosen = dataclasses.replace(chosen, block_m=min(chosen.block_m, 128), block_n=min(chosen.block_n, 128))

    if input.dtype is torch.float32 and ieee and min(result.shape[-2:]) >= mm_hopper.COPIED and mat2.stride(-1) != 1:
        # The CUDA cores read rows: 512 x 4096 x 4096 takes 1286 us on an H200 with contiguous columns, and 446 us with
        # contiguous rows.
        mat2 = _k_major(mat2)

    if input.dtype is torch.float32 and not ieee and config_selection.device(index).hopper:
        if chosen.form == HOPPER or min(result.shape[-2:]) >= mm_hopper.COPIED:
            input = _k_major(input)

        if chosen.form != HOPPER and min(result.shape[-2:]) >= mm_hopper.COPIED:
            mat2 = _k_major(mat2.mT).mT

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

    if chosen.splits > 1:
        partial = recorder.empty(
            (chosen.splits, *result.shape[-2:]),
            contiguous_strides((chosen.splits, *result.shape[-2:])),
            accumulate_dtype(result.dtype),
            result.device,
        )
        premake, arguments, views = mm.premake, {"batch": 1}, _parts(partial, views)

    if chosen.form == HOPPER:
        with on_device(result.device):
            if partial is None:
                mm_hopper.launch(chosen, index, *views.values(), added, numbers)
            else:
                mm_hopper.launch(chosen, index, *views.values())
                _add_up(result, partial, added, numbers)

        return

    if added is not None and partial is None:
        views["added"] = added

    blocks = ("block_size_m", chosen.block_m), ("block_size_n", chosen.block_n), ("block_size_k", chosen.block_k)
    kernel = make(premake, arguments, Config(blocks, chosen.num_warps, chosen.num_stages), specialize(views))
    constants = (TRITON_DTYPES[accumulate_dtype(result.dtype)], "ieee" if ieee else "tf32")

    with on_device(result.device):
        if partial is None:
            kernel(*views.values(), *numbers, *constants)
        else:
            kernel(*views.values(), *constants)
            _add_up(result, partial, added, numbers)


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


def _parts(partial, views):
    """Return a product's operands as those of a batch of products, each over a part of the terms."""
    input, mat2 = views["input"], views["mat2"]
    splits, (m, k), n = partial.shape[0], input.shape, mat2.shape[1]
    size = k // splits

    return {
        "output": partial,
        "input": input.as_strided((splits, m, size), (size * input.stride(1), *input.stride())),
        "mat2": mat2.as_strided((splits, size, n), (size * mat2.stride(0), *mat2.stride())),
    }


def _add_up(result, partial, added, numbers):
    alpha, beta = (*numbers, 1.0, 0.0)[:2]
    count = result.numel()
    block = 256

    recorder.launch(
        split_k.add_up,
        (-(-count // block),),
        {},
        result,
        partial,
        result if added is None else added,
        *result.stride(),
        *(result if added is None else added).stride(),
        result.shape[1],
        count,
        partial.shape[0],
        alpha,
        beta,
        bool(numbers),
        added is not None,
        block,
    )


def _collapsed_batch(*tensors):
    """Return the batch dims, merged where all tensors can walk them as one; no dims for single matrices."""
    shape = tensors[0].shape[:-2]

    if not shape:
        return (), [() for _ in tensors]

    return collapse(shape, [tensor.stride()[:-2] for tensor in tensors])
