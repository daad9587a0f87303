"""Saved cases: JSONL files with a case on each line, and how one is named."""

import re
import sys
from pathlib import Path

import pytest

from conformance import __main__ as command_line
from conformance import cases, corpus, sequences
from conformance.cases import Case, CaseError
from strategies.specs import TensorSpec

CASE = Case(op="relu", args=(TensorSpec((3,), "float32"),), note="why it is kept")


@pytest.fixture
def folder(tmp_path):
    """A folder with cases of two ops in JSONL files."""
    paths = [corpus.keep(case, "", tmp_path) for case in (CASE, Case(op="relu", args=(TensorSpec((0,), "float16"),)))]
    paths.append(corpus.keep(Case(op="exp", args=CASE.args), "", tmp_path))
    corpus.add(paths, tmp_path / "kept")
    assert not list(tmp_path.glob("*.json"))
    return tmp_path / "kept"


def test_shipped_cases_have_the_ids_that_their_lines_say():
    for path in corpus.files([corpus.SHIPPED, corpus.LARGE]):
        saved = sequences.read(path, max_elements=sys.maxsize)
        assert sequences.identity(saved) == corpus.name(path)
        assert Path(str(path).partition("#")[0]).stem == sequences.calls(saved)[0].op


def test_cases_are_lines_sorted_by_id(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["exp.jsonl", "relu.jsonl"]
    names = [line.id for line in cases.lines(folder / "relu.jsonl")]
    assert names == sorted(names)
    assert [corpus.name(path) for path in corpus.files([folder])][1:] == names
    assert corpus.find(cases.case_id(CASE), [folder]) == Path(f"{folder}/relu.jsonl#{cases.case_id(CASE)}")


def test_a_case_is_added_once(folder, tmp_path):
    before = (folder / "relu.jsonl").read_bytes()
    (path,) = corpus.add([corpus.keep(CASE, "", tmp_path)], folder)
    assert (folder / "relu.jsonl").read_bytes() == before
    assert sequences.read(path) == corpus.with_digests(CASE)


def test_nothing_is_added_where_one_cannot_be_read(folder, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    good = corpus.keep(Case(op="abs", args=CASE.args), "", tmp_path)
    with pytest.raises(CaseError, match=r"bad\.json"):
        corpus.add([good, tmp_path / "bad.json"], folder)
    assert good.exists()
    assert not (folder / "abs.jsonl").exists()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("relu.jsonl", r"relu\.jsonl: holds 2 cases; name one as .*relu\.jsonl#ID"),
        ("relu.jsonl#relu-0", r"relu\.jsonl#relu-0: the file has no case of that id"),
        ("none.jsonl#relu-0", r"none\.jsonl: cannot be read: No such file"),
        ("bad.jsonl", r"bad\.jsonl: line 2 is not an id and a case"),
    ],
)
def test_what_names_no_case_is_refused(folder, case, message, capsys):
    line = (folder / "exp.jsonl").read_text()
    (folder / "bad.jsonl").write_text(line + '{"id": 3}\n')
    assert command_line.main(["show", str(folder / case)]) == command_line.BAD_INPUT
    assert re.search(message, capsys.readouterr().err)


def test_a_damaged_file_is_named_once(folder):
    (folder / "bad.jsonl").write_text("{\n")
    assert folder / "bad.jsonl" in corpus.files([folder])


def test_a_shipped_case_is_shown_by_its_id(capsys):
    (path, *_) = corpus.files([corpus.SHIPPED])
    assert command_line.main(["show", corpus.name(path)]) == command_line.PASSED
    assert capsys.readouterr().out.startswith(corpus.name(path))
