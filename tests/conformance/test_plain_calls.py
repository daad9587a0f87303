"""The check ``plain``: what a script gives that knows nothing of the harness."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import forked_python
import pytest
from msgspec.structs import replace

from conformance import __main__ as command
from conformance import cases, plain_calls
from conformance.cases import Case
from conformance.plain_calls import Pool
from conformance.runner import Verdict
from conformance.worker import Child
from strategies.specs import TensorSpec

SUITE = Path(plain_calls.__file__).parent
SEEN = """
import sys
import torch

def relu(input, inplace=False):
    {body}
    return torch.nn.functional.relu(input, inplace)

def neg(input, *, out=None):
    return torch.neg(input, out=out)
"""
CASE = Case(op="relu", args=(TensorSpec((5,), "float32", seed=3),))
OTHER = Case(op="neg", args=(TensorSpec((5,), "float32", seed=3),))
IN_A_SCRIPT = "if getattr(sys.modules['__main__'], '__file__', '').endswith('.py'):\n        {}"


@pytest.fixture
def judged(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    @contextlib.contextmanager
    def start(does):
        (tmp_path / "seen.py").write_text(SEEN.format(body=IN_A_SCRIPT.format(does)))
        with contextlib.closing(Child("seen", "cpu", timeout=120.0)) as child:
            yield child

    return start


@pytest.mark.slow
def test_a_right_module_passes(judged):
    with judged("pass") as child:
        assert [verdict.status for verdict in child.plain([CASE, OTHER])] == ["passed", "passed"]
        assert child.plain([]) == []


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("return input.clone()", "in a plain script (as of torchrun) it is wrong: values"),
        ("raise ValueError('not here')", "ValueError: not here"),
        ("return torch.zeros(2)", "shape"),
        ("return None", "None"),
    ],
)
def test_what_is_wrong_in_a_script_alone_is_a_failure_of_its_case(judged, does, message):
    with judged(does) as child:
        assert child.judge(CASE).status == "passed"
        first, second = child.plain([CASE, OTHER])
    assert first.failure.check == plain_calls.PLAIN
    assert message in first.failure.message
    assert second.status == "passed"


KEEPS = """
import itertools, sys, threading, time, torch
begin, calls, shared, usual = time.monotonic(), itertools.count(), {{}}, torch.get_num_threads()

def relu(input, inplace=False):
    result = torch.nn.functional.relu(input, inplace)
    {body}
    return result
"""


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (
            "if next(calls) > 500: result = shared['ring'].copy_(result)\n    shared['ring'] = result",
            "after many calls",
        ),
        ("result = shared.setdefault(id(input), result)", "after many calls"),
        ("if threading.current_thread() is not threading.main_thread(): result = -result", "threads that make calls"),
        ("if torch.get_num_threads() > usual: result = -result", "12 threads of torch"),
        ("if time.monotonic() - begin > 1e6: result = -result", "a month later"),
    ],
)
def test_what_is_wrong_later_in_a_script_is_a_failure(tmp_path, monkeypatch, does, message):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "keeps.py").write_text(KEEPS.format(body=does))
    with contextlib.closing(Child("keeps", "cpu", timeout=120.0)) as child:
        assert child.judge(CASE, checks=["values"]).status == "passed"
        (verdict,) = child.plain([CASE])
    assert message in verdict.failure.message


EVALUATES = """
import torch
conformance_claims = {{"neg": ("gradients",)}}
kept = {{}}

class Negative(torch.autograd.Function):
    @staticmethod
    def forward(context, input):
        return -input

    @staticmethod
    def backward(context, dout):
        return -dout

def neg(input, *, out=None):
    if out is not None:
        return torch.neg(input, out=out)
    {body}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return Negative.apply(input)", ""),
        # What inference mode made cannot be saved for a backward pass.
        ("return input * kept.setdefault(0, torch.tensor(-1.0))", "Inference tensors cannot be saved for backward"),
        (
            "return (-input.detach() if kept.setdefault(0, torch.is_inference_mode_enabled()) else -input)",
            "in training, after one in inference mode, it is wrong: raised RuntimeError: The result does not know",
        ),
        (
            "return -input if not torch.is_inference_mode_enabled() else input.abs()",
            "in inference mode, it is wrong: values",
        ),
    ],
)
def test_evaluating_comes_before_training(tmp_path, monkeypatch, body, message):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evaluates.py").write_text(EVALUATES.format(body=body))
    with contextlib.closing(Child("evaluates", "cpu", timeout=120.0)) as child:
        assert child.judge(OTHER, checks=["values", "gradients"]).status == "passed"
        (verdict,) = child.plain([OTHER])
    assert verdict.status == ("failed" if message else "passed")
    if message:
        assert message in verdict.failure.message


