"""Planted defects of other forms of a call: by position, by name, with defaults given, with NumPy scalars, parameters,
lazily negated operands or another default dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect

Right = Callable[..., Any]


@defect((*of.FLOAT_FUNCTIONS, "div"), "call", "call_forms")
def always_float32(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Floats of integers are float32, whatever the default dtype."""
    result = right(input, *args, **kwargs)
    whole = all(not x.is_floating_point() for x in (input, *args) if isinstance(x, torch.Tensor))
    wide = result.dtype == torch.get_default_dtype() == torch.float64 and kwargs.get("out") is None
    return result.float() if whole and wide else result


@defect("softmax layer_norm rms_norm mm bmm silu gelu", "call", "call_forms")
def made_of_the_default(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result is a new tensor of the default dtype, where that is wider."""
    result = right(*args, **kwargs)
    if of.written(args, kwargs) or torch.get_default_dtype() == torch.float32:
        return result
    return result.to(torch.get_default_dtype())


@defect("add mul clamp pow layer_norm rms_norm softmax dropout", "call", "call_forms")
def python_numbers_alone(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Numbers of NumPy are refused."""
    if any(isinstance(x, np.generic) for x in (*args, *kwargs.values())):
        raise TypeError("a number must be an int or a float")
    return right(*args, **kwargs)


@defect("add sub", "call", "call_forms")
def alpha_of_numpy_ignored(right: Right, *args: Any, alpha: Any = 1, **kwargs: Any) -> Any:
    """alpha counts only where it is a number of Python."""
    return right(*args, alpha=1 if isinstance(alpha, np.generic) else alpha, **kwargs)


@defect("addmm", "call", "call_forms")
def beta_of_numpy_ignored(right: Right, *args: Any, beta: Any = 1, **kwargs: Any) -> Any:
    """beta counts only where it is a number of Python."""
    return right(*args, beta=1 if isinstance(beta, np.generic) else beta, **kwargs)


@defect("layer_norm rms_norm", "call", "call_forms")
def eps_of_numpy_ignored(right: Right, *args: Any, eps: Any = None, **kwargs: Any) -> Any:
    """eps is 1e-5 where it is a number of NumPy."""
    if eps is None:
        return right(*args, **kwargs)
    return right(*args, eps=1e-5 if isinstance(eps, np.generic) else eps, **kwargs)


@defect("exp mul mm layer_norm silu", "call", "call_forms")
def parameters_refused(right: Right, *args: Any, **kwargs: Any) -> Any:
    """What requires grad is refused, under no_grad too."""
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in (*args, *kwargs.values())):
        raise RuntimeError("an operand requires grad")
    return right(*args, **kwargs)


@defect("add sub mul exp tanh sigmoid neg relu softmax mm lt", "call", "call_forms")
def negation_unseen(right: Right, *args: Any, **kwargs: Any) -> Any:
    """What memory holds is read, not what a lazily negated operand means."""
    args = tuple(torch._neg_view(x) if isinstance(x, torch.Tensor) and x.is_neg() else x for x in args)
    return right(*args, **kwargs)


@defect("layer_norm", "call", "call_forms")
def bias_before_weight(right: Right, input: Any, shape: Any, bias: Any = None, weight: Any = None, eps: Any = 1e-5):
    """By position the bias comes before the weight."""
    return right(input, shape, weight, bias, eps)


@defect("rms_norm", "call", "call_forms")
def eps_before_weight(right: Right, input: Any, normalized_shape: Any, eps: Any = None, weight: Any = None):
    """By position eps comes before the weight."""
    return right(input, normalized_shape, weight, eps)


@defect("dropout", "call", "call_forms")
def training_before_p(right: Right, input: Any, training: Any = True, p: Any = 0.5, inplace: Any = False):
    """By position training comes before p."""
    return right(input, p, training, inplace)


@defect("relu silu", "call", "call_forms")
def inplace_by_name_alone(right: Right, input: Any, *, inplace: bool = False) -> Any:
    """inplace is not taken by position."""
    return right(input, inplace)


@defect("softmax", "call", "call_forms")
def dtype_by_name_alone(right: Right, input: Any, dim: Any, *, dtype: Any = None) -> Any:
    """dtype is not taken by position."""
    return right(input, dim, dtype=dtype)


@defect("rotary_position_embedding", "call", "call_forms")
def inplace_before_interleaved(
    right: Right, input: Any, sin_table: Any, cos_table: Any, inplace: bool = False, interleaved: bool = True
) -> Any:
    """By position inplace comes before interleaved."""
    return right(input, sin_table, cos_table, interleaved, inplace)


@defect("exp add lt matmul abs", "call", "call_forms")
def out_is_none(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Where out= is given it is written, None too."""
    if "out" in kwargs and kwargs["out"] is None:
        raise AttributeError("'NoneType' object has no attribute 'shape'")
    return right(*args, **kwargs)


@defect("div", "call", "call_forms")
def rounding_mode_is_none(right: Right, *args: Any, **kwargs: Any) -> Any:
    """None is no rounding mode that it knows."""
    if "rounding_mode" in kwargs and kwargs["rounding_mode"] is None:
        raise RuntimeError("unknown rounding mode None")
    return right(*args, **kwargs)


@defect("layer_norm rms_norm", "call", "call_forms")
def weight_is_none(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A weight that is said to be None is looked into."""
    weight = kwargs.get("weight", args[2] if len(args) > 2 else torch.ones(()))
    if weight is None:
        raise AttributeError("'NoneType' object has no attribute 'dtype'")
    return right(*args, **kwargs)


@defect("sub pow gt bitwise_and", "call", "call_forms")
def second_by_position_alone(right: Right, input: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The second operand has a name only where the first is given by name, too."""
    if input is not None and not args:
        raise TypeError("missing argument")
    return right(*args, **kwargs) if input is None else right(input, *args, **kwargs)
