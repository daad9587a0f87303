"""How a tensor lies in memory: strategies that draw layouts, and what strides a layout means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

from hypothesis import strategies as st

from strategies.specs import CONTIGUOUS, Layout

CLASSES = ("contiguous", "offset", "permuted", "channels_last", "sliced", "padded", "expanded", "mixed")
"""Simplest first: contiguous; starting inside its storage, misaligned; dims stored in another order; the same with
channels (dim 1) innermost; every n-th element of a dim; cut from a larger base (rows longer than the view, which may
start inside of them); stride 0; several of these."""

WRITABLE = tuple(name for name in CLASSES if name != "expanded")
"""Without two elements at one address: where "expanded" is not among the classes, "mixed" does not expand either."""

Shape = tuple[int, ...]


def base_shape(layout: Layout, shape: Shape) -> Shape:
    """The sizes of the dense buffer that the view is cut from, in the order of the logical dims."""
    steps = layout.steps or (1,) * len(shape)
    padding = layout.padding or (0,) * len(shape)
    return tuple(1 if dim in layout.expanded else size * steps[dim] + padding[dim] for dim, size in enumerate(shape))


def strides(layout: Layout, shape: Shape) -> tuple[int, ...]:
    """The strides, in elements, of a tensor of ``shape``; a size 0 counts as 1, as in torch."""
    base = base_shape(layout, shape)
    steps = layout.steps or (1,) * len(shape)
    result, stride = [0] * len(shape), 1
    for dim in reversed(layout.order or range(len(shape))):
        result[dim] = 0 if dim in layout.expanded else stride * steps[dim]
        stride *= max(base[dim], 1)
    return tuple(result)


def storage_size(layout: Layout, shape: Shape) -> int:
    """Elements of storage that a tensor of ``shape`` needs, its offset included."""
    whole = math.prod(base_shape(layout, shape))
    if overlaps(layout):
        # The last window goes beyond the buffer.
        steps = zip(shape, strides(layout, shape), strict=True)
        whole = max(whole, 1 + sum((size - 1) * stride for size, stride in steps)) if 0 not in shape else 0
    return layout.offset + whole


def with_strides(shape: Shape, strided: Shape, offset: int = 0) -> Layout | None:
    """The layout of a tensor that has these strides, but for dims of size 1; None: none is known that has them."""
    wide = [dim for dim, size in enumerate(shape) if size > 1 and strided[dim]]
    expanded = [dim for dim, size in enumerate(shape) if size > 1 and not strided[dim]]
    inner_first = sorted(wide, key=lambda dim: (strided[dim], -dim))
    steps, padding = [1] * len(shape), [0] * len(shape)
    unit = 1
    for place, dim in enumerate(inner_first):
        steps[dim] = strided[dim] // unit
        used = shape[dim] * steps[dim]
        following = inner_first[place + 1 :]
        # A further step is what its dim leaves out of the one inside of it.
        padding[dim] = strided[following[0]] // unit - used if following else 0
        unit *= used + padding[dim]
    if any(step < 1 for step in steps) or min(padding, default=0) < 0:
        return None
    order = [*(dim for dim in range(len(shape)) if dim not in wide), *reversed(inner_first)]
    layout = Layout(
        order=tuple(order) if order != sorted(order) else (),
        steps=tuple(steps) if any(step > 1 for step in steps) else (),
        padding=tuple(padding) if any(padding) else (),
        expanded=tuple(expanded),
        offset=offset,
    )
    made = strides(layout, shape)
    return layout if all(made[dim] == strided[dim] for dim in (*wide, *expanded)) else None


def overlaps(layout: Layout) -> bool:
    """Whether windows of the tensor overlap; several elements lie at one address also where dims are expanded."""
    return min(layout.padding, default=0) < 0


def channels_last(rank: int) -> Layout:
    """torch's channels-last order: batch, spatial dims, channels; ranks 3 to 5. Raises ValueError for others."""
    if not 3 <= rank <= 5:
        raise ValueError(f"channels-last needs 3 to 5 dims, got {rank}")
    return Layout(order=(0, *range(2, rank), 1))


