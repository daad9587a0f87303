import operator

import torch

from ntops.host.arguments import check_tensor, common_device
from ntops.host.iteration import collapse, specialize
from ntops.host.launch import next_power_of_2, on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels.softmax import premake
from ntops.torch.utils import Config, make

# Longer rows are walked tile by tile; up to here a row stays in registers.
_LONGEST_TILE = 16384


def softmax(input, dim, dtype=None):
    """``exp(input) / sum(exp(input))`` over ``dim``, as :func:`torch.nn.functional.softmax`.

    :param input: A floating-point tensor of any shape and strides.
    :param dim: The dim whose elements sum to 1.
    :param dtype: The dtype to which ``input`` is cast first; then it may be of any dtype.
    :return: A contiguous tensor of the shape of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: ``dim`` is out of range.
    :raises NotImplementedError: A result that is no floating-point type; a complex, sparse, quantized or nested
        ``input``, or one that requires grad.
    """
    check_tensor(input, "input")
    dim = _dim(dim, input.ndim)

    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"argument 'dtype' must be a torch.dtype or None, not {type(dtype).__name__}")

    dtype = dtype or input.dtype

    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise NotImplementedError(f"softmax of {dtype} is not defined; give a floating-point 'dtype' to cast to")

    device = common_device({"input": input})

    if not input.dtype.is_floating_point:
        # The kernel pads rows with -inf, which integers do not have.
        input = input.to(dtype)

    output = torch.empty(input.shape, dtype=dtype, device=device)

    if output.numel():
        _launch(output, input, dim)

    return output


def config(columns):
    """The configuration for rows of ``columns`` elements, and whether a row is walked tile by tile."""
    block_columns = min(max(next_power_of_2(columns), 16), _LONGEST_TILE)
    # A tile of about 4096 elements keeps a program busy; narrow rows share one.
    block_rows = max(4096 // block_columns, 1)
    num_warps = 4 if block_columns <= 4096 else 8 if block_columns <= 8192 else 16

    return Config((("block_rows", block_rows), ("block_columns", block_columns)), num_warps), columns > _LONGEST_TILE


def _dim(dim, ndim):
    if isinstance(dim, (bool, float)):
        raise TypeError(f"argument 'dim' must be an int, not {type(dim).__name__}")

    try:
        dim = operator.index(dim)
    except TypeError:
        raise TypeError(f"argument 'dim' must be an int, not {type(dim).__name__}") from None

    bound = max(ndim, 1)

    if not -bound <= dim < bound:
        raise IndexError(f"argument 'dim' must be from {-bound} to {bound - 1} for a {ndim}-d tensor, not {dim}")

    return dim % bound


def _launch(output, input, dim):
    if input.ndim == 0:
        output, input = output.view(1), input.view(1)

    columns = input.shape[dim]
    batch = [other for other in range(input.ndim) if other != dim]
    shape, strides = collapse(
        [input.shape[other] for other in batch],
        [[tensor.stride(other) for other in batch] for tensor in (output, input)],
    )
    views = {
        name: tensor.as_strided((*shape, columns), (*own, tensor.stride(dim)))
        for (name, tensor), own in zip({"output": output, "input": input}.items(), strides, strict=True)
    }
    chosen, looped = config(columns)
    kernel = make(premake, {"ndim": len(shape) + 1, "looped": looped}, chosen, specialize(views))

    with on_device(output.device):
        kernel(*views.values(), TRITON_DTYPES[accumulate_dtype(output.dtype)])
