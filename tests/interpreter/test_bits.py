"""Each bit of a result depends on its operands alone: not on their place, strides or number, nor on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bits import SIZE, digest, digests, functions, operands
from numpy._core import _multiarray_umath as numpy_core

from ntops.interpreter import _triton, elementary, reduce

FUNCTIONS = functions()
FLOATS = (np.float16, np.float32, np.float64)
VECTORS = [name for name in numpy_core.__cpu_dispatch__ if numpy_core.__cpu_features__.get(name)]
"""Sets of instructions for which NumPy has loops and which this CPU has, from the oldest on."""
CPUS = {
    "without AVX-512": {"NPY_DISABLE_CPU_FEATURES": " ".join(name for name in VECTORS if name != "X86_V3")},
    "without AVX": {
        "NPY_DISABLE_CPU_FEATURES": " ".join(VECTORS),
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Prescott",
    },
}


def alone(function, arrays):
    return np.concatenate([function(*(array[i : i + 1].copy() for array in arrays)) for i in range(len(arrays[0]))])


def placed(function, arrays):
    """The same elements in arrays of other sizes and strides."""
    yield function(*arrays)

    for first in (1, 3, 7):
        yield np.concatenate(
            [function(*(array[part] for array in arrays)) for part in (slice(first), slice(first, None))]
        )

    for size in (2, 5, 8, 17):
        yield np.concatenate([function(*(x[i : i + size].copy() for x in arrays)) for i in range(0, SIZE, size)])

    yield function(*(np.repeat(array, 3)[::3] for array in arrays))
    yield function(*(array[::-1] for array in arrays))[::-1]
    yield function(*(np.repeat(array[:, None], 2, axis=1).T for array in arrays))[1]
    # More than torch gives to one thread.
    yield function(*(np.tile(array, 64) for array in arrays))[-SIZE:]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_has_the_same_bits_everywhere(name):
    function, count = FUNCTIONS[name]

    for dtype in FLOATS:
        arrays = operands(count, dtype)

        with np.errstate(all="ignore"):
            expected = digest(alone(function, arrays))
            assert [digest(found) for found in placed(function, arrays)] == [expected] * 12


def test_powers_of_infinities():
    """glibc's function of long double gives inf for the first."""
    base = np.array([-np.inf, -np.inf, np.inf, -np.inf, np.nan, 1.0, -1.0])
    exponent = np.array([-(2.0**63), -3.0, -0.5, 3.0, 0.0, np.nan, np.inf])
    expected = [0.0, -0.0, 0.0, -np.inf, 1.0, 1.0, 1.0]
    np.testing.assert_array_equal(FUNCTIONS["libdevice pow"][0](base, exponent), expected)


