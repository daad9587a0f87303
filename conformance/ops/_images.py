"""Images and sequences, and operands that broadcast to them."""

from __future__ import annotations

from hypothesis import strategies as st

from strategies import shapes
from strategies.shapes import Shape
from strategies.specs import CONTIGUOUS, Layout

ORDERS = {3: (None, (1, 0, 2), (0, 2, 1)), 4: (None, (0, 2, 3, 1), (0, 2, 3, 1), (0, 2, 1, 3))}
"""Orders of dims in memory of sequences and of images; most of the latter have their channels last."""


@st.composite
def beside(draw: st.DrawFn, count: int) -> list[tuple[Shape, Layout | None]]:
    """Images or sequences, and what has some of their dims: a scale of each image, a bias of channels, a row, a mask.
    Half of the time all sizes are equal, so that they alone do not say which dim is meant."""
    rank = draw(st.integers(3, 4))
    sizes = [draw(st.integers(2, 5)) for _ in range(rank)]
    if draw(st.booleans()):
        sizes = sizes[:1] * rank
    order = draw(st.sampled_from(ORDERS[rank]))
    found: list[tuple[Shape, Layout | None]] = [(tuple(sizes), Layout(order=order) if order else CONTIGUOUS)]
    for _ in range(count - 1):
        kept = draw(st.sampled_from(shapes.KEPT[rank]))
        shape = [size if dim in kept else 1 for dim, size in enumerate(sizes)]
        if draw(st.booleans()):
            # A broadcast needs no dims in front.
            shape = shape[next(dim for dim, size in enumerate(shape) if size > 1) :]
        found.append((tuple(shape), None))
    return found
