"""Test the properties of a rotation, without an oracle: collected where this op is judged.

Rotating by 0 changes nothing, by a and then by -a gives back what there was, and scores of rotated queries and keys
depend on the distance of their positions alone; the offsets, tables and strides that a KV cache comes with, and in
place, change no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from conformance import bounds, drawing, float_formats, guards
from conformance import spec as specs
from conformance.implementations import NotProvided
from conformance.ops import _elementwise as elementwise
from conformance.session import Run
from strategies import shapes
from strategies import tensors as spec_tensors
from strategies.specs import TensorSpec

OP = "rotary_position_embedding"
Rotate = Callable[..., torch.Tensor]
LONGEST = 64


class Draw(NamedTuple):
    """An input, as data; which elements are pairs, and where its positions begin."""

    input: TensorSpec
    interleaved: bool
    offset: int


@st.composite
def draws(draw: st.DrawFn, dtypes: tuple[str, ...]) -> Draw:
    """Draw (B, T, H, D) tensors of any layout that may be written, with normal numbers."""
    batch, length, heads, half = draw(shapes.shapes(4, 4, min_size=1, max_size=LONGEST, budget=1 << 11))
    shape, writable = (batch, length, heads, 2 * half), elementwise.WRITABLE
    drawn = spec_tensors.tensors(shape, dtypes, values="normal", specials=(), layouts=writable)
    return Draw(draw(drawn), draw(st.booleans()), draw(st.integers(0, LONGEST)))


@pytest.fixture
def search(run: Run) -> Callable[[Callable[[Rotate, Draw], None]], None]:
    """Return a function that tests a property of the implementation over drawn inputs."""
    function = run.implementation.function(OP)
    if function is None:
        pytest.skip(f"not provided by {run.implementation.name}: {OP}")
    dtypes = tuple(name for name in specs.registry()[OP].dtypes if name in run.dtypes)

    def rotate(input: torch.Tensor, *tables: torch.Tensor, **kwargs: bool) -> torch.Tensor:
        return function(input, *tables, **kwargs)

    def search(holds: Callable[[Rotate, Draw], None]) -> None:
        def test(drawn: Draw) -> None:
            try:
                holds(rotate, drawn)
            except NotProvided:
                hypothesis.reject()

        drawing.run(test, draws(dtypes), run.seed, drawing.settings(-(-run.settings.max_examples // 4)))

    return search


@pytest.fixture
def claimed(run: Run) -> None:
    """Skip a property of bits, which is a claim, unless it is claimed."""
    if "layout_invariant" not in run.implementation.claims(OP):
        pytest.skip(f"{run.implementation.name} does not claim that {OP} is layout_invariant")


@pytest.fixture
def make(run: Run) -> Callable[[Draw], torch.Tensor]:
    """Return a function that makes the input on the device."""
    return lambda drawn: spec_tensors.materialize(drawn.input, 0, run.device)


@pytest.fixture
def tables(run: Run) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return a function of the sines and cosines of ``rows`` positions from ``first`` on, in the input's compute
    dtype."""

    def tables(drawn: Draw, rows: int, first: int = 0, sign: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        half = drawn.input.shape[-1] // 2
        frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(first, first + rows, dtype=torch.float64)[:, None] * frequency
        dtype = float_formats.compute_dtype(getattr(torch, drawn.input.dtype))
        return (sign * angle.sin()).to(run.device, dtype), angle.cos().to(run.device, dtype)

    return tables


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Tell whether all bits are equal."""
    return torch.equal(guards.bits(ours), guards.bits(theirs))


def test_rotation_by_0_is_the_identity(search, make) -> None:
    def holds(rotate: Rotate, drawn: Draw) -> None:
        input = make(drawn)
        zeros = torch.zeros(input.shape[1], input.shape[-1] // 2, dtype=torch.float32, device=input.device)
        found = rotate(input, zeros, zeros + 1, interleaved=drawn.interleaved)
        assert torch.equal(found, input)

    search(holds)


def test_rotation_and_back(search, make, tables) -> None:
    """Test that rotating back gives x (sin^2 + cos^2) of the rounded tables, exactly; the first rotation's error is
    rotated too."""

    def holds(rotate: Rotate, drawn: Draw) -> None:
        input = make(drawn)
        sin, cos = tables(drawn, input.shape[1], drawn.offset)
        there = rotate(input, sin, cos, interleaved=drawn.interleaved)
        back = rotate(there, -sin, cos, interleaved=drawn.interleaved)
        s, c = (wide(table)[:, None] for table in (sin, cos))
        x, allowed = parts(input, drawn), []
        between = (x[0] * c - x[1] * s, x[0] * s + x[1] * c)
        errors = [error(value, *terms, input.dtype) for value, terms in zip(between, _terms(x, s, c), strict=True)]
        again = (errors[0] * abs(c) + errors[1] * abs(s), errors[0] * abs(s) + errors[1] * abs(c))
        right = [part * (s * s + c * c) for part in x]
        for value, terms, first in zip(right, _terms(between, s, c), again, strict=True):
            allowed.append(first * (1 + 2.0**-6) + error(value, *terms, input.dtype))
        for ours, value, bound in zip(parts(back, drawn), right, allowed, strict=True):
            # The sum of the squares itself was rounded in float64.
            share = np.abs(ours - value) / (bound + 2.0**-51 * np.abs(value))
            assert share.max(initial=0.0) <= 1, f"{share.max()} times the bound at {np.argmax(share)}"

    search(holds)


def test_scores_depend_on_the_distance(search, make, tables) -> None:
    """Test that queries and keys at a fixed distance have the same scores when all are moved, but for rounding."""

    def holds(rotate: Rotate, drawn: Draw) -> None:
        query = make(drawn)
        spec = drawn.input
        key = spec_tensors.materialize(spec, 1, query.device)
        length = query.shape[1]

        def scores(first: int) -> tuple[np.ndarray, np.ndarray]:
            total, allowed = np.zeros(()), np.zeros(())
            tables_of = (tables(drawn, length, first + 3), tables(drawn, length, first))
            sides = []
            for tensor, (sin, cos) in zip((query, key), tables_of, strict=True):
                found = parts(rotate(tensor, sin, cos, interleaved=drawn.interleaved), drawn)
                x, s, c = parts(tensor, drawn), wide(sin)[:, None], wide(cos)[:, None]
                # The tables are rounded too, by half an ulp of numbers up to 1; those of float64 from angles that are.
                unit = float_formats.FORMATS[sin.dtype].unit * (1 + 2.0**-6)
                unit *= 2 + length + first if sin.dtype == torch.float64 else 1
                table = unit * (abs(x[0]) + abs(x[1]))
                errors = [error(y, *t, tensor.dtype) + table for y, t in zip(found, _terms(x, s, c), strict=True)]
                sides.append((found, errors))
            for (q, k), (dq, dk) in zip(*(zip(*side, strict=True) for side in zip(*sides, strict=True)), strict=True):
                total = total + (q * k).sum(-1)
                allowed = allowed + (abs(q) * dk + abs(k) * dq + dq * dk).sum(-1)
            return total, allowed

        (here, near), (moved, far) = scores(0), scores(drawn.offset)
        share = np.abs(here - moved) / (near + far + 2.0**-50 * np.abs(here) + 1e-300)
        assert share.max(initial=0.0) <= 1, f"{share.max()} times the bound at {np.argmax(share)}"

    search(holds)


@pytest.mark.usefixtures("claimed")
def test_offsets_are_rows_of_a_longer_table(search, make, tables) -> None:
    """Test that the last tokens alone, by a slice of the tables as with a cache, have the bits of the whole
    sequence."""

    def holds(rotate: Rotate, drawn: Draw) -> None:
        input = make(drawn)
        length, first = input.shape[1], drawn.offset % input.shape[1]
        sin, cos = tables(drawn, length + 5)
        whole = rotate(input, sin, cos, interleaved=drawn.interleaved)
        exact = rotate(input, sin[:length].clone(), cos[:length].clone(), interleaved=drawn.interleaved)
        assert same(exact, whole), "rows of the tables beyond the sequence were used"
        found = rotate(input[:, first:], sin[first:], cos[first:], interleaved=drawn.interleaved)
        assert same(found, whole[:, first:])

    search(holds)


@pytest.mark.usefixtures("claimed")
def test_in_place_and_strides(search, make, tables) -> None:
    """Test in place, of a contiguous copy, and by tables with strides: the bits are the same, and in place the very
    tensor is returned."""

    def holds(rotate: Rotate, drawn: Draw) -> None:
        input = make(drawn)
        sin, cos = tables(drawn, input.shape[1], drawn.offset)
        found = rotate(input, sin, cos, interleaved=drawn.interleaved)
        assert same(input, make(drawn)), "the input was changed"
        assert same(rotate(input.contiguous(), sin, cos, interleaved=drawn.interleaved), found)
        strided = [table.t().contiguous().t() for table in (sin, cos)]
        assert same(rotate(input, *strided, interleaved=drawn.interleaved), found)
        returned = rotate(input, sin, cos, interleaved=drawn.interleaved, inplace=True)
        assert returned is input
        assert same(input, found)

    search(holds)


# --- arithmetic --------------------------------------------------------------------------------------------------


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def parts(tensor: torch.Tensor, drawn: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second elements of all pairs."""
    half, found = tensor.shape[-1] // 2, wide(tensor)
    if drawn.interleaved:
        return found[..., 0::2], found[..., 1::2]
    return found[..., :half], found[..., half:]


def _terms(x: tuple[np.ndarray, np.ndarray], s: np.ndarray, c: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the products whose sums and differences are the two elements of a pair."""
    return [(x[0] * c, x[1] * s), (x[0] * s, x[1] * c)]


def error(value: np.ndarray, first: np.ndarray, second: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound the error of a rotated element: half an ulp, as large as it can be, and the bound of the op."""
    bound = bounds.rope(first, second, dtype)
    return float_formats.rounding(np.abs(value) + bound, dtype) + bound
