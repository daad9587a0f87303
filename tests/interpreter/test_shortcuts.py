"""The short cuts give what Triton's own rules give: the same types, shapes, values and refusals."""

import functools
import itertools
import operator

import numpy as np
import pytest
import triton.language as tl

from ntops.interpreter import _triton, shortcuts
from ntops.interpreter.handles import Handle, numpy_dtype

OPERATORS = ["add", "sub", "mul", "floordiv", "mod", "and_", "or_", "lt", "le", "gt", "ge", "eq", "ne"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
DTYPES = [tl.int1, tl.int8, tl.int32, tl.int64, tl.uint32, tl.float16, tl.float32, tl.float64, tl.bfloat16]
# Shape of the block, and of the array that holds it: the same for all programs or not, along a dim or not.
SHAPES = [
    ((), (1,)),
    ((), (3,)),
    ((4,), (1, 4)),
    ((4,), (3, 4)),
    ((4,), (3, 1)),
    ((2, 4), (3, 2, 4)),
    ((2, 1), (1, 2, 1)),
]
NUMBERS = [0, 1, -3, 2**31 - 1, 2**31, 2**40, True, False, 0.5, 0.1, -0.0, 1e300, 1e-40, float("inf"), float("nan")]


def tensor(dtype, shape, held, rng):
    data = rng.integers(1, 9, held).astype(numpy_dtype(dtype))

    return tl.tensor(Handle(data, dtype, shape), tl.block_type(dtype, list(shape)) if shape else dtype)


def slowly(name, a, b, reflected=False):
    """The operator as it was before the short cuts."""
    name = name.strip("_")

    return shortcuts.slow_operators[f"__r{name}__" if reflected else f"__{name}__"](a, b)


def outcome(function):
    try:
        return function()
    except Exception as error:  # noqa: BLE001  (whatever it is, both must refuse alike)
        return type(error)


def describe(result):
    if isinstance(result, type):
        return result

    programs = result.handle.data.shape[0]

    return str(result.type), result.handle.dtype.name, result.handle.shape, result.handle.full(programs).tolist()


def same(fast_result, slow_result):
    # As text, so that NaN is the same as itself and -0. is not 0.
    return str(describe(fast_result)) == str(describe(slow_result))


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors(name):
    rng = np.random.default_rng(0)

    for (dtype, other), (one, two) in itertools.product(
        itertools.product(DTYPES, DTYPES), itertools.product(SHAPES, SHAPES)
    ):
        a, b = tensor(dtype, *one, rng), tensor(other, *two, rng)
        result = outcome(lambda a=a, b=b: getattr(operator, name)(a, b))

        assert same(result, outcome(lambda a=a, b=b: slowly(name, a, b))), (name, a.type, b.type)


@pytest.mark.parametrize("name", OPERATORS)
def test_numbers(name):
    rng = np.random.default_rng(0)

    for dtype, (shape, held), number in itertools.product(DTYPES, SHAPES, NUMBERS):
        a = tensor(dtype, shape, held, rng)
        result = outcome(lambda a=a, number=number: getattr(operator, name)(a, number))

        assert same(result, outcome(lambda a=a, number=number: slowly(name, a, number))), (name, a.type, number)

        if name not in COMPARISONS:
            result = outcome(lambda a=a, number=number: getattr(operator, name)(number, a))
            expected = outcome(lambda a=a, number=number: slowly(name, a, number, reflected=True))

            assert same(result, expected), (name, number, a.type)


def test_offsets_of_pointers():
    rng = np.random.default_rng(0)
    dtype = tl.pointer_type(tl.float32)

    for (shape, held), (other, held_other) in itertools.product(SHAPES, SHAPES):
        data = rng.integers(0, 2**48, held).astype(np.uint64)
        pointer = tl.tensor(Handle(data, dtype, shape, "origin"), shortcuts.block_of(dtype, shape))
        offset = tensor(tl.int32, other, held_other, rng)

        for function in (lambda p=pointer, o=offset: p + o, lambda p=pointer, o=offset: o + p):
            result, expected = outcome(function), outcome(lambda p=pointer, o=offset: slowly("add", p, o))

            assert same(result, expected)
            assert isinstance(result, type) or result.handle.origin == "origin"


def test_a_conjunction_with_true_is_the_mask_itself():
    mask = tensor(tl.int1, (4,), (1, 4), np.random.default_rng(0))

    assert (True & mask) is mask
    assert (mask | False) is mask


def test_broadcasting():
    rng = np.random.default_rng(0)

    for shapes in itertools.product([*SHAPES, ((8,), (1, 8))], repeat=2):
        lhs, rhs = (tensor(tl.int32, *shape, rng) for shape in shapes)
        rules = _triton.semantic()
        quick, slow = (
            outcome(lambda broadcast=broadcast, a=lhs, b=rhs: broadcast(a, b))
            for broadcast in (rules.broadcast_impl_value, functools.partial(type(rules).broadcast_impl_value, rules))
        )

        if isinstance(slow, type):
            assert quick is slow
            continue

        assert list(map(describe, quick)) == list(map(describe, slow))
        assert all(part.handle.data.ndim == len(part.handle.shape) + 1 for part in quick)
