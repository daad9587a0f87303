"""Matrix products: shapes, ``out=``, configurations and the launch."""

import dataclasses
import functools

import torch

from ntops.host import choice, mm_hopper, output, repetition
from ntops.host.arguments import check_fits, check_tensor, common_device
from ntops.host.configuration import heuristic, settled
from ntops.host.iteration import collapse, contiguous_strides, specialize
from ntops.host.launch import next_power_of_2, on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.kernels import mm, split_k
from ntops.torch.mul import mul
from ntops.torch.utils import Config, make

POINTERS = 1
"""The form of a kernel: NineToothed's, which runs everywhere."""
HOPPER = 2
"""That of ``ntops.kernels.mm_hopper``, where operands can be described: half types and TF32, on Hopper."""

_LARGE = 2**23
"""M * N * K from which on the form is ``HOPPER``. Smaller products take the host longer than the device, and this form,
with three descriptors to make, the longest."""
_COPIED = 128
"""Rows and columns of a result from which on a copy of a factor costs less than it saves."""


def check_factors(*, mixed_empty=False, **matrices):
    """Refuse tensors that have no product, by argument name; integers last, as torch does.

    :param mixed_empty: Whether dtypes may differ where a tensor is empty.
    :raises TypeError: One is no tensor.
    :raises RuntimeError: Dtypes or devices differ.
    :return: The device.
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
    """Refuse factors whose inner sizes differ: the columns of the first, the rows of the second."""
    (left_name, left), (right_name, right) = factors.items()
    rows = right.shape[-2] if right.ndim > 1 else right.shape[0]

    if left.shape[-1] != rows:
        raise RuntimeError(
            f"arguments '{left_name}' {tuple(left.shape)} and '{right_name}' {tuple(right.shape)} cannot be "
            f"multiplied: {left.shape[-1]} columns against {rows} rows"
        )


def product(premake, shape, input, mat2, out=None, *, vectors=(), folded=False, merged=False, added=None, scales=None):
    """The product of two matrices or of a batch of each, written to ``out`` or to a new tensor.

    :param premake: The kernel's ``premake``.
    :param shape: The shape of the result, (*batch, M, N).
    :param input: (*batch, M, K).
    :param mat2: (*batch, K, N).
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :param vectors: The dims, from the end, that the result lacks since an operand was a vector.
    :param folded: Whether ``mat2`` is one matrix for a batch of ``input``, all rows of which make a single product, as
        torch has it. Rows that are not evenly spaced are copied.
    :param merged: Whether torch sees all rows of ``out`` as those of one matrix, or all elements as one vector.
    :param added: What ``addmm`` adds, of the shape of the result, or ``None``.
    :param scales: The factors of the product and of ``added``, for ``addmm``.
    :raises NotImplementedError: The dtype is not floating-point, and there is something to multiply.
    """
    dtype, device = input.dtype, input.device

    # Of a vector and a matrix torch makes the product of two matrices, and a matrix of ``out``.
    row = vectors == (-2,) and input.ndim == 2
    taken = torch.Size((1, *shape)) if row else shape

    if out is not None:
        output.check_out(out, dtype, device, exact_dtype=True)

        if out.shape == taken:
            output.check_written(out, "out")

    # Where there is nothing to multiply, CUDA asks for no kernel of the dtype, but for that of two vectors.
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

    # A kernel reads its inputs while others write: an output in the same memory waits for all of them.
    read = [tensor for tensor in (input, mat2, added) if tensor is not None]
    direct = (
        out is not None
        and (not folded or out.is_contiguous())
        and not any(output.shares_memory(out, tensor) for tensor in read)
    )
    result = out if direct else repetition.empty(shape, contiguous_strides(shape), dtype, device)

    if result.numel() and not dtype.is_floating_point:
        _without_product(result, added, scales)
    elif result.numel():
        matrices = result

        for dim in vectors:
            matrices = matrices.unsqueeze(dim)

        if folded:
            matrices, input = matrices.flatten(0, -2), input.flatten(0, -2)

        _launch(premake, matrices, input, mat2, added, scales)

    return output.given(out, result)


def _check_one_view(out, shape):
    """Refuse an ``out`` whose rows cannot be seen as those of one matrix, or its elements as those of one vector."""
    try:
        out.view(shape)
    except RuntimeError:
        raise RuntimeError(
            f"argument 'out' {tuple(out.shape)} with strides {out.stride()} cannot be viewed as {shape}, in which "
            "torch writes this product; give it other strides"
        ) from None


def multiplies(input, mat2):
    """Whether a product has any terms: its result may be empty, or its inner size 0."""
    return input.numel() > 0 and mat2.numel() > 0


def _without_product(result, added, scales):
    if added is None:
        result.zero_()
    else:
        check_fits(scales[1], result.dtype, "beta")
        # The factor takes the dtype, as torch has it: 2.5 is 2 for integers, and True for bool.
        factor = torch.scalar_tensor(scales[1], dtype=result.dtype, device="cpu").item()
        mul(added, factor, out=result)


@dataclasses.dataclass(frozen=True)
class Options:
    """How a product is computed: a tile of the result, how much of K at a time, and the compiler's options."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    splits: int = 1
    """The parts that K is cut into, each of which is a product of its own; then they are added up."""
    form: int = POINTERS
    """``POINTERS`` or ``HOPPER``."""


