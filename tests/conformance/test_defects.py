"""Planted defects: each is caught, its message has all parts, and the case that is saved repeats it."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import defects
import pytest
import torch

from conformance import __main__ as command_line
from conformance import cases, runner
from conformance.implementations import load
from conformance.session import PROFILES, Report, Run

HERE = Path(__file__).parent
CPU = torch.device("cpu")


def search(name: str, folder: Path) -> Report:
    """What the ci profile finds in a planted defect."""
    planted = defects.DEFECTS[name]
    run = Run(
        implementation=load(f"defects:{name}"),
        device=CPU,
        dtypes=planted.dtypes,
        checks=None,
        save_to=folder,
        settings=PROFILES["ci"],
        seed=0,
    )
    for dtype in planted.dtypes:
        report = run.search(planted.op, dtype, planted.refused)
        if report.failures:
            break
    return report


def exit_status(script: Path, implementation: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", [str(script), implementation])
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(script), run_name="__main__")
    return exit.value.code


@pytest.mark.parametrize("name", defects.DEFECTS)
def test_caught(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    planted = defects.DEFECTS[name]
    implementation = f"defects:{name}"
    report = search(name, Path("found"))

    failures = [failure for record in report.tally.sorted() for failure in record.failures]
    assert planted.check in [failure.check for failure in failures]
    failure = next(failure for failure in failures if failure.check == planted.check)
    # The case shows the planted defect and not one of torch's own.
    assert runner.judge(failure.case, planted.right).status == "passed"

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

    saved = cases.read(path)
    assert cases.case_id(saved) == failure.id
    assert len(saved.digests) == len(cases.operands(saved))
    assert command_line.main(["reproduce", str(path), "--implementation", implementation, "--device", "cpu"]) == 1
    assert f"{planted.check} failed" in capsys.readouterr().out
    assert command_line.main(["reproduce", str(path), "--implementation", planted.right, "--device", "cpu"]) == 0
    assert exit_status(script, implementation, monkeypatch) == 1
    assert f"{planted.check}: " in capsys.readouterr().out
    assert exit_status(script, planted.right, monkeypatch) == 0


def test_every_op_has_at_least_four():
    planted = [one.op for one in defects.DEFECTS.values()]
    assert {op for op in planted if planted.count(op) >= 4} == {"add", "div", "relu", "eq", "softmax", "mm"}


def test_shrunk_to_the_simplest_case_of_a_lost_tail(tmp_path):
    (failure,) = [failure for record in search("add_tail", tmp_path).tally.sorted() for failure in record.failures]
    shapes = [spec.shape for spec in cases.operands(failure.case)]
    assert max(shapes) == (defects.BLOCK + 1,)
    assert not failure.case.kwargs


def test_script_needs_torch_alone(tmp_path):
    """Run as its reader would: from another folder, in a process of its own, the default implementation found in the
    folder where it is run."""
    report = search("relu_nan", tmp_path)
    (script,) = tmp_path.glob("repro_*.py")
    assert str(script) in report.failures[0]
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
    run = Run(load("defects:two_defects"), CPU, ("float32",), None, tmp_path, PROFILES["ci"], 0)
    report = run.search("add", "float32")
    found = {failure.check for record in report.tally.sorted() for failure in record.failures}
    assert found == {"values", "inputs_unchanged"}
    assert len(report.failures) == len(list(tmp_path.glob("*.json"))) == len(list(tmp_path.glob("repro_*.py"))) == 2


def test_what_fails_only_now_and_then_is_reported(tmp_path):
    """Hypothesis cannot repeat it; the case is saved all the same."""
    run = Run(load("defects:now_and_then"), CPU, ("float32",), ["values"], tmp_path, PROFILES["ci"], 0)
    report = run.search("relu", "float32")
    assert len(report.failures) == len(list(tmp_path.glob("*.json"))) == 1
    assert "values failed for defects:now_and_then" in report.failures[0]
