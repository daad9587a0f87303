"""Adapters of published libraries: none is needed, and what one lacks is neither passed nor failed."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import pytest
import torch

from conformance import cases
from conformance.cases import Case, DType
from conformance.implementations import Implementation, ImplementationError, NotProvided, _arrays, load
from conformance.runner import judge
from strategies.specs import TensorSpec

TABLE = TensorSpec((3, 2), "float32")
HEADS, PAST = TensorSpec((2, 4, 3, 8), "float32"), TensorSpec((2, 2, 5, 8), "float32", seed=1)
ADD = Case(op="add", args=(TensorSpec((3,), "float32"), 1))
REFUSED = Case(op="add", args=(TensorSpec((3,), "float32"), "x"))


@pytest.mark.parametrize(
    ("adapter", "library", "hint"),
    [
        ("liger", "liger_kernel", "pip install 'ntops\\[liger\\]'"),
        ("flag_gems", "flag_gems", "pip install 'ntops\\[flag-gems\\]'.* --no-deps flag-gems==5.0.2"),
        ("jax_cpu", "jax", "pip install 'ntops\\[jax\\]'"),
        ("onnx_runtime", "onnxruntime", "pip install 'ntops\\[onnxruntime\\]'"),
        ("tvm_cpu", "tvm", "pip install 'ntops\\[tvm\\]'"),
    ],
)
def test_a_library_that_is_missing_is_told_with_its_extra(adapter, library, hint, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"conformance.implementations.{adapter}", raising=False)
    with pytest.raises(ImplementationError, match=hint):
        load(f"conformance.implementations.{adapter}")


@pytest.mark.parametrize("case", [ADD, REFUSED])
def test_a_call_without_a_form_is_not_provided(case):
    def add(input, other, *, alpha=1, out=None):
        raise NotProvided("the library has no such function")

    assert judge(case, Implementation("tested", SimpleNamespace(add=add))).status == "not_provided"


@pytest.fixture(scope="module")
def traced():
    """torch.compile without its compiler: calls are traced, and what was traced is run as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "conformance.implementations.torch_compile", raising=False)
        patch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
        yield load("conformance.implementations.torch_compile")
        del sys.modules["conformance.implementations.torch_compile"]


def test_torch_compile_provides_what_torch_has(traced):
    assert traced.function("rms_norm") is not None
    assert traced.function("scaled_dot_product_attention") is not None
    assert traced.function("fp8_gemm") is None


@pytest.mark.parametrize(
    ("case", "status"),
    [
        (ADD, "passed"),
        (Case(op="mm", args=(TensorSpec((3, 4), "float32"), TensorSpec((5, 3), "float32"))), "passed"),
        (Case(op="softmax", args=(TensorSpec((3,), "float32"), 2)), "passed"),
        (
            Case(op="add", args=(TensorSpec((3,), "float32"), 1), kwargs={"out": TensorSpec((0,), "float32")}),
            "not_provided",
        ),
    ],
    ids=["taken", "a RuntimeError of torch", "an IndexError of torch", "left to torch"],
)
def test_torch_compile_raises_what_torch_raises(case, status, traced):
    verdict = judge(case, traced, checks=["errors", "values"])
    assert verdict.status == status


def test_torch_compile_starts_anew_where_it_would_compile_no_more(traced):
    # Not monkeypatch, which deletes the setting when it is done.
    with torch._dynamo.config.patch(recompile_limit=1):
        for tensor in (torch.ones(3), torch.ones(3, dtype=torch.int8), torch.ones(3)):
            assert traced.function("add")(tensor, 1).tolist() == [2, 2, 2]


def test_torch_compile_leaves_no_notes_on_results(traced):
    module = sys.modules[traced.name]

    def noted(input):
        result = torch.neg(input)
        result._dynamo_propagated_dynamic_indices = {0}
        return result

    result = module._unmarked(noted(torch.ones(3)))
    assert vars(result) == {}
    assert vars(module._unmarked((noted(torch.ones(3)),))[0]) == {}


def test_what_torch_compile_cannot_do_is_its_failure(traced, monkeypatch):
    from torch._dynamo import exc

    def compile(function, **options):
        def call(*args, **kwargs):
            raise exc.TorchRuntimeError("internal")

        return call

    monkeypatch.setattr(torch, "compile", compile)
    broken = Implementation("tested", SimpleNamespace(add=sys.modules[traced.name].compiled(torch.add)))
    assert judge(ADD, broken).failure.check == "errors"
    assert judge(REFUSED, broken).status == "passed"


def test_torch_compile_that_runs_what_it_was_given_is_not_judged_as_compiled(traced):
    with torch.compiler.set_stance("force_eager"):
        failure = judge(ADD, traced).failure
    assert "torch.compile did not compile the call" in failure.message


