"""Judge a large result by parts that a smaller call gives, so that the oracle's cost limits no size.

A result falls into parts along its dims: elements of elementwise functions, rows of norms, rows and columns of a
product. Two samples are judged of a large one: places that are chosen beforehand, always the first, the last and the
edges of powers of two; and the places where an output differs most from torch's, found by comparing all of it. A result
without parts, such as the sum of all elements, is judged whole.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from conformance.spec import Call, Parts

WHOLE, CHOSEN = 1 << 23, 1 << 20
"""The most terms that the oracle evaluates of a result that is judged whole, and of a sample of a larger one."""
FLOAT64 = 1 << 5
"""With float64, which is evaluated in extended precision, they are so many times fewer."""
ELEMENT = 1 << 5
"""The fewest terms that an element counts for."""
BLOCK = 64
"""The number of adjacent elements in a block of a sample."""
SPOTS = 4
"""The number of places where an output differs most from torch's, by each measure."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A part of a result."""

    call: Call
    """The call whose result it is."""
    places: tuple[torch.Tensor | None, ...]
    """For each dim of the result, the indices in the part; None: all."""

    def of(self, result: torch.Tensor) -> torch.Tensor:
        """Return this part of a result, on the CPU."""
        for dim, places in enumerate(self.places):
            if places is not None:
                result = _select(result, dim, places.to(result.device))
        return result.cpu()

    def part(self, dim: int, start: int, length: int) -> tuple[Sample, tuple[int, int, int]]:
        """Return the elements that lie in a part of the result, as a sample of that part, and where they are in this
        sample."""
        places = self.places[dim]
        if places is None:
            return self, (dim, start, length)
        first, end = (int(torch.searchsorted(places, edge)) for edge in (start, start + length))
        within = places[first:end] - start
        return dataclasses.replace(self, places=(*self.places[:dim], within, *self.places[dim + 1 :])), (
            dim,
            first,
            end - first,
        )

    def index(self, index: Sequence[int]) -> tuple[int, ...]:
        """Return the index in the result of an element of the part."""
        return tuple(i if at is None else int(at[i]) for i, at in zip(index, self.places, strict=True))


def chosen(parts: Parts, call: Call, seed: int) -> Sample | None:
    """Return the sample of a call's result that is judged; None: it is judged whole, since it is small or has
    no parts."""
    shape, share = _shape(call), FLOAT64 if _has_float64(call) else 1
    each, free = max(parts.terms, ELEMENT), _free(parts)
    if not free or math.prod(shape) * each <= WHOLE // share:
        return None
    kept = math.prod(size for dim, size in enumerate(shape) if dim not in free)
    counts = _counts({dim: shape[dim] for dim in free}, max(CHOSEN // share // (each * max(kept, 1)), 1))
    random = np.random.Generator(np.random.Philox(seed))
    return _sample(parts, call, {dim: _indices(shape[dim], count, random) for dim, count in counts.items()})


def spots(parts: Parts, call: Call, ours: torch.Tensor, theirs: torch.Tensor) -> Sample | None:
    """Return the sample where an output differs most from torch's; None: it does not differ at all, or is only a
    part."""
    ours, theirs = ours.detach().cpu(), theirs.detach().cpu()
    if not ours.shape == theirs.shape == _shape(call) or torch.equal(ours, theirs):
        return None
    wide = torch.float64 if torch.float64 in (ours.dtype, theirs.dtype) else torch.float32
    if ours.dtype.is_floating_point and theirs.dtype.is_floating_point:
        first, second = ours.to(wide).reshape(-1), theirs.to(wide).reshape(-1)
        off = (first - second).abs_()
        off.masked_fill_((first == second) | (first.isnan() & second.isnan()), 0.0).nan_to_num_(math.inf, math.inf)
        measures = [off, off / second.abs().nan_to_num_(1.0)]
    else:
        measures = [(ours != theirs).reshape(-1).float()]
    found = [measure.nan_to_num_(0.0, math.inf).topk(min(SPOTS, measure.numel())) for measure in measures]
    flat = torch.cat([top.indices[top.values > 0] for top in found]).unique()
    if not len(flat):
        return None
    # torch's function of the same name imports SymPy, which takes a second.
    where = [torch.from_numpy(indices) for indices in np.unravel_index(flat.numpy(), ours.shape)]
    return _sample(parts, call, {dim: where[dim].unique() for dim in _free(parts)})


def _free(parts: Parts) -> list[int]:
    return sorted({dim for axes in parts.axes.values() for dim in axes if dim is not None})


def _shape(call: Call) -> torch.Size:
    assert isinstance(call.result, torch.Tensor)
    return call.result.shape


def _has_float64(call: Call) -> bool:
    tensors = (x for x in (call.result, *call.args, *call.kwargs.values()) if isinstance(x, torch.Tensor))
    return any(x.dtype == torch.float64 for x in tensors)


def _counts(sizes: dict[int, int], most: int) -> dict[int, int]:
    """Return how many indices of each dim to take, ``most`` in all: the same number of each, and all of short dims."""
    found: dict[int, int] = {}
    for left, (dim, size) in zip(range(len(sizes), 0, -1), sorted(sizes.items(), key=lambda one: one[1]), strict=True):
        found[dim] = max(min(size, int(most ** (1 / left) + 1e-9)), min(size, 2))
        most = max(most // max(found[dim], 1), 1)
    return found


def _indices(size: int, count: int, random: np.random.Generator) -> torch.Tensor:
    """Return so many places, in order: the first and the last, edges of powers of two, the large ones first, and blocks
    anywhere."""
    if count >= size:
        return torch.arange(size)
    edges = [2**k + side for k in range(size.bit_length() - 1, 0, -1) for side in (0, -1)]
    found = dict.fromkeys([0, size - 1, *(edge for edge in edges if edge < size)][: max(count, 2)])
    block = BLOCK if count > 16 * BLOCK else 1
    while len(found) + block <= count:
        start = int(random.integers(0, size - block + 1))
        found.update(dict.fromkeys(range(start, start + block)))
    return torch.tensor(sorted(found))


def _sample(parts: Parts, call: Call, places: dict[int, torch.Tensor]) -> Sample:
    def part(key: int | str, value: object) -> object:
        axes = parts.axes.get(key)
        if not isinstance(value, torch.Tensor) or axes is None:
            return value
        for dim, along in enumerate(axes):
            if along is not None:
                value = _select(value, dim, places[along])
        return value

    args = tuple(itertools.starmap(part, enumerate(call.args)))
    kwargs = {name: part(name, value) for name, value in call.kwargs.items()}
    result = call.result
    assert isinstance(result, torch.Tensor)
    every = tuple(places.get(dim) for dim in range(result.ndim))
    named = tuple(None if at is None else tuple(at.tolist()) for at in every)
    smaller = Sample(Call(args, kwargs, None, named), every)
    return dataclasses.replace(smaller, call=dataclasses.replace(smaller.call, result=smaller.of(result)))


def _select(tensor: torch.Tensor, dim: int, places: torch.Tensor) -> torch.Tensor:
    if tensor.itemsize == 1 and tensor.dtype.is_floating_point:
        # torch lacks index_select for some 8-bit floats.
        return tensor.view(torch.uint8).index_select(dim, places).view(tensor.dtype)
    return tensor.index_select(dim, places)
