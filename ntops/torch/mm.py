import torch

from ntops.host import output
from ntops.host.arguments import check_tensor, common_device
from ntops.host.iteration import contiguous_strides, specialize
from ntops.host.launch import on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels.mm import premake
from ntops.torch.utils import Config, make


def mm(input, mat2, *, out=None):
    """The product of two matrices, as :func:`torch.mm`.

    Half types accumulate in float32. Float32 follows :func:`torch.get_float32_matmul_precision` at the time of the
    call: "highest" is IEEE, anything else TF32.

    :param input: A floating-point tensor, (M, K).
    :param mat2: A tensor of the same dtype, (K, N).
    :param out: Where the result is written; it has the very dtype of the operands.
    :return: A tensor, (M, N).
    :raises TypeError: An argument is no tensor.
    :raises RuntimeError: Shapes, dtypes, devices or ``out`` do not fit.
    :raises NotImplementedError: Integer, bool, complex, sparse, quantized or nested operands, or one that requires
        grad.
    """
    check_tensor(input, "input")
    check_tensor(mat2, "mat2")

    for name, matrix in (("input", input), ("mat2", mat2)):
        if matrix.ndim != 2:
            raise RuntimeError(f"argument '{name}' must be a matrix, not a {matrix.ndim}-d tensor")

    if input.shape[1] != mat2.shape[0]:
        raise RuntimeError(
            f"arguments 'input' {tuple(input.shape)} and 'mat2' {tuple(mat2.shape)} cannot be multiplied: "
            f"{input.shape[1]} columns against {mat2.shape[0]} rows"
        )

    if input.dtype is not mat2.dtype:
        raise RuntimeError(f"arguments 'input' and 'mat2' must have one dtype, not {input.dtype} and {mat2.dtype}")

    device = common_device({"input": input, "mat2": mat2})
    shape = torch.Size((input.shape[0], mat2.shape[1]))

    if out is not None:
        output.check_out(out, input.dtype, device, exact_dtype=True)
        output.check_written(out, "out")

    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f"products of {input.dtype} matrices do not exist on CUDA; cast them to a floating-point type"
        )

    if out is not None:
        output.resize_out(out, shape, contiguous_strides(shape))

    # A kernel reads its inputs while others write: an output in the same memory waits for all of them.
    direct = out is not None and not output.shares_memory(out, input) and not output.shares_memory(out, mat2)
    result = out if direct else torch.empty(shape, dtype=input.dtype, device=device)

    if input.shape[1] == 0:
        result.zero_()
    elif result.numel():
        _launch(result, input, mat2)

    if out is not None and not direct:
        out.copy_(result)

    return result if out is None else out


def config(m, n, dtype, ieee):
    """The configuration of a product whose result is (m, n)."""
    if dtype is torch.float64:
        return _config(64, 64, 16, 4, 3)

    if dtype is torch.float32:
        # IEEE products run on the plain cores, out of registers.
        return _config(64, 64, 16, 4, 3) if ieee else _config(128, 128, 32, 8, 3)

    if m >= 2048 and n >= 2048:
        return _config(128, 256, 64, 8, 4)  # 721 TFLOP/s at 4096^3 bf16 on an H200, the best of those probed

    return _config(64, 64, 64, 4, 4) if m <= 64 or n <= 64 else _config(128, 128, 64, 8, 3)


def _config(block_m, block_n, block_k, num_warps, num_stages):
    blocks = (("block_size_m", block_m), ("block_size_n", block_n), ("block_size_k", block_k))
    return Config(blocks, num_warps, num_stages)


def _launch(result, input, mat2):
    ieee = torch.get_float32_matmul_precision() == "highest"
    views = {"output": result, "input": input, "mat2": mat2}
    chosen = config(result.shape[0], result.shape[1], input.dtype, ieee)
    kernel = make(premake, {}, chosen, specialize(views))

    with on_device(result.device):
        kernel(*views.values(), TRITON_DTYPES[accumulate_dtype(result.dtype)], "ieee" if ieee else "tf32")
