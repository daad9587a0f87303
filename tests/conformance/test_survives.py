"""What is judged, and where, may be anything: the run survives it, and says what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_suite import QUICK, SUITE, USAGE, _torch_is_whole, suite  # noqa: F401

from conformance import __main__ as command_line
from conformance import case_files, cases, corpus
from conformance.cases import Case, CaseError
from conformance.checks.call_record import describe
from strategies.specs import TensorSpec

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
VILE = r"""
import os
import torch

class Silent(RuntimeError):
    def __str__(self):
        raise ValueError("no text")
    __repr__ = __str__

class Ugly(Exception):
    pass

Ugly.__module__ = "\udcfe\0"

def abs(input, *, out=None):
    raise Silent()

def neg(input, *, out=None):
    os.write(1, b"\xff\xfe\0 printed\n")
    raise Ugly("lone \ud800, \0")
"""


def hostile_run(folder: bytes, *arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """Judge ``vile`` in a folder, and an environment, whose names are no UTF-8."""
    os.makedirs(folder)
    Path(os.fsdecode(folder), "vile.py").write_text(VILE)
    path = os.environb[b"PYTHONPATH"] + b":" + folder
    environment = {**os.environb, b"PYTHONPATH": path, b"VILE": b"\xff\xfe", b"V\xffLE": b"x"}
    command = [sys.executable, "-m", "pytest", SUITE, "-p", "no:cacheprovider", "--device", "cpu", "-k", "test_legal"]
    command += ["--implementation", "vile", "--max-examples", "2", "--dtype", "float32", "--op", "abs", "--op", "neg"]
    return subprocess.run([*command, *arguments], cwd=folder, env=environment, capture_output=True)


@pytest.mark.slow
def test_texts_and_names_that_are_no_utf8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9\xff"
    done = hostile_run(folder, "--metrics", b"m\xff.json", "--write-known-failures", b"k\xff.json")
    said = done.stdout.decode(errors="backslashreplace")
    assert done.returncode == 1, said
    assert "raised Silent: (its text cannot be had: str() of it raises ValueError)" in said
    assert r"raised Ugly: lone \ud800, \0" in said
    assert "abs (float32): errors failed for vile on cpu, case abs-" in said
    assert {b"m\xff.json", b"k\xff.json", b"failures"} <= {*os.listdir(folder)}
    assert len(os.listdir(folder + b"/failures")) == 4, "two cases and two scripts"
    with open(folder + b"/m\xff.json") as file:
        assert {record["op"] for record in json.load(file)["records"]} == {"abs", "neg"}


@pytest.mark.slow
def test_workers_in_a_folder_whose_name_is_no_utf8_are_refused(tmp_path):
    done = hostile_run(os.fsencode(tmp_path) + b"/\xff", "-n", "1")
    assert done.returncode == USAGE
    assert b"pytest-xdist works only where the names of folders are UTF-8; use -n 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--implementation", "v\udcfe"), r"implementation 'v\udcfe': not a name"),
        (("--implementation", "v\0"), r"implementation 'v\x00': not a name"),
        (("--device", "\udcfe"), r"device '\udcfe': not a name"),
        (("--op", "a\udcfe"), r"unknown op 'a\udcfe'"),
    ],
)
def test_names_that_cannot_be(suite, arguments, message):  # noqa: F811
    result = suite(*QUICK, *arguments)
    assert result.ret == USAGE
    assert message in str(result.stderr).replace("\\\\", "\\")


def test_an_exception_without_a_text_is_described():
    class Silent(RuntimeError):
        def __str__(self):
            raise SystemExit

    assert describe(Silent()) == "Silent: (its text cannot be had: str() of it raises SystemExit)"
    assert describe(RuntimeError("a\ud800\0b")) == r"RuntimeError: a\ud800\0b"


def test_a_fifo_and_a_device_among_the_cases(suite, pytester):  # noqa: F811
    folder = pytester.mkdir("saved")
    os.mkfifo(folder / "fifo.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    (folder / "folder.json").mkdir()
    corpus.write(folder / "case.json", cases.encode(Case(op="relu", args=(TensorSpec((3,), "float32"),))))
    result = suite(*QUICK, "--corpus", "saved")
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines_random([f"*saved/{name}.json: not a file" for name in ("fifo", "zero", "folder")])
    with pytest.raises(CaseError, match=r"fifo\.json: not a file"):
        case_files.read(folder / "fifo.json")


def test_saved_cases_of_an_op_that_is_gone(suite, pytester, capsys, monkeypatch):  # noqa: F811
    folder = pytester.mkdir("saved")
    case = cases.encode(Case(op="relu", args=(TensorSpec((3,), "float32"),)))
    (folder / "gone.json").write_bytes(case.replace(b'"relu"', b'"bygone"'))
    (folder / "here.json").write_bytes(case)
    result = suite("--corpus", "saved", "--device", "cpu", "-k", "test_saved")
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes() == {"passed": 1, "skipped": 1, "deselected": result.parseoutcomes()["deselected"]}
    result.stdout.fnmatch_lines(["a saved case was not judged: saved/gone.json: unknown op 'bygone'*"])
    assert "bygone" not in suite(*QUICK, "--corpus", "saved").stdout.str(), "another op was asked for"

    monkeypatch.chdir(pytester.path)
    assert command_line.main(["list", "--corpus", "saved"]) == 0
    listed = capsys.readouterr().out
    assert "saved/gone.json: unknown op 'bygone'" in listed
    assert "saved/here.json" in listed
    assert command_line.main(["corpus", "prune", "saved"]) == 0
    assert "saved/gone.json: its op is gone" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["here.json"]
