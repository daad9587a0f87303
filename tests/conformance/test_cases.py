"""Case files: what is written is read back, and what is not a case of a known op is refused with what is wrong."""

from __future__ import annotations

import json
import math
import pickle

import msgspec
import pytest
import torch

from conformance import case_files, cases, corpus, features, messages
from conformance.cases import Case, CaseError, DType, Ints, NonFinite, Same, Variant, View
from strategies.specs import Layout, Special, TensorSpec

X = TensorSpec((3, 4), "float16", seed=3, layout=Layout(order=(1, 0)), specials=(Special(2, "nan"),))
CASE = Case(op="add", args=(X, Same(0)), kwargs={"alpha": 2.0})


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        Case(op="softmax", args=(X, -1), kwargs={"dtype": DType("float32")}),
        Case(op="add", args=(X, NonFinite("-inf")), kwargs={"out": TensorSpec((), "float16"), "alpha": True}),
        Case(op="div", args=(2**70, X), kwargs={"rounding_mode": "floor"}, note='says "why"\n'),
        Case(op="eq", args=(X, None), digests=("0",)),
        Case(op="eq", args=(X, (1, -2))),
        Case(op="eq", args=(X, Ints((1, -2)))),
        Case(op="eq", args=(X, View(0, 1, 1, 3)), kwargs={"a": Variant("LOWER_RIGHT")}),
    ],
)
def test_what_is_written_is_read(case):
    data = cases.encode(case)
    assert case_files.decode(data) == case
    assert cases.encode(case_files.decode(data)) == data
    assert json.loads(data)["schema"] == 1


def test_floats_that_are_not_finite_have_one_form():
    drawn, written = (Case(op="add", args=(X, value)) for value in (math.nan, NonFinite("nan")))
    assert cases.case_id(drawn) == cases.case_id(written)
    assert case_files.decode(cases.encode(drawn)) == written
    assert math.isnan(cases.materialize(drawn)[0][1])
    assert math.isnan(cases.materialize(written)[0][1])


def test_id_is_stable_and_leaves_out_digests_and_note():
    # A changed id would orphan every saved case: change the schema number instead.
    assert cases.case_id(CASE) == "add-00900c533b"
    assert cases.case_id(corpus.with_digests(CASE, "a note")) == cases.case_id(CASE)
    reordered = Case(op="add", args=CASE.args, kwargs={"out": Same(0), "alpha": 2.0})
    assert cases.case_id(reordered) == cases.case_id(
        msgspec.structs.replace(reordered, kwargs={"alpha": 2.0, "out": Same(0)})
    )
    assert cases.case_id(CASE) != cases.case_id(msgspec.structs.replace(CASE, kwargs={"alpha": 2}))


def test_a_case_keeps_its_id_where_it_is_sent_and_where_its_defaults_are_written_out():
    """Its special values and what it draws follow from the id: another one would replay another call."""
    case = Case(op="exp", args=(TensorSpec((3,), "float32"),))
    assert cases.case_id(pickle.loads(pickle.dumps(case))) == cases.case_id(case)
    written = b'{"schema": 1, "op": "exp", "args": [{"type": "tensor", "shape": [3], "dtype": "float32", %s}]}'
    for default in (
        b'"values": "normal"',
        b'"seed": 0',
        b'"layout": {}',
        b'"layout": {"offset": 0}',
        b'"specials": []',
    ):
        assert cases.case_id(case_files.decode(written % default)) == cases.case_id(case)


def test_operands_are_numbered_over_args_then_kwargs_by_name():
    y, z = TensorSpec((2,), "int8"), TensorSpec((2,), "int8", seed=1)
    case = Case(op="add", args=(X, Same(0)), kwargs={"out": y, "other": z, "alpha": Same(0)})
    assert cases.operands(case) == (X, z, y)
    args, kwargs, tensors = cases.materialize(case)
    assert args[0] is args[1] is kwargs["alpha"] is tensors[0]
    assert kwargs["other"] is tensors[1]
    assert kwargs["out"] is tensors[2]
    assert cases.written(case) == {2}
    assert cases.written(Case(op="add", args=(X, X), kwargs={"out": Same(1)})) == {1}
    assert cases.written(Case(op="relu", args=(X,), kwargs={"inplace": True})) == {0}
    assert cases.written(CASE) == set()


