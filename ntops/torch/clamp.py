import functools

import torch

from ntops.host.arguments import check_fits, check_operands, check_tensor
from ntops.host.elementwise import elementwise
from ntops.host.promotion import accumulate_dtype, result_dtype
from ntops.kernels.clamp import premake
from ntops.launch.recorder import repeatable


@repeatable
def clamp(input, min=None, max=None, *, out=None):
    """Compute ``min(max(input, min), max)`` elementwise, as :func:`torch.clamp` does; NaN of any operand stays.

    :param input: A tensor of any shape.
    :param min: The lower bound: a tensor that broadcasts with ``input``, a number, or ``None``.
    :param max: The upper bound likewise; where it is less than ``min``, it is the result.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap; with numbers for
        bounds it has the very dtype of the result.
    :return: A tensor of the broadcast shape and the promoted dtype.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: There is no bound, or one that the dtype does not hold; shapes, devices or ``out`` do not
        fit.
    :raises NotImplementedError: A bool result, unless the only bound is a tensor; complex, sparse, quantized or
        nested operands.
    """
    check_tensor(input, "input")
    bounds = {name: bound for name, bound in (("min", min), ("max", max)) if bound is not None}

    if not bounds:
        raise RuntimeError("arguments 'min' and 'max' are both None; give at least one bound")

    check_operands(**bounds)
    numbers = any(not isinstance(bound, torch.Tensor) for bound in bounds.values())

    for name, bound in bounds.items():
        if numbers and isinstance(bound, torch.Tensor):
            if bound.ndim:
                raise TypeError(f"argument '{name}' is a tensor and the other bound a number; give two of one kind")

            # As in torch, a 0-d tensor beside a number counts as a number.
            bounds[name] = bound.item()

    dtype = _number_dtype(input, bounds) if numbers else _tensor_dtype(input, *bounds.values())

    if dtype is torch.bool and (numbers or len(bounds) == 2):
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
        exact_out=numbers,
        compute_dtype=accumulate_dtype(dtype),
        bound=names[next(iter(bounds))] if len(bounds) == 1 else None,
    )


def _number_dtype(input, bounds):
    return functools.reduce(torch.promote_types, (result_dtype(input, bound) for bound in bounds.values()))


def _tensor_dtype(*tensors):
    """Return the dtype to which torch promotes tensors; a 0-d tensor counts if it has a higher category."""
    if all(tensor.dtype is tensors[0].dtype for tensor in tensors):
        return tensors[0].dtype

    kinds = [[tensor.dtype for tensor in tensors if bool(tensor.ndim) is wide] for wide in (True, False)]
    first, *others = (functools.reduce(torch.promote_types, kind) for kind in kinds if kind)
    return torch.result_type(torch.empty(1, dtype=first), torch.empty((), dtype=others[0])) if others else first
