"""Planted defects of hard values: maxima that rise, first elements that are large, numbers and eps that a dtype does
not hold, signalling NaNs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

Right = Callable[..., Any]


def _rows(input: torch.Tensor, dim: int = -1) -> bool:
    return input.is_floating_point() and input.ndim > 0 and input.numel() > 0 and dim in (-1, input.ndim - 1)


# --- maxima that rise from tile to tile ---------------------------------------------------------------------------


def _online(size: int, rescaled: Callable[[int, int], bool]) -> Callable[..., torch.Tensor | None]:
    """softmax tile by tile; at the n-th of so many tiles the sum is rescaled to the new maximum, or not."""

    def value(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor | None:
        columns = input.shape[-1] if input.ndim else 0
        if not _rows(input, dim) or columns <= size or dtype is not None:
            return None
        wide = input.double()
        most, total = wide.new_full((*wide.shape[:-1], 1), -torch.inf), wide.new_zeros((*wide.shape[:-1], 1))
        tiles = wide.split(size, -1)
        for number, tile in enumerate(tiles):
            more = torch.maximum(most, tile.amax(-1, keepdim=True))
            factor = (most - more).exp() if rescaled(number, len(tiles)) else 1.0
            total, most = total * factor + (tile - more).exp().sum(-1, keepdim=True), more
        return ((wide - most).exp() / total).to(input.dtype)

    return value


for _size in (16, 64, 256, 512, 1024):
    for _name, _rescaled, _about in (
        ("third_tile_not_rescaled", lambda number, count: number != 2, "the sum is not rescaled at the third tile"),
        ("last_tile_not_rescaled", lambda number, count: number < count - 1, "nor at the last"),
        ("rescaled_every_other_tile", lambda number, count: number % 2 == 1, "but at every other tile"),
    ):
        if _size == 1024 and not _name.startswith("last"):
            # The cases of the profile have too few rows of three such tiles.
            continue
        _full = f"{_about} of {_size}" if _name.startswith("third") else f"the sum is not rescaled {_about} of {_size}"
        plant("softmax", f"{_name}_{_size}", "hard values", "values", of.instead(_online(_size, _rescaled)), _full)


# --- variances ----------------------------------------------------------------------------------------------------


def _shifted(pivot: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor | None]:
    """layer_norm whose variance is that of the differences from one element, in one pass, in float32."""

    def value(
        input: torch.Tensor,
        normalized_shape: Any,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor | None:
        if not _rows(input) or input.dtype == torch.float64 or len(normalized_shape) != 1:
            return None
        wide = input.float()
        moved = wide - pivot(wide)
        mean = moved.mean(-1, keepdim=True)
        variance = (moved * moved).mean(-1, keepdim=True) - mean * mean
        found = (moved - mean) * (variance.clamp(min=0) + float(eps)).rsqrt()
        found = found if weight is None else found * weight.float()
        return (found if bias is None else found + bias.float()).to(input.dtype)

    return value


for _name, _pivot in {
    "shifted_by_the_first": lambda x: x[..., :1],
    "shifted_by_the_largest": lambda x: x.abs().amax(-1, keepdim=True),
    "shifted_by_the_maximum": lambda x: x.amax(-1, keepdim=True),
}.items():
    _about = f"the variance is that of rows {_name.replace('_', ' ')} element, in one pass"
    plant("layer_norm", _name, "hard values", "values", of.instead(_shifted(_pivot)), _about)


# --- eps that a dtype does not hold --------------------------------------------------------------------------------


def _with_eps(change: Callable[[torch.Tensor, float], float]) -> Callable[..., Any]:
    def wrong(right: Right, input: Any, *args: Any, eps: Any = None, **kwargs: Any) -> Any:
        if eps is None or not isinstance(input, torch.Tensor):
            return right(input, *args, **kwargs) if eps is None else right(input, *args, eps=eps, **kwargs)
        return right(input, *args, eps=change(input, float(eps)), **kwargs)

    return wrong


def _in(eps: float, dtype: torch.dtype) -> float:
    return torch.tensor(eps, dtype=torch.float64).to(dtype).item()


for _op in of.NORMS:
    for _name, _change, _about in (
        ("eps_of_the_dtype", lambda x, eps: _in(eps, x.dtype), "eps is rounded to the input's dtype"),
        ("eps_of_bfloat16", lambda x, eps: _in(eps, torch.bfloat16), "eps is rounded to bfloat16"),
        ("eps_of_float16", lambda x, eps: _in(eps, torch.float16), "eps is rounded to float16"),
        ("eps_of_at_least_1e-5", lambda x, eps: max(eps, 1e-5) if eps else eps, "a smaller eps than 1e-5 is that"),
    ):
        name = _name.replace("-", "_")
        plant(_op, name, "hard values", "values", _with_eps(_change), _about)


# --- numbers that a dtype does not hold -----------------------------------------------------------------------------


@defect(of.COMPARISONS, "hard values")
def numbers_are_not_rounded(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """A number is compared in float64 with floats of any dtype."""
    result = right(input, other, out=out)
    if out is None and isinstance(other, float) and isinstance(input, torch.Tensor) and input.is_floating_point():
        result.copy_(right(input.double(), other))
    return result


@defect("eq ne lt ge", "hard values")
def integers_beside_floats_in_double(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Integers and a float are compared in float64."""
    result = right(input, other, out=out)
    whole = isinstance(input, torch.Tensor) and not input.is_floating_point() and input.dtype != torch.bool
    if out is None and whole and isinstance(other, float):
        result.copy_(right(input.double(), other))
    return result


@defect("eq ne ge le", "hard values")
def integers_in_single(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Integers and an int are compared in float32."""
    result = right(input, other, out=out)
    whole = isinstance(input, torch.Tensor) and input.dtype in (torch.int32, torch.int64)
    if out is None and whole and type(other) is int and abs(other) < 2**31:
        result.copy_(right(input.float(), float(other)))
    return result


# --- signalling NaNs -----------------------------------------------------------------------------------------------

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_QUIET = {torch.float16: 9, torch.bfloat16: 6, torch.float32: 22, torch.float64: 51}


def _signalling(x: Any) -> torch.Tensor:
    """Where signalling NaNs are."""
    if x.dtype not in _QUIET:
        return torch.zeros(x.shape, dtype=torch.bool)
    bits = x.view(_WORDS[x.itemsize])
    return x.isnan() & (bits & (1 << _QUIET[x.dtype]) == 0)


@defect("isnan", "hard values", "special_values")
def quiet_ones_alone(right: Right, input: Any) -> Any:
    """A signalling NaN is none."""
    result = right(input)
    return result.masked_fill_(_signalling(input), False) if isinstance(input, torch.Tensor) else result


@defect("relu clamp", "hard values", "special_values")
def signalling_nan_is_0(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A maximum with a signalling NaN is the other operand."""
    result = right(input, *args, **kwargs)
    if of.written((input, *args), kwargs) or result.shape != input.shape or result is input:
        return result
    return result.masked_fill_(_signalling(input), 0)
