"""Cheats on judges: each is caught in a process of its own, and right modules with the same machinery pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from conformance.checks import CHECKS
from conformance.plain_calls import PLAIN
from conformance.runner import CRASH
from conformance.selftest import cheats_alone
from conformance.selftest.cheats_alone import CHEATS, CONTROLS, HONEST, PLANTED, UNSEEN
from conformance.spec import registry

PAGE = Path(__file__).parents[2] / "docs" / "reward-hacks.md"
ROW = re.compile(r"^\| (?P<hack>.+?) \| (?P<sources>.+?) \| (?P<modules>.+?) \| (?P<checks>.+?) \|$", re.MULTILINE)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="it cheats on CUDA streams: there is no GPU")


def each(modules):
    return [pytest.param(one, id=one.name, marks=[GPU] * one.gpu) for one in modules]


@pytest.mark.parametrize("cheat", each(PLANTED))
def test_a_cheat_is_caught(cheat):
    caught = cheats_alone.catch(cheat, "auto" if cheat.gpu else "cpu")
    assert caught.verdict is not None, f"survived {caught.cases} cases"


@pytest.mark.parametrize("cheat", each(UNSEEN))
def test_a_cheat_that_the_page_says_is_not_seen_passes(cheat):
    assert cheats_alone.catch(cheat, "cpu", most=12).verdict is None


@pytest.mark.slow
@pytest.mark.parametrize("control", each(CONTROLS))
def test_what_is_right_passes(control):
    found = cheats_alone.alarms(control, "auto" if control.gpu else "cpu", most=25)
    assert [verdict.failure or verdict.status for verdict in found] == []


@pytest.mark.parametrize(
    ("folder", "listed"), [(CHEATS, (*PLANTED, *UNSEEN)), (HONEST, CONTROLS)], ids=["cheats", "honest"]
)
def test_every_module_is_listed(folder, listed):
    assert sorted(path.stem for path in folder.glob("*.py")) == sorted(one.name for one in listed)


def test_every_cheat_is_on_the_page_with_its_checks():
    cheats = {cheat.name: cheat for cheat in PLANTED}
    assert {cheat.op for cheat in (*PLANTED, *UNSEEN)} <= registry().keys()
    assert {check for cheat in (*PLANTED, *UNSEEN) for check in cheat.checks} <= {*CHECKS, CRASH, PLAIN}
    table, _, unseen = PAGE.read_text().partition("## What this judge cannot see")
    assert sorted(re.findall(r"`(\w+)`", unseen)) == sorted(cheat.name for cheat in UNSEEN)
    rows = [row for row in ROW.finditer(table) if "`" in row["modules"]]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row["modules"])]
    assert sorted(named) == sorted(cheats), "each once"
    for row in rows:
        checks = {check for name in re.findall(r"`(\w+)`", row["modules"]) for check in cheats[name].checks}
        assert set(re.findall(r"`(\w+)`", row["checks"])) == checks, row["hack"]
        assert "](https://" in row["sources"] or row["sources"] == "not seen", row["hack"]
    assert len([row for row in rows if row["sources"] != "not seen"]) >= 25
