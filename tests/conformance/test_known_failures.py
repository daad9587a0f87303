"""With known failures a run fails on news only."""

from __future__ import annotations

import json
import os

import pytest
from test_suite import QUICK, USAGE, _torch_is_whole, suite  # noqa: F401

from conformance import known_failures
from conformance.failure_causes import Failed
from conformance.known_failures import Entry, KnownError

pytest_plugins = ["pytester"]

CHECKS = ("values", "errors")
GOOD = {"schema": 1, "implementation": "lib", "failures": [{"op": "relu", "dtype": "float32", "check": "values"}]}


def fail(op="relu", dtype="float32", check="values", error="", features=("specials=nan",)) -> Failed:
    return Failed("message", op, dtype, check, error, "id", features)


@pytest.mark.parametrize(
    ("other", "known"),
    [
        ({}, True),
        ({"features": ("specials=nan", "layout=permuted")}, True),
        ({"features": ("layout=permuted",)}, False),
        ({"features": ()}, False),
        ({"op": "abs"}, False),
        ({"dtype": "float16"}, False),
        ({"check": "errors"}, False),
        ({"error": "RuntimeError"}, False),
    ],
)
def test_what_is_known(other, known):
    (found,) = known_failures.marked([fail(**other)], frozenset({known_failures.entry(fail())}))
    assert found.known == known


def test_what_has_no_op_is_never_known():
    failure = Failed("damaged case file")
    assert not known_failures.marked([failure], frozenset({known_failures.entry(failure)}))[0].known


def test_what_became_of_known_failures():
    again, gone = Entry("relu", "float32", "values"), Entry("relu", "float16", "values", "", ("specials=inf",))
    elsewhere = Entry("mm", "float32", "crash", "SIGSEGV")
    known = frozenset({again, gone, elsewhere})
    lines, now = known_failures.told(known, [fail(), fail("abs")], lambda one: one.op == "relu")
    assert lines == ["1 known failures are no news", "known, and did not fail: relu float16 values specials=inf"]
    assert now == {again, elsewhere, Entry("abs", "float32", "values", "", ("specials=nan",))}


def test_a_file_is_read_as_it_was_written(tmp_path):
    entries = {Entry("mm", "float16", "errors", "TypeError"), Entry("relu", "float32", "crash", "", ("out=empty",))}
    (tmp_path / "known.json").write_bytes(known_failures.encode("lib", entries))
    assert known_failures.read(tmp_path / "known.json", "lib", CHECKS) == entries


def _with(**changes):
    return json.dumps({**GOOD, "failures": [{**GOOD["failures"][0], **changes}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a file of known failures: Input data was truncated"),
        ("{", "not a file of known failures"),
        ("[]", "not a file of known failures: Expected `object`"),
        ('{"schema": 2}', "its schema is 2, and this harness reads schema 1 only"),
        (json.dumps({**GOOD, "implementation": "other"}), "it is of 'other', and what is judged is 'lib'"),
        (json.dumps({**GOOD, "more": 1}), "unknown field `more`"),
        (_with(more=1), "unknown field `more`"),
        (_with(op="rel"), "failure 0: unknown op 'rel'; did you mean relu?"),
        (_with(check="value"), "failure 0: unknown check 'value'; did you mean values?"),
        (_with(dtype=3), "Expected `str`, got `int`"),
        (json.dumps({**GOOD, "failures": 2 * GOOD["failures"]}), "failure 1: relu float32 values is there twice"),
        ('{"schema": 1, "implementation": "\xff', "not a file of known failures"),
        ("[" * 100_000, "not a file of known failures"),
    ],
)
def test_other_files_are_refused(text, message, tmp_path):
    path = tmp_path / "known.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KnownError) as error:
        known_failures.read(path, "lib", CHECKS)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name, message in (("fifo", "not a file"), ("none", "No such file"), (".", "not a file")):
        with pytest.raises(KnownError, match=message):
            known_failures.read(tmp_path / name, "lib", CHECKS)


@pytest.mark.slow
def test_a_run_fails_on_news_only(suite, pytester):  # noqa: F811
    arguments = (*QUICK[:4], "--max-examples", "60", "--device", "cpu", "--hypothesis-seed", "1", "--check", "values")
    result = suite(*arguments, "--write-known-failures", "known.json", implementation="defects:nan_lost")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["* known failures written to known.json"])
    assert json.loads((pytester.path / "known.json").read_text())["implementation"] == "defects:nan_lost"

    # Those that were saved are judged again, as saved cases.
    known = ("--known-failures", "known.json")
    result = suite(*arguments, *known, implementation="defects:nan_lost")
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["xfailed"] >= 2
    result.stdout.fnmatch_lines(["* known failures are no news", "relu *"])

    text = (pytester.path / "known.json").read_text()
    (pytester.path / "known.json").write_text(text.replace("specials=nan", "specials=inf"))
    result = suite(*arguments, *known, implementation="defects:nan_lost")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["the first failure, in *", "known, and did not fail: relu float32 values specials=inf"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--known-failures", "none.json"), "--known-failures none.json: cannot be read: No such file or directory"),
        (("--known-failures", "bad.json"), "--known-failures bad.json: not a file of known failures"),
        (("--write-known-failures", "no/known.json"), "--write-known-failures no/known.json: there is no folder no"),
    ],
)
def test_wrong_files_are_usage_errors(suite, pytester, arguments, message):  # noqa: F811
    (pytester.path / "bad.json").write_text("{")
    result = suite(*QUICK, *arguments)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines([f"*{message}*"])
