"""Planted defects of the cumulative sum and of its backward pass, and right implementations in other orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import Gradients, Step, backward

Right = Callable[..., Any]
PART = 4096
"""Elements of a part of a long row."""


def _terms(input: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return what is summed, in the compute dtype."""
    result = dtype or (input.dtype if input.is_floating_point() else torch.int64)
    cast = input.to(result)
    return cast.double() if cast.is_floating_point() else cast


def _instead(value: Callable[[torch.Tensor, int], torch.Tensor]) -> Callable[..., Any]:
    """Sums of terms along a dim that take the place of the right ones; of calls without an ``out`` of another dtype."""

    def wrong(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
        given = input.clone() if isinstance(input, torch.Tensor) else input
        result = right(input, dim, dtype=dtype, out=out)
        if not given.ndim or not given.numel():
            return result
        return result.copy_(value(_terms(given, dtype or (None if out is None else out.dtype)), dim))

    wrong.__doc__ = value.__doc__
    return wrong


def _in_tiles(width: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def value(x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat([tile.cumsum(dim) for tile in x.split(width, dim)], dim)

    return value


for _width in (16, 64, 256, 1024, 4096):
    _about = f"each tile of {_width} starts at 0"
    plant("cumsum", f"carry_lost_{_width}", "tiles", "values", _instead(_in_tiles(_width)), _about)


def _carried(x: torch.Tensor, dim: int, width: int, starts: Callable[[list[torch.Tensor], int], Any]) -> torch.Tensor:
    """Tiles, each of which starts at what ``starts`` makes of the sums of all, and of its number."""
    tiles = x.split(width, dim)
    sums = [tile.sum(dim, keepdim=True) for tile in tiles]
    return torch.cat([tile.cumsum(dim) + starts(sums, number) for number, tile in enumerate(tiles)], dim)


def _planted(kind: str) -> Callable[[Any], None]:
    def enter(value: Any) -> None:
        plant("cumsum", value.__name__, kind, "values", _instead(value))

    return enter


@_planted("tiles")
def carry_of_last_tile_alone(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A tile of 256 starts at the sum of the tile before it, not of all."""
    return _carried(x, dim, 256, lambda sums, number: sums[number - 1] if number else 0)


@_planted("tiles")
def carry_one_tile_late(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A tile of 256 starts at the sum of all before the last one."""
    return _carried(x, dim, 256, lambda sums, number: sum(sums[: max(number - 1, 0)]))


@_planted("tiles")
def carry_with_own_tile(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A tile of 1024 starts at a sum that takes in its own, but for the first."""
    return _carried(x, dim, 1024, lambda sums, number: sum(sums[: number + 1]) if number else 0)


@_planted("parts")
def part_one_too_far(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A part of a long row starts at the sum of the parts before it and of itself."""
    return _carried(x, dim, PART, lambda sums, number: sum(sums[: number + 1]) - sums[0] * (not number))


@_planted("parts")
def first_part_left_out(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum of the first part is in none of the others."""
    return _carried(x, dim, PART, lambda sums, number: sum(sums[1:number]))


@_planted("parts")
def few_parts(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A part of 2048 starts at the sums of the last 4 parts before it."""
    return _carried(x, dim, 2048, lambda sums, number: sum(sums[max(number - 4, 0) : number]))


@_planted("formula")
def exclusive(x: torch.Tensor, dim: int) -> torch.Tensor:
    """An element is the sum of those before it, without its own."""
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), x.cumsum(dim).narrow(dim, 0, x.shape[dim] - 1)], dim)


@_planted("formula")
def exclusive_by_difference(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Exclusive sums by subtraction, to which the element is added again: NaN where it is infinite."""
    found = x.cumsum(dim)
    return found - x + x


@_planted("formula")
def from_the_end(x: torch.Tensor, dim: int) -> torch.Tensor:
    """An element is the sum of those from it on."""
    return x.flip(dim).cumsum(dim).flip(dim)


@_planted("formula")
def total(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Each element is the sum of its row."""
    return x.sum(dim, keepdim=True).expand(x.shape)


@_planted("dims")
def last_dim(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Always along the last dim."""
    return x.cumsum(-1)


@_planted("dims")
def negative_dims_off_by_one(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Negative dims other than -1 count one too few."""
    return x.cumsum(dim + 1 if dim < -1 else dim)


@_planted("nan")
def nan_stays(x: torch.Tensor, dim: int) -> torch.Tensor:
    """NaN is left out of the sums after it."""
    if not x.is_floating_point():
        return x.cumsum(dim)
    return torch.where(x.isnan(), x, x.nan_to_num(0.0, torch.inf, -torch.inf).cumsum(dim))


@_planted("nan")
def masked_by_product(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A tile of 64 is multiplied with a triangle of ones: an infinity, times 0, spoils all of its tile."""
    if not x.is_floating_point():
        return x.cumsum(dim)
    spoilt = torch.cat([(~tile.isfinite()).any(dim, keepdim=True).expand(tile.shape) for tile in x.split(64, dim)], dim)
    return torch.where(spoilt, torch.nan, x.cumsum(dim))


@_planted("nan")
def infinity_stays(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Infinities of both signs give the first of them, and not NaN."""
    found = x.cumsum(dim)
    if not x.is_floating_point():
        return found
    cancelled = found.isnan() & ~x.isnan().cummax(dim).values
    return torch.where(cancelled, torch.inf, found)


@_planted("precision")
def integers_in_32_bits(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Sums of integers wrap in 32 bits."""
    return x.cumsum(dim) if x.is_floating_point() else x.cumsum(dim, dtype=torch.int64).to(torch.int32)


@_planted("precision")
def integers_as_float64(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Integers are summed in float64."""
    return x.double().cumsum(dim)


@_planted("precision")
def integers_as_float32(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Integers are summed in float32."""
    return x.cumsum(dim) if x.is_floating_point() else x.float().cumsum(dim).double()


def _half(right: Right, input: Any, dim: Any, dtype: Any, out: Any, tile: int) -> Any:
    """Half types with a carry that is rounded after each tile."""
    given = input.clone() if isinstance(input, torch.Tensor) else input
    result = right(input, dim, dtype=dtype, out=out)
    if result.dtype not in of.HALF or not result.ndim or not result.numel():
        return result
    carry, found = 0.0, []
    for one in given.to(result.dtype).split(tile, dim):
        sums = one.double().cumsum(dim) + carry
        carry = sums.narrow(dim, sums.shape[dim] - 1, 1).to(result.dtype).double()
        found.append(sums)
    return result.copy_(torch.cat(found, dim))


@defect("cumsum", "precision")
def half_total(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """Half types are added up in the half type, one after the other."""
    return _half(right, input, dim, dtype, out, 1)


@defect("cumsum", "precision")
def half_carry(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """The carry from a tile of 128 to the next one is of the half type."""
    return _half(right, input, dim, dtype, out, 128)


@defect("cumsum", "precision")
def float64_carry_in_float32(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """The carry of float64 from a tile of 128 to the next one is of float32."""
    given = input.clone() if isinstance(input, torch.Tensor) else input
    result = right(input, dim, dtype=dtype, out=out)
    if result.dtype != torch.float64 or not result.ndim or not result.numel():
        return result

    def starts(sums: list[torch.Tensor], number: int) -> torch.Tensor:
        return sum(sums[:number], torch.zeros_like(sums[0])).float().double()

    return result.copy_(_carried(given.double(), dim, 128, starts))


@defect("cumsum", "dtype")
def cast_last(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """``dtype`` casts the result, and not the input."""
    given = input.clone() if isinstance(input, torch.Tensor) else input
    result = right(input, dim, dtype=dtype, out=out)
    loses = given.is_floating_point() and not result.is_floating_point()
    return result.copy_(given.double().cumsum(dim)) if loses else result


@defect("cumsum", "dtype", "metadata")
def dtype_of_input(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """The result has the input's dtype."""
    result = right(input, dim, dtype=dtype, out=out)
    return result if out is not None else result.to(input.dtype)


@defect("cumsum", "dtype", "metadata")
def int32_result(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """The result of integers is int32."""
    result = right(input, dim, dtype=dtype, out=out)
    return result.int() if dtype is None and out is None and not input.is_floating_point() else result


@defect("cumsum", "strides", "metadata")
def strides_of_input(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """The result has the order of the input's dims in memory."""
    result = right(input, dim, dtype=dtype, out=out)
    return result if out is not None else torch.empty_like(input, dtype=result.dtype).copy_(result)


@defect("cumsum", "out", "values")
def reads_what_it_wrote(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """The second tile of 32 reads what the first one wrote, where ``out`` is the input."""
    result = right(input, dim, dtype=dtype, out=out)
    if out is not input or not result.ndim or result.shape[dim] <= 32:
        return result
    result.narrow(dim, 32, result.shape[dim] - 32).add_(result.narrow(dim, 31, 1))
    return result


@defect("cumsum", "refusals", "errors")
def takes_bool(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """A result of bool tells whether an element up to it is true."""
    if dtype is torch.bool and isinstance(input, torch.Tensor) and input.ndim and type(dim) is int and out is None:
        return input.bool().int().cumsum(dim).bool()
    return right(input, dim, dtype=dtype, out=out)


@defect("cumsum", "dims", "errors")
def dims_wrap(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """A dim out of range is taken modulo the rank."""
    if isinstance(input, torch.Tensor) and input.ndim and type(dim) is int:
        dim %= input.ndim
    return right(input, dim, dtype=dtype, out=out)


@defect("cumsum", "dims", "errors")
def no_0d_input(right: Right, input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """A 0-d tensor has no dim."""
    if isinstance(input, torch.Tensor) and not input.ndim:
        raise IndexError("dimension specified as 0 but tensor has no dimensions")
    return right(input, dim, dtype=dtype, out=out)


# --- gradients ---------------------------------------------------------------------------------------------------


def _dim(step: Step) -> int:
    return step.args[1] if len(step.args) > 1 else step.kwargs["dim"]


@backward("cumsum", "formula")
def not_reversed(step: Step) -> Gradients:
    """The gradient is summed from the first element on."""
    return [step.dout.double().cumsum(_dim(step))]


@backward("cumsum", "formula")
def one_missing(step: Step) -> Gradients:
    """An element's own result is left out."""
    return [one if one is None else one - step.dout.double() for one in step.gradients()]


@backward("cumsum", "formula")
def unsummed(step: Step) -> Gradients:
    """The gradient passes as it is."""
    return [step.dout.double()]


@backward("cumsum", "dims")
def over_last(step: Step) -> Gradients:
    """The gradient is summed along the last dim, whichever was asked for."""
    dout = step.dout.double()
    return [dout.flip(-1).cumsum(-1).flip(-1) if dout.ndim else dout]


@backward("cumsum", "sums")
def reversed_tiles(step: Step) -> Gradients:
    """Each tile of 64 is summed for itself."""
    if not step.dout.ndim:
        return [step.dout.double()]
    dim, dout = _dim(step), step.dout.double()
    return [torch.cat([tile.flip(dim).cumsum(dim).flip(dim) for tile in dout.split(64, dim)], dim)]


@backward("cumsum", "sums")
def half_accumulation(step: Step) -> Gradients:
    """Half types are added up in the half type, one after the other."""
    if step.dout.dtype not in of.HALF or not step.dout.numel() or not step.dout.ndim:
        return step.gradients()
    dim, carry, found = _dim(step), torch.zeros(()), []
    for one in step.dout.flip(dim).split(1, dim):
        carry = (one + carry).to(step.dout.dtype)
        found.append(carry.double())
    return [torch.cat(found, dim).flip(dim)]


# --- right implementations ---------------------------------------------------------------------------------------


def _right(sums: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor | None]:
    """Sums along the last dim in float32 as an implementation."""

    def value(input: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor | None:
        if (dtype or input.dtype) not in (torch.float32, *of.HALF) or not input.ndim or not input.numel():
            return None
        x = (input if dtype is None else input.to(dtype)).float().movedim(dim, -1)
        return sums(x).movedim(-1, dim)

    return value


def _added_in_order(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.cumsum(x.detach().numpy(), -1, dtype=np.float32))


def _tile_by_tile(x: torch.Tensor) -> torch.Tensor:
    """As a kernel does: each tile for itself, and the sum of those before it."""
    tiles = [_added_in_order(tile) for tile in x.split(48, -1)]
    starts = _added_in_order(torch.stack([torch.zeros_like(x[..., 0]), *(tile[..., -1] for tile in tiles)], -1))
    return torch.cat([tile + starts[..., n : n + 1] for n, tile in enumerate(tiles)], -1)


def _doubling(x: torch.Tensor) -> torch.Tensor:
    """Each element takes in the sum of as many before it as it has, and then of twice as many."""
    step = 1
    while step < x.shape[-1]:
        x = torch.cat([x[..., :step], x[..., step:] + x[..., :-step]], -1)
        step *= 2
    return x


CONTROLS = {
    "sums one by one": _right(_added_in_order),
    "sums in blocks": _right(_tile_by_tile),
    "sums as a tree": _right(_doubling),
}
"""Right implementations of the cumulative sum, by name."""
