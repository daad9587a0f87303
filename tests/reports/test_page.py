"""Reports as files: complete, self-contained, safe, and clear about what they were not given."""

from __future__ import annotations

import html.parser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import made
import msgspec
import pytest

from conformance import metrics as harness
from conformance.coverage import Coverage
from reports import model, page, plots, read, summary
from reports.__main__ import main
from reports.read import InputError


class Elements(html.parser.HTMLParser):
    """Which elements and which attributes a page has, and what it says."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    files = made.full(folder / "in")
    assert main(["build", *map(str, files), "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_one_page_of_everything(built):
    text = (built / "report.html").read_text()
    assert len(text) < 5_000_000
    assert not re.search(r"(src|href)=[\"'](?!#)", text), "the page refers to something outside of it"
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"|http-equiv', "", text)
    said = Elements(text).text
    for part in ("softmax: 3 of 100 cases fail", "accumulates in half", "rank 0, float64", "Made-up GPU", "Roofline"):
        assert part in said
    assert text.count("<svg") == 8, "accuracy, its histogram, the roofline and sizes, each wide and narrow"


def test_the_coverage_of_a_run_is_shown_with_its_holes(tmp_path):
    holes = ["1st rank=5", "1st rank=5 & out=empty"]
    data = harness.document([], {}, [Coverage("add", 10, 9, 200, 199, holes)])
    path = tmp_path / "metrics.json"
    path.write_bytes(data)
    assert main(["build", str(path), "--out", str(tmp_path / "out")]) == 0
    said = Elements((tmp_path / "out" / "report.html").read_text()).text
    assert "199 of 200 pairs; not hit: 1st rank=5; 1st rank=5 & out=empty" in said
    assert "| add | 200 | 199 | " in (tmp_path / "out" / "report.md").read_text()


def test_hostile_names_are_text(built):
    elements = Elements((built / "report.html").read_text())
    assert not {"script", "img", "iframe", "object"} & elements.tags
    assert not [name for name in elements.attributes if name.startswith("on")]
    assert "<script>" in elements.text
    assert "49" not in elements.text.split("${7*7}")[1][:12]
    markdown = (built / "report.md").read_text()
    assert "<script>" not in markdown
    assert "<img" not in markdown


def test_the_reproduce_command_runs_in_a_shell_and_is_the_case(tmp_path):
    kept = model.Failure(
        "../add-1'; touch owned; '", "values", msgspec.Raw(json.dumps(made.case("add", note="it's")).encode())
    )
    line = summary.reproduce(kept, "their.module").split(" && ")
    assert line[1].startswith("python -m conformance reproduce ")
    subprocess.run(line[0], shell=True, check=True, cwd=tmp_path)
    (written,) = tmp_path.iterdir()
    assert json.loads(written.read_text()) == made.case("add", note="it's")
    assert shlex.split(line[1])[4] == written.name


def test_markdown_and_json(built, tmp_path):
    text = (built / "report.md").read_text()
    assert "**softmax: 3 of 100 cases fail**" in text
    assert "### Speed" in text
    # A report is read again like the files that it was made of.
    assert main(["build", str(built / "report.json"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == text


def test_cases_that_were_not_provided_are_not_among_the_judged(tmp_path):
    lacking = {**made.record("mm", "float32", failed=3), "cases": 150, "not_provided": 50}
    path = made.write(tmp_path, "metrics.json", made.metrics(lacking, made.record("add", "float32")))
    assert main(["build", str(path), "--out", str(tmp_path / "out")]) == 0
    said = Elements((tmp_path / "out" / "report.html").read_text()).text
    assert "failing cases of 200 judged; 50 more not provided" in said
    assert "mm: 3 of 100 cases fail" in said
    assert "| mm | 100 | 3 | 20 | 50 | 0 | float32 |" in (tmp_path / "out" / "report.md").read_text()


def test_why_a_run_is_no_verdict_is_among_the_first_findings(tmp_path):
    reason = "mm: torch refuses 9 of 80 calls that were drawn as legal ones"
    left = {**made.record("mm", "float32"), "cases": 101, "not_provided": 1, "left_out": {"no out=": {"count": 1}}}
    path = made.write(tmp_path, "metrics.json", made.metrics(left, complaints=[reason]))
    assert main(["build", str(path), "--out", str(tmp_path / "out")]) == 0
    (section,) = page.sections(read.read([path])[0], [], [])
    assert [finding.text for finding in section.findings if finding.level == "bad"] == [reason]
    assert not any(finding.level == "good" for finding in section.findings)
    said = Elements((tmp_path / "out" / "report.html").read_text()).text
    assert "80 judged by value, 20 refused by torch, 1 not provided, 0 excused by name, 0 out of memory" in said
    assert "1 calls left out: no out=" in said


def test_an_exact_dtype_does_not_stand_for_an_operator_that_rounds():
    """Neither for one that is nearer to the right result than torch, as ``addmm`` of float32 is."""
    records = [made.record("mm", dtype, share) for dtype, share in (("bool", 0.0), ("float16", 0.2), ("float32", 0.1))]
    records[0]["torch_largest"] = 0.0
    device = model.Device("d", records=[msgspec.json.decode(json.dumps(r), type=model.Record) for r in records])
    ((_, dtypes),) = summary.accuracy(device)
    assert [record.dtype for record in dtypes] == ["float16", "float32", "bool"]
    assert summary.furthest(dtypes).dtype == "float16"
    line = next(line for line in page.markdown("t", page.sections([device], [], [])).splitlines() if "| mm |" in line)
    assert line == "| mm | 300 | 0 | 60 | 0 | 0 | float16 | 0.200 | 0.350 | - | mm-0123456789 |"


def test_files_of_several_commits_are_said_last_and_are_no_problem(tmp_path):
    slow = made.bench({("add", "1"): 1e-4}, commit="abc")
    slow["benchmarks"] += made.bench({("mm", "1"): 1e-4}, torch={("mm", "1"): 5e-5}, commit="def")["benchmarks"]
    first = made.bench({("exp", "1"): 0.1}, clock="first call", commit="fed", peers={})
    (device,), problems = read.read(
        [made.write(tmp_path, f"{n}.json", document) for n, document in enumerate((slow, first))]
    )
    assert problems == []
    assert device.environment["commit"] == "abc, def, fed"
    found = [finding.text for finding in summary.findings(device, None, problems)]
    assert found[0].startswith("mm bfloat16 1: 0.5")
    assert "measured at several commits: abc, def, fed" in found[1:]


def test_a_ratio_is_that_of_the_medians_beside_it(built):
    (device,) = json.loads((built / "report.json").read_text())["devices"]
    rows = [msgspec.convert(row, model.Row) for row in device["rows"]]
    assert all(row.ratio == row.peers["torch"].median / row.median for row in rows)
    cells = [line.split(" | ") for line in (built / "report.md").read_text().splitlines() if "| events |" in line]
    assert len(cells) == len(rows)
    for *_, ours, torch, ratio, _ in cells:
        assert float(torch) / float(ours) == pytest.approx(float(ratio[:-1]), abs=0.02)


def test_points_of_the_roofline_have_names(built):
    text = (built / "report.html").read_text()
    titles = re.findall(r"<g><title>([^<]*)</title>", text)
    assert len(titles) == 2 * (len(made.ROWS) + 1), "each row, in the wide drawing and in the narrow one"
    assert any(title.startswith("mm[bfloat16 16x4]: ") for title in titles)
    row = model.Row("softmax", "bfloat16", "1x8", "events", 1e-4, bytes=1 << 20, flops=1 << 22, share=0.3)
    row.ceilings = {"copy": 4e12, "bfloat16": 8e14}
    wide, _ = plots.roofline([row]) or ("", "")
    assert ">softmax</text>" in wide
    row.share = 0.9
    wide, _ = plots.roofline([row]) or ("", "")
    assert ">softmax</text>" not in wide


def test_shards_are_added_up_and_devices_stand_side_by_side(tmp_path):
    shards = [
        made.metrics(made.record("add", "float32", share=share), seed=seed) for seed, share in ((0, 0.2), (1, 0.7))
    ]
    other = made.metrics(made.record("add", "float32", failed=1), gpu="Another GPU")
    files = [made.write(tmp_path, f"{n}.json", document) for n, document in enumerate((*shards, other))]
    assert main(["merge", *map(str, files), "--out", str(tmp_path / "out")]) == 0
    whole = json.loads((tmp_path / "out" / "report.json").read_text())
    by_name = {device["name"]: device["records"][0] for device in whole["devices"]}
    assert by_name["Made-up GPU"]["cases"] == 200
    assert by_name["Made-up GPU"]["worst"]["share"] == 0.7
    assert by_name["Another GPU"]["failed"] == 1
    assert "Side by side" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "damaged"),
        ("[1, 2]", "damaged"),
        ("\x00\xff", "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"schema": 9, "records": []}', "its schema is 9, and this version reads schema 1 only"),
        ('{"schema": 1, "records": [{"op": "add", "cases": "many"}]}', "cases"),
        ('{"schema": 1, "records": [{"dtype": "float32"}]}', "op"),
        ('{"benchmarks": [{"extra_info": {"op": "add"}}]}', "damaged"),
        ('{"benchmarks": []}', "no row"),
        ('{"something": "else"}', "neither metrics nor benchmarks"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, capsys, text, message):
    path = made.write(tmp_path, "broken.json", text)
    with pytest.raises(InputError, match=re.escape(message)):
        read.read_file(path)
    assert main(["build", str(path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists(), "something was written"
    assert "broken.json" in capsys.readouterr().err


def test_a_page_of_what_could_be_read_says_what_could_not(tmp_path):
    fine = made.write(tmp_path, "fine.json", made.metrics(made.record("add", "float32"), of_a_later_version=[1]))
    broken = made.write(tmp_path, "broken.json", '{"benchmarks": [')
    assert main(["build", str(fine), str(broken), "--out", str(tmp_path / "out")]) == 0
    said = Elements((tmp_path / "out" / "report.html").read_text()).text
    assert "broken.json: damaged" in said
    assert "no benchmarks in these files" in said
    assert "no failure in 100 cases" in said


def test_the_self_test_is_of_the_harness_wherever_it_ran(built, tmp_path):
    (device,) = json.loads((built / "report.json").read_text())["devices"]
    assert device["name"] == "Made-up GPU"
    counts = {(one["of"], one["name"]): (one["planted"], one["killed"], one["examples"]) for one in device["selftest"]}
    assert counts == {("op", "add"): (7, 7, 3.0), ("op", "mm"): (1, 0, None), ("check", "values"): (8, 7, 3.0)}
    assert (device["false_alarms"], device["controlled"]) == (0, 300)
    (alone,), problems = read.read([made.write(tmp_path, "selftest.json", made.selftest())])
    assert (alone.name, problems) == ("any device", [])


def test_versions_that_do_not_fit_together_are_said(tmp_path):
    first = made.metrics(made.record("add", "float32"))
    second = made.metrics(made.record("mm", "float32"), versions={"torch": "2.11.0"})
    files = [made.write(tmp_path, f"{n}.json", document) for n, document in enumerate((first, second))]
    _, problems = read.read(files)
    assert len(problems) == 1
    assert "torch is 2.11.0 here and 2.13.0" in problems[0]


def test_buckets_of_shares_are_those_of_the_metrics():
    assert plots.EDGES == harness.EDGES


def test_the_same_cases_in_two_files_are_counted_once(tmp_path):
    files = [made.write(tmp_path, f"{n}.json", made.metrics(made.record("add", "float32"))) for n in range(2)]
    (device,), problems = read.read(files)
    assert device.records[0].cases == 100
    assert "the same cases" in problems[0]


def test_what_a_record_lacks_is_missing_on_the_page_and_nothing_more():
    device = model.Device(
        "d", records=[model.Record("add", "float32")], rows=[model.Row("add", "x", "1", "host", 1e-6)]
    )
    found = page.sections([device], [], [])
    assert "add" in page.html("t", found)
    assert "add" in page.markdown("t", found)


@pytest.mark.slow
def test_the_results_of_record_are_the_report_that_is_committed(tmp_path):
    folder = Path(page.__file__).parent / "results" / "nvidia-h200"
    assert main(["build", str(folder), "--out", str(tmp_path)]) == 0
    again = "the files were changed: python -m reports build reports/results/nvidia-h200"
    assert (tmp_path / "report.md").read_text() == (folder / "report.md").read_text(), again
    assert (folder / "report.html").stat().st_size < 5_000_000


MANY = """
import json, resource, sys, time
case = json.dumps({"schema": 1, "op": "add", "args": [{"type": "tensor", "shape": [2, 641, 1, 3], "dtype": "float32",
                   "values": "uniform", "seed": 254}], "kwargs": {}, "digests": ["0123456789abcdef"], "note": ""})
