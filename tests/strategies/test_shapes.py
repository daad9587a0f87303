"""Each class of edge among sizes and shapes is really drawn, and nothing beyond the limits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import find

from strategies import shapes

POWERS = [2**k for k in range(3, 12)]


def test_sizes_lie_around_the_edges(examples):
    found = set(examples(shapes.sizes(), 1000))
    assert {0, 1, 2} <= found
    assert all(0 <= size <= shapes.MAX_SIZE for size in found)
    for side in (-1, 0, 1):
        assert sum(power + side in found for power in POWERS) >= 3, f"few sizes of 2^k {side:+d}"
    primes = {size for size in found if size > 10 and all(size % divisor for divisor in range(2, math.isqrt(size) + 1))}
    assert len(primes) >= 10
    past_blocks = {size for size in found for block in shapes.BLOCKS if size > 2 * block and size % block == 1}
    assert len(past_blocks) >= 10
    assert sum(size < 64 for size in found) >= 20
    assert sum(size > 512 for size in found) >= 20


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1), (1, 1), (3, 7), (5, 5), (0, 100), (33, 1000)])
def test_sizes_keep_within_their_limits(examples, low, high):
    found = examples(shapes.sizes(low, high), 200)
    assert low <= min(found)
    assert max(found) <= high


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_some_shapes_span_several_blocks_in_every_dim(examples, rank):
    found = examples(shapes.shapes(rank, rank), 300)
    assert sum(all(size > 2 * 16 for size in shape) for shape in found) >= 10


@pytest.mark.parametrize("rank", [2, 3])
def test_each_dim_is_the_longest_at_times(examples, rank):
    found = examples(shapes.shapes(rank, rank), 700)
    assert {shape.index(max(shape)) for shape in found if max(shape) > 128} == set(range(rank))


@pytest.mark.parametrize("budget", [1, 10, 1000, shapes.BUDGET])
def test_shapes_keep_within_the_budget(examples, budget):
    found = examples(shapes.shapes(max_rank=5, budget=budget), 300)
    assert max(math.prod(shape) for shape in found) <= budget
    assert {len(shape) for shape in found} == set(range(6))


def test_shapes_are_seldom_empty(examples):
    found = examples(shapes.shapes(), 500)
    assert 0 < sum(math.prod(shape) == 0 for shape in found) < 150
    assert all(min(shape) > 0 for shape in examples(shapes.shapes(1, min_size=1), 300))


@pytest.mark.parametrize("operands", [1, 2, 3])
def test_broadcastable_shapes_broadcast(examples, operands):
    found = examples(shapes.broadcastable(operands), 400)
    for drawn in found:
        assert len(drawn) == operands
        np.broadcast_shapes(*drawn)  # raises where they do not
    assert any(len(set(drawn)) == 1 and len(drawn[0]) > 1 for drawn in found), "equal shapes"
    assert any(() in drawn for drawn in found), "a 0-d operand"
    if operands > 1:
        shorter = [len(first) < len(second) for first, second, *_ in found if len(first) != len(second)]
        assert set(shorter) == {True, False}, "either operand has fewer dims"
        results = [(drawn, np.broadcast_shapes(*drawn)) for drawn in found]
        assert any(all(shape != result for shape in drawn) for drawn, result in results), "all operands grow"


@pytest.mark.parametrize("operands", [2, 3])
def test_usual_broadcasts(examples, operands):
    found = examples(shapes.usual(operands, budget=1000), 500)
    patterns: list[str] = []
    for drawn in found:
        whole = np.broadcast_shapes(*drawn)
        assert len(drawn) == operands
        assert min(whole) > 1
        assert math.prod(whole) <= 1000
        patterns += {shapes.pattern_of(*pair) for pair in itertools.combinations(drawn, 2)}
    assert set(patterns) - {"equal", "other"} == {*shapes.SMALLER, "both"}
    assert operands > 2 or not {"equal", "other"} & set(patterns)
    for first in (True, False):
        assert any((len(one) < len(other)) == first for one, other, *_ in found), "either operand is the smaller one"
    pairs = [pair for drawn in found for pair in itertools.combinations(drawn, 2)]
    assert any({len(one), len(other)} == {1, 2} for one, other in pairs if shapes.pattern_of(one, other) == "both")


@pytest.mark.parametrize(
    ("first", "second", "pattern"),
    [((3, 5), (3, 5), "equal"), ((), (), "equal"), ((3, 5), (1, 5), "1xM"), ((3, 5), (3, 1), "Nx1"),
     ((3, 5), (5,), "M"), ((2, 3, 5), (5,), "M"), ((2, 3, 5), (2, 1, 5), "Bx1xM"),
     ((2, 3, 4, 5), (1, 3, 1, 1), "1xHx1x1"), ((3, 5), (), "0-d"), ((3, 1), (1, 5), "both"), ((3, 1), (5,), "both"),
     ((), (1, 1), "other"), ((3, 5), (1, 1), "other"), ((3, 5), (1,), "other"), ((3, 1), (1,), "other"),
     ((1, 5), (5,), "other"), ((2, 3, 5), (1, 5), "other"), ((0, 5), (1, 5), "other"), ((2, 3, 5), (1, 3, 5), "other")],
)  # fmt: skip
def test_the_pattern_of_two_shapes(first, second, pattern):
    assert shapes.pattern_of(first, second) == shapes.pattern_of(second, first) == pattern


@pytest.mark.slow
def test_products_keep_within_their_limits(examples):
    found = examples(shapes.products(budget=5000, work=100_000), 400)
    for m, k, n in found:
        assert max(m * k, k * n, m * n) <= 5000
        assert m * k * n <= 100_000
    found = examples(shapes.products(), 1000)
    for place in range(3):
        assert any(sizes[place] == 0 and max(sizes) > 0 for sizes in found)
    assert sum(min(sizes) > 2 * 16 for sizes in found) >= 10


def test_reductions_are_long_short_and_empty(examples):
    found = examples(shapes.reductions(), 1000)
    assert all(rows * columns <= shapes.BUDGET for rows, columns in found)
    assert any(columns > 2048 for _, columns in found)
    assert any(rows > 512 for rows, _ in found)
    assert any(columns == 0 < rows for rows, columns in found)
    assert any(rows == 0 < columns for rows, columns in found)
    assert sum(rows > 32 and columns > 32 for rows, columns in found) >= 20


@pytest.mark.parametrize("shape", [(), (3,), (3, 4, 5)])
def test_every_dim_is_named_both_ways(examples, shape):
    rank = max(len(shape), 1)
    assert set(examples(shapes.dims(shape), 100)) == set(range(-rank, rank))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_large_shapes(examples, rank):
    found = examples(shapes.large(rank, 1 << 22), 1500)
    sizes = [math.prod(shape) for shape in found]
    assert max(sizes) <= 1 << 22
    assert sum(size > 1 << 16 for size in sizes) > len(sizes) / 5
    # A whole dim past what 16 bits hold, wherever it is.
    assert {shape.index(max(shape)) for shape in found if max(shape) > 1 << 16} == set(range(rank))
    if rank > 1:
        assert any(sorted(shape)[-2] > 250 for shape in found)


def test_a_large_shape_shrinks_to_the_smallest_that_is_past_a_limit():
    found = find(shapes.large(2, 1 << 24), lambda shape: math.prod(shape) > 100_000)
    assert math.prod(found) < 102_000