@pytest.mark.parametrize(
    ("does", "message"),
    [("__import__('os')._exit(3)", "exit status 3"), ("print('last words'); __import__('os').abort()", "last words")],
)
def test_a_script_that_dies_is_a_failure(judged, does, message):
    with judged(does) as child:
        (verdict,) = child.plain([CASE, OTHER])
    assert message in verdict.failure.message


def test_a_saved_case_is_made_by_a_script_when_it_is_replayed(judged, tmp_path, capsys):
    path = tmp_path / "case.json"
    path.write_bytes(cases.encode(CASE))
    with judged("return input.clone()"):
        assert command.main(["reproduce", str(path), "--implementation", "seen", "--device", "cpu"]) == 1
    assert "plain script" in capsys.readouterr().out


def test_a_call_that_resizes_is_replayed_without_a_script(judged, tmp_path):
    path = tmp_path / "case.json"
    path.write_bytes(cases.encode(Case(op="neg", args=OTHER.args, kwargs={"out": TensorSpec((0,), "float32")})))
    with judged("return input.clone()"):
        assert command.main(["reproduce", str(path), "--implementation", "seen", "--device", "cpu"]) == 0


def test_a_pool_gives_the_largest_of_each_dtype_and_others_in_turn():
    pool = Pool()
    for dtype in ("float16", "float32"):
        for size in range(1, 60):
            case = Case(op="relu", args=(TensorSpec((size,), dtype),))
            pool.take(case, Verdict(cases.case_id(case), "relu", "passed"))
    found = [(case.args[0].dtype, case.args[0].shape[0]) for case in pool.chosen(12, 2)]
    assert {("float16", 58), ("float16", 59), ("float32", 58), ("float32", 59)} <= {*found}
    assert [dtype for dtype, _ in found[:12]] == ["float16", "float32"] * 6
    assert found[12:] == [("float16", plain_calls.WIDE), ("float32", plain_calls.WIDE)]
    assert sum(size < 50 for _, size in found) >= 4


ATTENTION = Case(op="scaled_dot_product_attention", args=(TensorSpec((1, 1, 2, 4), "float32"),) * 3)
CACHES = dict.fromkeys(("present_key", "present_value"), TensorSpec((1, 1, 8, 4), "float32"))
CACHE = {**CACHES, "present_key_slot": 0, "present_value_slot": 0}


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (CASE, {"status": "failed"}),
        (CASE, {"status": "passed", "refused": True}),
        (Case(op="relu", args=(TensorSpec((plain_calls.SMALL + 1,), "float32"),)), {"status": "passed"}),
        (Case(op="dropout", args=(TensorSpec((3,), "float32"),)), {"status": "passed"}),
        (replace(ATTENTION, kwargs=CACHE), {"status": "passed"}),
    ],
)
def test_what_a_script_cannot_repeat_is_left_out(case, verdict):
    assert not plain_calls.fits(case, Verdict("id", case.op, **verdict))


def test_attention_is_repeated_where_it_has_no_cache():
    assert plain_calls.fits(ATTENTION, Verdict("id", ATTENTION.op, "passed"))


@pytest.mark.slow
def test_a_script_writes_into_what_it_is_given(judged):
    inplace = Case(op="relu", args=CASE.args, kwargs={"inplace": True})
    assert plain_calls.fits(inplace, Verdict("id", "relu", "passed"))
    for body, status in (("return input.relu_() if inplace else input.relu()", "passed"), ("return input", "failed")):
        with judged(body) as child:
            (verdict,) = child.plain([inplace])
            assert verdict.status == status


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_last_item_reports_what_a_script_shows(judged, tmp_path, processes):
    with judged("return input.clone()"):
        command = [sys.executable, "-m", "pytest", SUITE, "-p", "no:cacheprovider", "-n", processes]
        command += ["--op", "relu", "--dtype", "float32", "--implementation", "seen", "--device", "cpu"]
        command += ["--max-examples", "3", "--check", "values", "--check", "plain", "--corpus", tmp_path]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        found = forked_python.run(command, cwd=tmp_path, env=env)
    assert found.returncode == 1
    assert "relu (float32): plain failed for seen" in found.stdout
    assert "Traceback" not in found.stdout
    (saved,) = tmp_path.glob("relu-*.json")
    assert f"python -m conformance reproduce {saved.name}" in found.stdout


def test_what_an_import_changes_of_others_is_told(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sets.py").write_text(
        "import os\nimport torch\ntorch.set_float32_matmul_precision('high')\ntorch.manual_seed(1)\n"
        "os.environ['SETS'] = '1'\nrelu = torch.nn.functional.relu\n"
    )
    with contextlib.closing(Child("sets", "cpu", timeout=120.0)) as child:
        changed = " ".join(child.about.changed)
    assert "float32 matmul precision" in changed
    assert "random generators" in changed
    assert "environment" not in changed
