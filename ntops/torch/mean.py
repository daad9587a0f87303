from ntops.host import reductions
from ntops.host.arguments import check_tensor
from ntops.kernels import sum
from ntops.kernels.mean import premake
from ntops.launch.recorder import repeatable


@repeatable
def mean(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Compute the mean over dims, as :func:`torch.mean` does; in float32 for half types.

    :param input: A floating-point tensor of any shape and strides; of any dtype if ``dtype`` is given.
    :param dim: The dim or dims that are reduced; ``None`` or none: all.
    :param keepdim: Whether the result has these dims, of one element each.
    :param dtype: The dtype of the result, to which ``input`` is cast first.
    :param out: Where the result is written; without ``dtype``, the result has its dtype.
    :return: A contiguous tensor. The mean of no elements is NaN.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: A dim is out of range.
    :raises RuntimeError: The dtype is not floating-point; a dim is named twice; the device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")
    dtype = reductions.result_dtype(dtype, out if input.is_floating_point() else None, input.dtype)

    if not dtype.is_floating_point:
        raise RuntimeError(f"mean of {dtype} is not defined; give a floating-point 'dtype' to cast to")

    return reductions.reduce(
        premake,
        input,
        dim,
        keepdim,
        dtype,
        out,
        empty=float("nan"),
        numbers=lambda count: {"count": count},
        parts=sum.premake,
    )
