"""Claims of a fixed configuration, and configurations and settings that an implementation offers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch

from conformance import cases
from conformance.cases import Case
from conformance.checks import invariance
from conformance.implementations import Implementation, load
from conformance.runner import judge
from conformance.spec import registry
from strategies import shapes
from strategies.specs import TensorSpec

NAMES = ("natural", "blocks of 16")


def tried(applies) -> Case:
    """A product for which a check does something, by its id."""
    products = (
        Case(op="mm", args=(TensorSpec((4, 3), "float32", seed=seed), TensorSpec((3, 2), "float32")))
        for seed in itertools.count()
    )
    return next(case for case in products if applies(cases.seed(case)))


CASE = tried(lambda seed: seed // 17 % invariance.SHARE == 0 and seed // 19 % 2)
"""Tried in the second of two configurations."""


def product(wrong, names=NAMES, claims=("deterministic", "batch_invariant:fixed")) -> Implementation:
    """An implementation with configurations; ``wrong(number, result)`` says which results are an ulp off."""
    current: list[int | None] = [None]

    @contextlib.contextmanager
    def configurations(op, number=None):
        assert op == "mm"
        current.append(number)
        yield names
        current.pop()

    def mm(input, mat2, *, out=None):
        result = torch.mm(input, mat2, out=out)
        off = wrong(current[-1], result)
        return result.copy_(torch.nextafter(result, torch.zeros_like(result))) if off else result

    return Implementation(
        "tested", SimpleNamespace(mm=mm, conformance_configurations=configurations), {"*": tuple(claims)}
    )


def statuses(implementation: Implementation, *checks: str) -> dict[str, str]:
    return {finding.check: finding.status for finding in judge(CASE, implementation, checks=checks).findings}


def test_a_claim_of_a_fixed_configuration_is_judged_in_one():
    def by_rows(number, result):
        """Rounds by the number of rows, unless the configuration is fixed."""
        return number is None and len(result) == 4

    def always_by_rows(number, result):
        return len(result) == 4

    assert statuses(product(by_rows), "batch_invariant") == {"batch_invariant": "passed"}
    assert statuses(product(always_by_rows), "batch_invariant") == {"batch_invariant": "failed"}
    assert statuses(product(by_rows, claims=["batch_invariant"]), "batch_invariant") == {"batch_invariant": "failed"}
    assert statuses(product(always_by_rows, claims=[]), "batch_invariant") == {"batch_invariant": "unclaimed"}
    # Where nothing can be fixed, nothing is claimed.
    assert statuses(product(always_by_rows, names=()), "batch_invariant") == {"batch_invariant": "unclaimed"}


@pytest.mark.parametrize("names", [(), ("the only one",)])
def test_one_configuration_is_no_choice(names):
    assert statuses(product(lambda number, result: False, names=names), "config_invariant") == {}


def test_a_long_dim_has_no_other_configuration_where_kernels_are_interpreted():
    long = TensorSpec((shapes.MAX_SIZE + 1, 1), "float32")
    calls = (Case(op="mm", args=(long, TensorSpec((1, 1), "float32", seed=seed))) for seed in itertools.count())
    case = next(case for case in calls if cases.seed(case) // 17 % invariance.SHARE == 0)
    compiled = product(lambda number, result: False)
    vectorised = dataclasses.replace(compiled, kernels="vectorised")
    assert judge(case, compiled, checks=["config_invariant"]).findings
    assert not judge(case, vectorised, checks=["config_invariant"]).findings
    assert judge(CASE, vectorised, checks=["config_invariant"]).findings


def test_what_a_configuration_does_is_a_finding():
    def raises(number, result):
        if number == 1:
            raise ValueError("too large a block")
        return False

    verdict = judge(CASE, product(raises), checks=["config_invariant"])
    assert verdict.failure.message == "in the configuration blocks of 16: raised ValueError: too large a block"
    verdict = judge(CASE, product(lambda number, result: number == 1 and result.fill_(9).any()), checks=None)
    assert verdict.failure.check == "config_invariant"
    assert "in the configuration blocks of 16: values: 8 of 8 elements are wrong" in verdict.failure.message


def set_to(call) -> str | None:
    """What ``settings`` says of an implementation whose ``call(is_set, input)`` answers ``mm``; ``None``: it passes."""
    current: list[int | None] = [None]

    @contextlib.contextmanager
    def settings(op, number=None):
        assert op == "mm"
        current.append(number)
        yield ["num_stages=5"]
        current.pop()

    def mm(input, mat2, *, out=None):
        if current[-1] is not None:
            call(input)
        return torch.mm(input, mat2, out=out)

    case = tried(lambda seed: seed // 23 % invariance.SHARE_SET == 0)
    provider = SimpleNamespace(mm=mm, conformance_settings=settings)
    verdict = judge(case, Implementation("tested", provider, {}), checks=["settings"])
    assert [finding.check for finding in verdict.findings] == ["settings"]
    return verdict.failure and verdict.failure.message


def test_a_call_under_a_setting_is_right_or_refused_by_name():
    def refuses(text):
        raise ValueError(text)

    assert set_to(lambda input: None) is None
    assert set_to(lambda input: refuses("num_stages is too large")) is None
    message = set_to(lambda input: refuses("too large"))
    assert message.startswith("with num_stages=5: raised ValueError: too large, which does not say")
    message = set_to(lambda input: refuses(f"num_stages is too large for {input.zero_().shape}"))
    assert message.startswith("with num_stages=5: refused, but operand 0 (an input) was changed")
    assert "values: 8 of 8 elements are wrong" in set_to(lambda input: input.fill_(100))


def test_ours_has_the_three_settings_and_leaves_them_as_they_were():
    ours = load("ntops.torch")
    getters = [getattr(ours.provider, f"get_default_{name}") for name in ("num_warps", "num_stages", "max_num_configs")]

    names = ours.settings("mm")
    assert {name.partition("=")[0] for name in names} == {"num_warps", "num_stages", "max_num_configs"}
    for number in range(len(names)):
        with ours.provider.conformance_settings("mm", number):
            assert [get() for get in getters].count(None) == 2
    assert [get() for get in getters] == [None] * 3


def test_every_product_and_attention_has_a_batch():
    square, stack = TensorSpec((4, 4), "float32"), TensorSpec((1, 4, 4), "float32")
    for op, args, operands, result in (
        ("mm", (square, square), (0, None), 0),
        ("addmm", (TensorSpec((4,), "float32"), square, square), (None, 0, None), 0),
        ("addmm", (square, square, square), (0, 0, None), 0),
        ("matmul", (square, TensorSpec((4,), "float32")), (0, None), 0),
        ("matmul", (square, stack), (0, None), 1),
        ("bmm", (stack, stack), (1, None), 1),
    ):
        batch = registry()[op].batch(Case(op=op, args=args))
        assert (batch.size, batch.operands, batch.result) == (4, operands, result)


def test_ours_claims_a_fixed_configuration_of_products_and_attention():
    ours = load("ntops.torch")
    for op in ("mm", "addmm", "bmm", "matmul", "scaled_dot_product_attention"):
        assert "batch_invariant:fixed" in ours.claims(op)
        assert "batch_invariant" not in ours.claims(op)