with open(sys.argv[1], "w") as file:
    file.write('{"schema": 1, "records": [')
    for number in range(20):
        file.write(("," if number else "") + f'{{"op": "op{number}", "dtype": "float32", "cases": 50000, "failures": [')
        file.write(",".join(f'{{"id": "add-{i:010x}", "check": "values", "case": {case}}}' for i in range(50_000)))
        file.write("]}")
    file.write("]}")
"""


@pytest.mark.slow
def test_a_million_failing_cases(tmp_path):
    path = tmp_path / "many.json"
    subprocess.run([sys.executable, "-c", MANY, str(path)], check=True)
    code = (
        "import resource, sys; from reports.__main__ import main;"
        # The maxrss of getrusage is also that of the process that started this one, which runs many tests.
        "peak = lambda: int(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')));"
        "imports = peak(); code = main(sys.argv[1:]); usage = resource.getrusage(resource.RUSAGE_SELF);"
        "print(peak() - imports, usage.ru_utime + usage.ru_stime); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "build", str(path), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kilobytes, seconds = map(float, done.stdout.splitlines()[-1].split())
    # How much the imports take depends on torch's libraries.
    assert kilobytes < 6e5
    # Of the processor: how long it takes by the clock depends on what else the machine does.
    assert seconds < 30
    assert "1,000,000" in (tmp_path / "report.html").read_text()
