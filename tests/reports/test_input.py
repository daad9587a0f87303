"""Whatever a file holds, ``python -m reports`` gives a verdict or a page, or one line on stderr and exit code 2."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import made
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports import read
from reports.__main__ import DEFECT, main

ROOT = Path(__file__).parents[2]
ROWS = {("add", "big"): 1e-4, ("mm", "big"): 3e-4}


def fuzzing(examples):
    """The same examples each time, however busy the machine is."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def small_bench(seed=0, **more):
    document = made.bench(ROWS, seed=seed, **more)
    for row in document["benchmarks"]:
        slowed = {"median": 4e-4, "seconds": [4e-4, 4e-4]}
        row["extra_info"]["peers"]["slowed"] = slowed
        for seconds in (row["stats"]["data"], row["extra_info"]["peers"]["torch"]["seconds"]):
            del seconds[6:]
    return document


def small_report(folder):
    files = [made.write(folder, f"{kind}.json", valid(kind)) for kind in ("metrics", "bench", "selftest")]
    assert said("build", *files, "--out", folder / "out")[0] == 0
    return json.loads((folder / "out" / "report.json").read_text())


def valid(kind):
    if kind == "bench":
        return small_bench()
    if kind == "selftest":
        return made.selftest()
    failing = {**made.record("softmax", "float32", failed=2), "shares": [90, 2, 6], "ulps": 2.0, "torch_ulps": 1.5}
    failing["deviations"] = {"rounds": {"count": 3, "case": made.case("softmax")}}
    pairs = [{"op": "add", "feasible": 400, "hit": 310, "holes": ["rank 0"]}]
    return made.metrics(failing, made.record("add", "int32", share=0.0), coverage=pairs)


def said(*arguments):
    """The exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_of_argparse:
            code = exit_of_argparse.code
    return code, out.getvalue(), err.getvalue()


def holds(*arguments, verdict):
    """A verdict, or one line that names no mistake of the program."""
    code, out, err = said(*arguments)
    assert DEFECT not in err
    if code == 2:
        assert len(err.splitlines()) == 1, err
    else:
        assert code in (0, 1)
        assert verdict in out
    return code


def places(value, path=()):
    """Each place in a document."""
    yield path
    if isinstance(value, dict | list):
        for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inside, (*path, key))


odd_numbers = (0, -1, 1, 2**53, 2**63, 10**300, 5e-324, -0.0, 1e-12, 1e6, 1e308, math.nan, math.inf, -5e-7)
odd_texts = ("", "a<b", "torch", "copy", "\ud800", "\x00\n\r\x1b", "a" * 300, "NaN", "$x^$", "é\u202e", "/")
numbers, texts = st.sampled_from(odd_numbers), st.sampled_from(odd_texts)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(texts, inside, max_size=3),
    max_leaves=4,
)


@st.composite
def mutants(draw, document):
    """The text of a document with some places replaced, left out, or doubled; or its bytes damaged."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(places(document))))
        if not place:
            continue
        *outer, last = place
        holder = document
        for key in outer:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "double", "other"])):
            case "replace":
                holder[last] = draw(values)
            case "remove":
                del holder[last]
            case "double":
                if isinstance(holder, list):
                    holder.append(copy.deepcopy(holder[last]))
                else:
                    holder[draw(texts)] = copy.deepcopy(holder[last])
            case "other":
                elsewhere = document
                for key in draw(st.sampled_from(list(places(document)))):
                    elsewhere = elsewhere[key]
                holder[last] = copy.deepcopy(elsewhere)
    data = json.dumps(document).encode()
    match draw(st.sampled_from(["whole", "whole", "whole", "whole", "cut", "byte"])):
        case "cut":
            data = data[: draw(st.integers(0, len(data)))]
        case "byte":
            at = draw(st.integers(0, len(data) - 1))
            data = data[:at] + draw(st.binary(min_size=1, max_size=2)) + data[at + 1 :]
    return data


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bench", "metrics"])
def test_any_change_of_a_file_gives_a_verdict_or_one_line(kind, tmp_path):
    base, new = made.write(tmp_path, "base.json", valid(kind)), tmp_path / "new.json"

    @fuzzing(80)
    @given(mutants(valid(kind)))
    def fuzz(data):
        new.write_bytes(data)
        holds("compare", base, new, verdict="regression")
        holds("compare", new, base, verdict="regression")
        if kind == "bench":
            holds("rates", base, new, "--slowed", "slowed", verdict="made slower by")

    fuzz()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bench", "metrics", "selftest", "report"])
def test_any_change_of_a_file_gives_a_page_or_one_line(kind, tmp_path):
    document = small_report(tmp_path / "made") if kind == "report" else valid(kind)
    mutant = tmp_path / "in.json"

    @fuzzing(6)
    @given(mutants(document))
    def fuzz(data):
        mutant.write_bytes(data)
        code = holds("merge", mutant, "--out", tmp_path / "out", verdict="wrote")
        if code == 0:  # It can be read again.
            read.read_file(tmp_path / "out" / "report.json")

    fuzz()


