"""Check the arguments of reductions: dims, ``keepdim``, ``dtype=`` and ``out=``, with torch's errors."""

import functools
import inspect
import math
import operator
from typing import Any

import torch

from ntops.host import output
from ntops.host.arguments import DTYPES, check_tensor, common_device
from ntops.host.dim_order import contiguous_strides
from ntops.launch import boundary, recorder

# torch's names for the sake of NumPy.
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


def called_as_in_torch(*beside_dim):
    """Return a decorator of a function with ``dim``: calls may name it ``axis``, and ``keepdim`` ``keepdims``.

    The result has the function's signature, and its attribute ``decorate`` does the same for another function.

    :param beside_dim: The arguments that torch takes only if ``dim`` is given.
    """

    def decorate(function):
        def call(*args, **kwargs):
            for alias, name in _ALIASES.items():
                if alias in kwargs:
                    if name in kwargs:
                        raise TypeError(f"argument '{name}' is given twice, also as '{alias}'")

                    kwargs[name] = kwargs.pop(alias)

            for name in beside_dim:
                # The dispatcher leaves out a dim of None.
                if name in kwargs and len(args) < 2 and "dim" not in kwargs and not boundary.is_inside():
                    raise TypeError(f"argument 'dim' must be given with '{name}'; None means all dims")

            return function(*args, **kwargs)

        return call

    def decorated(function):
        call: Any = functools.update_wrapper(decorate(function), function)
        # For inspect.unwrap the function is this one.
        del call.__wrapped__
        call.__signature__ = inspect.signature(function)
        call.decorate = decorate
        return call

    return decorated


def dims_of(dim, ndim):
    """Return the dims that are reduced, in ascending order; ``None`` and no dims mean all.

    :raises TypeError: ``dim`` is no int, and no tuple or list of ints.
    :raises IndexError: A dim is out of range.
    :raises RuntimeError: A dim is named twice.
    """
    dims = [*dim] if isinstance(dim, (tuple, list)) else [] if dim is None else [dim]
    found = [dim_of(one, ndim) for one in dims]

    if twice := [one for one in found if found.count(one) > 1]:
        raise RuntimeError(f"argument 'dim' names dim {twice[0]} twice")

    return sorted(found) if found else [*range(ndim)]


def dim_of(dim, ndim):
    """Return one dim as a number from 0; a 0-d tensor has a dim 0.

    :raises TypeError: It is no int.
    :raises IndexError: It is out of range.
    """
    try:
        place = operator.index(dim)
    except TypeError:
        place = None

    if place is None or isinstance(dim, bool):
        raise TypeError(f"argument 'dim' must be an int or ints, not {type(dim).__name__}")

    bound = max(ndim, 1)

    if not -bound <= place < bound:
        raise IndexError(f"argument 'dim' must be from {-bound} to {bound - 1} for a {ndim}-d tensor, not {place}")

    return place % bound


def result_of(input, dims, keepdim, dtype, out):
    """Return the tensor that a kernel writes, without the reduced dims, and what the call returns after it was written.

    :param dims: The reduced dims.
    :param dtype: The dtype of the result, which ``out`` must have.
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :raises TypeError: ``keepdim`` is no bool.
    """
    if not isinstance(keepdim, bool):
        raise TypeError(f"argument 'keepdim' must be a bool, not {type(keepdim).__name__}")

    device = common_device({"input": input})
    kept = [size for dim, size in enumerate(input.shape) if dim not in dims]
    shape = torch.Size([1 if dim in dims else size for dim, size in enumerate(input.shape)] if keepdim else kept)

    if out is None:
        result = recorder.empty(shape, contiguous_strides(shape), dtype, device)
    else:
        output.check_out(out, dtype, device, exact_dtype=True)
        output.check_written(out, "out", shape)
        output.resize_out(out, shape, contiguous_strides(shape))
        # The input is read until all of the result is written.
        result = torch.empty(shape, dtype=dtype, device=device) if output.shares_memory(out, input) else out

    strides = [stride for dim, stride in enumerate(result.stride()) if not keepdim or dim not in dims]
    return (result.as_strided(kept, strides) if keepdim else result), result


def result_dtype(dtype, out, default):
    """Return the dtype of a result: the one named, else that of ``out``, else ``default``.

    :raises TypeError: ``dtype`` is none.
    :raises NotImplementedError: It is a dtype without kernels.
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"argument 'dtype' must be a torch.dtype or None, not {type(dtype).__name__}")

    if dtype is None and out is not None:
        check_tensor(out, "out")

    dtype = dtype or (default if out is None else out.dtype)

    if dtype not in DTYPES:
        raise NotImplementedError(f"argument 'dtype' is {dtype}, which this operator leaves out")

    return dtype


def floating_dtype(name, dtype, out, default):
    """Return the dtype of a result that must be floating-point; see :func:`result_dtype`.

    :raises RuntimeError: It is not.
    """
    dtype = result_dtype(dtype, out, default)

    if not dtype.is_floating_point:
        raise RuntimeError(f"{name} of {dtype} is not defined; give a floating-point 'dtype' to cast to")

    return dtype


def check_elements(input, dim, error=RuntimeError):
    """Refuse to reduce no elements.

    :param error: The class of the error if no dim is named.
    """
    if input.numel():
        return

    if dim is None or dim == () or dim == []:
        raise error("argument 'input' has no elements, of which there is no result; name a 'dim' that has some")

    for one in dims_of(dim, input.ndim):
        if not input.shape[one]:
            raise IndexError(f"argument 'dim' names dim {one}, which has no elements, and these have no result")


def limits(dtype):
    """Return the least and the greatest element of a dtype."""
    if dtype is torch.bool:
        return 0, 1

    info = None if dtype.is_floating_point else torch.iinfo(dtype)
    return (info.min, info.max) if info else (-math.inf, math.inf)
