"""Rules of operations that move elements: the errors move with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.error_analysis.pairs import (
    NoRule,
    Pair,
    exact,
    pair_of,
    plain,
    settled,
)

aten = torch.ops.aten
Rule = Callable[..., Any]


MOVES = (
    "alias", "as_strided", "cat", "chunk", "clone", "constant_pad_nd", "copy", "detach", "diagonal", "embedding",
    "expand", "flip", "gather", "index", "index_select", "lift_fresh", "masked_scatter", "narrow_copy", "permute",
    "pixel_shuffle", "reflection_pad1d", "reflection_pad2d", "repeat", "replication_pad1d", "replication_pad2d",
    "roll", "scatter", "select", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes", "squeeze",
    "stack", "t", "take", "transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "view", "_reshape_alias",
    "_unsafe_view",
)  # fmt: skip
"""Operations that move elements: the errors move with them."""
INDICES = ("index", "indices", "mask")
"""The parameters of moves that are indices, or say by truth values where elements go."""
AS_NUMBERS = ("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::replication_pad1d", "aten::replication_pad2d")
"""Moves that torch does not make of truth values."""
FILLINGS = ("value",)
"""The parameters of moves that are numbers put beside the elements."""


def move(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Move values, errors and unsure elements alike by the operation."""
    given = {**dict(zip([one.name for one in func._schema.arguments], args, strict=False)), **kwargs}
    if func._schema.name == "aten::view" and "dtype" in given:
        return _bits(func, **given)
    given = {name: value if name in INDICES else _known(value) for name, value in given.items()}
    flat = [one for name, value in given.items() if name not in INDICES for one in _pairs(value)]
    places = [one for name in INDICES for one in _pairs(given.get(name))]
    dtype = flat[0].dtype if len(flat) < 2 else _common(flat)
    # A single pair keeps its pending rounding.
    keep = flat[0].rounding if len(flat) == 1 else None
    number = torch.float64 if dtype.is_floating_point else dtype

    def field(which: Callable[[Pair], torch.Tensor], filling: Any) -> Any:
        def of(name: str, value: Any) -> Any:
            if name in INDICES:
                return _places(func, plain(value))
            if name in FILLINGS and not isinstance(value, torch.Tensor):
                return value if filling is None else filling
            return plain(value, which)

        ready = {name: of(name, value) for name, value in given.items()}
        if func._schema.name == "aten::view" and "size" in ready:
            # The values may have other strides than the reference's; where those allow no view, it has refused.
            return ready["self"].reshape(ready["size"])
        return func(*list(ready.values())[: len(args)], **{name: ready[name] for name in kwargs})

    def whole(pair: Pair) -> Pair:
        return pair if len(flat) == 1 else settled(pair)

    value = field(lambda pair: pair.value if pair.value.dtype == number else pair.value.to(number), None)
    error = field(lambda pair: whole(pair).error, 0.0)
    as_numbers = func._schema.name in AS_NUMBERS
    unsure = field(lambda pair: whole(pair).unsure.double() if as_numbers else whole(pair).unsure, False)
    unsure = unsure > 0 if as_numbers else unsure
    lost = any(bool(one.unsure.any()) for one in places)

    def together(value: Any, error: Any, unsure: Any) -> Pair:
        return Pair(value, error, unsure | lost if lost else unsure, dtype, keep)

    if isinstance(value, torch.Tensor):
        return together(value, error, unsure)
    return [together(*one) for one in zip(value, error, unsure, strict=True)]


def _places(func: Any, index: Any) -> Any:
    """Return an index of ``gather`` in a dtype that this takes: torch's own decompositions give it narrow labels."""
    return index.long() if func._schema.name == "aten::gather" else index


def _known(value: Any) -> Any:
    """Return an argument with pairs in place of plain tensors, which the reference has made itself."""
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    return exact(value) if isinstance(value, torch.Tensor) and not isinstance(value, Pair) else value


def _bits(func: Any, self: Pair, dtype: torch.dtype) -> Pair:
    """Take the bits of numbers for those of another dtype. Raises NoRule where the numbers have an error."""
    if self.error.any() or self.rounding is not None:
        raise NoRule(f"no bound can be derived: {func} reads the bits of numbers that the reference computed")
    return exact(func(self.value.to(self.dtype), dtype))


def _pairs(value: Any) -> list[Pair]:
    if isinstance(value, list | tuple):
        return [pair for one in value for pair in _pairs(one)]
    return [value] if isinstance(value, Pair) else [exact(value)] if isinstance(value, torch.Tensor) else []


def _common(pairs: Sequence[Pair]) -> torch.dtype:
    dtype = pairs[0].dtype
    for one in pairs[1:]:
        dtype = torch.promote_types(dtype, one.dtype)
    return dtype


def new(func: Any, input: Pair, *args: Any, **kwargs: Any) -> Pair:
    """Make a new tensor that is like another."""
    return exact(func(torch.zeros(input.shape, dtype=input.dtype), *args, **kwargs))


NEW = (
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "new_empty_strided",
)  # fmt: skip


def fill(func: Any, input: Pair, value: Any) -> Pair:
    filled = pair_of(value, input.dtype)
    one = torch.ones(input.shape, dtype=input.value.dtype)
    unsure = filled.unsure.broadcast_to(one.shape).clone()
    return Pair(one * filled.value, one.double() * filled.error, unsure, input.dtype)
