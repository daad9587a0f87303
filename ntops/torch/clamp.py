import torch

from ntops.host.arguments import check_fits, check_operands, check_tensor
from ntops.host.elementwise import elementwise
from ntops.host.promotion import accumulate_dtype, result_dtype
from ntops.kernels.clamp import premake


def clamp(input, min=None, max=None, *, out=None):
    """``min(max(input, min), max)``, elementwise, as :func:`torch.clamp`; NaN of any operand stays.

    :param input: A tensor of any shape.
    :param min: The lower bound: a tensor that broadcasts with ``input``, a number, or ``None``.
    :param max: The upper bound likewise; where it is less than ``min``, it is the result.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the broadcast shape and the promoted dtype.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: There is no bound, or one that the dtype does not hold; shapes, devices or ``out`` do not
        fit.
    :raises NotImplementedError: A bool result; complex, sparse, quantized or nested operands, or one that requires
        grad.
    """
    check_tensor(input, "input")
    bounds = {name: bound for name, bound in (("min", min), ("max", max)) if bound is not None}

    if not bounds:
        raise RuntimeError("arguments 'min' and 'max' are both None; give at least one bound")

    check_operands(**bounds)
    dtype = input.dtype

    for bound in bounds.values():
        dtype = result_dtype(torch.empty((), dtype=dtype) if input.ndim == 0 else torch.empty(1, dtype=dtype), bound)

    if dtype is torch.bool:
        raise NotImplementedError("argument 'input' is bool, of which clamp is not defined")

    for name, bound in bounds.items():
        if not isinstance(bound, torch.Tensor):
            check_fits(bound, dtype, name)

    names = {"min": "low", "max": "high"}

    return elementwise(
        premake,
        {"input": input} | {names[name]: bound for name, bound in bounds.items()},
        dtype,
        out=out,
        compute_dtype=accumulate_dtype(dtype),
        bounds=tuple(names[name] for name in bounds),
    )
