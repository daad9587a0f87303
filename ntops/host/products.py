"""Matrix products: shapes, ``out=``, configurations and the launch."""

import torch

from ntops.host import output, repetition
from ntops.host.arguments import check_fits, check_tensor, common_device
from ntops.host.configuration import heuristic
from ntops.host.iteration import collapse, contiguous_strides, specialize
from ntops.host.launch import on_device, shared_memory
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.torch.mul import mul
from ntops.torch.utils import Config, make


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


def product(premake, shape, input, mat2, out=None, *, vectors=(), added=None, scales=None):
    """The product of two matrices or of a batch of each, written to ``out`` or to a new tensor.

    :param premake: The kernel's ``premake``.
    :param shape: The shape of the result, (*batch, M, N).
    :param input: (*batch, M, K).
    :param mat2: (*batch, K, N).
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :param vectors: The dims, from the end, that the result lacks since an operand was a vector.
    :param added: What ``addmm`` adds, of the shape of the result, or ``None``.
    :param scales: The factors of the product and of ``added``, for ``addmm``.
    :raises NotImplementedError: The dtype is not floating-point, and there is something to multiply.
    """
    dtype, device = input.dtype, input.device

    if out is not None:
        output.check_out(out, dtype, device, exact_dtype=True)
        output.check_written(out, "out")

    # Where there is nothing to multiply, CUDA asks for no kernel of the dtype, but for that of two vectors.
    if not dtype.is_floating_point and (multiplies(input, mat2) or len(vectors) == 2):
        raise NotImplementedError(
            f"products of {dtype} matrices do not exist on CUDA; cast them to a floating-point type"
        )

    if out is not None:
        output.resize_out(out, shape, contiguous_strides(shape))

    # A kernel reads its inputs while others write: an output in the same memory waits for all of them.
    read = [tensor for tensor in (input, mat2, added) if tensor is not None]
    direct = out is not None and not any(output.shares_memory(out, tensor) for tensor in read)
    result = out if direct else repetition.empty(shape, contiguous_strides(shape), dtype, device)

    if result.numel() and not dtype.is_floating_point:
        _without_product(result, added, scales)
    elif result.numel():
        matrices = result

        for dim in vectors:
            matrices = matrices.unsqueeze(dim)

        _launch(premake, matrices, input, mat2, added, scales)

    if out is not None and not direct:
        out.copy_(result)

    return result if out is None else out


def multiplies(input, mat2):
    """Whether a product has any terms: its result may be empty, or its inner size 0."""
    return input.numel() > 0 and mat2.numel() > 0


def _without_product(result, added, scales):
    if added is None:
        result.zero_()
    else:
        check_fits(scales[1], result.dtype, "beta")
        # The factor takes the dtype, as torch has it: 2.5 is 2 for integers, and True for bool.
        mul(added, torch.scalar_tensor(scales[1], dtype=result.dtype).item(), out=result)


@heuristic(("m", "n"), ((64, 64), (65, 65), (2048, 2048)))
def config(m, n, dtype, ieee, shared_memory):
    """The configuration of a product.

    :param m: Rows of the result.
    :param n: Columns of the result.
    :param dtype: The dtype of the operands.
    :param ieee: Whether float32 is multiplied as it is, not as TF32.
    :param shared_memory: What a program can have on the device, in bytes.
    """
    if dtype is torch.float64:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32 and ieee:
        # IEEE products run on the plain cores, out of registers.
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32:
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 32, 8, 3
    elif m >= 2048 and n >= 2048:
        # 676 TFLOP/s at 4096^3 bf16 on an H200, host time included.
        block_m, block_n, block_k, num_warps, num_stages = 128, 256, 64, 8, 4
    elif m <= 64 or n <= 64:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 64, 4, 4
    else:
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 64, 8, 3

    stage = (block_m + block_n) * block_k * dtype.itemsize
    num_stages = max(min(num_stages, shared_memory // stage), 1)
    blocks = (("block_size_m", block_m), ("block_size_n", block_n), ("block_size_k", block_k))

    return Config(blocks, num_warps, num_stages)


def _launch(premake, result, input, mat2, added, scales):
    ieee = torch.get_float32_matmul_precision() == "highest"
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
        views |= {"added": added} if added is not None else {}
        number_type = scalar_type(result.dtype)
        arguments = {"with_input": added is not None, "scalars": tuple((name, number_type) for name in names)}

    limit = shared_memory(result.device.index or 0)
    chosen = config(result.shape[-2], result.shape[-1], input.dtype, ieee, limit)
    kernel = make(premake, arguments, chosen, specialize(views))
    constants = (TRITON_DTYPES[accumulate_dtype(result.dtype)], "ieee" if ieee else "tf32")

    with on_device(result.device):
        kernel(*views.values(), *numbers, *constants)


def _collapsed_batch(*tensors):
    """The batch dims merged where all can walk them as one; none for single matrices."""
    shape = tensors[0].shape[:-2]

    if not shape:
        return (), [() for _ in tensors]

    return collapse(shape, [tensor.stride()[:-2] for tensor in tensors])