def test_exp_is_as_inexact_as_triton_compiles_it():
    """An H100 showed it in softmax, whose bound the error left: it is 47 half ulps at -45.3."""
    value = np.array([-45.3, -1.0, 0.0, -np.inf, np.inf, np.nan], np.float32)
    product = value * np.float32(1.4426950408889634)
    expected = np.exp2(product.astype(np.float64)).astype(np.float32)
    compiled = FUNCTIONS["exp"][0](value)

    np.testing.assert_array_equal(compiled, expected)
    assert abs(compiled[0] / np.exp(value[0].astype(np.float64)) - 1) > 2.0**-24 * 20
    exact = np.exp(value.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(FUNCTIONS["libdevice exp"][0](value), exact)


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", ["libdevice pow", "libdevice fast_pow"])
def test_one_exponent_for_all_is_as_one_for_each(name, dtype, exponent):
    power, (base,) = FUNCTIONS[name][0], operands(1, dtype)

    with np.errstate(all="ignore"):
        for one in (np.array([exponent], dtype), np.broadcast_to(np.array([exponent], dtype), base.shape)):
            assert digest(power(base, one)) == digest(power(base, np.full(base.shape, exponent, dtype)))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
def test_plus_zero_is_more_than_minus_zero(dtype):
    """As compiled."""
    a, b = (np.array(x, dtype) for x in ([0, 0, -0.0, -0.0, np.nan], [0, -0.0, 0, -0.0, -0.0]))

    for most in (elementary.maximum, elementary.maxnum):
        assert np.signbit(most(a, b))[:4].tolist() == [False, False, False, True]

    for least in (elementary.minimum, elementary.minnum):
        assert np.signbit(least(a, b))[:4].tolist() == [False, True, True, True]

    assert np.signbit(elementary.maxnum(a, b)[4])
    rows = np.array([[-0.0, 0, -0.0], [-0.0, -0.0, -1], [0, -0.0, 1], [0, 0, 1]], dtype)
    assert np.signbit(elementary.largest(rows, axis=1)).tolist() == [False, True, False, False]
    assert np.signbit(elementary.smallest(rows, axis=1)).tolist() == [True, True, True, False]


REDUCTIONS = ("_sum_combine", "_elementwise_max", "_elementwise_min")


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("combine", REDUCTIONS)
@pytest.mark.parametrize("shape", [(1024,), (2, 512), (32, 32), (1024, 1), (16, 8, 8)], ids=str)
def test_a_reduction_is_the_same_in_every_program(combine, dtype, shape):
    tl = _triton.tl
    blocks = operands(1, dtype)[0][:1024].reshape(shape)
    programs = np.stack([blocks, *(np.roll(blocks, place, axis=0) for place in (1, 3, 8, 0))])

    def reduced(array, axis):
        dtypes = [{2: tl.float16, 4: tl.float32, 8: tl.float64}[array.itemsize]]

        return reduce._known_reduction(getattr(tl.standard, combine), [array], dtypes, axis)[0]

    for axis in range(1, programs.ndim):
        together = reduced(programs, axis)
        assert digest(together[0]) == digest(together[-1])

        for number in range(len(programs)):
            assert digest(reduced(np.ascontiguousarray(programs[number : number + 1]), axis)[0]) == digest(
                together[number]
            )


@pytest.mark.parametrize("settings", CPUS.values(), ids=CPUS)
def test_every_cpu_gives_the_same_bits(settings):
    command = [sys.executable, "-W", "ignore", Path(__file__).with_name("bits.py")]
    result = subprocess.run(command, check=True, capture_output=True, env={**os.environ, **settings}, text=True)
    assert json.loads(result.stdout) == digests()


@pytest.mark.parametrize("name", ["sin", "sqrt", "rsqrt", "erf", "libdevice tanh", "libdevice erf", "libdevice fmod"])
def test_subnormal_operands_are_zeros_where_they_are_compiled_so(name):
    function, count = FUNCTIONS[name]
    number, zero = np.array([1e-40, -1e-40], np.float32), np.array([0.0, -0.0], np.float32)
    others = [np.ones(2, np.float32)] * (count - 1)

    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(function(number, *others), function(zero, *others))
        # float64 has them all.
        assert (function(*(x.astype(np.float64) for x in (number, *others))) != function(zero, *others)).any()


def test_subnormal_results_are_zeros_where_they_are_compiled_so():
    """An H100 showed it of pow, whose results pow's gradient multiplies."""
    small = np.array([2.0**-70, -(2.0**-43)], np.float32)
    exponent = np.array([2.0, 3.0], np.float32)
    np.testing.assert_array_equal(FUNCTIONS["libdevice pow"][0](small, exponent), np.array([0.0, -0.0], np.float32))
    np.testing.assert_array_equal(FUNCTIONS["exp2"][0](np.float32([-127.0, -126.0])), np.float32([0.0, 2.0**-126]))
    np.testing.assert_array_equal(FUNCTIONS["exp"][0](np.float32([-88.0])) > 0, [True])
    np.testing.assert_array_equal(FUNCTIONS["libdevice exp"][0](np.float32([-88.0])) > 0, [True])
    # A subnormal base is no zero.
    np.testing.assert_array_equal(FUNCTIONS["libdevice pow"][0](np.float32([2.0**-130]), np.float32([0.5])), 2.0**-65)
