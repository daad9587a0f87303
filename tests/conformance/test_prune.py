"""Pruning saved cases: what others show may go, and nothing is lost by it."""

from __future__ import annotations

import msgspec
import pytest

from conformance import __main__ as command_line
from conformance import case_files, cases, corpus, prune
from conformance.cases import Case
from strategies.specs import Layout, TensorSpec


def add(*shape: int, seed: int = 0, note: str = "values failed", permanent: bool = False, **fields) -> Case:
    operand = TensorSpec(shape, fields.pop("dtype", "float32"), seed=seed, **fields)
    return Case(op="add", args=(operand, 1), note=note, permanent=permanent)


def save(folder, *saved: Case) -> list[str]:
    folder.mkdir(exist_ok=True)
    for case in saved:
        corpus.write(folder / f"{cases.case_id(case)}.json", cases.encode(case))
        (folder / f"repro_{cases.case_id(case)}.py").write_text("")
    return [cases.case_id(case) for case in saved]


def left(folder) -> set[str]:
    return {path.stem for path in folder.glob("*.json")}


def test_what_others_show_goes_and_its_script(tmp_path, capsys):
    alike = [add(3, 5, seed=seed) for seed in range(3)]
    others = [
        add(3, 5, seed=5, note="errors failed"),
        add(3, 5, dtype="float16"),
        add(5, 3, layout=Layout(order=(1, 0))),
        add(3, 5, seed=9, permanent=True),
    ]
    folder = tmp_path / "saved"
    save(folder, *alike, *others)
    shown = {one for case in (*alike, *others) for one in prune.shows(case)}
    everything = left(folder)

    assert command_line.main(["corpus", "prune", str(folder), "--dry-run"]) == 0
    assert left(folder) == everything
    # The permanent one shows what they show.
    assert "3 would be removed" in capsys.readouterr().out

    assert command_line.main(["corpus", "prune", str(folder)]) == 0
    assert left(folder) == {cases.case_id(case) for case in others}
    assert {path.stem.removeprefix("repro_") for path in folder.glob("*.py")} == left(folder)
    assert {one for path in folder.glob("*.json") for one in prune.shows(case_files.read(path))} == shown
    said = capsys.readouterr().out
    assert "3 removed" in said
    assert "others show all that it shows" in said

    assert command_line.main(["corpus", "prune", str(folder)]) == 0
    assert "0 removed" in capsys.readouterr().out


def test_a_permanent_case_stays_beside_its_like(tmp_path):
    folder = tmp_path / "saved"
    save(folder, *(add(4, seed=seed, permanent=True) for seed in range(2)), add(4, seed=2))
    assert list(prune.redundant(folder)) == [folder / f"{cases.case_id(add(4, seed=2))}.json"]


def test_a_case_that_ships_or_is_saved_twice_goes(tmp_path):
    (shipped, *_) = corpus.files([corpus.SHIPPED])
    case = msgspec.structs.replace(case_files.read(shipped), note="values failed")
    save(tmp_path, case)
    corpus.write(tmp_path / "by_another_name.json", cases.encode(add(7)))
    corpus.write(tmp_path / "twice.json", cases.encode(add(7)))
    reasons = prune.redundant(tmp_path)
    assert reasons[tmp_path / f"{corpus.name(shipped)}.json"] == f"the same case as {shipped}"
    assert len(reasons) == 2


@pytest.mark.parametrize("folder", [corpus.SHIPPED, corpus.LARGE])
def test_what_ships_is_permanent(folder):
    assert corpus.files([folder])
    assert prune.redundant(folder) == {}


def test_bad_folders(tmp_path, capsys):
    assert command_line.main(["corpus", "prune", str(tmp_path / "no_such")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    (tmp_path / "case.json").write_text("{}")
    assert command_line.main(["corpus", "prune", str(tmp_path)]) == 2
    assert "not a case" in capsys.readouterr().err


def test_permanence_is_written_where_it_is_said():
    case, permanent = add(3), add(3, permanent=True)
    assert cases.case_id(case) == cases.case_id(permanent)
    assert b"permanent" not in cases.encode(case)
    assert case_files.decode(cases.encode(permanent)) == permanent
