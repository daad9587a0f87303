"""Planted defects: each is caught, its message has all parts, and the case that is saved repeats it."""

from __future__ import annotations

import ast
import math
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
import torch
from searches import UntilOneFails

from conformance import __main__ as command_line
from conformance import case_files, cases, runner
from conformance.cases import Case
from conformance.checks import FAILED
from conformance.implementations import Implementation, load
from conformance.profiles import PROFILES, ROUND
from conformance.search_state import Report
from conformance.selftest.defect_registry import NAME, bank
from conformance.session import Run
from strategies.specs import CONTIGUOUS, TensorSpec

HERE = Path(__file__).parent
CPU = torch.device("cpu")
RIGHT = f"{NAME}:right"
WHERE = {
    "float32": (
        *("add_tail_16", "add_strides", "add_nan", "add_scratch", "div_tail_128"),
        *("relu_nan", "relu_strides", "relu_inplace_copies", "relu_returns_input", "eq_nan_equals_nan"),
        *("eq_numbers_for_bools", "softmax_no_maximum", "softmax_last_dim", "softmax_row_tail_16"),
        *("softmax_masked_row_is_0", "mm_inner_tail_16", "mm_strides", "mm_empty_sum"),
    ),
    "float32 int32 int64": ("add_broadcast",),
    # The first of them shows it in a case that is soon shrunk.
    "float32 float16 bfloat16 float64": ("add_promotes_0d",),
    "float16": ("relu_tail_32", "softmax_half_sum", "mm_half_accumulator"),
    "float64": ("div_through_single", "div_floor_truncates"),
    "int64": ("div_whole_through_float",),
    "int32": ("div_whole_quotient",),
    "uint8": ("eq_numbers_must_fit",),
    "refused float32": ("div_any_mode", "relu_takes_bool", "softmax_takes_integers", "mm_exception"),
    "refused int32": ("add_exception",),
}
"""Defects that are shrunk, saved and repeated, by the dtypes that are drawn; all others are only caught."""
COMMANDED = (
    "add_nan",
    "div_tail_128",
    "relu_inplace_copies",
    "eq_numbers_must_fit",
    "softmax_no_maximum",
    "mm_exception",
)
"""Those whose cases the command repeats, in processes of its own: one of each op; the others are judged in this one."""


def search(name: str, folder: Path) -> Report:
    """What the ci profile finds in a planted defect: where its first round shows it, in that alone."""
    where = next(where for where, names in WHERE.items() if name in names).split()
    refused = "refused" in where
    dtypes = [dtype for dtype in where if dtype != "refused"]
    planted, ci = bank()[name], PROFILES["ci"]
    for examples in (ROUND, ci.max_examples):
        run = UntilOneFails(
            implementation=load(f"{NAME}:{name}"),
            device=CPU,
            dtypes=dtypes,
            # Others fail too, and would be shrunk for themselves.
            checks=(planted.check,),
            save_to=folder,
            settings=hypothesis.settings(ci, max_examples=examples),
            seed=0,
        )
        for dtype in dtypes:
            report = run.search(planted.op, dtype, refused)
            if planted.check in {failure.check for record in report.tally.sorted() for failure in record.failures}:
                return report
    return report


def exit_status(script: Path, implementation: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", [str(script), implementation])
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(script), run_name="__main__")
    return exit.value.code


