"""Figures that documents quote from the results of record are those of the JSON files.

A figure that comes from a file is written here as what computes it; the document holds the text that results. Rows of
the tables of ``reports/results/nvidia-h200/README.md`` are all here, so that none can be added without.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from reports import read
from reports.compare import geometric_mean

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "reports" / "results" / "nvidia-h200"
(DEVICE,), PROBLEMS = read.read([RECORD])
BENCH = read.read_file(RECORD / "bench.json")[0].rows
SELFTEST = json.loads((RECORD / "selftest.json").read_text())
CONTROLS = json.loads((ROOT / "reports" / "results" / "controls.json").read_text())["controls"]
INTERPRETER = json.loads((RECORD / "interpreter.json").read_text())


def words(text):
    """Text without its line breaks."""
    return " ".join(text.split())


def document(name):
    return words((ROOT / name).read_text())


def row(op, label, dtype="bfloat16"):
    (found,) = [row for row in BENCH if (row.op, row.dtype, row.label) == (op, dtype, label)]
    return found


def share(op, label, dtype="bfloat16"):
    return row(op, label, dtype).share


def percents(*shares, digits=0):
    return ", ".join(f"{100 * share:.{digits}f}" for share in shares) + " %"


def long_rows(op):
    """The share of the roofline of rows of 65536 columns, bfloat16 and float32, the lower first."""
    label = "1024x65536, -1" if op == "softmax" else "1024x65536, 65536"
    found = sorted({f"{100 * share(op, label, dtype):.0f}" for dtype in ("bfloat16", "float32")})
    return "-".join(found)


def beside_torch(*ops, clock="events"):
    """How many times as fast as torch each row is."""
    found = {(row.op, row.label, row.dtype): row.times_as_fast("torch") for row in BENCH
             if row.op in ops and row.clock == clock and "torch" in row.peers}  # fmt: skip
    assert {op for op, *_ in found} == set(ops)
    return found


def other_products():
    """Those of ``mm``, ``bmm`` and ``addmm`` that have no line of their own in the table, beside cuBLAS."""
    named = {"1024x1024", "128x4096, 4096x11008"}
    ratios = [ratio for (_, label, _), ratio in beside_torch("mm", "bmm", "addmm").items() if label not in named]
    means = [geometric_mean(list(beside_torch(*ops).values())) for ops in (("mm",), ("mm", "bmm", "addmm"))]
    return "{:.3f} to {:.2f}; geometric mean of `mm` {:.3f}, with `bmm` and `addmm` {:.3f}".format(
        min(ratios), max(ratios), *means
    )


def times_torch_takes_on_the_host():
    """How many times torch's host time each small call takes, by operator, smallest first."""
    ops = {row.op for row in BENCH if row.clock == "host"}
    return sorted((1 / ratio, op) for (op, *_), ratio in beside_torch(*ops, clock="host").items())


DECODE = "64x32x1x128, 64x8x1024x128, enable_gqa=True"
ROPE = ("4x4096x8192, 8192, 4096x128", "4x4096x4096, 4096, 4096x128")
SMALL_ROPE = ("1x4096x4096, 4096, 4096x128", "1x4096x8192, 8192, 4096x128")
BOUNDED = {
    "`cos`, `sin`": lambda: percents(share("cos", "67108864"), share("sin", "67108864"), digits=1) + " of copy",
    "`pow` 2.5": lambda: percents(share("pow", "67108864, 2.5")),
    "`dropout`": lambda: percents(share("dropout", "67108864")),
    "rotary embedding": lambda: percents(share("rotary_position_embedding", "4x2048x32x128, 2048x64")),
    "`fused_rmsnorm_rope`, 4x4096x8192; 4x4096x4096": lambda: percents(
        *(share("fused_rmsnorm_rope", one) for one in ROPE)
    ),
    "the same, 1x4096x4096; 1x4096x8192": lambda: percents(*(share("fused_rmsnorm_rope", one) for one in SMALL_ROPE)),
    "`quantize_fp8` of a tensor": lambda: percents(share("quantize_fp8", "8192x8192, granularity=tensor")),
    "rows of 65536 columns": lambda: "softmax {}, rms_norm {}, layer_norm {} %".format(
        *map(long_rows, ("softmax", "rms_norm", "layer_norm"))
    ),
    "layer_norm of 4096 and 16384 columns, bfloat16": lambda: percents(
        share("layer_norm", "8192x4096, 4096"), share("layer_norm", "4096x16384, 16384"), digits=1
    ),
    "mm 1024^3": lambda: f"{row('mm', '1024x1024').times_as_fast('torch'):.2f} of cuBLAS",
    "mm 128x4096x11008": lambda: f"{row('mm', '128x4096, 4096x11008').times_as_fast('torch'):.2f}",
    "all other products": other_products,
    "decode, 64 sequences of 1024 keys": lambda: "{:.3f} of torch".format(
        row("scaled_dot_product_attention", DECODE).times_as_fast("torch")
    ),
    "host time of `dropout`": lambda: f"{1 / row('dropout', '1024').times_as_fast('torch'):.2f} times torch's",
}  # fmt: skip


