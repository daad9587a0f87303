"""The self-test: what it draws is what the suite draws, a part of the bank is caught, survivors and alarms are told."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import hypothesis
import pytest
import torch

from conformance import cases, runner
from conformance.cases import Case
from conformance.checks import CHECKS, gpu
from conformance.deviations import DEVIATIONS
from conformance.implementations import Implementation, ImplementationError, load
from conformance.profiles import PROFILES
from conformance.selftest import __main__ as command_line
from conformance.selftest import correct, defect_registry, report, search, workers
from conformance.selftest.controls import controls
from conformance.sequence_judge import SEQUENCE
from conformance.session import Run
from conformance.spec import registry
from strategies import shapes
from strategies.specs import TensorSpec

ROOT = Path(__file__).parents[2]
BANK = defect_registry.bank()
OPS = sorted(registry())
CHEAP = ("strides", "exception", "scratch", "race", "nothing_dropped", "other_path_for_strides")
CHEAP += ("stores_past_result", "sums_into_scratch", "reads_one_beyond", "kept_by_address", "sets_a_variable")
BY_OP = {
    "bitwise_and": ("operand_for_out",),
    "cos": ("one_buffer",),
    "dequantize_fp8": ("other_format",),
    "amax": ("complex_taken_for_real",),
    "bmm": ("fake_on_meta",),
    "matmul": ("refuses_at_once",),
    "mm": ("compiled_reads_an_element",),
    "dropout": ("views_stay_as_they_are",),
    "exp": (
        "out_written_before_it_is_refused",
        "autocast_out_too",
        "contiguous",
        "input_seen",
        "negation_unseen",
        "vectors_from_multiples",
    ),
    "gelu": ("export_element_in_program", "swallows_keywords"),
    "fp8_gemm": ("fast_accumulation",),
    "layer_norm": ("nan_disturbs", "short_way_without_a_mask"),
    "mul": ("vmap_first_for_all", "out_by_position"),
    "neg": ("gradient_minus_forgotten", "opcheck_no_fake"),
    "quantize_fp8": ("toward_zero",),
    "relu": ("refuses_in_place", "flag_compared", "gradient_passes_zero"),
    "silu": ("rounds_in_place", "gradient_lost_in_place_of_views"),
    "sub": ("refuses_reduced", "transforms_counted_twice", "turned_matrix_beside_more"),
    "tanh": ("real_parts_alone",),
    "softmax": ("other_block_for_odd", "other_blocks_lose_the_tail", "x_for_input"),
    "rms_norm": ("smaller_tiles_lose_the_tail",),
    "scaled_dot_product_attention": ("causal_off_by_one", "refused_as_value_error", "cache_not_written"),
}
"""Defects that a few cases show, some of every check."""
FEW = "dequantize_fp8"
"""An op of which few cases are drawn: what survives is judged on all of them."""


def test_every_op_and_every_check_has_its_defects():
    by_op, by_check = Counter(d.op for d in BANK.values()), Counter(d.check for d in BANK.values())
    (least,) = re.findall(r"There are more than ([\d,]+),", (ROOT / "docs" / "selftest.md").read_text())
    assert len(BANK) > int(least.replace(",", "")) >= 0.8 * len(BANK)
    assert {op: by_op[op] for op in OPS if by_op[op] < 8} == {}
    # Those that a GPU alone has are planted in gpu_defects.py.
    checks = [check for check in CHECKS if check not in gpu.CONTEXTS]
    assert [check for check in checks if not by_check[check]] == []
    assert set(by_check) == {*checks, SEQUENCE, runner.CRASH}
    cheap = [d for d in BANK.values() if d.name.removeprefix(f"{d.op}_") in (*CHEAP, *BY_OP.get(d.op, ()))]
    assert [check for check in checks if check not in {d.check for d in cheap}] == []
    assert all(defect.about and defect.kind for defect in BANK.values())


def test_the_cases_are_those_of_the_suite(tmp_path):
    """All of them, and no others; in another order."""
    settings = hypothesis.settings(PROFILES["ci"], max_examples=12)
    judged: set[str] = set()

    class Watched(Run):
        def judge(self, case, *given, **options):
            judged.add(cases.case_id(case))
            return super().judge(case, *given, **options)

    given = load("torch"), torch.device("cpu"), registry()["mm"].dtypes, None, tmp_path, settings, 0
    run = Watched(*given, large=runner.LARGE[""])
    for dtype, refused in itertools.product(registry()["mm"].dtypes, (False, True)):
        run.search("mm", dtype, refused)
    drawn = [cases.case_id(case) for case in search.suite_cases("mm", settings)]
    assert len(drawn) == len(set(drawn)) > 40
    assert set(drawn) == judged


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_some_defects_are_caught_and_right_implementations_are_not(op):
    """As many as there is time for in CI; ``nox -s selftest`` has the whole bank."""
    names = [f"{op}_{name}" for name in (*CHEAP, *BY_OP.get(op, ()))]
    defects = [BANK[name] for name in names if name in BANK]
    results, tallies = search.study(op, defects, controls(op), PROFILES["ci"], controlled=10)
    assert [result.name for result in results if not result.killed] == []
    assert [(tally.name, tally.message) for tally in tallies if tally.alarms] == []
    assert all(tally.cases == 10 for tally in tallies)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["mul", "bitwise_and", "add", "gt", "clamp"])
def test_a_kernel_that_broadcasts_only_its_first_row_is_caught(op):
    """And likewise for the other shapes that broadcast."""
    defects = [BANK[f"{op}_first_of_{pattern}"] for pattern in shapes.SMALLER]
    results, _ = search.study(op, defects, (), PROFILES["ci"])
    assert [result.name for result in results if not result.killed] == []


@pytest.mark.parametrize("deviation", [d for d in DEVIATIONS if "cpu" in d.devices], ids=lambda d: d.name)
def test_controls_are_right_where_torch_is_not(deviation):
    _, *others = controls(deviation.case.op)
    found = {other.name: runner.judge(deviation.case, other, checks=["values"]) for other in others}
    assert {name: verdict.failure for name, verdict in found.items() if verdict.failure} == {}


def test_what_is_multiplied_with_an_int_alpha_of_0_has_the_sign_of_the_sum():
    for input, alpha in itertools.product((-0.0, 0.0), (0, 0.0, -0.0)):
        given = torch.tensor([input], dtype=torch.bfloat16), torch.tensor([-5], dtype=torch.int8)
        found, torchs = (function(*given, alpha=alpha) for function in (correct.right("sub"), torch.sub))
        assert found.signbit().equal(torchs.signbit())


@pytest.mark.parametrize("limits", [{"min": math.nan}, {"max": math.nan}, {"min": 2, "max": math.nan}])
@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16, torch.float64])
def test_clamp_by_nan_is_nan_whatever_torch_gives(dtype, limits, monkeypatch):
    x = torch.ones(3, dtype=dtype)
    ignoring = torch.clamp(x, min=0.5)
    monkeypatch.setattr(correct, "by_torch", lambda op, *args, **kwargs: ignoring.clone())
    assert correct.right("clamp")(x, **limits).isnan().all()


def test_a_saved_case_shows_the_defect():
    defect = BANK["add_nan"]
    ((result,), _) = search.study("add", [defect], (), PROFILES["ci"])
    assert result.case is not None
    assert runner.judge(result.case, f"{defect_registry.NAME}:add_nan").failure.check == "values"
    assert runner.judge(result.case, f"{defect_registry.NAME}:right").status == "passed"


@pytest.mark.slow
def test_a_survivor_and_a_false_alarm_are_told():
    settings = hypothesis.settings(PROFILES["ci"], max_examples=3)
    harmless = defect_registry.Defect(f"{FEW}_nothing", FEW, "none", "values", correct.right(FEW), "nothing is wrong")
    wrong = Implementation("wrong", SimpleNamespace(**{FEW: Mock(side_effect=OverflowError)}), {})
    results, tallies = search.study(FEW, [harmless], [wrong], settings, controlled=40)
    assert not report.is_clean(results, [])
    assert not report.is_clean([], tallies)
    text = "\n".join(report.tables(results, tallies))
    assert f"SURVIVED {FEW}_nothing: values does not see 'nothing is wrong' in {results[0].examples} cases" in text
    assert "FALSE ALARM wrong, " in text
    assert "errors: torch takes this call; raised OverflowError" in text
    assert "0 of 1 defects caught" in text


@pytest.mark.slow
def test_a_defect_that_only_a_wrong_reference_would_show_is_no_catch(monkeypatch):
    """Where what is right fails a check as well, that is no catch."""
    defect = BANK[f"{FEW}_divides"]
    monkeypatch.setattr(search, "right", lambda op: defect.implementation)
    settings = hypothesis.settings(PROFILES["ci"], max_examples=5)
    ((result,), _) = search.study(FEW, [defect], (), settings)
    assert not result.killed


def test_in_place_the_same_bits_are_asked_of_the_deterministic_alone():
    """The last bit is within the bound."""
    defect = BANK["silu_rounds_in_place"]
    ((caught,), _) = search.study("silu", [defect], (), PROFILES["ci"])
    assert runner.judge(caught.case, defect.implementation, checks=["inplace"]).failure.check == "inplace"
    unclaimed = Implementation("unclaimed", defect.implementation.provider, {})
    assert runner.judge(caught.case, unclaimed, checks=["inplace"]).status == "passed"


@pytest.mark.slow
def test_command_and_what_ends_its_process(tmp_path, capsys):
    """It is caught by that, and the others of its op are judged all the same."""
    file, names = tmp_path / "found.json", ("isnan_exception", "isnan_segfault", "relu_nan")
    chosen = [part for name in names for part in ("--defect", name)]
    assert command_line.main([*chosen, "-n", "1", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "3 of 3 defects caught, 0 false alarms in 0 cases" in text
    assert f"written to {file}" in text
    found = json.loads(file.read_text())
    assert [one["name"] for one in found["defects"]] == [*names]
    assert [one["first"] for one in found["defects"]] == ["errors", "crash", "values"]
    assert all(one["case"] for one in found["defects"])
    # A wheel's version may have no local part where torch's own has one.
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


@pytest.mark.slow
def test_controls_alone_get_as_many_cases_as_are_asked_for(tmp_path, capsys):
    """Though the profile has fewer."""
    file, asked = tmp_path / "found.json", PROFILES["ci"].max_examples * len(registry()["dequantize_fp8"].dtypes) + 20
    command = ["--op", "dequantize_fp8", "--controls-only", "--controls", str(asked), "-n", "1", "--json", str(file)]
    assert command_line.main(command) == 0
    assert f"0 of 0 defects caught, 0 false alarms in {asked} cases" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["defects"] == []
    assert [(one["name"], one["cases"]) for one in found["controls"]] == [("float64, rounded once", asked)]


class Dying:
    """In place of a pool of one process: it dies whenever it is to judge torch."""

    case = Case(op="neg", args=(TensorSpec((2,), "float32"),))

    def __init__(self, *_):
        pass

    def submit(self, study, op, names, controlled, seed, file, without):
        future = Future()
        if "torch" in without:
            future.set_result(([], [search.Control("other", op, controlled)]))
        else:
            workers.Note(file)("torch", self.case, 4)
            future.set_exception(BrokenProcessPool())
        return future

    def shutdown(self):
        pass


def test_a_control_that_ends_its_process_is_a_false_alarm(monkeypatch):
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Dying)
    ((results, tallies),) = workers.study({"neg": []}, 10, 0, 1)
    assert (results, [(tally.name, tally.cases, tally.alarms) for tally in tallies]) == (
        [],
        [("torch", 4, 1), ("other", 10, 0)],
    )
    assert "FALSE ALARM torch, 1 times: neg(" in (text := "\n".join(report.tables(results, tallies)))
    assert "crash: the process that judged it died" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "ad"], "unknown op 'ad'; did you mean add? Valid are abs, add, "),
        (["--defect", "mm_no_such"], "unknown defect 'mm_no_such'; of that op there are mm_"),
        (["--defect", "relu_nan", "--json", "no_such/x.json"], "there is no folder no_such"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert command_line.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_defects_are_named_as_implementations():
    for name in ("mm_tf32", "kernels", "right"):
        assert callable(load(f"{defect_registry.NAME}:{name}").function("mm"))
    with pytest.raises(ImplementationError, match="has no 'no_such'"):
        load(f"{defect_registry.NAME}:no_such")
