"""Random masks: right ones never alarm, wrong ones do, and the bound on false alarms is one."""

from __future__ import annotations

import ast
import math
import runpy
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
from op_tools import call, drawn, failures, missing
from searches import UntilOneFails

from conformance import __main__ as command_line
from conformance import case_files, cases, corpus, deviations, mask_statistics, runner
from conformance.calls import Local
from conformance.cases import Case
from conformance.checks import FAILED
from conformance.compare import compare, kept
from conformance.implementations import load
from conformance.profiles import PROFILES
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import TensorSpec

SPEC = registry()["dropout"]
INF, NAN = math.inf, math.nan
PLANTED = "conformance.selftest.planted"
MASKS = ("biased", "swapped", "one_row", "repeating_128", "coupled", "alternating", "frozen")
MASKS += ("nothing_dropped", "everything_dropped")


# --- statistics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [Fraction(1, 2), Fraction(1, 16), Fraction(15, 16)])
@pytest.mark.parametrize("trials", [1, 7, 40])
def test_the_bound_holds_for_the_binomial_distribution(trials, chance):
    """With the probability x at most is a surprise of at most x seen."""
    probability = [math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]
    surprises = [mask_statistics.surprise(k, trials, float(chance)) for k in range(trials + 1)]
    for limit in surprises:
        seen = sum(p for p, found in zip(probability, surprises, strict=True) if found <= limit)
        assert float(seen) <= limit * (1 + 1e-12)


def test_what_is_expected_is_no_surprise():
    assert mask_statistics.surprise(500, 1000, 0.5) == 1
    assert mask_statistics.surprise(0, 1000, 0.5) < 1e-300
    assert 1e-5 < mask_statistics.surprise(440, 1000, 0.5) < 2e-3


def test_false_alarms_of_a_thousand_cases_stay_below_a_billionth():
    shape = (2, 3, 5, 7, 64, 64)
    # The three suspects of each call count for as many as there are distances.
    calls, pairs = 3, 2
    each = 1 + 2 * (len(mask_statistics.lags(shape)) + 3) + 3 + 4
    # Alike in place, turned around and three times moved on either way; and one of which element is favoured.
    statistics = calls * each + pairs * (1 + 1 + 2 * 3) + 1
    assert 1000 * statistics * mask_statistics.ALARM < 1e-9


@pytest.mark.parametrize("chance", [0.5, 0.9, 0.02])
@pytest.mark.parametrize("shape", [(), (1,), (40,), (3, 5), (64, 257), (2, 17, 33, 5)])
def test_right_masks_do_not_alarm(shape, chance):
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        masks = [torch.rand(shape, generator=generator) < chance for _ in range(2)]
        seen = torch.rand(shape, generator=generator) < 0.9
        assert list(mask_statistics.faults(masks, seen, chance)) == []


@pytest.mark.parametrize("chance", [0.5, 0.25, 0.75])
def test_an_element_that_is_always_kept_shows_and_no_other(chance):
    generator, shape = torch.Generator().manual_seed(2), (3, 7)
    count = mask_statistics.enough(chance, 21)
    masks = [torch.rand(shape, generator=generator) < chance for _ in range(count)]
    seen = torch.ones(shape, dtype=torch.bool)
    assert list(mask_statistics.favoured(masks, seen, chance)) == []
    for kept_ in (True, False):
        if (kept_ and chance > 0.5) or (not kept_ and chance < 0.5) or chance == 0.5:
            biased = [mask.clone() for mask in masks]
            for mask in biased:
                mask[2, 6] = kept_
            (message,) = mask_statistics.favoured(biased, seen, chance)
            assert message.startswith(f"element [2, 6] is kept in {count * kept_} of {count} calls, where ")
            assert list(mask_statistics.favoured(biased, torch.zeros_like(seen), chance)) == []


def test_lags_reach_every_dim_and_every_block():
    assert mask_statistics.lags((4, 3, 5)) == [1, 2, 4, 5, 8, 15, 16, 32]
    assert mask_statistics.lags(()) == mask_statistics.lags((0, 3)) == []


@pytest.mark.parametrize("lag", [37, 513, 3000])
def test_what_comes_again_at_any_distance_is_suspect(lag):
    drawn = torch.rand(8192, generator=torch.Generator().manual_seed(2))
    mask, everything = drawn[torch.arange(8192) % lag] < 0.5, torch.ones(8192, dtype=torch.bool)
    assert mask_statistics.suspects(mask, everything)[0] % lag == 0
    found = list(mask_statistics.faults([mask], everything, 0.5))
    assert any(f"elements that are {suspect} apart" in "".join(found) for suspect in range(lag, 8192, lag))