ARRAYS = {"jax_cpu": "jax", "onnx_runtime": "onnxruntime", "tvm_cpu": "tvm"}
"""Adapters of libraries that take arrays, and what each needs."""
X, ROW = TensorSpec((3, 4), "float32"), TensorSpec((4,), "float32", seed=1)
CALLS = [
    Case(op="abs", args=(X,)),
    Case(op="add", args=(X, ROW)),
    Case(op="add", args=(TensorSpec((3, 4), "int32"), 2)),
    Case(op="clamp", args=(X,), kwargs={"min": -0.5, "max": 0.5}),
    Case(op="div", args=(X, TensorSpec((3, 4), "float32", seed=1))),
    Case(op="exp", args=(X,)),
    Case(op="exp", args=(TensorSpec((3, 0, 2), "float32"),)),
    Case(op="gelu", args=(X,), kwargs={"approximate": "tanh"}),
    Case(op="isnan", args=(X,)),
    Case(op="layer_norm", args=(X, (4,)), kwargs={"weight": ROW, "bias": ROW}),
    Case(op="lt", args=(X, ROW)),
    Case(op="matmul", args=(TensorSpec((2, 3, 4), "float32"), TensorSpec((4, 5), "float32"))),
    Case(op="mm", args=(X, TensorSpec((4, 5), "float32"))),
    Case(op="pow", args=(TensorSpec((3, 4), "float32", values="positive"), 2)),
    Case(op="relu", args=(X,)),
    Case(op="rms_norm", args=(X, (4,)), kwargs={"weight": ROW}),
    Case(op="rotary_position_embedding", args=(TensorSpec((2, 3, 2, 4), "float32"), TABLE, TABLE)),
    Case(op="rotary_position_embedding", args=(TensorSpec((2, 3, 2, 4), "float32"), TABLE, TABLE, False)),
    Case(op="scaled_dot_product_attention", args=(HEADS, PAST, PAST), kwargs={"enable_gqa": True}),
    Case(op="scaled_dot_product_attention", args=(HEADS, HEADS, HEADS), kwargs={"is_causal": True, "scale": 0.5}),
    Case(
        op="scaled_dot_product_attention",
        args=(HEADS, HEADS, HEADS),
        kwargs={"attn_mask": TensorSpec((3, 3), "float32")},
    ),
    Case(op="silu", args=(X,)),
    Case(op="softmax", args=(X, 0)),
    Case(op="softmax", args=(X, -1), kwargs={"dtype": DType("float64")}),
]
LACKS = {
    "jax_cpu": {"rms_norm", "rotary_position_embedding"},
    "onnx_runtime": {"clamp"},
    # Of attention, groups of heads.
    "tvm_cpu": {"rotary_position_embedding", "scaled_dot_product_attention"},
}


@pytest.mark.parametrize("adapter", ARRAYS)
def test_libraries_of_arrays_do_as_torch_does(adapter):
    pytest.importorskip(ARRAYS[adapter])
    implementation = load(f"conformance.implementations.{adapter}")
    checks = ["errors", "values", "inputs_unchanged"]
    found = {cases.case_id(case): judge(case, implementation, checks=checks) for case in CALLS}
    assert {verdict.op for verdict in found.values() if verdict.status == "not_provided"} == LACKS[adapter]
    assert not [verdict for verdict in found.values() if verdict.failure]


@pytest.mark.parametrize("adapter", ARRAYS)
@pytest.mark.parametrize(
    "case",
    [
        Case(op="abs", args=(X,), kwargs={"out": X}),
        Case(op="add", args=(X, ROW), kwargs={"alpha": 2}),
        Case(op="div", args=(X, ROW), kwargs={"rounding_mode": "trunc"}),
        Case(op="mul", args=(TensorSpec((3,), "float16"), 0.1)),
        Case(op="relu", args=(X, True)),
        Case(op="softmax", args=(TensorSpec((), "float32"), 0)),
    ],
    ids=lambda case: case.op,
)
def test_what_libraries_of_arrays_have_not_is_not_provided(adapter, case):
    pytest.importorskip(ARRAYS[adapter])
    assert judge(case, load(f"conformance.implementations.{adapter}")).status == "not_provided"


def test_operands_are_promoted_as_torch_promotes_them():
    half = torch.ones(3, dtype=torch.float16)
    assert [one.dtype for one in _arrays.promoted(half, torch.ones(3))] == [torch.float32] * 2
    assert [one.dtype for one in _arrays.promoted(half, torch.ones((), dtype=torch.float64))] == [torch.float16] * 2
    assert [one.dtype for one in _arrays.promoted(torch.ones(3, dtype=torch.int8), 1.5)] == [torch.float32] * 2
    assert [one.dtype for one in _arrays.promoted(half, 0.5, float("nan"))] == [torch.float16] * 3
    for number in (0.1, 1e6):
        with pytest.raises(NotProvided, match=r"is no torch\.float16"):
            _arrays.promoted(half, number)
    with pytest.raises(NotProvided, match=r"300 is no torch\.int8"):
        _arrays.promoted(torch.ones(3, dtype=torch.int8), 300)
    with pytest.raises(NotProvided, match="three dtypes"):
        _arrays.promoted(half, torch.ones(3), torch.ones(3, dtype=torch.float64))