def test_views_and_variants_are_bound():
    args, kwargs, (x,) = cases.materialize(
        Case(op="add", args=(X, View(0, 1, 1, 2)), kwargs={"a": Variant("LOWER_RIGHT")})
    )
    assert args[1].data_ptr() == x[:, 1:3].data_ptr()
    assert (args[1].shape, args[1].stride()) == ((3, 2), x.stride())
    assert kwargs["a"] is torch.nn.attention.bias.CausalVariant.LOWER_RIGHT


def test_a_list_is_no_tuple():
    args, kwargs, _ = cases.materialize(Case(op="layer_norm", args=(X, Ints((3, 4))), kwargs={"a": (3, 4)}))
    assert args[1] == [3, 4]
    assert kwargs["a"] == (3, 4)
    listed, given = (Case(op="layer_norm", args=(X, shape)) for shape in (Ints((3, 4)), (3, 4)))
    assert cases.case_id(listed) != cases.case_id(given)
    assert "[3, 4]," in messages.call(listed)
    assert features.kind(listed.args[1]) == features.kind(given.args[1]) == "2 dims"


def edited(**changes):
    return json.dumps({**json.loads(cases.encode(CASE)), **changes})


def tensor(**changes):
    return edited(args=[{"type": "tensor", "shape": [2], "dtype": "float32", **changes}])


def view(**changes):
    return edited(kwargs={"x": {"type": "view", "operand": 0, "dim": 0, "start": 1, "length": 2, **changes}})


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        (cases.encode(CASE)[:-40], "truncated|malformed"),
        (b"\x80\x04\x95" + b"\xff" * 20, "malformed|UTF-8"),
        (pickle.dumps({"op": "add"}), "malformed"),
        ("[1, 2]", "Expected `object`"),
        ('{"op": "add", "args": []}', "missing required field `schema`"),
        (edited(schema=2), "its schema is 2, and this harness reads schema 1"),
        (edited(schema="1"), "Expected `int`"),
        (edited(schema=2, future=[[]]), "its schema is 2"),
        (edited(extra=1), "unknown field `extra`"),
        (edited(op="system"), "unknown op 'system'; valid are abs, add, "),
        (edited(op="sofmax"), "unknown op 'sofmax'; did you mean softmax or log_softmax or amax. Valid are abs, add, "),
        (edited(op="../../add"), "unknown op"),
        (edited(args=[["a"]]), "Expected `int`"),
        (edited(args=[{"type": "code", "value": "1"}]), "Invalid value 'code'"),
        (edited(args=[{"type": "same", "operand": 0}]), "same tensor as operand 0, but 0 come before"),
        (edited(args=[{"type": "same", "operand": -1}]), "same tensor as operand -1"),
        (
            edited(args=[{"type": "view", "operand": 0, "dim": 0, "start": 0, "length": 1}]),
            "operand 0, but 0 come before",
        ),
        (view(operand=-1), "view of operand -1"),
        (view(dim=2), "a view that operand 0 does not hold"),
        (view(dim=-1), "a view that operand 0 does not hold"),
        (view(start=-1), "a view that operand 0 does not hold"),
        (view(length=-1), "a view that operand 0 does not hold"),
        (view(start=2), "a view that operand 0 does not hold"),
        (view(length=2**70), "a view that operand 0 does not hold|range"),
        (view(steps=2), "unknown field `steps`"),
        (edited(args=[{"type": "causal_variant", "name": "__class__"}]), "unknown causal variant '__class__'"),
        (edited(args=[{"type": "float", "value": "1e999"}]), "nan, inf or -inf, not '1e999'"),
        (edited(args=[{"type": "dtype", "name": "load"}]), "unknown dtype 'load'"),
        (edited(kwargs={"x=exit()": 1}), "'x=exit\\(\\)' is not a name"),
        (edited(digests=["00"] * 3), "3 digests for 1 operands"),
        (tensor(shape=[-1]), "must not be negative"),
        (tensor(shape=[2.5]), "Expected `int`"),
        (tensor(shape=[1] * 33), "33 dims; at most 32"),
        (tensor(shape=[2**40]), "would hold 1099511627776 elements; the limit is 134217728"),
        (tensor(shape=[0, 2**62]), "the limit is"),
        (tensor(shape=[2**200]), "the limit is"),
        (tensor(shape=[16384, 16384]), "its operands would hold 268435456 elements"),
        (tensor(layout={"steps": [2**40]}), "its operands would hold"),
        (tensor(layout={"offset": 2**40}), "its operands would hold"),
        (tensor(layout={"padding": [2**40]}), "its operands would hold"),
        (tensor(layout={"offset": -1}), "must not be negative"),
        (tensor(layout={"order": [0, 0]}), "permutation"),
        (tensor(layout={"expanded": [3]}), "names dim 3"),
        (tensor(dtype="object"), "unknown dtype 'object'"),
        (tensor(values="eval"), "unknown values 'eval'"),
        (tensor(seed=-1), "seed must be"),
        (tensor(specials=[{"index": 0, "value": "big"}]), "unknown special value 'big'"),
        (tensor(specials=[{"index": 2**70, "value": "nan"}]), "limit|range"),
        (tensor(unknown=0), "unknown field `unknown`"),
        (
            edited(args=[{"type": "tensor", "shape": s, "dtype": "int8"} for s in ([2**20, 1], [1, 2**20])], kwargs={}),
            "its result would hold 1099511627776 elements",
        ),
        ('{"schema": 1, "op": "add", "x": ' + "[" * 100_000, "recursion"),
    ],
)
def test_refused(data, wrong):
    with pytest.raises(CaseError, match=wrong):
        case_files.decode(data)