def judged(family):
    records = read.read_file(RECORD / f"conformance-{family}.json")[0].records
    assert sum(record.failed for record in records) == 0
    lacking = sum(record.not_provided for record in records)
    return f"{sum(record.cases for record in records)} cases, none failed" + (
        f", {lacking} not provided" if lacking else ""
    )


def first_calls():
    """Milliseconds with kernels on disk, and seconds with nothing there, of each operator."""
    rows = [row for row in DEVICE.rows if row.clock == "first call"]
    return [1e3 * row.median for row in rows], [int(row.note.split()[0]) / 1e3 for row in rows]


def kept():
    warm, cold = first_calls()
    return (
        f"**{min(warm):.0f} to {max(warm):.0f} ms** (medians of five processes; {statistics.median(warm):.0f} in the "
        f"middle), target 100; with nothing on disk {min(cold):.2f} to {max(cold):.2f} s "
        f"({statistics.median(cold):.2f} in the middle)"
    )


def defects():
    controls = SELFTEST["controls"]
    caught = sum(defect["case"] is not None for defect in SELFTEST["defects"])
    alarms, cases = (sum(control[key] for control in controls) for key in ("alarms", "cases"))
    return f"`{caught} of {len(SELFTEST['defects'])} defects caught, {alarms} false alarms in {cases} cases`"


def deep_cases():
    lines = (RECORD / "conformance-deep.txt").read_text().splitlines()
    table = [line.split() for line in lines if re.match(r"\w+ +\d+ +\d+ ", line)]
    return f"{sum(int(line[1]) for line in table)} cases"


