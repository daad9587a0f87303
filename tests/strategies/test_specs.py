"""Records that make no sense are refused where they are made, and where they are read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from strategies import dtypes, shapes
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import tensors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorSpec((2, -1), "float32"), "shape must not be negative"),
        (lambda: TensorSpec((2,), "float31"), "unknown dtype 'float31'; known: float32"),
        (lambda: TensorSpec((2,), "float32", "nromal"), "unknown values 'nromal'; known: normal"),
        (lambda: TensorSpec((2,), "int8", "subnormal"), "'subnormal' make no sense for int8"),
        (lambda: TensorSpec((2,), "int8", "masked"), "'masked' make no sense for int8"),
        (lambda: TensorSpec((2,), "bool", "listed:1"), "only numbers are listed"),
        (lambda: TensorSpec((2,), "float32", "listed:16777217"), "do not fit float32"),
        (lambda: TensorSpec((2,), "float16", "listed:65504"), "do not fit float16"),
        (lambda: TensorSpec((2,), "int32", "listed:"), "no list of at most 64 whole numbers"),
        (lambda: TensorSpec((2,), "int32", "listed:1,x"), "no list of at most 64 whole numbers"),
        (lambda: TensorSpec((2,), "int32", "listed:" + "1," * 64 + "1"), "no list of at most 64 whole numbers"),
        (lambda: TensorSpec((2,), "int8", "listed:1,-129"), "do not fit int8"),
        (lambda: TensorSpec((2,), "uint8", "listed:-1"), "do not fit uint8"),
        (lambda: TensorSpec((2,), "float32", seed=-1), "seed must be in"),
        (lambda: TensorSpec((2,), "float32", seed=2**64), "seed must be in"),
        (lambda: TensorSpec((2,), "float32", specials=(Special(0, "huge"),)), "unknown special value 'huge'"),
        (lambda: TensorSpec((2,), "int8", specials=(Special(0, "nan"),)), "int8 has no special value 'nan'"),
        (lambda: TensorSpec((2,), "float8_e4m3fn", specials=(Special(0, "inf"),)), "no special value 'inf'"),
        (lambda: Special(0, "nan", run=0), "special.run must be 1 or more"),
        (lambda: Layout(order=(0, 2)), "layout.order must be a permutation"),
        (lambda: Layout(order=(0, 0)), "layout.order must be a permutation"),
        (lambda: Layout(steps=(1, 0)), "layout.steps must be 1 or more"),
        (lambda: TensorSpec((1,), "float32", layout=Layout(padding=(-1,))), "layout.padding leaves nothing of dim 0"),
        (lambda: Layout(expanded=(1, 0)), "layout.expanded must be distinct dims in ascending order"),
        (lambda: Layout(expanded=(0, 0)), "layout.expanded must be distinct dims in ascending order"),
        (lambda: Layout(expanded=(-1,)), "layout.expanded must not be negative"),
        (lambda: Layout(offset=-1), "layout.offset must not be negative"),
        (lambda: TensorSpec((2,), "float32", layout=Layout(order=(1, 0))), "layout.order must be empty or name all 1"),
        (lambda: TensorSpec((2, 3), "float32", layout=Layout(steps=(2,))), "layout.steps must be empty or name all 2"),
        (lambda: TensorSpec((2, 3), "float32", layout=Layout(padding=(2,))), "layout.padding must be empty or name"),
        (lambda: TensorSpec((2,), "float32", layout=Layout(expanded=(1,))), "names dim 1 of a shape with 1 dims"),
        (lambda: TensorSpec((2,), "float32", layout=Layout(expanded=(0,), steps=(2,))), "dim 0 is expanded"),
        (lambda: TensorSpec((2,), "float32", layout=Layout(expanded=(0,), padding=(2,))), "dim 0 is expanded"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"type":"tensor","shape":[-1],"dtype":"float32"}', "shape must not be negative"),
        (b'{"type":"tensor","shape":[1],"dtype":"float32","layout":{"steps":[0]}}', "layout.steps must be 1 or more"),
        (b'{"type":"tensor","shape":[1],"dtype":"float32","strides":[1]}', "unknown field `strides`"),
        (b'{"type":"tensor","shape":[1.5],"dtype":"float32"}', "Expected `int`"),
        (b'{"type":"tensor","shape":[true],"dtype":"float32"}', "Expected `int`"),
    ],
)
def test_nonsense_is_refused_on_reading(text, message):
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.json.decode(text, type=TensorSpec)


def test_defaults_are_not_written():
    text = b'{"type":"tensor","shape":[2,3],"dtype":"float32"}'
    assert msgspec.json.encode(TensorSpec((2, 3), "float32")) == text
    assert msgspec.json.encode(TensorSpec((2, 3), "float32", "normal", 0, Layout(), ())) == text
    assert msgspec.json.encode(msgspec.json.decode(text[:-1] + b',"layout":{},"specials":[]}', type=TensorSpec)) == text


@settings(max_examples=200, database=None, derandomize=True)
@given(tensors(shapes.shapes(), dtypes.NAMES))
def test_json_gives_the_same_spec_back(spec):
    assert msgspec.json.decode(msgspec.json.encode(spec), type=TensorSpec) == spec
