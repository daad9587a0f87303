"""An element of ``tl.dot`` depends on its row, its column and its accumulator alone, on every machine."""

import hashlib
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntops.interpreter.dot import dot

SPECIALS = [0.0, -0.0, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan]
# What chooses other code of OpenBLAS, MKL, torch and NumPy than the machine's own.
SETTINGS = {
    "avx2": {
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    },
    "sse4, one thread": {
        "OPENBLAS_CORETYPE": "Prescott",
        "ATEN_CPU_CAPABILITY": "default",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    },
}


def same(a, b):
    """Whether all bits agree, where neither is a NaN."""
    nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool((nan | (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}"))).all())


@st.composite
def operands(draw, dtypes=("float16", "float32", "float64")):
    """``a``, ``b`` and an accumulator of one to three programs, with zeros at the end of some, and special values."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    programs, m, k, n = (draw(st.integers(1, limit)) for limit in (3, 20, 70, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1.0, 100.0, 2.0**-10]))
    spread = draw(st.sampled_from([0, 5]))

    def tile(*shape):
        values = rng.standard_normal(shape) * scale * np.exp(rng.standard_normal(shape) * spread)
        values[:, shape[1] - draw(st.integers(0, shape[1])) :] = 0
        values[..., shape[2] - draw(st.integers(0, shape[2])) :] = 0

        with np.errstate(over="ignore"):
            values = values.astype(dtype)

            for special in draw(st.lists(st.sampled_from(SPECIALS), max_size=2)):
                values[tuple(rng.integers(shape))] = special

        return values

    a, b = tile(programs, m, k), tile(draw(st.sampled_from([1, programs])), k, n)
    accumulator = rng.standard_normal((programs, m, n)).astype(dtype if dtype.itemsize == 8 else np.float32)
    return a, b, accumulator


@settings(max_examples=150)
@given(operands())
def test_an_element_is_that_of_its_row_and_column_alone(given):
    a, b, accumulator = given
    programs, m, n = accumulator.shape

    with np.errstate(all="ignore"):
        whole = dot(a, b, accumulator)

        for program, row, column in [(0, 0, 0), (programs - 1, m - 1, n - 1), (programs // 2, m // 2, n // 3)]:
            left, right = a[program, row][None, None], b[program % len(b), :, column][None, :, None]
            alone = dot(left, right, accumulator[program, row, column].reshape(1, 1, 1))
            assert same(alone, whole[program, row, column].reshape(1, 1, 1))

        order = np.argsort(np.arange(m) * 7 % (m + 1))
        assert same(dot(a[:, order], b, accumulator[:, order]), whole[:, order])
        assert same(dot(a[::-1], b[::-1], accumulator[::-1]), whole[::-1])
        assert same(dot(np.asfortranarray(a), np.asfortranarray(b), accumulator), whole)


@settings(max_examples=50)
@given(operands(("float16", "float32")))
def test_a_product_is_that_of_exact_arithmetic(given):
    a, b, accumulator = given

    with np.errstate(all="ignore"):
        whole = dot(a, b, accumulator)
        expected = a.astype(np.float64) @ b.astype(np.float64) + accumulator

    ordinary = np.isfinite(expected) & (np.abs(expected) < np.finfo(np.float32).max)
    assert np.array_equal(np.isnan(whole), np.isnan(expected))

    for place in np.argwhere(ordinary)[:: max(1, ordinary.sum() // 20)]:
        program, row, column = map(int, place)
        terms = [
            Fraction(float(x)) * Fraction(float(y))
            for x, y in zip(a[program, row], b[program % len(b), :, column], strict=True)
        ] + [Fraction(float(accumulator[program, row, column]))]
        exact, magnitude = float(sum(terms)), float(sum(map(abs, terms)))
        # Half an ulp of the result, and what float64 loses.
        limit = 0.5 * float(np.spacing(np.float32(abs(exact)))) + len(terms) * 2.0**-53 * magnitude
        assert math.fabs(float(whole[program, row, column]) - exact) <= limit


def test_integers_wrap():
    a = np.full((1, 1, 64), 127, np.int8)
    accumulator = np.full((1, 1, 1), 2**31 - 1, np.int32)

    with np.errstate(over="ignore"):
        result = dot(a, a.transpose(0, 2, 1), accumulator)

    assert result.item() == 64 * 127**2 + 2**31 - 1 - 2**32


def digest():
    """Of products of every dtype."""
    import ntops

    rng, found = np.random.default_rng(0), hashlib.sha256()

    for m, k, n in [(64, 48, 80), (1, 300, 7), (33, 129, 65)]:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            a, b = (torch.from_numpy(rng.standard_normal(shape)).to(dtype) for shape in ((m, k), (k, n)))
            found.update(ntops.torch.mm(a, b).view(torch.uint8).numpy().tobytes())

    return found.hexdigest()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_product_has_the_same_bits_on_other_machines(setting):
    environment = {**os.environ, **SETTINGS[setting]}
    command = [sys.executable, "-c", "import ntops, test_dot; print(test_dot.digest())"]
    folder = Path(__file__).parent
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)
    assert run.stdout.strip() == digest()