def checked_by_memcheck():
    found = re.search(r"^memcheck: (.*)$", (RECORD / "sanitize.txt").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def tiles_of_float32_attention():
    lines = (RECORD / "attention-float32.txt").read_text().splitlines()
    ratios = re.findall(r"\d+x\d+x\d+x\d+ ([\d.]+)", "\n".join(lines))
    calls = sum(bool(re.match(r"\(\d", line)) for line in lines)
    return f"{len(ratios)} times of tiles for {calls} calls, {min(map(float, ratios))} to {max(map(float, ratios))}"


def drawn():
    found = json.loads((RECORD / "sampled.json").read_text())["runs"][-1]["distribution"]
    means = {name: one["geometric_mean"] for name, one in found["families"].items()}
    return (
        f"geometric mean **{found['all']['geometric_mean']:.3f}** of torch, 5th percentile "
        f"{found['all']['percentile_5']:.3f}; products {means['products']:.3f}, attention {means['attention']:.3f}"
    )


def differentiated():
    page = document(HOME)

    for label, found in json.loads((RECORD / "gradients.json").read_text())["times"].items():
        digits = 2 if "attention" in label else 3
        times = [f"{found['ms'][who]:.{digits}f}" for who in ("ntops", "torch")]
        assert f"| {times[0]} | {times[1]} |" in page, label
        assert f" | {found['ratio']:.2f} |" in page, label

    return ""


FILES = {
    "gradients.json": differentiated,
    "sampled.json": drawn,
    "conformance-products.json": lambda: judged("products"),
    "conformance-others.json": lambda: judged("others"),
    "conformance-deep.txt": deep_cases,
    "bench.json": lambda: f"{len(BENCH) - 1} of {len(BENCH)} rows",
    "first-call.json": kept,
    "selftest.json": defects,
    "interpreter.json": lambda: "",
    "sanitize.txt": checked_by_memcheck,
    "attention-float32.txt": tiles_of_float32_attention,
}


def identical(kinds):
    """These families of kernels give the same bits in all launches."""
    return all(INTERPRETER[kind]["identical"] == INTERPRETER[kind]["launches"] for kind in kinds)


def largest(*kinds):
    return max(INTERPRETER[kind]["max relative"] for kind in kinds)


OTHER_ORDER = ("reductions", "atomics", "locks", "bitwise_atomics")


def interpreted():
    exact = ("integer_arithmetic", "casts", "integer_reductions", "sorting", "branches", "inplace", "histograms")
    assert identical(exact)
    floats = [kind for kind in INTERPRETER if kind not in (*OTHER_ORDER, "halves", "bfloats")]
    assert largest(*floats) < 3e-7
    half, bfloat = (f"{largest(kind):.1e}".replace("e-0", "e-") for kind in ("halves", "bfloats"))
    return f"3e-7 of the largest result of their launch (float16 {half}, bfloat16 {bfloat}"


def accuracy_of_record():
    cases, ops = sum(record.judged for record in DEVICE.records), {record.op for record in DEVICE.records}
    assert not any(record.failed for record in DEVICE.records)
    return f"judged all {len(ops)} operators in {cases:,} cases and found no failure"


def controls_of_record():
    (cases,) = {control["cases"] for control in CONTROLS}
    assert not any(control["alarms"] for control in CONTROLS)
    return (
        f"the record of {cases:,} cases for each control, which is too long for CI: {len(CONTROLS)} controls of "
        f"{len({control['op'] for control in CONTROLS})} operators, and no alarm"
    )


HOME = "reports/results/nvidia-h200/README.md"


def attention_defects():
    ours = [defect for defect in SELFTEST["defects"] if defect["op"] == "scaled_dot_product_attention"]
    return f"Of the {len(ours)} defects of attention"


def pow_of_torch():
    return f"torch takes {row('pow', '67108864, 2.5').times_as_fast('torch'):.2f} times as long"


def norm_of_compile():
    return f"torch.compile of 16384: {row('layer_norm', '4096x16384, 16384').times_as_fast('torch.compile'):.3f}"


def decode():
    return f"{100 * share('scaled_dot_product_attention', DECODE):.0f} % of copy |"


def others_on_the_host():
    (least, _), *_, (most, _), (_, slowest) = times_torch_takes_on_the_host()
    assert slowest == "dropout"
    return f"met; all others {least:.2f} to {most:.2f}"


def slowest_first_call():
    return f"{max(first_calls()[1]):.2f} in `first-call.json`"


QUOTED = [
    ("README.md", accuracy_of_record),
    ("docs/selftest.md", controls_of_record),
    ("docs/selftest.md", attention_defects),
    *((HOME, text) for text in (
        interpreted, pow_of_torch, norm_of_compile, decode, others_on_the_host, slowest_first_call
    )),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), QUOTED, ids=[text.__name__ for _, text in QUOTED])
def test_a_quoted_figure_is_that_of_the_files(name, text):
    assert words(text()) in document(name)


def table(title):
    """The rows below a heading, as cells."""
    after = (ROOT / HOME).read_text().partition(title)[2]
    lines = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in lines[0].splitlines()[2:]]


def test_every_row_below_its_target_says_what_the_benchmark_does():
    rows = table("## What bounds")
    assert {first: is_now for first, is_now, *_ in rows} == {name: text() for name, text in BOUNDED.items()}


def test_every_file_of_record_is_listed_with_its_figures():
    rows = {names: " ".join(rest) for names, *rest in table("# NVIDIA H200")}
    for name, text in FILES.items():
        assert text() in rows[f"`{name}`"], name
    kept_here = {path.name for path in RECORD.iterdir() if path.suffix in (".json", ".txt")} - {"report.json"}
    assert kept_here == set(FILES)
    assert set(rows) == {f"`{name}`" for name in FILES} | {"`report.html`, `report.md`"}


def test_the_files_of_record_fit_together():
    assert PROBLEMS == []