def test_limits_can_be_raised():
    large = tensor(shape=[16384, 16384])
    assert cases.operands(case_files.decode(large, max_elements=2**28))[0].shape == (16384, 16384)
    with pytest.raises(CaseError, match="the limit is 5"):
        case_files.decode(cases.encode(CASE), max_elements=5)


def test_files(tmp_path):
    path = tmp_path / "case.json"
    with pytest.raises(CaseError, match=r"case\.json: cannot be read: No such file"):
        case_files.read(path)
    path.write_bytes(cases.encode(msgspec.structs.replace(CASE, note=" " * cases.MAX_BYTES)))
    with pytest.raises(CaseError, match=r"case\.json: larger than 1048576 bytes"):
        case_files.read(path)
    assert case_files.read(path, max_bytes=2 * cases.MAX_BYTES).op == "add"
    with pytest.raises(CaseError, match="not a file"):
        case_files.read(tmp_path)


def test_digests_are_of_the_inputs():
    saved = corpus.with_digests(CASE)
    assert len(saved.digests) == 1
    assert corpus.with_digests(CASE) == saved
    other = msgspec.structs.replace(X, seed=4)
    assert corpus.with_digests(Case(op="add", args=(other, Same(0)))).digests != saved.digests


def test_dtypes_are_torchs():
    assert cases.DTYPES["bfloat16"] is torch.bfloat16
    assert "load" not in cases.DTYPES


def test_an_operand_turned():
    case = Case(op="mm", args=(X, Same(0, turned=True)))
    assert b'"turned": true' in cases.encode(case)
    assert case_files.decode(cases.encode(case)) == case
    assert cases.case_id(case) != cases.case_id(Case(op="mm", args=(X, Same(0))))
    (first, second), _, _ = cases.materialize(case)
    assert second.data_ptr() == first.data_ptr()
    assert torch.equal(second.nan_to_num(7), first.t().nan_to_num(7))
    flat = Case(op="add", args=(TensorSpec((3,), "float32"), Same(0, turned=True)))
    with pytest.raises(CaseError, match="operand 0 with its last two dims swapped"):
        case_files.validate(flat)