def test_nothing_that_shows_is_no_suspect():
    assert mask_statistics.suspects(torch.ones(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)) == []
    assert mask_statistics.suspects(torch.ones(0, dtype=torch.bool), torch.ones(0, dtype=torch.bool)) == []
    assert mask_statistics.suspects(torch.ones(1, dtype=torch.bool), torch.ones(1, dtype=torch.bool)) == []


def test_pairs_do_not_share_elements():
    for lag in (1, 3, 8):
        a, b = mask_statistics.pairs(torch.arange(50), lag)
        assert (b - a == lag).all()
        together = torch.cat([a.flatten(), b.flatten()])
        assert len(together.unique()) == together.numel() > 50 - 2 * lag


# --- the check ---------------------------------------------------------------------------------------------------


def case(dtype: str = "float32", p: float | None = None, **kwargs: object) -> Case:
    if p is not None:
        kwargs["p"] = p
    return Case(op="dropout", args=(TensorSpec((64, 257), dtype),), kwargs=kwargs)


def statuses(verdict: runner.Verdict) -> dict[str, str]:
    return {finding.check: finding.status for finding in verdict.findings}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("p", [0.1875, 0.75])
def test_a_planted_mask_is_caught_though_every_value_is_right(name, p):
    found = statuses(runner.judge(case(p=p), f"{PLANTED}:dropout_{name}"))
    assert found.pop("distribution") == FAILED
    assert set(found.values()) == {"passed"}


def test_masks_of_few_seeds_come_again():
    few = Case(op="dropout", args=(TensorSpec((16, 33), "float32"),), kwargs={"p": 0.5})
    found = runner.judge(few, f"{PLANTED}:dropout_seeds_of_16_bits", checks=["distribution"])
    assert "have the result of another one" in found.failure.message
    assert statuses(runner.judge(few, "ntops.torch", checks=["distribution"])) == {"distribution": "passed"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("parity", "keeps an odd number"),
        ("seeded_once", "after the same torch.manual_seed"),
        ("state_set_again_forgotten", "after torch.set_rng_state"),
    ],
)
def test_neighbours_that_depend_on_each_other_and_seeds_that_do_not_count(name, says):
    found = runner.judge(case(p=0.5), f"{PLANTED}:dropout_{name}", checks=["distribution"])
    assert statuses(found) == {"distribution": FAILED}
    assert says in found.failure.message


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
@pytest.mark.parametrize("p", [None, 0.1875, 0.75, 2.0**-10])
def test_a_right_mask_passes(dtype, p):
    for kwargs in ({}, {"inplace": True}):
        assert runner.judge(case(dtype, p, **kwargs), f"{PLANTED}:right").status == "passed"


