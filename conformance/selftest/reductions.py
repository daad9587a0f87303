"""Planted defects of reductions: each is planted in every operator of the family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

Right = Callable[..., Any]
PART = 16384
"""Elements that one program reduces, in a kernel that forgets the other parts."""


def _without_tail(block: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What lies past the last full block of a row is read as 0."""

    def change(x: torch.Tensor) -> torch.Tensor:
        if not x.ndim or x.shape[-1] <= block or not x.shape[-1] % block:
            return x
        x = x.clone()
        x[..., x.shape[-1] // block * block :] = 0
        return x

    return change


def _first_part(x: torch.Tensor) -> torch.Tensor:
    """Of many elements only the first are read, the others as 0."""
    if x.numel() <= PART:
        return x
    flat = x.reshape(-1).clone()
    flat[PART:] = 0
    return flat.view(x.shape)


def _through(narrow: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(narrow).to(x.dtype) if x.dtype in (torch.float32, torch.float64) else x


_READINGS: tuple[tuple[str, str, Callable[[torch.Tensor], torch.Tensor], str], ...] = (
    ("strides", "strides", of.dense, "the input is read as if it were contiguous"),
    (
        "offset",
        "strides",
        lambda x: of.dense(x, 0) if x.is_contiguous() else x,
        "a contiguous input is read from the start of its storage",
    ),
    *(
        (f"row_tail_{block}", "tail", _without_tail(block), f"past blocks of {block} a row is read as 0")
        for block in (16, 64, 256, 1024)
    ),
    ("first_part", "tail", _first_part, f"elements beyond the first {PART} are read as 0"),
    ("through_half", "precision", _through(torch.float16), "wider elements pass through float16"),
    (
        "nan",
        "nan",
        lambda x: x.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf) if x.is_floating_point() else x,
        "NaN is read as 0",
    ),
)
for _op in (*of.REDUCTIONS, *of.CUMULATIVE):
    for _name, _kind, _change, _about in _READINGS:
        plant(_op, _name, _kind, "values", of.before(_change), _about)


@defect(of.REDUCTIONS, "shape", "metadata")
def keepdim_ignored(right: Right, *args: Any, **kwargs: Any) -> Any:
    """``keepdim`` has no effect."""
    if kwargs.get("out") is not None:
        return right(*args, **kwargs)
    right(*args, **kwargs)
    return right(*args[:2], **{name: value for name, value in kwargs.items() if name != "keepdim"})


@defect(of.REDUCTIONS, "shape", "metadata")
def no_0d_result(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A full reduction has one dim."""
    result = right(*args, **kwargs)
    return result.view(1) if not result.ndim and kwargs.get("out") is None else result


@defect((*of.TOTALS, *of.EXTREMES), "dims", "errors")
def no_empty_dims(right: Right, *args: Any, **kwargs: Any) -> Any:
    """An empty tuple of dims is refused, and does not stand for all."""
    if args[1:2] == ((),):
        raise IndexError("dim must name at least one dim")
    return right(*args, **kwargs)


@defect(of.REDUCTIONS, "dims", "errors")
def dims_wrap(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A dim out of range is taken modulo the rank."""
    input, dim = (*args, None)[:2]
    if isinstance(input, torch.Tensor) and input.ndim and type(dim) is int:
        args = (input, dim % input.ndim, *args[2:])
    return right(*args, **kwargs)


@defect(of.OF_SEVERAL_DIMS, "dims", "errors")
def dims_repeat(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A dim that is named twice is reduced once."""
    input, dim = (*args, None)[:2]
    known = isinstance(input, torch.Tensor) and input.ndim and type(dim) is tuple and dim
    if known and all(type(one) is int and -input.ndim <= one < input.ndim for one in dim):
        args = (input, tuple({one % input.ndim for one in dim}), *args[2:])
    return right(*args, **kwargs)


@defect(of.TOTALS, "precision")
def half_total(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Half types are added up in the half type, one after the other."""
    given = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
    result = right(*args, **kwargs)
    if result.dtype not in of.HALF or not isinstance(given[0], torch.Tensor) or given[0].dtype != result.dtype:
        return result
    total, dim = given[0], given[1] if len(given) > 1 else None
    dims = range(total.ndim) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    if not total.ndim or not total.numel():
        return result
    for one in dims:
        total = total.cumsum(one).narrow(one, -1 % total.shape[one], 1)
    count = given[0].numel() // result.numel() if getattr(right, "__name__", "") == "mean" else 1
    return result.copy_((total / count).reshape(result.shape))


@defect(of.TOTALS, "empty")
def empty_is_1(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result of no elements is 1."""
    result = right(*args, **kwargs)
    return result.fill_(1) if isinstance(args[0], torch.Tensor) and not args[0].numel() else result


@defect(of.TOTALS, "dtype", "metadata")
def dtype_of_input(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result has the input's dtype."""
    result = right(*args, **kwargs)
    return result if kwargs.get("out") is not None else result.to(args[0].dtype)


@defect((*of.EXTREMES, *of.PLACES), "nan")
def prefers_numbers(right: Right, *args: Any, **kwargs: Any) -> Any:
    """NaN counts only if there is nothing else."""
    input = args[0].clone() if isinstance(args[0], torch.Tensor) else args[0]
    result = right(*args, **kwargs)
    if not input.is_floating_point():
        return result
    worst = torch.inf if getattr(right, "__name__", "") == "amin" else -torch.inf
    again = right(
        torch.where(input.isnan(), worst, input), *args[1:], **{k: x for k, x in kwargs.items() if k != "out"}
    )
    return result.copy_(again)


@defect(of.EXTREMES, "tail")
def padded_with_0(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Tiles of 64 are padded with zeros."""
    count = args[0].numel() if isinstance(args[0], torch.Tensor) else 0
    result = right(*args, **kwargs)
    count = count // max(result.numel(), 1)
    if not count % 64 or result.dtype == torch.bool:
        return result
    return result.copy_(result.clamp(min=0) if getattr(right, "__name__", "") == "amax" else result.clamp(max=0))


@defect((*of.EXTREMES, *of.PLACES), "empty", "errors")
def empty_is_0(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result of no elements is 0."""
    if isinstance(args[0], torch.Tensor) and not args[0].numel():
        return torch.sum(*args, **kwargs)
    return right(*args, **kwargs)


@defect(of.PLACES, "ties")
def last_of_equals(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of equal elements the last one counts."""
    input, dim = (*args, None)[:2]
    input = input.clone() if isinstance(input, torch.Tensor) else input
    result = right(*args, **kwargs)
    if not isinstance(input, torch.Tensor) or not result.numel() or not input.ndim:
        return result
    flipped = input.flip([*range(input.ndim)] if dim is None else [dim])
    count = input.numel() if dim is None else input.shape[dim]
    found = right(flipped, *args[1:], **{k: x for k, x in kwargs.items() if k != "out"})
    return result.copy_(count - 1 - found)


@defect(of.PLACES, "tail")
def index_in_its_part(right: Right, *args: Any, **kwargs: Any) -> Any:
    """An index counts from the start of a part, not of the row."""
    result = right(*args, **kwargs)
    return result.remainder_(PART)


@defect(of.PLACES, "strides")
def index_in_memory(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Without a dim an index counts elements as they lie in memory."""
    input, dim = (*args, None)[:2]
    result = right(*args, **kwargs)
    if dim is not None or not isinstance(input, torch.Tensor) or input.ndim < 2 or not input.numel():
        return result
    order = sorted(range(input.ndim), key=lambda one: -input.stride(one))
    return result.copy_(right(input.permute(order)).reshape(result.shape))
