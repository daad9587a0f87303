"""The regression gate: what it calls, what it does not, and what CI gets of it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import made
import pytest

from reports import compare, read
from reports.__main__ import main
from reports.compare import Verdict

ROWS = {("add", "big"): 1e-4, ("mm", "big"): 3e-4}


def device(folder, document):
    (found,) = read.read_file(made.write(folder, f"{len(list(folder.iterdir()))}.json", document))
    return found


def verdicts(folder, base, new, **options):
    found = compare.compare(device(folder, base), device(folder, new), **options)
    return {change.name.split("[")[0]: change.verdict for change in found.changes}


def test_five_percent_is_called_and_noise_is_not(tmp_path):
    slow = {**ROWS, ("mm", "big"): 3e-4 * 1.05}
    wrong = 0
    for seed in range(20):
        base = made.bench(ROWS, seed=seed)
        assert verdicts(tmp_path, base, made.bench(slow, torch=ROWS, seed=100 + seed))["mm"] is Verdict.WORSE
        wrong += Verdict.WORSE in verdicts(tmp_path, base, made.bench(ROWS, seed=200 + seed)).values()
    assert wrong == 0


def test_a_chip_that_is_slower_as_a_whole_is_no_regression(tmp_path):
    cold, base = made.bench({row: 1.2 * seconds for row, seconds in ROWS.items()}, seed=1), made.bench(ROWS)
    assert set(verdicts(tmp_path, base, cold).values()) == {Verdict.SAME}
    # Without torch beside it nothing tells a slow chip from slow code.
    for document in (base, cold):
        for row in document["benchmarks"]:
            row["extra_info"]["peers"] = {}
    assert set(verdicts(tmp_path, base, cold).values()) == {Verdict.WORSE}


def test_rows_that_torch_slows_with_are_named_and_the_verdict_says_so(tmp_path):
    slow = {row: 1.5 * seconds for row, seconds in ROWS.items()}
    base, new = device(tmp_path, made.bench(ROWS)), device(tmp_path, made.bench(slow, seed=1))
    found = compare.compare(base, new)
    assert not found.worse
    text = compare.markdown(found)
    assert text.startswith("**No regression**, **but 2 rows are slower with torch beside them**")
    assert "torch itself took 1.50 times as long as before (2 rows of device time)" in text
    assert "| mm\\[bfloat16 big\\] |" in text.partition("### Slower, and torch too")[2]
    assert "torch itself took" not in compare.markdown(compare.compare(base, base))


MANY = {("add", f"{n}"): 1e-4 * (n + 1) for n in range(12)}


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(("slower", "worse"), [(1.0, False), (1.004, False), (1.019, True)])
def test_what_no_row_shows_alone_is_called_in_all_together(tmp_path, slower, worse, beside):
    new = {row: slower * seconds for row, seconds in MANY.items()}
    # All of 2% without torch: that much a chip differs from another day's.
    relative = compare.RELATIVE if beside else compare.RELATIVE / 2
    for seed in range(3):
        documents = [made.bench(rows, torch=MANY, seed=seed + n, noise=0.002) for n, rows in ((0, MANY), (9, new))]
        for document in documents if not beside else ():
            for row in document["benchmarks"]:
                row["extra_info"]["peers"] = {}
        found = compare.compare(*(device(tmp_path, document) for document in documents), relative=relative)
        if beside:
            assert all(change.verdict is Verdict.SAME for change in found.changes if change.before)
        assert bool(found.worse) == worse
        assert "12 rows of device time: " in compare.markdown(found)
    if worse and beside:
        assert [change.name for change in found.worse] == ["12 rows of device time together"]
        assert found.worse[0].ratio == pytest.approx(slower, abs=0.003)


def test_a_row_that_is_a_regression_is_not_counted_twice(tmp_path):
    new = {**MANY, ("add", "3"): 8e-4}
    found = compare.compare(device(tmp_path, made.bench(MANY)), device(tmp_path, made.bench(new, torch=MANY, seed=1)))
    assert [change.name for change in found.worse] == ["add[bfloat16 3]"]


def test_the_speed_of_the_host_is_said_and_not_judged(tmp_path):
    """It depends on where the process came to lie, in all rows alike."""
    documents = [made.bench(MANY, clock="host"), made.bench({row: 1.1 * s for row, s in MANY.items()}, clock="host")]
    found = compare.compare(*(device(tmp_path, document) for document in documents))
    assert not found.worse
    assert "12 rows of host time: 1.10" in compare.markdown(found)


def test_text_is_escaped_once():
    assert compare.text("a<b & `c` #1 | d_e") == "a&#60;b &#38; \\`c\\` \\#1 \\| d\\_e"


def test_faster_missing_and_new_rows_are_told(tmp_path):
    new = {("add", "big"): 0.5e-4, ("exp", "big"): 1e-4}
    assert verdicts(tmp_path, made.bench(ROWS), made.bench(new, torch=ROWS)) == {
        "add": Verdict.BETTER, "mm": Verdict.MISSING, "exp": Verdict.NEW,
    }  # fmt: skip
    assert "mm" not in verdicts(tmp_path, made.bench(ROWS), made.bench(new), partial_run=True)


def test_a_row_whose_events_no_longer_see_the_work_is_a_regression(tmp_path):
    assert verdicts(tmp_path, made.bench(ROWS), made.bench(ROWS, clock="wall"))["add"] is Verdict.WORSE


@pytest.mark.parametrize(("slower", "verdict"), [(1.08, Verdict.SAME), (1.3, Verdict.WORSE)])
def test_first_calls_vary_as_host_time_does(tmp_path, slower, verdict):
    documents = [made.bench({("add", "1"): seconds}, clock="first call", peers={}) for seconds in (0.05, 0.05 * slower)]
    for document in documents:
        for row in document["benchmarks"]:
            row["stats"]["data"] = row["stats"]["data"][:5]
    assert verdicts(tmp_path, *documents) == {"add": verdict}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({"share": 0.4}, {"share": 0.4}, Verdict.SAME),
        ({"share": 0.4}, {"share": 0.42}, Verdict.SAME),
        ({"share": 0.4}, {"share": 0.6}, Verdict.WORSE),
        ({"failed": 0}, {"failed": 1}, Verdict.WORSE),
        ({"failed": 2}, {"failed": 1}, Verdict.BETTER),
    ],
)
def test_accuracy(tmp_path, before, after, verdict):
    base, new = (made.metrics(made.record("add", "float32", **kind)) for kind in (before, after))
    assert verdicts(tmp_path, base, new)["add float32"] is verdict


def test_a_larger_error_in_ulp_is_a_regression(tmp_path):
    base, new = made.record("add", "float32"), made.record("add", "float32")
    base["ulps"], new["ulps"] = 1.0, 1.5
    assert verdicts(tmp_path, made.metrics(base), made.metrics(new))["add float32"] is Verdict.WORSE


def test_of_other_cases_only_failures_are_compared(tmp_path):
    base, new = made.record("add", "float32", share=0.1), made.record("add", "float32", share=0.9)
    assert verdicts(tmp_path, made.metrics(base), made.metrics(new, seed=1))["add float32"] is Verdict.SAME


def test_command(tmp_path, capsys):
    base = made.write(tmp_path, "base.json", made.bench(ROWS))
    slow = made.write(tmp_path, "slow.json", made.bench({**ROWS, ("mm", "big"): 4e-4}, torch=ROWS, seed=1))
    summary, junit = tmp_path / "summary.md", tmp_path / "junit.xml"
    written = ["--markdown", str(summary), "--junit", str(junit)]
    assert main(["compare", str(base), str(base)]) == 0
    assert "No regression" in capsys.readouterr().out
    assert main(["compare", str(base), str(slow), *written]) == 1
    assert "**1 regression**" in summary.read_text()
    assert "33" in summary.read_text().split("mm")[1].splitlines()[0]
    suite = ET.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["mm[bfloat16 big]"]

    fine, failing = (
        str(made.write(tmp_path, f"{failed}.json", made.metrics(made.record("add", "float32", failed=failed))))
        for failed in (0, 1)
    )
    assert main(["compare", "--metrics", fine, failing]) == 1
    assert main(["compare", str(base), str(base), "--metrics", fine, fine]) == 0


def test_hostile_names_stay_text_in_markdown_and_junit(tmp_path):
    rows = {(made.HOSTILE + "\x00\x1b|\n# title", "1"): 1e-4}
    found = compare.compare(
        device(tmp_path, made.bench(rows)), device(tmp_path, made.bench(dict.fromkeys(rows, 2e-4), torch=rows, seed=1))
    )
    suite = ET.fromstring(compare.junit(found))
    assert "<script>" in suite[0].get("name")
    text = compare.markdown(found)
    assert "<script>" not in text
    row = next(line for line in text.splitlines() if "script" in line)
    assert row.replace("\\|", "").count("|") == 7


@pytest.mark.parametrize(
    ("base", "new", "message"),
    [
        ("missing", "bench", "there is no such file"),
        ("empty", "bench", "is empty"),
        ("damaged", "bench", "damaged"),
        ("bench", "other", "two devices"),
        ("bench", "metrics", "nothing to compare"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, capsys, base, new, message):
    made.write(tmp_path, "bench.json", made.bench(ROWS))
    made.write(tmp_path, "other.json", made.bench(ROWS, gpu="Another"))
    made.write(tmp_path, "metrics.json", made.metrics(made.record("add", "float32")))
    made.write(tmp_path, "empty.json", "")
    made.write(tmp_path, "damaged.json", '{"benchmarks": [{"extra_info"')
    assert main(["compare", str(tmp_path / f"{base}.json"), str(tmp_path / f"{new}.json")]) == 2
    assert message in capsys.readouterr().err


def test_rates_count_both_errors(tmp_path, capsys):
    files = []
    for seed in range(4):
        document = made.bench(ROWS, seed=seed)
        for row in document["benchmarks"]:
            info, data = row["extra_info"], row["stats"]["data"]
            slowed = {"median": info["median"] * 1.3, "ratio": [0.8], "seconds": [1.3 * value for value in data]}
            info["peers"]["slowed"] = slowed
        files.append(str(made.write(tmp_path, f"run-{seed}.json", document)))
    assert main(["rates", *files, "--slowed", "slowed"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == len(ROWS)
    assert all(row.endswith("| 30.0% | 0% | 100% |") for row in rows)
    assert main(["rates", *files, "--slowed", "unknown"]) == 2
    assert "was not timed beside unknown" in capsys.readouterr().err
