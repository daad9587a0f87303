"""Strategies of models' calls: what activations look like, and what stands beside them."""

from __future__ import annotations

import math

import numpy as np

from strategies import layouts, models


def test_activations_lie_in_every_way(examples):
    orders, seen = set(), set()
    for ((shape, layout),) in examples(models.activations(4000), 200):
        assert math.prod(shape) <= 4000
        assert min(shape[1:]) >= 2
        seen.add(layouts.layout_class(layout, shape))
        orders.add(layout.order)
    assert seen >= {"padded", "expanded"}
    assert orders >= {(), (0, 2, 1), (0, 2, 1, 3)}
    writable = examples(models.activations(4000, writable=True), 100)
    assert all(not layout.expanded for ((_, layout),) in writable)


def test_what_stands_beside_activations_broadcasts_to_them(examples):
    found = set()
    for (whole, _), (shape, _) in examples(models.activations(4000, 2), 600):
        assert np.broadcast_shapes(whole, shape) == whole
        if len(whole) == 3 and min(whole) > 1:
            found.add(tuple(size > 1 for size in shape))
    assert found >= {(True, True, True), (True,), (True, True, False), (True, False, True), (True, True)}
    assert (False, True, False) in found


def test_short_rows_are_short():
    assert max(models.SHORT) <= 256