@dataclasses.dataclass(frozen=True)
class Problem(choice.Problem):
    """Products of (M, K) and (K, N) matrices.

    How many there are in a batch, and their strides, are no part of it: those change no bit of a result.
    """

    OPTIONS = Options
    SIZES = ("m", "n", "k")

    m: int
    n: int
    k: int
    dtype: torch.dtype
    ieee: bool
    """Whether float32 is multiplied as it is, not as TF32; false for other dtypes, so that they have one entry."""
    batched: bool = False
    """Whether there is a batch of products, which fills the device without splits."""
    described: bool = False
    """Whether it may be ``HOPPER``."""

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
                # Twice the parts may hide more of the latency; one is not added up.
                parts = (even, 2 * even, 1) if even > 1 else (1,)
                found += [dataclasses.replace(options, splits=one) for one in parts]

        return found

    def allows(self, options):
        if options.form == HOPPER:
            return self.described and options.splits == 1

        return options.splits == 1 or (not self.batched and self.k % (16 * options.splits) == 0)

    def resources(self, options):
        return resources(options, self.dtype)


# Tiles of few rows that take the place of the form for Hopper.
_FEW_HALF = (16, 128, 64, 4, 6)
_FEW_TF32 = (16, 64, 64, 4, 4)
_POINTS = (16, 64), (16, 16384), (33, 33), (64, 64), (65, 65), (65, 65536), (2048, 2048)