def changed(change):
    document = small_bench()
    info = document["benchmarks"][0]["extra_info"]
    info.update(change)
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"median": 0}, "Expected `float` >= 1e-10 - at `$.median`"),
        ({"median": 5e-324}, "median"),
        ({"median": -1e-4}, "median"),
        ({"median": math.nan}, "damaged"),
        ({"ceilings": {"copy": 0, "bfloat16": 1e15}}, "ceilings"),
        ({"ceilings": {"bfloat16": 1e15}}, "ceilings without `copy`"),
        ({"bytes": 10**300}, "bytes"),
        ({"flops": -1}, "flops"),
        ({"gpu": {"name": "a GPU"}}, "Expected `str | null`, got `object` - at `$.gpu`"),
        ({"versions": ["2.13.0"]}, "versions"),
        ({"peers": {"torch": {"median": 0.0}}}, "peers"),
        ({"op": ""}, "op"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path, change, message):
    base = made.write(tmp_path, "base.json", small_bench())
    new = made.write(tmp_path, "new.json", changed(change))
    for command in (["compare", base, new], ["compare", new, base], ["build", new, "--out", tmp_path / "out"]):
        code, _, err = said(*command)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "new.json: damaged, or not of this kind: " in err
        assert message in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"failed": 101}, "101 failing of 100 judged cases"),
        ({"cases": -1}, "cases"),
        ({"worst": {"share": -1.0}}, "share"),
        ({"failures": "many"}, "failures"),
    ],
)
def test_counts_that_cannot_be_are_named(tmp_path, record, message):
    fine = made.write(tmp_path, "fine.json", made.metrics(made.record("add", "float32")))
    path = made.write(tmp_path, "new.json", made.metrics({**made.record("add", "float32"), **record}))
    code, _, err = said("compare", fine, path)
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err


def reports(*arguments, **options):
    command = [sys.executable, "-m", "reports", *map(str, arguments)]
    environment = os.environ | options.pop("env", {})
    return subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, **options)


def test_where_nothing_can_be_written_one_line_says_so(tmp_path):
    bench = made.write(tmp_path, "bench.json", small_bench())
    (tmp_path / "folder.json").mkdir()
    for command, named in (
        (["compare", bench, bench, "--markdown", tmp_path / "missing" / "summary.md"], "missing"),
        (["compare", bench, bench, "--junit", tmp_path], str(tmp_path)),
        (["compare", bench, bench, "--markdown", "/dev/full"], "No space left"),
        (["build", bench, "--out", bench], "bench.json"),
        (["build", bench, "--out", bench / "inside"], "bench.json"),
        (["build", bench, "--out", "/dev/full"], "/dev/full"),
        (["build", bench, "--out", tmp_path / ("a" * 300)], "too long"),
        (["build", tmp_path / "folder.json"], "holds no JSON file"),
        (["compare", bench, tmp_path / "missing.json"], "there is no such file or folder"),
        (["compare", bench, tmp_path], "folder.json: cannot be read"),
        (["compare", bench], "compare needs BASE and NEW"),
        (["compare", bench, bench, "--tolerance", "much"], "much: not a share like 0.05"),
        (["compare", bench, bench, "--tolerence", "0.05"], "unrecognized arguments"),
        (["burn", bench], "invalid choice"),
        ([], "build|merge|compare|rates"),
    ):
        code, _, err = said(*command)
        assert (code, len(err.splitlines())) == (2, 1), (command, err)
        assert named in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "folder.json"]


def test_a_file_that_cannot_be_read_is_named():
    # Its permissions would not stop root.
    assert said("compare", "/proc/self/mem", "/proc/self/mem")[::2] == (
        2, "python -m reports: /proc/self/mem: cannot be read: Input/output error\n"
    )  # fmt: skip


def test_a_full_disk_behind_stdout_is_one_line_and_no_verdict(tmp_path):
    bench = made.write(tmp_path, "bench.json", small_bench())
    with open("/dev/full", "wb") as full:
        done = reports("compare", bench, bench, stdout=full)
    assert (done.returncode, done.stderr) == (2, b"python -m reports: standard output: No space left on device\n")


def test_names_that_a_terminal_cannot_show_do_not_change_the_verdict(tmp_path):
    base, new = (
        made.write(tmp_path, f"{failed}.json", made.metrics(made.record("\N{INFINITY}", "float32", failed=failed)))
        for failed in (0, 1)
    )
    plain = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = reports("compare", base, new, stdout=subprocess.PIPE, env=plain)
    assert (done.returncode, done.stderr) == (1, b"")
    assert rb"\u221e" in done.stdout


def test_a_mistake_of_the_program_is_no_verdict(tmp_path, monkeypatch):
    from reports import compare

    bench = made.write(tmp_path, "bench.json", small_bench())
    monkeypatch.setattr(compare, "markdown", lambda found: 1 / 0)
    code, _, err = said("compare", bench, bench)
    assert (code, len(err.splitlines())) == (2, 1)
    assert DEFECT in err
    assert "ZeroDivisionError" in err
