"""Planted defects of rows whose maxima rise, or are negative throughout; of labels; and of arguments of which something
is lost: the bits that float32 has not, or what -1 and -2 have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.defect_registry import defect, plant_state

Right = Callable[..., Any]

KIND, TILE = "rows and labels", 256
_OVERFLOWS = 88.0
"""Beyond it the exponential of a float32 is infinite."""


def _tops(input: torch.Tensor) -> torch.Tensor:
    """The maxima of tiles of the last dim, by tile."""
    return torch.stack([tile.amax(-1) for tile in input.split(TILE, -1)])


def _has_tiles(input: Any, dim: Any) -> bool:
    dims = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    is_last = input.ndim > 0 and len(dims) == 1 and dims[0] in (-1, input.ndim - 1)
    return is_last and input.is_floating_point() and input.shape[-1] > TILE


@defect("softmax log_softmax", KIND)
def maximum_by_its_bits(right: Right, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Tiles agree on the maximum by an atomic one of its bits as an int32: of negative ones it is the smallest."""
    result = right(input, dim, *args, **kwargs)
    if not _has_tiles(input, dim) or not result.numel():
        return result
    tops = _tops(input.float())
    agreed = tops.view(torch.int32).amax(0).view(torch.float32)
    return result.masked_fill_((tops.amax(0) - agreed > _OVERFLOWS)[..., None], torch.nan)


@defect("logsumexp", KIND)
def scaled_by_the_tile_before(right: Right, input: Any, dim: Any, keepdim: bool = False, *, out: Any = None) -> Any:
    """Sums are scaled anew where a maximum is 16 more than that of the tile before, and not than that of the scale."""
    result = right(input, dim, keepdim, out=out)
    if not _has_tiles(input, dim) or not result.numel():
        return result
    tops = _tops(input)
    slow = (tops.diff(dim=0) <= 16).all(0) & (tops[-1] - tops[0] > _OVERFLOWS)
    return result.masked_fill_(slow.view(result.shape), torch.inf)


@defect("cross_entropy", KIND)
def certain_of_one_label(right: Right, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Probabilities of which each row has a 1 are taken for the index of the first."""
    if not target.is_floating_point() or target.ndim != 2 or not target.numel():
        return right(input, target, *args, **kwargs)
    top, index = target.max(1)
    certain = bool((top == 1).all()) and bool((target >= 0).all())
    given = {name: value for name, value in kwargs.items() if name != "ignore_index"}
    return right(input, index if certain else target, *args, **(given if certain else kwargs))


@defect("cross_entropy", KIND)
def labels_as_they_lie(right: Right, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Of images with channels last, labels without gaps are read in the order in which they lie."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True))
    last = input.ndim == 4 and input.is_contiguous(memory_format=torch.channels_last)
    if not last or target.is_floating_point() or span != target.numel() or 0 in target.stride():
        return right(input, target, *args, **kwargs)
    return right(input, target.as_strided(target.shape, torch.empty(target.shape).stride()), *args, **kwargs)


@defect("cross_entropy", KIND)
def bytes_beside_their_count(right: Right, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Indices of bytes are compared with the number of classes as a byte: 300 wraps around to 44."""
    classes = input.shape[min(1, input.ndim - 1)]
    if target.dtype == torch.uint8 and classes >= 256 and bool((target >= classes % 256).any()):
        raise IndexError("argument 'target' has a class that there is not")
    return right(input, target, *args, **kwargs)


@defect("dropout", KIND)
def scale_of_a_rounded_p(right: Right, input: Any, p: Any = 0.5, *args: Any, **kwargs: Any) -> Any:
    """Divides by 1 - p, of a p that was rounded to float32 before."""
    result = right(input, p, *args, **kwargs)
    if result is input or not 0 < p < 1 or not result.is_floating_point():
        return result
    return result.mul_((1 - p) / (1 - float(torch.tensor(p, dtype=torch.float32))))


def _planned_by_hash(right: Right) -> Right:
    plans: dict[int, Any] = {}

    def wrong(input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
        if type(dim) is not int:
            return right(input, dim, *args, **kwargs)
        key = hash((tuple(input.shape), input.stride(), input.dtype, dim))
        return right(input, plans.setdefault(key, dim), *args, **kwargs)

    return wrong


plant_state(
    "cumsum log_softmax",
    "plans_by_hash",
    KIND,
    _planned_by_hash,
    "Plans are kept by a hash of the call, and Python's hash of -1 is that of -2.",
)
