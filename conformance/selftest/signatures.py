"""Planted defects of signatures: arguments that torch refuses are taken, or a dtype is another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.selftest.contexts import Right
from conformance.selftest.defect_registry import defect

_KIND, _CHECK = "signature", "signature"


@defect("gelu abs layer_norm", _KIND, _CHECK)
def swallows_keywords(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Keywords that nobody knows are ignored."""
    known = {"approximate", "out", "weight", "bias", "eps", "input", "normalized_shape"}
    return right(*args, **{name: value for name, value in kwargs.items() if name in known})


@defect("mul", _KIND, _CHECK)
def out_by_position(right: Right, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """``out`` is taken as the last positional argument, too."""
    return right(input, other, **kwargs, **dict(zip(("out",), args, strict=False)))


@defect("amax amin sum logsumexp", _KIND, _CHECK)
def any_iterable_of_dims(right: Right, input: Any, dim: Any = (), *args: Any, **kwargs: Any) -> Any:
    """Sets, ranges and generators of dims are taken."""
    named = isinstance(dim, int | tuple | list | str | bytes | torch.Tensor | np.ndarray | None)
    return right(input, dim if named else tuple(dim), *args, **kwargs)


@defect("softmax cumsum", _KIND, _CHECK)
def dims_are_cut_to_whole_numbers(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """A dim that is a float is cut to a whole number."""
    return right(input, int(dim) if isinstance(dim, float) else dim, *args, **kwargs)


@defect("cumsum relu add", _KIND, _CHECK)
def takes_arrays(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Arrays of NumPy are taken for tensors."""
    return right(*(torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in args), **kwargs)


@defect("exp cos amax", _KIND, _CHECK)
def takes_float8(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Operands of float8, for which torch has no kernel, are computed in float32."""
    dtype = input.dtype if isinstance(input, torch.Tensor) else None
    if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        return right(input, *args, **kwargs)
    return right(input.float(), *args, **kwargs).to(dtype)


@defect("sum cumsum", _KIND, _CHECK)
def types_of_python_as_in_c(right: Right, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """``float`` and ``int`` as a dtype are those of C."""
    given = {float: torch.float32, int: torch.int32}.get(dtype, dtype)
    return right(*args, dtype=given, **kwargs) if given is not None else right(*args, **kwargs)


@defect("amax mean", _KIND, _CHECK)
def flags_are_anything_true(right: Right, input: Any, dim: Any = None, keepdim: Any = False, **kwargs: Any) -> Any:
    """Whatever is true counts as ``keepdim``."""
    dims = () if dim is None else (dim,)
    return right(input, *dims, keepdim=bool(keepdim), **kwargs) if dims or keepdim else right(input, **kwargs)


@defect("neg", _KIND, _CHECK)
def written_before_it_is_refused(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The operand is overwritten before a call is refused."""
    try:
        return right(input, *args, **kwargs)
    except TypeError:
        if isinstance(input, torch.Tensor) and input.numel() and not input.requires_grad:
            input.zero_()
        raise