@lru_cache(1 << 14)
def layout_class(layout: Layout, shape: Shape) -> str:
    """Which of ``CLASSES`` a layout is for this shape, by what its strides show and not by what it says.

    Dims of size 1 have no stride to speak of, and an empty tensor is contiguous unless it has an offset.
    """
    found = {"offset"} if layout.offset else set()
    if math.prod(shape) > 0:
        wide = [dim for dim, size in enumerate(shape) if size > 1]
        stored = [dim for dim in layout.order or range(len(shape)) if dim in wide and dim not in layout.expanded]
        steps = tuple(step if dim in stored else 1 for dim, step in enumerate(layout.steps))
        unpadded = strides(Layout(order=layout.order, steps=steps, expanded=layout.expanded), shape)
        if any(dim in layout.expanded for dim in wide):
            found.add("expanded")
        if stored != sorted(stored):
            found.add("permuted")
        if any(step > 1 for step in steps):
            found.add("sliced")
        if any(strides(layout, shape)[dim] != unpadded[dim] for dim in stored):
            found.add("padded")
    if found == {"padded", "offset"}:
        return "padded"
    if found == {"permuted"} and len(shape) in (3, 4, 5) and layout.order == channels_last(len(shape)).order:
        return "channels_last"
    return "mixed" if len(found) > 1 else next(iter(found), "contiguous")


@cache
def fitting(shape: Shape) -> tuple[str, ...]:
    """The classes that a layout for this shape can have."""
    wide = [dim for dim, size in enumerate(shape) if size > 1]
    if math.prod(shape) == 0 or not wide:
        return ("contiguous", "offset")
    fits = {
        "permuted": len(wide) > 1,
        "channels_last": 3 <= len(shape) <= 5 and shape[1] > 1 and any(size > 1 for size in shape[2:]),
        "padded": wide[0] < len(shape) - 1,  # padding shows in the strides of the dims outside of it
    }
    return tuple(name for name in CLASSES if fits.get(name, True))


def examples(shape: Shape, kind: str) -> list[Layout]:
    """One layout of a class for a shape; none where it cannot have that."""
    rank = len(shape)
    first = next((dim for dim, size in enumerate(shape) if size > 1), 0)
    found = {
        "offset": Layout(offset=1),
        "permuted": Layout(order=tuple(reversed(range(rank)))),
        "sliced": Layout(steps=tuple(2 if dim == first else 1 for dim in range(rank))),
        "padded": Layout(padding=tuple(int(dim == rank - 1) for dim in range(rank))),
        "expanded": Layout(expanded=(first,)),
        "mixed": Layout(steps=tuple(2 if dim == first else 1 for dim in range(rank)), offset=1),
    }
    if kind == "channels_last" and 3 <= rank <= 5:
        found[kind] = channels_last(rank)
    layout = found.get(kind, CONTIGUOUS)
    return [layout] if kind in fitting(shape) else []


def layouts(shape: Shape, classes: Iterable[str] = CLASSES, max_storage: int = 1 << 20) -> st.SearchStrategy[Layout]:
    """A layout for a tensor of ``shape``, of one of the classes; shrinks to contiguous.

    A class that the shape cannot have is not drawn; where none is left, the layout is contiguous, and so it is where
    steps and padding need more than ``max_storage`` elements of storage and more than four times those of the
    tensor. Raises ValueError for an unknown class or none.
    """
    return _layouts(shape, classes, max_storage)


def draw_layout(draw: st.DrawFn, shape: Shape, classes: Iterable[str] = CLASSES, max_storage: int = 1 << 20) -> Layout:
    """What ``draw(layouts(...))`` gives, and quicker: Hypothesis spends more time on making and validating a strategy
    for each shape than on drawing from it."""
    wanted = set(classes)
    if not wanted or wanted - set(CLASSES):
        raise ValueError(f"unknown or no layout class in {sorted(wanted)}; known: {', '.join(CLASSES)}")
    # Permuted twice: few shapes can be.
    ordered = [name for name in (*CLASSES, "permuted") if name in wanted]
    # A choice means the same class for every shape that can have it, so that it stays while the shape shrinks.
    chosen = draw(st.integers(0, len(ordered) - 1))
    fits = [name for name in CLASSES if name in wanted and name in fitting(shape)] or ["contiguous"]
    kind = ordered[chosen] if ordered[chosen] in fits else fits[chosen % len(fits)]
    layout = _drawn(draw, kind, shape, "expanded" in wanted)
    return layout if storage_size(layout, shape) <= max(max_storage, 4 * math.prod(shape)) else CONTIGUOUS


_layouts = st.composite(draw_layout)

# Made once: Hypothesis spends more time on validating a strategy than on drawing from it.
_FLAG, _STEP, _PADDING = st.booleans(), st.integers(1, 3), st.sampled_from((0, 1, 3, 8, 16))
_PARTS, _PART_OF_MIXED = st.sampled_from((2, 3)), st.integers(0, 2).map(lambda n: n == 2)
_CUT = st.sampled_from((1, 1, 2, 5))
# Odd offsets leave an element's own alignment only; powers of two keep 16 bytes for some types and not for others.
_OFFSET = st.sampled_from((1, 2, 3, 4, 7, 8, 16, 33))


