"""Each planted defect trips exactly the check that is there for it; the shrunk case repeats it, with the harness and as
a script of its own."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import checks_defects
import hypothesis
import pytest
import torch
from searches import UntilOneFails

from conformance import __main__ as command_line
from conformance import repro, runner
from conformance.checks import CHECKS, FAILED, RARE
from conformance.implementations import load
from conformance.profiles import PROFILES

CPU = torch.device("cpu")
DERIVED = ("inplace", "layouts", "plain_operands", "out_argument", "aliasing", "special_values")
"""Checks that judge another call, whose script says what is wrong with that one."""
OTHER_OPERANDS = {"layout_invariant", "batch_invariant"}
"""Checks that judge a call of other operands: there defects of memory may show that the case itself does not have."""


OTHERS = [check for check in CHECKS if check not in ("memory", "gradients", *RARE)]
"""All but ``memory``, which is the interpreter's and would be the first to tell of the same, ``gradients``, and those
of contexts, which only who claims them can fail, or which see what others see in each run."""


def search(name: str, folder: Path, examples: int, checks: Sequence[str]) -> dict[str, str]:
    """Return the failures of a planted defect, one for each check that sees it."""
    planted = checks_defects.DEFECTS[name]
    settings = hypothesis.settings(PROFILES["ci"], max_examples=examples)
    run = UntilOneFails(load(f"checks_defects:{name}"), CPU, planted.dtypes, checks, folder, settings, 0)
    for dtype in planted.dtypes:
        report = run.search(planted.op, dtype)
        if found := {f.check: f for record in report.tally.sorted() for f in record.failures}:
            break
    return found


def exit_status(script: Path, implementation: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", [str(script), implementation])
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(script), run_name="__main__")
    return exit.value.code


@pytest.mark.slow
@pytest.mark.parametrize("name", checks_defects.DEFECTS)
def test_caught_by_that_check_alone(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    planted, implementation = checks_defects.DEFECTS[name], f"checks_defects:{name}"
    found = search(name, Path("found"), 250, [planted.check])
    assert planted.check in found
    verdict = runner.judge(found[planted.check].case, load(implementation), CPU, OTHERS)
    others = {one.check for one in verdict.findings if one.status == FAILED} - {planted.check, *DERIVED}
    # Without margins what is written past an operand may be a part of its storage.
    # What shows with out= shows with another out=, too; a result in the memory of another is lost; some calls that are
    # drawn are in place themselves, or hold NaN; and a form of a call gives operands by name.
    of_memory = planted.check in ("guard_bands", "fully_written")
    also = {
        "inplace": {"values"},
        "special_values": {"values"},
        "keywords": {"call_forms"},
        "aliasing": {"call_forms", "bare"},
    }.get(planted.check, set())
    assert others <= (OTHER_OPERANDS | {"inputs_unchanged"} if of_memory else also)
    case = found[planted.check].case
    assert runner.judge(case, "torch").status == "passed"

    path, script = (Path("found") / f"{s}{found[planted.check].id}{e}" for s, e in (("", ".json"), ("repro_", ".py")))
    assert command_line.main(["reproduce", str(path), "--implementation", implementation, "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    # A call by keywords, or a bare one, whose result lies in the memory of the first one's fails, too, and is made
    # before.
    shown = {planted.check, "memory"} | ({"keywords", "bare"} if planted.check == "aliasing" else set())
    assert any(f"{check} failed" in said for check in shown)
    if not script.exists():
        assert planted.check in repro.ACROSS_CALLS
        return
    for what, status in ((implementation, 1), ("torch", 0)):
        assert exit_status(script, what, monkeypatch) == status, capsys.readouterr().out
    said = capsys.readouterr().out
    assert f"{planted.check}: " in said or found[planted.check].check in DERIVED
