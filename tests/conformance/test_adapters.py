"""Adapters of published libraries: none is needed, and what one lacks is neither passed nor failed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

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