@heuristic(("m", "n"), _POINTS + mm_hopper.POINTS)
def config(m, n, k, dtype, ieee, shared_memory, multiprocessors, described=False):
    """The options of a product.

    :param m: Rows of the result.
    :param n: Columns of the result.
    :param k: Terms.
    :param dtype: The dtype of the operands.
    :param ieee: Whether float32 is multiplied as it is, not as TF32.
    :param shared_memory: What a program can have on the device, in bytes.
    :param multiprocessors: How many may be filled by splits; 0: there is a batch, which fills them.
    :param described: Whether it may be ``HOPPER``.
    """
    few = dtype is torch.float32 and not ieee and m <= 16
    # TF32 in parts of K against the form for Hopper, on an H200: M = 16, N = 4096, K = 11008 takes 52 and 61 us; N = K
    # = 8192, of twice as many tiles and so in two parts, 71 and 69 us.
    in_parts = few and _splits(m, n, k, Options(*_FEW_TF32), multiprocessors) >= 4

    if described and m * n * k >= _LARGE and not in_parts:
        found = Options(*mm_hopper.fastest(m, n, dtype, multiprocessors), form=HOPPER)
        # Where each multiprocessor has one tile at most, its start counts: M = 16, N = 11008, K = 4096 takes 27.6 us,
        # and 29.7 us in the form for Hopper (cuBLAS 28.9); N = 13824, K = 5120 takes 37.9 and 39.8 us (39.8).
        alone = (found.block_m, found.block_n) == (16, 128) and n <= 128 * multiprocessors

        return Options(*_FEW_HALF) if alone and dtype.itemsize == 2 else found

    if dtype is torch.float64:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32 and ieee:
        # IEEE products run on the plain cores, out of registers.
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32 and m >= 2048 and n >= 2048:
        # Tiles of as many bytes as those of half types; not measured yet.
        block_m, block_n, block_k, num_warps, num_stages = 128, 256, 32, 8, 4
    elif few:
        block_m, block_n, block_k, num_warps, num_stages = _FEW_TF32
    elif dtype is torch.float32:
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 32, 8, 3
    elif m >= 2048 and n >= 2048:
        # 676 TFLOP/s at 4096^3 bf16 on an H200, host time included.
        block_m, block_n, block_k, num_warps, num_stages = 128, 256, 64, 8, 4
    elif m <= 16:
        # Bound by how fast the other matrix is read: rows of 128 bytes of it, many in flight, and K in parts. Chosen
        # by that and not measured yet; tiles of 64 x 64 without parts took 22.5 us for 1 x 4096 x 4096 on an H200.
        block_m, block_n, block_k, num_warps, num_stages = 16, 64, 128, 4, 4
    elif m <= 64 or n <= 64:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 64, 4, 4
    else:
        # With a multiprocessor for each tile, 5 stages take 24.6 us where 3 take 26.3: 128 x 4096 x 4096 on an H200.
        alone = -(-m // 128) * -(-n // 128) <= multiprocessors
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 64, 8, 5 if alone else 3

    stage = (block_m + block_n) * block_k * dtype.itemsize
    num_stages = max(min(num_stages, shared_memory // stage), 1)
    options = Options(block_m, block_n, block_k, num_warps, num_stages)
    splits = _splits(m, n, k, options, multiprocessors) if dtype.itemsize == 2 or few else 1

    return dataclasses.replace(options, splits=splits)


def _splits(m, n, k, options, multiprocessors):
    """The parts of K: as many as there are multiprocessors for, but each of 1024 terms or more, and all alike."""
    programs = -(-m // options.block_m) * -(-n // options.block_n)
    # A multiprocessor takes two programs of few rows at least, which wait for memory, and of others one.
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
# A few rows are bound by how fast the other matrix is read: small tiles, for many programs, and much in flight.
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
    """What the options take. The constants were read off kernels that Triton 3.7 compiled for sm_90."""
    threads = 32 * options.num_warps
    tiles = (options.block_m + options.block_n) * options.block_k * dtype.itemsize
    sums = options.block_m * options.block_n * max(dtype.itemsize, 4) // 4 // threads

    if options.form == HOPPER:
        # Beside the groups of warps that multiply there is one that loads.
        return choice.Resources(mm_hopper.shared_memory(options, dtype), 32 + sums, threads + 128)

    # The matrix units of Hopper read tiles of 64 rows from shared memory, so those of all stages are there at once;
    # else the tiles of a stage have gone to registers when those of the last one come.
    stages = options.num_stages if options.block_m >= 64 else max(options.num_stages - 1, 1)
    # What is loaded is 16 bytes, and an address of two registers, for each thread at a time.
    addresses = 2 * -(-tiles // (16 * threads))

    return choice.Resources(tiles * stages, 32 + sums + addresses, threads)


def _launch(premake, result, input, mat2, added, scales, chosen=None):
    """Launch a product; where ``chosen`` is ``None``, the configuration is chosen here."""
    ieee = torch.get_float32_matmul_precision() == "highest"
    index = result.device.index or 0
    batch, _ = _collapsed_batch(result, input, mat2)
    described = settled("described", mm_hopper.takes(result, input, ieee, len(batch), index))

    if chosen is None:
        # A product of batches that broadcast is that of bmm, or of mm.
        name = premake.__module__.rpartition(".")[2]
        name = name if name != "matmul" else "bmm" if batch else "mm"
        sizes = *result.shape[-2:], input.shape[-1]
        problem = Problem(*sizes, input.dtype, ieee and input.dtype is torch.float32, bool(batch), described)
        run = functools.partial(_launch, premake, input=input, mat2=mat2, added=added, scales=scales)
        chosen = choice.choose(name, problem, index, run, result)

    if input.dtype is torch.float32 and not ieee and choice.device(index).hopper:
        if chosen.form == HOPPER or min(result.shape[-2:]) >= _COPIED:
            input = _k_major(input)

        if chosen.form != HOPPER and min(result.shape[-2:]) >= _COPIED:
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

    if chosen.form == HOPPER:
        with on_device(result.device):
            mm_hopper.launch(chosen, index, *views.values(), added, numbers)

        return

    if added is not None:
        views["added"] = added

    partial = None

    if chosen.splits > 1:
        partial = repetition.empty(
            (chosen.splits, *result.shape[-2:]),
            contiguous_strides((chosen.splits, *result.shape[-2:])),
            accumulate_dtype(result.dtype),
            result.device,
        )
        premake, arguments, views = mm.premake, {"batch": 1}, _parts(partial, views)

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
    """(*, M, K) with K innermost, copied where it is not, though not along a dim that repeats it.

    Hopper's matrix units take tiles of 32-bit elements with K innermost only, and what is not is turned while it is
    loaded, 4 bytes at a time: mm of 4096^3 took 1706 us on an H200, 5 times as long as cuBLAS. A copy moves 128 MiB.
    """
    if matrices.stride(-1) == 1:
        return matrices

    batch = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in matrices.stride()[:-2])
    return matrices[batch].contiguous().expand(matrices.shape)


def _parts(partial, views):
    """The operands of a product as those of a batch of products, each of a part of the terms."""
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

    repetition.launch(
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
    """The batch dims merged where all can walk them as one; none for single matrices."""
    shape = tensors[0].shape[:-2]

    if not shape:
        return (), [() for _ in tensors]

    return collapse(shape, [tensor.stride()[:-2] for tensor in tensors])
