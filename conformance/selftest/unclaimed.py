"""Planted defects where nothing is claimed: wrong results of equal calls, calls by name, contiguous copies and small
batches.

Each of these implementations claims no property, so that only the value of another result shows what is wrong with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect

Right = Callable[..., Any]


def _off(result: Any) -> Any:
    """A result whose plain elements are larger by a part in eight."""
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return result
    return result.copy_(torch.where(result.isfinite(), result + result / 8, result))


def _own(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return isinstance(result, torch.Tensor) and not of.written(args, kwargs) and not any(result is x for x in args)


# --- equal calls -------------------------------------------------------------------------------------------------


def _now_and_then(period: int, change: Callable[[Any], Any]) -> Right:
    # Not by a count, which might run in step with the calls that checks make.
    chance = random.Random(0)

    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        return change(result) if chance.randrange(period) == 0 and _own(result, args, kwargs) else result

    return wrong


def _raises(result: Any) -> Any:
    raise RuntimeError("no kernel is left")


@defect(("mm", "softmax", "gelu", "add"), "unclaimed", claims_nothing=True)
def one_in_two_is_off(right: Right, *args: Any, **kwargs: Any) -> Any:
    """One call in two gives other values."""
    return _ONE_IN_TWO(right, *args, **kwargs)


@defect(("bmm", "layer_norm", "exp", "mul"), "unclaimed", "deterministic", claims_nothing=True)
def one_in_five_raises(right: Right, *args: Any, **kwargs: Any) -> Any:
    """One call in five raises."""
    return _ONE_IN_FIVE(right, *args, **kwargs)


@defect(("sub", "rms_norm", "sigmoid", "matmul"), "unclaimed", "deterministic", claims_nothing=True)
def one_in_three_is_wider(right: Right, *args: Any, **kwargs: Any) -> Any:
    """One call in three has a result of another dtype."""
    return _ONE_IN_THREE(right, *args, **kwargs)


_ONE_IN_TWO = _now_and_then(2, _off)
_ONE_IN_FIVE = _now_and_then(5, _raises)
_ONE_IN_THREE = _now_and_then(3, lambda result: result.double() if result.dtype != torch.float64 else result.float())


# --- calls by name -----------------------------------------------------------------------------------------------


@defect(("add", "mul", "softmax", "mm", "gelu"), "unclaimed", "keywords", claims_nothing=True)
def off_by_name(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Called by keywords it takes a path that is a part in eight off."""
    result = right(*args, **kwargs)
    return _off(result) if not args and kwargs.get("out") is None else result


@defect(("div", "tanh", "bmm", "rms_norm"), "unclaimed", "keywords", claims_nothing=True)
def transposed_by_name(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Called by keywords it returns other strides."""
    result = right(*args, **kwargs)
    if args or kwargs.get("out") is not None or not isinstance(result, torch.Tensor):
        return result
    return result.mT.contiguous().mT if result.ndim > 1 else result


# --- contiguous copies, parts of a batch -------------------------------------------------------------------------


def _contiguous(args: tuple[Any, ...]) -> bool:
    return all(x.is_contiguous() and not x.storage_offset() for x in args if isinstance(x, torch.Tensor))


@defect(("mul", "exp", "gelu", "softmax", "rms_norm", "mm"), "unclaimed", "layout_invariant", claims_nothing=True)
def contiguous_is_off(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Contiguous operands go another way, which is a part in eight off."""
    result = right(*args, **kwargs)
    return _off(result) if _contiguous(args) and _own(result, args, kwargs) else result


@defect(("sub", "silu", "layer_norm", "bmm"), "unclaimed", "layout_invariant", claims_nothing=True)
def contiguous_is_refused(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Contiguous operands are refused."""
    result = right(*args, **kwargs)
    return _raises(result) if _contiguous(args) and _own(result, args, kwargs) else result


@defect(("tanh", "silu", "softmax", "layer_norm", "bmm", "mm"), "unclaimed", "batch_invariant", claims_nothing=True)
def small_batch_is_off(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Where the first dim is 1 another kernel is taken, which is a part in eight off."""
    result = right(*args, **kwargs)
    return _off(result) if _own(result, args, kwargs) and result.ndim and len(result) == 1 else result


@defect(("div", "cos", "rms_norm", "matmul"), "unclaimed", "batch_invariant", claims_nothing=True)
def small_batch_is_refused(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Where the first dim is 1 there is no kernel."""
    result = right(*args, **kwargs)
    return _raises(result) if _own(result, args, kwargs) and result.ndim and len(result) == 1 else result
