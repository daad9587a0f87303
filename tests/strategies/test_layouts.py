"""Each layout class is drawn, classified by what its strides show, and within its limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import strategies as st

from strategies import layouts, shapes
from strategies.specs import Layout, TensorSpec
from strategies.tensors import materialize

SHAPE = (3, 4, 5)


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        (Layout(), SHAPE, "contiguous"),
        (Layout(offset=3), SHAPE, "offset"),
        (Layout(order=(0, 2, 1)), SHAPE, "channels_last"),
        (Layout(order=(0, 2, 1)), (3, 1, 5), "contiguous"),
        (Layout(order=(0, 2, 3, 1)), (2, 3, 4, 5), "channels_last"),
        (Layout(order=(2, 1, 0)), SHAPE, "permuted"),
        (Layout(order=(2, 1, 0)), (1, 4, 1), "contiguous"),
        (Layout(order=(1, 0)), (3, 4), "permuted"),
        (Layout(steps=(1, 1, 2)), SHAPE, "sliced"),
        (Layout(steps=(1, 1, 2)), (3, 4, 1), "padded"),
        (Layout(padding=(0, 0, 3)), SHAPE, "padded"),
        (Layout(padding=(0, 0, 3), offset=2), SHAPE, "padded"),
        (Layout(padding=(3, 0, 0)), SHAPE, "contiguous"),
        (Layout(padding=(0, 0, 3)), (1, 1, 5), "contiguous"),
        (Layout(expanded=(1,)), SHAPE, "expanded"),
        (Layout(expanded=(1,)), (3, 1, 5), "contiguous"),
        (Layout(expanded=(0,), offset=1), SHAPE, "mixed"),
        (Layout(order=(2, 1, 0), steps=(2, 1, 1)), SHAPE, "mixed"),
        (Layout(order=(2, 1, 0), steps=(2, 2, 2), padding=(1, 1, 1)), (3, 0, 5), "contiguous"),
        (Layout(offset=5), (), "offset"),
    ],
)
def test_classes(layout, shape, expected):
    assert layouts.layout_class(layout, shape) == expected


@pytest.mark.parametrize("kind", layouts.CLASSES)
def test_a_class_that_is_asked_for_is_drawn(examples, kind):
    found = examples(layouts.layouts(SHAPE, [kind]), 100)
    classes = [layouts.layout_class(layout, SHAPE) for layout in found]
    assert kind in classes
    assert set(classes) <= ({kind, "channels_last"} if kind == "permuted" else {kind})


@pytest.mark.parametrize("shape", [(2,), (3, 4), SHAPE, (2, 3, 4, 5)])
def test_each_class_is_drawn(examples, shape):
    found = {layouts.layout_class(layout, shape) for layout in examples(layouts.layouts(shape), 200)}
    unfit = {1: {"permuted", "channels_last", "padded"}, 2: {"channels_last"}}.get(len(shape), set())
    assert found == set(layouts.CLASSES) - unfit


def test_each_class_is_drawn_with_drawn_shapes(examples):
    drawn = shapes.shapes().flatmap(lambda shape: layouts.layouts(shape).map(lambda layout: (layout, shape)))
    classes = {layouts.layout_class(layout, shape) for layout, shape in examples(drawn, 1000)}
    assert classes == set(layouts.CLASSES)


@pytest.mark.parametrize("shape", [(), (0,), (1, 1), (3, 0, 2), (1, 0, 1, 5)])
def test_small_and_empty_shapes_have_layouts(examples, shape):
    for layout in examples(layouts.layouts(shape), 50):
        assert layouts.layout_class(layout, shape) in ("contiguous", "offset")
        layout.check(shape)


def test_expanded_dims_are_any_subset(examples):
    found = {layout.expanded for layout in examples(layouts.layouts(SHAPE, ["expanded"]), 200)}
    assert found == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)}


def test_offsets_leave_every_alignment(examples):
    found = {layout.offset for layout in examples(layouts.layouts(SHAPE, ["offset"]), 100)}
    assert {offset % 8 for offset in found} >= {0, 1, 2, 3, 4, 7}


def test_a_slice_of_a_larger_base_starts_inside_it_at_times(examples):
    found = examples(layouts.layouts((7, 9), ["padded"]), 100)
    assert {bool(layout.offset) for layout in found} == {True, False}


def test_storage_is_bounded(examples):
    shape = (8, 9, 10, 11)
    found = examples(layouts.layouts(shape, max_storage=10_000), 400)
    assert max(layouts.storage_size(layout, shape) for layout in found) <= 4 * math.prod(shape)
    assert any(layouts.storage_size(layout, shape) > 10_000 for layout in found)


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_channels_last_is_that_of_torch(rank):
    shape = (2, 3, 4, 5, 6)[:rank]
    tensor = materialize(TensorSpec(shape, "float32", layout=layouts.channels_last(rank)))
    if rank > 3:
        memory_format = torch.channels_last if rank == 4 else torch.channels_last_3d
        assert tensor.is_contiguous(memory_format=memory_format)
    assert tensor.movedim(1, -1).is_contiguous()


def test_channels_last_needs_channels():
    with pytest.raises(ValueError, match="channels-last needs 3 to 5 dims, got 2"):
        layouts.channels_last(2)


@pytest.mark.parametrize("classes", [["upside_down"], []])
def test_unknown_classes_are_refused(classes, examples):
    with pytest.raises(ValueError, match=r"unknown or no layout class .* known: contiguous, offset"):
        examples(layouts.layouts((2, 3), classes), 1)


@pytest.mark.parametrize(("shape", "padding", "strides", "size"), [
    ((4, 5), (0, -3), (2, 1), 11),
    ((2, 3, 4), (0, 0, -3), (3, 1, 1), 9),
    ((3, 2), (0, -1), (1, 1), 4),
])  # fmt: skip
def test_windows_overlap(shape, padding, strides, size):
    layout = Layout(padding=padding, offset=2)
    assert layouts.overlaps(layout)
    assert layouts.strides(layout, shape) == strides
    assert layouts.storage_size(layout, shape) == 2 + size
    assert layouts.layout_class(layout, shape) == "padded"
    tensor = materialize(TensorSpec(shape, "float32", layout=layout))
    assert (tensor.stride(), tensor.storage_offset()) == (strides, 2)
    assert tensor.untyped_storage().nbytes() == 4 * (2 + size)
    assert len(tensor.unique()) > 2


def test_windows_begin_after_one_another():
    with pytest.raises(ValueError, match="nothing of dim 1, of size 3: -3"):
        TensorSpec((4, 3), "float32", layout=Layout(padding=(0, -3)))


def test_what_is_cut_is_not_one_dim_with_the_dim_outside(examples):
    """A token less of each sequence, at either end."""
    seen = set()
    for shape in ((3, 5, 7), (2, 3, 4, 6)):
        for layout in examples(st.composite(layouts.cut)(shape), 60):
            *outer, rows, columns = layouts.strides(layout, shape)
            assert (rows, columns) == (shape[-1], 1)
            assert outer[-1] > shape[-2] * rows
            seen.add(layout.offset > 0)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("shape", "place", "order"),
    [((2, 5, 7), 0, (0, 2, 1)), ((2, 3, 5, 7), 1, (0, 2, 1, 3)), ((5, 7), 1, (1, 0)), ((2, 3, 1), 0, (2, 1, 0))],
)
def test_neighbouring_dims_are_stored_in_the_other_order(shape, place, order):
    """Or all of them, where one has a single element."""
    assert layouts.turned(shape, place).order == order
