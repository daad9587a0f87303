"""Configurations are measured, with a timer that says what it is told to, but for the last tests."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import sys
import threading
import time
import types
from multiprocessing import connection

import pytest
import torch
from tuning import GPU

import ntops.torch
from ntops import timing, tune
from ntops.launch import config_selection, tuned_tables
from ntops.tune import __main__ as cli
from ntops.tune import compiling, engine, operators

pytestmark = pytest.mark.usefixtures("cache", "on_device")


class Timer:
    """In place of the clock: a function of number n takes what ``seconds[n]`` says of its option, 1 s by default."""

    def __init__(self, **seconds):
        self.seconds = seconds
        self.asked = []

    def __call__(self, functions, inputs, refresh, check, **options):
        self.asked.append(len(functions))
        found = {}
        for name, function in functions.items():
            args, kwargs = inputs[0]
            value = function(*args, **kwargs)
            check(name, value, args, kwargs)
            found[name] = timing.Times([self.seconds.get(str(int(value)), 1.0)] * 3, "events")
        return found


def work(count=7, function=None, **fields):
    """A kernel whose option says what it returns."""
    made = {
        "kernel": "kernel",
        "kind": {"dtype": "float32"},
        "sizes": {"n": 100},
        "candidates": [{"option": number} for number in range(count)],
        "inputs": lambda: [((), {})],
        "function": lambda options: lambda: (function or torch.tensor)(options["option"]),
    }
    return engine.Work(**made | fields)


def run(*works, **options):
    return engine.run(works, device=GPU, **options)


# --- measuring ---------------------------------------------------------------------------------------------------


def test_the_fastest_is_found_and_its_figures():
    (result,) = run(work(bytes=10**12, flops=5 * 10**12), timer=Timer(**{"5": 0.5, "3": 0.8}))
    assert result.best.options == {"option": 5}
    assert result.latency == 0.5
    assert (result.bandwidth, result.tflops) == pytest.approx((2, 10))
    assert [one.options["option"] for one in result.measured][:2] == [5, 3]
    assert result.best.speedup == pytest.approx(2)
    assert re.search(
        r"kernel n=100 on Test GPU 1: 500000.0 us, 2.00 TB/s, 10.0 TFLOP/s\n \*.*2.00x  option=5", str(result)
    )


def test_noise_does_not_replace_the_reference():
    (result,) = run(work(), timer=Timer(**{"5": 0.995}))
    assert result.best.options == {"option": 0}


def test_what_is_shipped_was_the_fastest_twice():
    """Option 5 was lucky, option 3 is still faster."""
    works = [work(), work(sizes={"n": 10**6})]
    run(*works, timer=Timer(**{"5": 0.5, "3": 0.8}))
    timer = Timer(**{"3": 0.9})
    shipped = engine.table(works, device=GPU, timer=timer)
    assert [(one.options, one.share) for one in shipped] == [({"option": 3}, pytest.approx(0.9))] * 2
    assert timer.asked == [2, 2, 2, 2]


def test_a_budget_ends_between_the_works_that_are_confirmed(monkeypatch):
    works = [work(sizes={"n": size}) for size in (10, 100, 1000)]
    run(*works, timer=Timer(**{"5": 0.5}))
    timer = Timer(**{"5": 0.5})
    monkeypatch.setattr(engine, "time", types.SimpleNamespace(monotonic=lambda: len(timer.asked)))
    shipped = engine.table(works, device=GPU, deadline=1, timer=timer)
    assert [one.sizes for one in shipped] == [{"n": 10}, {"n": 100}]
    assert timer.asked == [2, 2]


def test_what_could_not_be_confirmed_is_not_shipped():
    run(work(), timer=Timer(**{"5": 0.5}))
    run(work(sizes={"n": 10**6}), timer=Timer())
    shipped = engine.table([work(), work(sizes={"n": 10**6})], device=GPU, deadline=0, timer=None)
    assert [(one.sizes, one.reference) for one in shipped] == [({"n": 10**6}, True)]
    assert engine.table([work(sizes={"n": 7})], device=GPU, timer=None) == []


def test_what_fails_and_what_is_wrong_is_told_and_not_chosen():
    def function(option):
        if option == 2:
            raise RuntimeError("out of shared memory\nand more")
        return torch.tensor(option)

    def check(value, args, kwargs):
        assert value != 3, "3 is wrong"

    (result,) = run(work(function=function, check=check), timer=Timer(**{"3": 0.1, "4": 0.5}))
    assert result.best.options == {"option": 4}
    errors = {one.options["option"]: one.error for one in result.measured if one.error}
    assert errors == {2: "RuntimeError: out of shared memory", 3: "wrong result: 3 is wrong"}
    assert len(result.measured) == 7


def test_a_reference_that_is_wrong_is_nothing_to_measure_against():
    def check(value, args, kwargs):
        assert value != 0, "0 is wrong"

    with pytest.raises(AssertionError, match="wrong as it is: 0 is wrong"):
        run(work(check=check), timer=Timer())


def test_an_interrupted_run_goes_on_where_it_was():
    class Interrupted(Timer):
        def __call__(self, *args, **options):
            if self.asked:
                raise KeyboardInterrupt
            return super().__call__(*args, **options)

    with pytest.raises(KeyboardInterrupt):
        run(work(10), timer=Interrupted())
    assert len(tuned_tables.read(GPU)) == engine.GROUP
    timer = Timer(**{"9": 0.5})
    (result,) = run(work(10), timer=timer)
    # The reference is timed with each group.
    assert timer.asked == [engine.GROUP + 1, 2 + 1]
    assert result.best.options == {"option": 9}
    assert run(work(10), timer=None)[0].best.options == {"option": 9}
    timer = Timer()
    assert run(work(10), timer=timer, again=True)[0].best.options == {"option": 0}
    assert sum(timer.asked) == 10 + 2


def test_a_budget_serves_all_problems_before_it_serves_one_whole(monkeypatch):
    works = [work(7, sizes={"n": size}) for size in (10, 100)]
    timer = Timer()
    # A second passes with each group.
    monkeypatch.setattr(engine, "time", types.SimpleNamespace(monotonic=lambda: len(timer.asked)))
    results = run(*works, timer=timer, deadline=1.5)
    assert [(len(result.measured), result.missing) for result in results] == [(4, 3), (4, 3)]


def test_what_was_not_compiled_in_time_is_left_for_another_time():
    answers = {0: "", 1: None, 2: "does not compile"}
    (result,) = run(work(3), timer=Timer(), usable=lambda work, options: answers[options["option"]])
    assert [one.error for one in result.measured] == ["", "does not compile"]
    assert result.missing == 1
    assert run(work(3), timer=Timer(**{"1": 0.1}))[0].best.options == {"option": 1}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in for the compiler is forked, which CUDA is not")
def test_compilers_that_die_or_hang_cost_no_more_than_their_kernel(monkeypatch):
    def compile_(task, options):
        option = options["option"]
        if option == 1:
            os._exit(3)
        if option == 2 and task.shape == (1, 1):
            time.sleep(10**6)
        return f"error of {task.shape}" if option == 0 else ""

    monkeypatch.setattr(compiling, "_run", compile_)
    forking = multiprocessing.get_context("fork")
    monkeypatch.setattr(compiling.multiprocessing, "get_context", lambda method: forking)
    start, lock = compiling._started, threading.Lock()

    def one_at_a_time():
        # A process forked in between would hold the other's pipes open; those that are started anew inherit none.
        with lock:
            return start()

    monkeypatch.setattr(compiling, "_started", one_at_a_time)
    tasks = [operators.Task("softmax", (1, columns), "float32") for columns in (1, 2)]
    works = [work(4), work(4)]
    wanted = [[{"option": 0}, {"option": 1}, {"option": 3}, {"option": 2}], [{"option": 0}, {"option": 3}]]
    done = []
    monkeypatch.setattr(compiling, "shown", lambda what, total: contextlib.nullcontext(done.append))
    monkeypatch.setattr(compiling, "time", types.SimpleNamespace(monotonic=lambda: 5.0))

    def wait(ends, seconds):
        """The time has passed when all but the one that hangs have answered."""
        assert seconds == 3.0
        while not (ready := connection.wait(ends, 0.05)) and len(done) < 3:
            pass
        return ready

    monkeypatch.setattr(compiling, "connections", types.SimpleNamespace(wait=wait))
    found = compiling.compile_all(tasks, works, wanted, processes=2, deadline=8.0)
    answers = [[found.usable(one, {"option": option}) for option in range(4)] for one in works]
    assert answers == [["error of (1, 1)", compiling.DIED, None, ""], ["error of (1, 2)", None, None, ""]]


@pytest.mark.parametrize("damage", ["a folder in its place", "a file in place of its folder"])
def test_a_cache_that_cannot_be_used_breaks_no_call(damage, cache, on_gpu, recwarn):
    if damage.startswith("a folder"):
        cache.mkdir(parents=True)
    else:
        cache.parent.parent.parent.mkdir(parents=True, exist_ok=True)
        cache.parent.parent.write_text("")
    x = torch.randn(3, 5)
    torch.testing.assert_close(ntops.torch.softmax(x, 1), x.softmax(1))
    (result,) = run(work(), timer=Timer(**{"5": 0.5}))
    assert result.best.options == {"option": 5}
    warnings = [one for one in recwarn if one.category is RuntimeWarning]
    assert len(warnings) == 1
    assert str(cache) in str(warnings[0].message)


# --- by hand -----------------------------------------------------------------------------------------------------


def test_a_table_is_written_whole_or_not(tmp_path, monkeypatch, capsys):
    """Of a run whose measurements are made up."""
    table, record = (
        tmp_path / "table.json",
        tuned_tables.Record("softmax", {}, {"columns": 20}, {"num_warps": 4}, 1e-6, 1.0),
    )
    compiled = types.SimpleNamespace(usable=None)
    monkeypatch.setattr(engine, "device_name", lambda: GPU)
    monkeypatch.setattr(compiling, "compile_all", lambda *args, **options: compiled)
    monkeypatch.setattr(engine, "run", lambda works, **options: [])
    monkeypatch.setattr(engine, "table", lambda works, **options: [record])
    command = ["--op", "softmax", "--shape", "3x20", "--out", str(table)]
    assert cli.main(command) == 0
    assert f"written: {table}, 1 of 0 problems" in capsys.readouterr().out
    before = table.read_text()
    assert tuned_tables.load_table(before) == [record]

    def interrupted(works, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "table", interrupted)
    assert cli.main(command) == 130
    assert table.read_text() == before
    assert f"interrupted, {table} is as it was" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about the interpreter")
def test_the_command_measures_with_the_interpreter_says_so_and_ships_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "ROUNDS", (2, 2))
    assert cli.main(["--op", "softmax", "--shape", "3x20", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "they say nothing about a GPU" in shown
    # Another one may have been faster by less than what counts.
    line = r"softmax columns=20 on interpreter: .* host time: it says nothing about a GPU\n(   .*\n)* \* "
    assert re.search(line, shown)
    assert {one.clock for one in tuned_tables.read(engine.INTERPRETER)} == {"wall"}
    assert str(tuned_tables.path(engine.INTERPRETER)) in shown
    table = tmp_path / "table.json"
    with pytest.raises(SystemExit):
        cli.main(["--op", "softmax", "--shape", "3x20", "--out", str(table)])
    assert "--out needs a GPU" in capsys.readouterr().err
    assert not table.exists()


def test_an_interruption_and_a_budget_are_told(monkeypatch, capsys):
    arguments = ["--op", "softmax", "--shape", "3x20"]
    assert cli.main([*arguments, "--budget", "0"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"0 of 1 problems measured in .*; \d\d configurations left, run this again to go on", shown)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "run", interrupt)
    assert cli.main(arguments) == 130
    assert "interrupted; what was measured is kept in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "no"], "operator 'no' is not tuned; valid are mm, addmm"),
        (["--op", "mm", "--shape", "3x4"], "shape 3x4 of mm must be MxNxK"),
        (["--op", "mm", "--shape", "3xaxb"], "is not of the form"),
        (["--op", "mm", "--shape", "3x4x5", "--dtype", "int8"], "dtype 'int8' is not tuned; valid are float16"),
        (["--shape", "3x4"], "--shape needs one --op"),
        (["--dtype", "float16"], "--dtype needs --shape"),
    ],
)
def test_a_bad_option_names_the_valid_ones(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_user_s_default_would_count_for_every_configuration():
    ntops.torch.set_default_num_warps(2)
    try:
        with pytest.raises(ValueError, match="set_default_num_warps"):
            tune.tune("softmax", (3, 20))
    finally:
        ntops.torch.set_default_num_warps(None)


def test_progress_is_text_without_rich(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    run(work(), timer=Timer())
    assert "Test GPU 1: measuring: 7/7 after" in capsys.readouterr().err


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "argmax", "logsumexp"])
def test_reductions_are_tuned_by_their_sizes(op):
    task = operators.task(op, (3, 20), "float32")
    kernel, problem = task.asked(*task.inputs(torch.empty))
    assert (kernel, problem.sizes()) == (op, {"outer": 1, "rows": 3, "columns": 20})
    assert len(problem.candidates(config_selection.device(0))) > 1
