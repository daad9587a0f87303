"""On a GPU: an illegal address, a kernel that never ends and one that writes beyond its memory are each reported with a
case that repeats it, and the others are judged."""

from __future__ import annotations

import contextlib
from pathlib import Path

import hanging
import hypothesis
import pytest
import torch

from conformance import __main__ as command_line
from conformance import session
from conformance.profiles import PROFILES
from conformance.session import Run
from conformance.worker import Child

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
LIMIT = 120.0


@pytest.mark.parametrize(
    ("name", "check", "says"),
    [
        (
            "illegal",
            "crash",
            "the GPU's context is lost, and the process with it: CUDA error: an illegal memory access",
        ),
        ("endless", "timeout", f"no result after {LIMIT:g} s"),
        ("beyond", "guard_bands", "4 bytes after an input"),
    ],
)
def test_reported_and_repeated(name, check, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    hanging.only_then(monkeypatch, tmp_path)
    monkeypatch.setattr("conformance.search_state.FATAL", {"crash": 3, "timeout": 2})
    monkeypatch.setattr(session, "SHRINKING", {"crash": 2, "timeout": 1})
    implementation, settings = f"crashing_gpu:{name}", hypothesis.settings(PROFILES["ci"], max_examples=20)
    with contextlib.closing(Child(implementation, "cuda", timeout=LIMIT)) as child:
        found = child.implementation, child.device, ("float32",), None, Path("found"), settings, 0
        report = Run(*found, child=child).search("relu", "float32")
    (record,) = report.tally.sorted()
    assert [failure.check for failure in record.failures] == [check]
    # As many cases end the search as FATAL says; those judged before, between and after them are counted.
    assert record.passed > 2
    message = next(text for text in report.failures if f"{check} failed for {implementation} on cuda:0" in text)
    assert says in message
    assert "Judged again" not in message
    (path,) = Path("found").glob("*.json")
    with capfd.disabled():
        print(f"\n{message}\n{record.passed} cases passed")

    arguments = ["--implementation", implementation, "--case-timeout", f"{LIMIT:g}"]
    assert command_line.main(["reproduce", str(path), *arguments]) == 1
    assert says in capfd.readouterr().out


def test_children_take_the_gpus_in_turn():
    for worker in range(torch.cuda.device_count() + 1):
        with contextlib.closing(Child("torch", worker=worker)) as child:
            assert child.device == torch.device("cuda", worker % torch.cuda.device_count())
