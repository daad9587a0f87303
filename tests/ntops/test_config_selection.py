"""Which configuration a call has: what was measured near its sizes and fits, else the rule's."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attention_definition import DEVICE
from tuning import GPU, H200, PROBLEM, SMALL, record

import ntops.torch
from ntops.host import attention_configs, product_configs, products, rows
from ntops.launch import config_selection, tuned_tables
from ntops.tune import operators

pytestmark = pytest.mark.usefixtures("cache")

# --- the cache and the tables ------------------------------------------------------------------------------------


def test_damaged_lines_are_skipped_with_one_warning(cache):
    tuned_tables.append(GPU, record())
    with cache.open("a") as file:
        file.write('{"kernel": "mm", "kind": {}, "si\n\x00\xff\nnull\n[[[[\n{"kernel": 3}\n{"kern')
    tuned_tables.append(GPU, record(options=dataclasses.replace(SMALL, num_warps=8)))
    with pytest.warns(RuntimeWarning, match="is skipped") as warned:
        found = tuned_tables.read(GPU)
    assert [one.options["num_warps"] for one in found] == [4, 8]
    assert len(warned) == 1


def _append(number):
    for other in range(50):
        tuned_tables.append(
            GPU, record(dataclasses.replace(PROBLEM, m=4 * number + 1, n=1 << other % 20), seconds=1 + other)
        )


def test_processes_that_measure_at_once_lose_nothing(cache):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(number,)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len([line for line in cache.read_text().splitlines() if line]) == 200
    # Of each problem the last record counts: 1 and 5 rows, and so on, are different size classes but for 9 and 13.
    assert {one.seconds for one in tuned_tables.read(GPU)} == {float(1 + other) for other in range(30, 50)}


def test_what_was_measured_with_other_versions_does_not_count(cache, monkeypatch):
    tuned_tables.append(GPU, record())
    monkeypatch.setattr(tuned_tables.triton, "__version__", "99")
    assert tuned_tables.path(GPU) != cache
    assert tuned_tables.read(GPU) == []


def test_a_table_is_written_added_to_and_read(tmp_path, on_gpu):
    file = tuned_tables.TABLES / f"{tuned_tables.slug(GPU)}.json"
    assert file.name == "test-gpu-1.json"
    other = dataclasses.replace(PROBLEM, m=1)
    tuned_tables.save_table(file, GPU, [record(), record(other)])
    faster = dataclasses.replace(SMALL, num_warps=8)
    tuned_tables.save_table(file, GPU, [record(options=faster)])
    config_selection.forget()
    assert config_selection.choose("mm", PROBLEM, 0) == faster
    assert config_selection.choose("mm", other, 0) == SMALL
    assert json.loads(file.read_text())["versions"]["ninetoothed"] == tuned_tables.versions()["ninetoothed"]
    assert [path.name for path in tuned_tables.TABLES.iterdir()] == [file.name]


def entry(**fields):
    return record().written() | fields


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(colour=1)], "unknown field 'colour'; valid are kernel,"),
        ([{"kernel": "mm"}], "field 'kind' is missing"),
        ([entry(sizes={"m": 0})], "positive integers"),
        ([entry(options={"block_m": 1.5})], "integers, bools or strings"),
        ([entry(options={})], "integers, bools or strings"),
        ([entry(seconds=-1.0)], "no positive number"),
        ([entry(seconds=True)], "no positive number"),
        ([entry(reference=1)], "no bool"),
        ([entry(clock="wall")], "was not measured on a GPU"),
        ([entry(error="it broke")], "was not measured on a GPU"),
        ([entry(), entry()], "two entries"),
        (["entry"], "no record"),
        (None, "no list"),
    ],
)
def test_a_table_is_validated(entries, message, on_gpu):
    text = json.dumps({"schema": 1, "gpu": GPU, "versions": {}, "entries": entries})
    with pytest.raises(ValueError, match=message):
        tuned_tables.load_table(text)
    tuned_tables.TABLES.mkdir()
    (tuned_tables.TABLES / f"{tuned_tables.slug(GPU)}.json").write_text(text)
    with pytest.warns(RuntimeWarning, match=message):
        assert config_selection.choose("mm", PROBLEM, 0) == PROBLEM.rule(H200)


@pytest.mark.parametrize(("name", "value"), [("schema", 2), ("colour", 1)])
def test_a_table_of_another_form_is_refused(name, value):
    with pytest.raises(ValueError, match="schema"):
        tuned_tables.load_table(
            json.dumps({"schema": 1, "gpu": GPU, "versions": {}, "entries": [entry()], name: value})
        )


def test_shipped_tables_are_valid_and_name_their_gpu():
    shipped = Path(ntops.__file__).parent / "tuned"
    for file in shipped.glob("*.json"):
        assert tuned_tables.slug(json.loads(file.read_text())["gpu"]) == file.stem
        for one in tuned_tables.load_table(file.read_text()):
            assert one.kernel in operators.OPERATORS


# --- choosing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "near"),
    [((4096,) * 3, True), ((2100, 8000, 4096), True), ((1, 4096, 4096), False), ((4096, 4096, 900), False)],
)
def test_calls_near_what_was_measured_use_it(sizes, near, on_gpu):
    tuned_tables.append(GPU, record())
    problem = product_configs.Problem(*sizes, torch.bfloat16, False)
    assert config_selection.choose("mm", problem, 0) == (SMALL if near else problem.rule(H200))


@pytest.mark.parametrize("is_older", [True, False])
@pytest.mark.parametrize("options", [attention_configs.Config(64, 64, 1, 4, 3), attention_configs.Config(16, 64)])
def test_options_that_came_later_are_optional(options, is_older, on_gpu):
    """A table may hold them as their defaults, or be older than they are."""
    problem = attention_configs.Problem(4096, 8, 4096, 64, 64, torch.bfloat16, False, False, 0, True)
    known = record(problem, options, "scaled_dot_product_attention")
    assert known.options.pop("tf32x3") is False
    if not is_older:
        known.options["tf32x3"] = False
    tuned_tables.append(GPU, known)
    config_selection.forget()
    assert config_selection.choose("scaled_dot_product_attention", problem, 0) == options


@pytest.mark.parametrize("wrong", [{"tf32x3": 1}, {"num_warps": True}, {"num_warps": 0}, {"unknown": 1}])
def test_options_of_other_types_are_none(wrong, on_gpu):
    problem = attention_configs.Problem(4096, 8, 4096, 64, 64, torch.bfloat16, False, False, 0, True)
    known = record(problem, attention_configs.Config(16, 64), "scaled_dot_product_attention")
    known.options.update(wrong)
    tuned_tables.append(GPU, known)
    config_selection.forget()
    assert config_selection.choose("scaled_dot_product_attention", problem, 0) == problem.rule(H200)


def test_the_nearest_counts(on_gpu):
    for number, size in enumerate((1024, 4096)):
        tuned_tables.append(
            GPU,
            record(
                product_configs.Problem(size, size, size, torch.bfloat16, False),
                dataclasses.replace(SMALL, num_stages=number + 3),
            ),
        )
    chosen = [
        config_selection.choose("mm", product_configs.Problem(size, size, 2000, torch.bfloat16, False), 0)
        for size in (700, 4000)
    ]
    assert [one.num_stages for one in chosen] == [3, 4]


def test_where_the_rules_choice_was_the_best_the_rule_is_asked(on_gpu):
    """It may choose otherwise for other sizes of the class; what was measured for another class is farther away."""
    tuned_tables.append(GPU, record(options=PROBLEM.rule(H200)))
    tuned_tables.append(GPU, record(dataclasses.replace(PROBLEM, n=8192), SMALL))
    assert config_selection.choose("mm", dataclasses.replace(PROBLEM, m=2100, n=4000), 0) == PROBLEM.rule(H200) != SMALL
    assert config_selection.choose("mm", dataclasses.replace(PROBLEM, n=8192), 0) == SMALL


def test_where_the_rule_chooses_otherwise_nothing_is_known(on_gpu):
    """What was faster than its choice for 4096 rows tells nothing of its other choice for 1500."""
    tuned_tables.append(GPU, record())
    other = dataclasses.replace(PROBLEM, m=1500)
    assert other.rule(H200) != PROBLEM.rule(H200)
    assert tuned_tables.size_class(other.sizes())[1] == 2048
    assert config_selection.choose("mm", other, 0) == other.rule(H200)


def test_rows_that_end_within_a_tile_are_unlike_those_that_do_not(on_gpu):
    whole, ragged = (rows.Problem(columns, torch.float32, torch.float32, 2) for columns in (4096, 3000))
    assert whole.rule(H200) == ragged.rule(H200)
    tuned_tables.append(GPU, record(whole, rows.Options(1, 2048, 16), "softmax"))
    assert config_selection.choose("softmax", whole, 0) == rows.Options(1, 2048, 16)
    assert config_selection.choose("softmax", ragged, 0) == ragged.rule(H200)


@pytest.mark.parametrize(
    "other",
    [
        record(dataclasses.replace(PROBLEM, dtype=torch.float16)),
        record(kernel="bmm"),
        record(options=dataclasses.replace(SMALL, block_k=1024, num_stages=9)),
        record(error="it broke"),
        dataclasses.replace(record(), options={"block_m": 64}),
        record(options=dataclasses.replace(SMALL, block_n=48)),
        record(options=dataclasses.replace(SMALL, num_stages=0)),
        record(options=dataclasses.replace(SMALL, splits=100)),
    ],
    ids=[
        "dtype",
        "kernel",
        "does not fit",
        "failed",
        "other options",
        "no power of two",
        "no stages",
        "an empty part of K",
    ],
)
def test_what_does_not_count_leaves_the_rule(other, on_gpu):
    tuned_tables.append(GPU, other)
    assert config_selection.choose("mm", PROBLEM, 0) == PROBLEM.rule(H200)


def test_a_row_is_never_cut(on_gpu):
    """What was measured for 2048 columns, one tile, is near 4096, but no tile for it."""
    near, far = (rows.Problem(columns, torch.float16, torch.float32, 2) for columns in (2048, 4096))
    tuned_tables.append(GPU, record(far, rows.Options(1, 4096, 2), "softmax"))
    assert config_selection.choose("softmax", near, 0) == near.rule(H200)
    assert config_selection.choose("softmax", far, 0) == rows.Options(1, 4096, 2)


def test_the_cache_is_read_once(on_gpu, monkeypatch):
    reads = []
    monkeypatch.setattr(tuned_tables, "read", lambda gpu: reads.append(gpu) or [])
    for size in range(1, 20):
        config_selection.choose("mm", dataclasses.replace(PROBLEM, m=size), 0)
    assert reads == [GPU]


def test_a_call_runs_what_was_measured(on_gpu, monkeypatch):
    a, b = torch.randn(40, 52, device=DEVICE).half(), torch.randn(52, 24, device=DEVICE).half()
    # Hopper has another form for these sizes, beside this one.
    _, problem = config_selection.asked(ntops.torch.matmul, a, b)
    tuned_tables.append(GPU, record(problem, product_configs.Options(16, 32, 16, 2, 1)))
    made, make = [], products.make
    monkeypatch.setattr(products, "make", lambda *args: made.append(args[2]) or make(*args))
    torch.testing.assert_close(ntops.torch.matmul(a, b), (a.double() @ b.double()).half(), rtol=2**-10, atol=1e-5)
    blocks = {"block_size_m": 16, "block_size_n": 32, "block_size_k": 16}
    assert made == [ntops.torch.utils.Config(tuple(blocks.items()), 2, 1)]


# --- spaces ------------------------------------------------------------------------------------------------------


def problems():
    for dtype, ieee in ((torch.bfloat16, False), (torch.float32, False), (torch.float32, True), (torch.float64, True)):
        yield from (product_configs.Problem(m, n, 4096, dtype, ieee) for m in (1, 100, 4096) for n in (1, 4096))
        accumulated = torch.float64 if dtype is torch.float64 else torch.float32
        yield from (rows.Problem(columns, dtype, accumulated, 3) for columns in (1, 100, 4096, 10**6))
        for tokens, keys in ((1, 65536), (40, 5), (4096, 4096)):
            yield attention_configs.Problem(tokens, 8, keys, 64, 128, dtype, ieee, tokens > 1, 0, True)


@pytest.mark.parametrize("problem", list(problems()), ids=str)
def test_candidates_are_the_rule_s_choice_and_what_fits(problem):
    first, *others = problem.candidates(H200)
    assert first == problem.rule(H200)
    assert len(set(others)) == len(others)
    for options in others:
        assert problem.allows(options)
        assert problem.resources(options).fit(H200)
        assert all(value > 0 for value in dataclasses.astuple(options) if value is not False)
    tiny = config_selection.Device(shared_memory=1024, multiprocessors=1)
    assert len(problem.candidates(tiny)) <= len(problem.candidates(H200))


def test_what_is_known_to_be_good_is_in_the_space_and_what_spills_is_not():
    assert product_configs.Options(128, 256, 64, 8, 4) in PROBLEM.candidates(H200)
    assert not PROBLEM.resources(product_configs.Options(256, 256, 64, 8, 3)).fit(H200)
    assert PROBLEM.resources(product_configs.Options(128, 256, 64, 8, 4)).fit(H200)
    tf32 = dataclasses.replace(PROBLEM, dtype=torch.float32)
    assert product_configs.Options(128, 256, 32, 8, 3) in tf32.candidates(H200)
    assert {one.block_m for one in dataclasses.replace(PROBLEM, m=1).candidates(H200)} == {16, 32}
    # 16 warps have 128 registers each, half of what 8 have.
    assert not config_selection.Resources(0, 129, 512).fit(H200)
    assert config_selection.Resources(0, 129, 256).fit(H200)


@pytest.mark.parametrize("name", list(operators.OPERATORS))
def test_every_shape_that_is_measured_by_default_has_candidates(name):
    for dtype, shape in operators.OPERATORS[name].shapes[:6]:
        task = operators.task(name, shape, dtype)
        kernel, problem = task.asked(*task.inputs(torch.empty))
        assert kernel == name
        assert problem.resources(problem.rule(H200)).fit(H200), shape
        assert len(problem.candidates(H200)) > 3


@pytest.mark.parametrize(
    ("name", "shape"), [("mm", (40, 24, 56)), ("scaled_dot_product_attention", (1, 2, 2, 8, 8, 16, 0))]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "tf32", "float32"])
def test_what_is_measured_is_what_is_asked_for(name, shape, dtype):
    """The precision of float32 counts for it alone: measurements are made in "high", users leave "highest"."""
    task = operators.task(name, shape, dtype)
    args, kwargs = task.inputs(torch.randn)
    found = {}
    before = torch.get_float32_matmul_precision()
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        found[precision] = config_selection.asked(getattr(ntops.torch, name), *args, **kwargs)
    torch.set_float32_matmul_precision(before)
    assert (found["highest"] == found["high"]) == (dtype == "bfloat16")
    assert task.asked(args, kwargs) == found["highest" if dtype == "float32" else "high"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mm", (40, 24, 56)), ("addmm", (40, 24, 56)), ("bmm", (2, 9, 24, 56)), ("rms_norm", (3, 9000))],
)
def test_configurations_other_than_the_rule_s_compute_the_same(name, shape):
    task = operators.task(name, shape, "float32")
    args, kwargs = task.inputs(torch.randn)
    kernel, problem = task.asked(args, kwargs)
    expected = operators.OPERATORS[name].reference(*args, **kwargs)
    for options in problem.candidates(H200)[1:4:2]:
        result = task.forced(kernel, options)(*args, **kwargs)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    assert config_selection.asked(task.call(), *args, **kwargs) == (kernel, problem), "nothing stays forced"


def test_estimates_are_what_the_compiler_reports():
    asked = [
        ("mm", (4096, 4096, 4096), "bfloat16", product_configs.Options(128, 128, 64, 4, 3)),
        ("mm", (16, 4096, 4096), "bfloat16", product_configs.Options(16, 64, 128, 4, 4)),
        ("layer_norm", (64, 8192), "bfloat16", rows.Options(1, 8192, 8)),
        (
            "scaled_dot_product_attention",
            (1, 8, 8, 512, 512, 64, 0),
            "bfloat16",
            attention_configs.Config(64, 32, 1, 4, 2),
        ),
    ]
    text = json.dumps([[op, shape, dtype, dataclasses.asdict(options)] for op, shape, dtype, options in asked])
    script = Path(__file__).with_name("compiled_resources.py")
    done = subprocess.run([sys.executable, script], input=text, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(asked)
    for one in found:
        estimate = one["estimate"]
        assert one["spills"] == 0, one
        assert one["shared"] <= estimate["shared_memory"] <= 1.25 * one["shared"] + 64, one
        assert estimate["registers"] == pytest.approx(one["registers"], rel=0.35), one
