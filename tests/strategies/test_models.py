"""Strategies of models' calls: what activations look like, and what stands beside them."""

from __future__ import annotations

import math

from strategies import layouts, models


def test_activations_lie_in_every_way(examples):
    orders, seen = set(), set()
    for shape, layout in examples(models.activations(4000), 200):
        assert math.prod(shape) <= 4000
        assert min(shape[1:]) >= 2
        seen.add(layouts.layout_class(layout, shape))
        orders.add(layout.order)
    assert seen >= {"padded", "expanded"}
    assert orders >= {(), (0, 2, 1), (0, 2, 1, 3)}
    assert all(not layout.expanded for _, layout in examples(models.activations(4000, writable=True), 100))


def test_what_stands_beside_activations_broadcasts_to_them(examples):
    whole, layout = (2, 3, 5, 7), layouts.turned((2, 3, 5, 7), 1)
    found = {shape for shape, _ in examples(models.beside(whole, layout), 100)}
    assert found == {whole, (7,), (2, 3, 5, 1), (2, 3, 1, 7), (5, 7)}


def test_short_rows_are_short():
    assert max(models.SHORT) <= 256
