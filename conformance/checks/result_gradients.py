"""The gradient of a result from which a backward pass begins: its layout and its numbers."""

from __future__ import annotations

import math

from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec
from strategies.values import LISTED

PLAIN = ("contiguous", "transposed", "expanded", "sliced", "cut", "zeros", "one for all")
"""The kinds of gradients that differ in the layout of that of the result: also a part of a larger one, zeros, or one
number with strides of 0, often 1."""
_WITHOUT_SPECIALS = ("zeros", "expanded", "one for all", "second order", "twice")
_SPECIALS = ("nan", "inf", "-inf", "100000", "-1e+30")
"""One element of the result's gradient is one of these at times, but not of the kinds above, whose elements have to
be alike or finite."""
_LAYOUTS = ("contiguous", "transposed", "expanded", "expanded", "sliced", "cut")
_ONES = LISTED + "1"


def result_gradient(kind: str, shape: tuple[int, ...], dtype: str, seed: int) -> TensorSpec:
    """Return the gradient of a result; sums of numbers of one sign show how they are accumulated."""
    values, layout = ("normal", "positive", "normal", "integers")[seed // 11 % 4], CONTIGUOUS
    rank = len(shape)
    # What is asked for twice, or after a change, is laid out in any way, too.
    match kind if kind in PLAIN else _LAYOUTS[seed // 29 % len(_LAYOUTS)]:
        case "transposed" if rank > 1:
            orders = _orders(rank)
            order = orders[seed // 41 % len(orders)]
            # In half of them rows, or what they are rows of, lie apart, as in a gradient of queries, keys and values.
            apart = order[-1 - seed // 83 % 2] if seed // 79 % 2 else None
            layout = Layout(order=order, padding=tuple(3 if dim == apart else 0 for dim in range(rank)))
        case "expanded" if rank:
            # One dim, or two of several that follow each other: of a sum over pixels. Of one element it says nothing.
            dims = [dim for dim, size in enumerate(shape) if size > 1] or [0]
            count = 2 if len(dims) > 2 and seed // 79 % 3 else 1
            first = min(seed // 13 % len(dims), len(dims) - count)
            layout = Layout(expanded=tuple(dims[first : first + count]))
        case "one for all":
            layout = Layout(expanded=tuple(range(rank)))
            values = (values, _ONES)[seed // 47 % 2]
        case "sliced" if rank:
            # Every second element, or rows that are parts of wider ones.
            wider = Layout(padding=(*(0 for _ in shape[1:]), 3), offset=1)
            layout = (Layout(steps=(*(1 for _ in shape[1:]), 2), offset=1), wider)[seed // 43 % 2]
        case "cut" if rank:
            # A part of a larger tensor, as a concatenation of tokens or channels hands it back: rows are dense.
            longer = 1 + seed // 43 % (rank - 2) if rank > 2 else rank - 1
            layout = Layout(padding=tuple(5 if dim == longer else 0 for dim in range(rank)))
        case "zeros":
            values = "zeros"
    if not rank and kind != "zeros" and seed // 47 % 3:
        # Of a loss, as loss.backward() begins.
        values = _ONES
    specials: tuple[Special, ...] = ()
    if rank and kind not in _WITHOUT_SPECIALS and seed // 53 % 4 == 0:
        # One element of another size, as an overflow of a scaled loss leaves it: nothing else may become like it.
        specials = (Special(seed // 59 % max(math.prod(shape), 1), _SPECIALS[seed // 61 % len(_SPECIALS)]),)
    elif rank > 1 and kind not in _WITHOUT_SPECIALS and seed // 53 % 4 == 1:
        # Tokens without a loss, as those of a prompt: half of the rows, at the beginning or the end.
        half = math.prod(shape) // shape[-1] // 2 * shape[-1] if shape[-1] else 0
        specials = (Special(half * (seed // 59 % 2), "0", half),) if half else ()
    return TensorSpec(shape, dtype, values, seed // 17 % 256, layout, specials)


def _orders(rank: int) -> list[tuple[int, ...]]:
    """Return orders of dims in memory: the reverse one; heads between tokens and their elements, as a model joins them
    again; channels last."""
    dims = tuple(range(rank))
    found = [dims[::-1]]
    if rank > 2:
        found += [(*dims[:-3], dims[-2], dims[-3], dims[-1]), (dims[0], *dims[2:], dims[1])]
    return found