@pytest.mark.slow
def test_a_search_finds_it_and_its_script_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = UntilOneFails(
        implementation=load(f"{PLANTED}:dropout_nothing_dropped"),
        device=torch.device("cpu"),
        dtypes=("float32",),
        checks=("distribution",),
        save_to=Path("found"),
        settings=PROFILES["ci"],
        seed=0,
    )
    (message,) = run.search("dropout", "float32").failures
    assert f"distribution failed for {PLANTED}:dropout_nothing_dropped on cpu" in message
    assert "are expected" in message
    (saved,), (script,) = Path("found").glob("*.json"), Path("found").glob("*.py")
    for implementation, status in ((f"{PLANTED}:dropout_nothing_dropped", 1), (f"{PLANTED}:right", 0)):
        arguments = ["reproduce", str(saved), "--implementation", implementation, "--device", "cpu"]
        assert command_line.main(arguments) == status
        monkeypatch.setattr(sys, "argv", [str(script), implementation])
        with pytest.raises(SystemExit) as exit:
            runpy.run_path(str(script), run_name="__main__")
        assert exit.value.code == status
        assert ("distribution: " in capsys.readouterr().out) == bool(status)
    imported = [node.module for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    assert set(imported) == {"collections.abc"}


def test_calls_are_seeded_from_the_case_and_differ_from_case_to_case():
    masks = {}
    for one in (case(), case(p=0.25), case(p=0.75)):
        seeds = []
        prepared = runner.prepare(one, "cpu")
        for _ in range(2):
            prepared.invoke(Local(partial(_note, seeds)))
        assert seeds[0] == seeds[1] == cases.seed(one)
        masks[cases.case_id(one)] = seeds[0]
    assert len(set(masks.values())) == 3


def _note(seeds, *args, **kwargs):
    seeds.append(torch.initial_seed())
    return torch.nn.functional.dropout(*args, **kwargs)


def test_an_op_without_chance_has_no_distribution():
    found = statuses(runner.judge(case(p=0.0), f"{PLANTED}:dropout_biased"))
    assert found["distribution"] == "passed"


# --- the spec of dropout -----------------------------------------------------------------------------------------


def expected(*args: object, **kwargs: object):
    return SPEC.expected(Call(args, kwargs, None))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_element_is_scaled_or_dropped_and_nothing_else(dtype):
    x = torch.tensor([1.0, -3.0, INF, -INF, NAN, 0.0], dtype=dtype)
    found = expected(x, 0.75)
    assert found.chance == 0.25
    for right in ([4, -12, INF, -INF, NAN, 0], [0, 0, NAN, NAN, NAN, 0], [4, 0, NAN, -INF, NAN, 0]):
        assert compare(torch.tensor(right, dtype=dtype), found).passed
    for place, wrong in ((0, 1), (1, 12), (2, 0), (2, -INF), (4, 0), (5, 1)):
        output = torch.tensor([4, -12, INF, -INF, NAN, 0], dtype=dtype)
        output[place] = wrong
        assert compare(output, found).index == (place,)
    mask, seen = kept(torch.tensor([4, 0, NAN, -INF, NAN, 0], dtype=dtype), found)
    assert seen.tolist() == [True, True, True, True, False, False]
    assert mask[:4].tolist() == [True, False, False, True]


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_survivor_four_ulps_off_fails(dtype):
    found = SPEC.expected(call(case(dtype, 0.1875)))
    right = found.value.to(dtype_names.to_torch(dtype))
    assert compare(right, found).passed
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[right.element_size()]
    assert compare((right.view(bits) + 4).view(right.dtype), found).failed == int((right != 0).sum())


def test_p_0_p_1_and_no_training():
    x = torch.tensor([1.0, -0.0, INF, NAN])
    assert compare(torch.tensor([0.0, 0.0, NAN, NAN]), expected(x, 1.0)).passed
    assert not compare(torch.tensor([0.0, 0.0, INF, NAN]), expected(x, 1.0)).passed
    for one in (expected(x, 0.0), expected(x, 0.5, False)):
        assert compare(x, one).passed
        assert not compare(x * 2, one).passed
    whole = torch.tensor([True, False])
    assert expected(whole, 1).value.tolist() == [False, False]


def test_torch_itself_passes():
    assert failures(drawn(SPEC.cases(dtype_names.FLOATING), 150)) == []


def test_torch_refuses_what_is_to_be_refused():
    for one in drawn(SPEC.refused(dtype_names.FLOATING), 100):
        found = call(one)
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            SPEC.reference(*found.args, **found.kwargs)


def test_torchs_scale_of_half_types_is_named():
    for name in ("the scale of half dropout on the CPU", "the scale of half dropout in place on CUDA"):
        deviation = next(d for d in deviations.DEVIATIONS if d.name == name)
        assert statuses(runner.judge(deviation.case, "torch"))["values"] == "deviation"
    assert deviations.named_deviation(case("float32"), "values", "cpu") is None
    assert deviations.named_deviation(case("float16"), "values", "cuda") is None


def features(one: Case) -> set[str]:
    input, p = one.args[0], one.kwargs.get("p")
    found = {f"{name} {one.kwargs.get(name)}" for name in ("training", "inplace")}
    found.add("p" if p is None or 0 < p < 1 else f"p {p}")
    found |= {"many"} if math.prod(input.shape) > 4096 else {"empty"} if 0 in input.shape else set()
    found |= {"0-d"} if not input.shape else set()
    found |= {f"special {special.value}" for special in input.specials}
    return found | {f"layout {layouts.layout_class(input.layout, input.shape)}"}


def test_strategies_reach():
    wanted = {"training None", "training True", "training False", "inplace True", "inplace None", "p", "p 0.0", "p 1"}
    wanted |= {"many", "empty", "0-d", "special inf", "special nan", "layout permuted", "layout expanded"}
    assert missing(SPEC.cases(dtype_names.FLOATING), wanted, features) == set()


def test_the_corpus_has_a_case_of_the_trap_for_each_half_sentence():
    notes = [one.note for one in map(case_files.read, corpus.files([corpus.SHIPPED])) if one.op == "dropout"]
    assert len([note for note in notes if note.startswith("trap 28")]) >= 10
