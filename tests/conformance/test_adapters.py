"""Adapters of published libraries: none is needed, and what one lacks is neither passed nor failed."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import pytest
import torch

from conformance.cases import Case
from conformance.implementations import Implementation, ImplementationError, NotProvided, load
from conformance.runner import judge
from strategies.specs import TensorSpec

ADD = Case(op="add", args=(TensorSpec((3,), "float32"), 1))
REFUSED = Case(op="add", args=(TensorSpec((3,), "float32"), "x"))


@pytest.mark.parametrize(
    ("adapter", "library", "hint"),
    [
        ("liger", "liger_kernel", "pip install 'ntops\\[liger\\]'"),
        ("flag_gems", "flag_gems", "pip install 'ntops\\[flag-gems\\]'.* --no-deps flag-gems==5.0.2"),
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


def test_torch_compile_starts_anew_where_it_would_compile_no_more(traced, monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    for tensor in (torch.ones(3), torch.ones(3, dtype=torch.int8), torch.ones(3)):
        assert traced.function("add")(tensor, 1).tolist() == [2, 2, 2]


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