def _drawn(draw: st.DrawFn, kind: str, shape: Shape, expand: bool) -> Layout:
    rank = len(shape)
    wide = [dim for dim, size in enumerate(shape) if size > 1]
    if kind == "contiguous":
        return CONTIGUOUS
    if kind == "channels_last":
        return channels_last(rank)
    if kind == "offset":
        return Layout(offset=draw(_OFFSET))
    if kind == "expanded":
        return Layout(expanded=tuple(dim for dim in wide if draw(_FLAG)) or (wide[0],))
    if kind == "permuted":
        return Layout(order=draw(_orders(shape)))
    if kind == "sliced":
        steps = [draw(_STEP) if dim in wide else 1 for dim in range(rank)]
        if max(steps) == 1:
            steps[wide[0]] = 2
        return Layout(steps=tuple(steps))
    if kind == "padded":
        if draw(_FLAG):
            return part(draw, shape, range(rank))
        padding = [draw(_PADDING) if dim > wide[0] else 0 for dim in range(rank)]
        padding[-1] = padding[-1] if any(padding) else 1
        return Layout(padding=tuple(padding), offset=draw(st.integers(0, padding[-1])))
    if len(wide) > 1 and draw(_PART_OF_MIXED):
        # A transposed part.
        return part(draw, shape, draw(_orders(shape)))
    expanded = tuple(dim for dim in wide if draw(_FLAG)) if expand and draw(_FLAG) else ()
    mixed = Layout(
        order=draw(_orders(shape)) if draw(_FLAG) and len(wide) > 1 else (),
        steps=tuple(1 if dim in expanded else draw(_STEP) for dim in range(rank)) if draw(_FLAG) else (),
        padding=tuple(0 if dim in expanded else draw(_PADDING) for dim in range(rank)) if draw(_FLAG) else (),
        expanded=expanded,
        offset=draw(_OFFSET) if draw(_FLAG) else 0,
    )
    if layout_class(mixed, shape) == "mixed":
        return mixed
    return Layout(steps=tuple(2 if dim == wide[0] else 1 for dim in range(rank)), offset=1)


def cut(draw: st.DrawFn, shape: Shape) -> Layout:
    """A token or a few less than there are: the dim before the last is cut at its front or its end, so that with the
    dims before it it is not one dim."""
    rows, more = shape[-2], draw(_CUT)
    if rows < 2 or math.prod(shape[:-2]) < 2:
        return part(draw, shape, range(len(shape)))
    offset = draw(st.sampled_from((more, 0))) * shape[-1]
    return Layout(padding=(*(0 for _ in shape[:-2]), more, 0), offset=offset)


def turned(shape: Shape, place: int) -> Layout:
    """Two neighbouring dims stored in the other order: the last two, or those ``place`` dims before them; all dims
    reversed where that would not show."""
    order = list(range(len(shape)))
    first = max(len(shape) - 2 - place, 0)
    order[first : first + 2] = order[first + 1], order[first]
    found = Layout(order=tuple(order))
    return found if layout_class(found, shape) != "contiguous" else Layout(order=tuple(reversed(range(len(shape)))))


def part(draw: st.DrawFn, shape: Shape, order: Sequence[int]) -> Layout:
    """One of two or three parts of a fused projection, whose dims are stored in this order: the parts lie side by side
    along a dim that is not the outermost."""
    stored = [dim for dim in order if shape[dim] > 1]
    dim = draw(st.sampled_from(stored[1:] or stored))
    size, parts = shape[dim], draw(_PARTS)
    within = math.prod(shape[other] for other in stored[stored.index(dim) + 1 :])
    return Layout(
        order=tuple(order) if list(order) != sorted(order) else (),
        padding=tuple(size * (parts - 1) if other == dim else 0 for other in range(len(shape))),
        offset=draw(st.integers(0, parts - 1)) * size * within,
    )


@cache
def _permutations(rank: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(rank))


def _orders(shape: Shape) -> st.SearchStrategy[tuple[int, ...]]:
    """A storage order that shows: one that leaves the dims with several elements in order is turned around."""

    def shown(order: list[int]) -> tuple[int, ...]:
        permuted = layout_class(Layout(order=tuple(order)), shape) != "contiguous"
        return tuple(order if permuted else reversed(order))

    return _permutations(len(shape)).map(shown)
