"""Images and sequences, and operands that broadcast to them."""

from __future__ import annotations

from hypothesis import strategies as st

from strategies import shapes, tensors
from strategies.shapes import Shape
from strategies.specs import CONTIGUOUS, Layout, TensorSpec
from strategies.values import LISTED

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


@st.composite
def labelled(draw: st.DrawFn, dtype: str) -> tuple[TensorSpec, TensorSpec]:
    """Images whose channels are classes, mostly side by side, and their labels: in the order of the pixels, of columns,
    or of the images in turns."""
    shape = tuple(draw(st.integers(2, 6)) for _ in range(4))
    orders = draw(st.sampled_from(ORDERS[4])), draw(st.sampled_from((None, (0, 2, 1), (1, 2, 0), (1, 0, 2), (2, 0, 1))))
    of_images, of_labels = (CONTIGUOUS if order is None else Layout(order=order) for order in orders)
    labels = ",".join(str(draw(st.integers(0, shape[1] - 1))) for _ in range(7))
    images = TensorSpec(shape, dtype, "normal", draw(tensors.SEEDS), of_images)
    return images, TensorSpec((shape[0], *shape[2:]), "int64", LISTED + labels, layout=of_labels)
