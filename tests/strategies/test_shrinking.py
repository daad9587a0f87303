"""Shrinking a planted defect ends at its simplest case: what a person would have written down."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, find, settings

from conformance import drawing
from strategies import dtypes, layouts, scalars, shapes
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import tensors

# Not derandomized where CI is set, or the random numbers given would not be used.
SETTINGS = settings(max_examples=2000, derandomize=False, database=None, suppress_health_check=list(HealthCheck))
ANY = tensors(shapes.shapes(), dtypes.ALL)


def simplest(strategy, defect, seed=0):
    # Else what is found depends on the modules that other tests have loaded.
    with drawing.independent():
        return find(strategy, defect, settings=SETTINGS, random=random.Random(seed))


def kind_of(spec: TensorSpec) -> str:
    return layouts.layout_class(spec.layout, spec.shape)


# What each shrinks to; a further spec is one that Hypothesis stops at now and then, no less simple to read.
DEFECTS = {
    "fails always": (lambda spec: True, TensorSpec((), "float32")),
    "any size beyond 33": (lambda spec: any(size > 33 for size in spec.shape), TensorSpec((34,), "float32")),
    "tail of a block of 64": (
        lambda spec: any(size > 64 and size % 64 for size in spec.shape),
        TensorSpec((65,), "float32"),
    ),
    "several rows of several blocks": (
        lambda spec: len(spec.shape) > 1 and spec.shape[-2] > 20 and spec.shape[-1] > 40,
        TensorSpec((21, 41), "float32"),
    ),
    "empty": (lambda spec: 0 in spec.shape, TensorSpec((0,), "float32"), TensorSpec((0, 1), "float32")),
    "three dims": (lambda spec: len(spec.shape) == 3, TensorSpec((1, 1, 1), "float32")),
    "bfloat16": (lambda spec: spec.dtype == "bfloat16", TensorSpec((), "bfloat16")),
    "integral": (lambda spec: spec.dtype in dtypes.INTEGRAL, TensorSpec((), "int32")),
    "NaN": (
        lambda spec: any(special.value == "nan" for special in spec.specials),
        TensorSpec((), "float32", specials=(Special(0, "nan"),)),
    ),
    "NaN at the end of several": (
        lambda spec: any(s.value == "nan" and s.index == math.prod(spec.shape) - 1 > 0 for s in spec.specials),
        TensorSpec((2,), "float32", specials=(Special(1, "nan"),)),
    ),
    "subnormal": (lambda spec: spec.values == "subnormal", TensorSpec((), "float32", "subnormal")),
    "not contiguous": (
        lambda spec: kind_of(spec) not in ("contiguous", "offset"),
        TensorSpec((2,), "float32", layout=Layout(steps=(2,))),
        TensorSpec((2,), "float32", layout=Layout(expanded=(0,))),
    ),
    "misaligned": (lambda spec: spec.layout.offset % 2, TensorSpec((), "float32", layout=Layout(offset=1))),
    "expanded": (
        lambda spec: kind_of(spec) == "expanded",
        TensorSpec((2,), "float32", layout=Layout(expanded=(0,))),
        TensorSpec((1, 2), "float32", layout=Layout(expanded=(1,))),
    ),
    "transposed": (
        lambda spec: kind_of(spec) == "permuted" and len(spec.shape) == 2,
        TensorSpec((2, 2), "float32", layout=Layout(order=(1, 0))),
    ),
    "rows of a wider matrix": (
        lambda spec: kind_of(spec) == "padded" and len(spec.shape) == 2,
        TensorSpec((2, 1), "float32", layout=Layout(padding=(0, 1))),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_tensor_shrinks_to_the_simplest(name):
    defect, *expected = DEFECTS[name]
    # The shrinker has local minima.
    found = [simplest(ANY, defect)]
    while found[-1] not in expected and len(found) < 3:
        found.append(simplest(ANY, defect, len(found)))
    assert found[-1] in expected, found


def test_several_conditions_leave_nothing_else():
    found = simplest(
        ANY, lambda spec: math.prod(spec.shape) > 100 and spec.dtype == "float16" and kind_of(spec) == "sliced"
    )
    assert math.prod(found.shape) <= 110
    assert (found.values, found.seed, found.specials) == ("normal", 0, ())
    assert set(found.layout.steps) <= {1, 2}
    assert found.layout == Layout(steps=found.layout.steps)


def test_seeds_shrink_to_0():
    assert simplest(ANY, lambda spec: spec.seed >= 7) == TensorSpec((), "float32", seed=7)


@pytest.mark.parametrize(
    ("strategy", "defect", "expected"),
    [
        (shapes.broadcastable(2), lambda drawn: len(drawn[0]) > 1, ((1, 1), (1, 1))),
        (shapes.broadcastable(2), lambda drawn: drawn[0] != drawn[1], ((1,), ())),
        (shapes.broadcastable(2), lambda drawn: min(map(math.prod, drawn)) > 33, ((34,), (34,))),
        (
            shapes.broadcastable(2),
            lambda drawn: all(drawn) and drawn[0][-1] > 1 == drawn[1][-1],
            ((2,), (1,)),
        ),
        (shapes.products(), lambda drawn: drawn[1] > 32, (1, 33, 1)),
        (shapes.products(), lambda drawn: drawn[0] > 16 and drawn[2] > 16, (17, 1, 17)),
        (shapes.products(), lambda drawn: drawn[1] == 0, (1, 0, 1)),
        (shapes.reductions(), lambda drawn: drawn[1] > 1000, (1, 1001)),
        (shapes.reductions(), lambda drawn: drawn[0] > 1, (2, 1)),
        (dtypes.pairs(), lambda drawn: drawn[0] != drawn[1], ("float32", "float16")),
        (scalars.scalars("float32"), lambda drawn: True, 1.0),
        (scalars.scalars("float32"), lambda drawn: drawn != drawn, math.nan),
        (scalars.scalars("int8"), lambda drawn: drawn > 100, 101),
    ],
)
def test_other_draws_shrink_to_the_simplest(strategy, defect, expected):
    assert repr(simplest(strategy, defect)) == repr(expected)