@pytest.mark.parametrize("name", [name for names in WHERE.values() for name in names])
def test_caught(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    planted = bank()[name]
    implementation = f"{NAME}:{name}"
    report = search(name, Path("found"))

    failures = [failure for record in report.tally.sorted() for failure in record.failures]
    assert planted.check in [failure.check for failure in failures]
    failure = next(failure for failure in failures if failure.check == planted.check)

    message = next(text for text in report.failures if failure.id in text)
    path, script = Path("found", f"{failure.id}.json"), Path("found", f"repro_{failure.id}.py")
    assert message.startswith(f"{planted.op} (")
    assert f"{planted.check} failed for {implementation} on cpu" in message
    assert "strides" in message
    assert "seed" in message
    if planted.check == "values":
        for part in ("the worst is [", "ours ", "torch ", "oracle ", "error ", "bound "):
            assert part in message
    assert f"    python -m conformance reproduce {path} --implementation {implementation}\n" in message
    assert message.endswith(f"    python {script}")

    saved = case_files.read(path)
    assert cases.case_id(saved) == failure.id
    assert len(saved.digests) == len(cases.operands(saved))
    again = runner.judge(saved, implementation)
    assert (planted.check, FAILED) in [(finding.check, finding.status) for finding in again.findings]
    # The case shows the planted defect and not one of torch's own.
    assert runner.judge(saved, RIGHT).status == "passed"
    if name in COMMANDED:
        reproduce = ["reproduce", str(path), "--device", "cpu", "--implementation"]
        assert command_line.main([*reproduce, implementation]) == 1
        assert f"{planted.check} failed" in capsys.readouterr().out
        assert command_line.main([*reproduce, RIGHT]) == 0
    assert exit_status(script, implementation, monkeypatch) == 1
    assert f"{planted.check}: " in capsys.readouterr().out
    assert exit_status(script, RIGHT, monkeypatch) == 0


def test_shrunk_to_the_simplest_case_of_a_lost_tail(tmp_path):
    (failure,) = [failure for record in search("add_tail_16", tmp_path).tally.sorted() for failure in record.failures]
    # 17 elements in a row, or two rows or columns of nine: neither is simpler for who reads it.
    assert max(math.prod(spec.shape) for spec in cases.operands(failure.case)) <= 18
    assert all(spec.layout == CONTIGUOUS and not spec.specials for spec in cases.operands(failure.case))
    assert not failure.case.kwargs


@pytest.mark.slow
def test_script_needs_torch_alone(tmp_path):
    """Run as its reader would: from another folder, in a process of its own, the default implementation found in the
    folder where it is run."""
    run = UntilOneFails(load("defects:nan_lost"), CPU, ("float32",), ("values",), tmp_path, PROFILES["ci"], 0)
    report = run.search("relu", "float32")
    (script,) = tmp_path.glob("repro_*.py")
    assert any(str(script) in message for message in report.failures)
    imported = [
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    ]
    assert {name for name in imported if name not in sys.stdlib_module_names} == {"torch"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), *arguments]
        return subprocess.run(command, cwd=HERE, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})

    ours = run()
    assert ours.returncode == 1, ours.stderr
    assert "values: 1 wrong" in ours.stdout
    torchs = run("torch")
    assert torchs.returncode == 0, torchs.stderr
    assert "torch is right" in torchs.stdout


def test_several_defects_in_one_op_are_all_saved(tmp_path):
    """Two checks that fail are two failures, each shrunk and saved for itself."""
    # Others that look at gradients, or make other calls, would find the same on the way.
    checks = ["values", "inputs_unchanged"]
    report = Run(load("defects:two_defects"), CPU, ("float32",), checks, tmp_path, PROFILES["ci"], 0).search(
        "add", "float32"
    )
    found = {failure.check for record in report.tally.sorted() for failure in record.failures}
    assert found == {*checks}
    assert len(report.failures) == len(found)
    for check in found:
        assert sum(f": {check} failed for" in message for message in report.failures) == 1


def test_what_is_made_smaller_is_judged_by_what_failed_and_called_the_same(tmp_path):
    def wrong(input, inplace=False):
        """In place nothing is done, and NaN, infinity and what is large are lost."""
        return input if inplace else torch.nn.functional.relu(input).nan_to_num(0.0).clamp(max=100)

    judged = Implementation("wrong", SimpleNamespace(relu=wrong), {})
    run = Run(judged, CPU, ("float32",), None, tmp_path, PROFILES["ci"], 0)
    case = Case(op="relu", args=(TensorSpec((20,), "float32", seed=1),))
    assert run._smaller(case, {"values"}).status == "passed"
    assert [run._smaller(case, {check}).failure.check for check in ("inplace", "special_values")] == ["inplace"] * 2
    assert run.judge(case, checks=["special_values"]).failure.check == "special_values"
    assert run.judge(case).failure.check == "inplace"


def test_what_fails_only_now_and_then_is_reported(tmp_path):
    """Hypothesis cannot repeat it; the case is saved all the same."""
    run = Run(load("defects:now_and_then"), CPU, ("float32",), ["values"], tmp_path, PROFILES["ci"], 0)
    report = run.search("relu", "float32")
    assert len(report.failures) == len(list(tmp_path.glob("*.json"))) == 1
    assert "values failed for defects:now_and_then" in report.failures[0]
