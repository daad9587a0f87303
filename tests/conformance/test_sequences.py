"""Sequences of calls: what is drawn, shrunk, saved and replayed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import hypothesis
import msgspec
import pytest
import torch
from sequence_tools import CPU, EXP, HALF, of, other

from conformance import __main__ as command_line
from conformance import cases, corpus, sequence_draws, sequence_judge, sequence_search, sequence_variations, sequences
from conformance.cases import Case, CaseError
from conformance.implementations import Implementation
from conformance.profiles import PROFILES
from conformance.sequences import CallSequence, Settings, Step
from conformance.session import Run
from conformance.spec import parameters, registry
from conformance.worker import Child

pytest_plugins = ["pytester"]


def test_json_and_id():
    sequence = of(Step(EXP, "same", "view", Settings(precision="high"), times=3), Step(other(EXP, 1)))
    assert sequences.decode(sequences.encode(sequence)) == sequence
    assert sequences.sequence_id(sequence).startswith("exp-sequence-")
    noted = msgspec.structs.replace(sequence, note="kept")
    assert sequences.sequence_id(noted) == sequences.sequence_id(sequence)
    different = (of(*sequence.steps[::-1]), of(sequence.steps[0]), of(Step(EXP), sequence.steps[1]))
    assert len({sequences.sequence_id(one) for one in (sequence, *different)}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "its schema is 2, and this harness reads schema 1 only"),
        ({"steps": []}, "at least one step"),
        ({"more": 1}, "unknown field `more`"),
        ({"steps": [{"case": {"op": "no_such", "args": []}}]}, "step 0: unknown op 'no_such'"),
        ({"steps": [{"case": {"op": "exp", "args": []}, "memory": "old"}]}, "Invalid enum value 'old'"),
        ({"steps": [{"case": {"op": "exp", "args": []}, "times": 0}]}, "times must be from 1 to 1024"),
        ({"steps": [{"case": {"op": "exp", "args": []}, "times": 600}] * 2}, "at most 1024 calls, not 1200"),
        ({"steps": [{"case": {"op": "exp", "args": []}, "settings": {"gpu": 1}}]}, "unknown field `gpu`"),
        ({"steps": [{"case": {"op": "exp", "args": [{"type": "tensor", "shape": [2**40], "dtype": "int8"}]}}]}, "step"),
    ],
)
def test_files_are_read_strictly(change, message, tmp_path):
    file = tmp_path / "sequence.json"
    file.write_text(json.dumps(json.loads(sequences.encode(of(Step(EXP)))) | change))
    with pytest.raises(CaseError, match=r"sequence\.json: ") as raised:
        sequences.read(file)
    assert message in str(raised.value)


def test_a_file_holds_a_case_or_a_sequence(tmp_path):
    assert isinstance(sequences.read(corpus.keep(EXP, "", tmp_path)), Case)
    kept = corpus.keep_sequence(of(Step(EXP)), "why", tmp_path)
    found = sequences.read(kept)
    assert isinstance(found, CallSequence)
    assert (found.note, len(found.steps[0].case.digests)) == ("why", 1)
    assert kept.stem == sequences.identity(found)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["add", "dropout", "isnan", "layer_norm", "scaled_dot_product_attention"])
def test_what_is_drawn_is_always_the_same_and_can_be_saved(op):
    dtypes = registry()[op].dtypes
    first, again = (list(sequence_draws.drawn(op, dtypes, 2, 5)) for _ in range(2))
    assert first == again
    assert len(first) == 2
    for sequence in first:
        assert sequences.decode(sequences.encode(sequence)) == sequences.canonical(sequence)
        assert sequence.ops[0] == op
        required, relatives = parameters(op, required=True), sequence_draws.relatives(op)
        # Calls that are differentiated stand between those of any operators.
        plain = {step.case.op for step in sequence.steps if not step.gradients}
        assert all(parameters(other, required=True) == required or other in relatives for other in plain)
        assert sequence.count > 25
    assert [any(step.times == sequence_draws.RING for step in one.steps) for one in first] == [True, False]
    assert list(sequence_draws.drawn(op, dtypes, 2, 6)) != first


def test_every_memory_result_and_setting_is_drawn():
    steps = [step for sequence in sequence_draws.drawn("mm", ("float32",), 12, 0) for step in sequence.steps]
    assert {step.memory for step in steps} == {"new", "address", "freed", "same", "behind", "arena"}
    assert {step.result for step in steps} == {"kept", "view", "dropped", "overwritten"}
    assert {step.settings for step in steps} >= {Settings(), *sequence_draws.SETTINGS}


@pytest.mark.parametrize("op", sorted(registry()))
def test_each_sequence_shows_whatever_is_kept_of_an_ordinary_call(op):
    (sequence,) = sequence_draws.drawn(op, registry()[op].dtypes, 1, 0)
    asked = next(step for step in sequence.steps if step.times == sequence_draws.RING).case
    made = [step.case for step in sequence.steps]
    assert made.count(asked) > 3
    assert sum(sequence_variations.contents(asked, number) in made for number in range(3)) == 3
    assert not cases.written(asked)


def test_equal_calls_share_what_is_right():
    high = Settings(precision="high")
    first, again, seeded, set_otherwise = sequence_judge.prepare(
        of(Step(EXP), Step(EXP, "same"), Step(other(EXP, 1)), Step(EXP, settings=high)), CPU
    )
    assert again.prepared is first.prepared
    assert seeded.prepared is not first.prepared
    assert set_otherwise.prepared is not first.prepared


def test_what_a_user_sets_imports_nothing():
    code = (
        "import sys\n"
        "from conformance.sequence_staging import applied\n"
        "before = {*sys.modules}\n"
        "with applied({'deterministic': True, 'precision': 'high', 'default_dtype': 'float64', 'thread': True}):\n"
        "    pass\n"
        "print(sorted({*sys.modules} - before))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "remembers.py").write_text(
        "import torch\n\n_KEPT = {}\n\ndef exp(input, *, out=None):\n"
        "    if out is not None:\n        return torch.exp(input, out=out)\n"
        "    key = (input.shape, input.dtype, input.stride(), input.data_ptr())\n"
        "    if key not in _KEPT:\n        _KEPT[key] = torch.exp(input)\n"
        "    return _KEPT[key].clone()\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = hypothesis.settings(PROFILES["smoke"], max_examples=60)
    child = Child("remembers", "cpu")
    try:
        yield Run(
            child.implementation, CPU, ("float32", "float16"), None, tmp_path / "failures", settings, 0, child=child
        )
    finally:
        child.close()


def test_a_failure_is_shrunk_to_two_calls_saved_and_replayed(run, capsys, monkeypatch):
    steps = [Step(EXP, "same"), Step(HALF), Step(other(EXP, 1), "same", settings=Settings(mode="no_grad")), Step(HALF)]
    monkeypatch.setattr(sequence_draws, "drawn", lambda *_: iter([of(Step(HALF)), of(*steps)]))
    report = sequence_search.search(run, "exp")
    (message,) = report.failures
    (file,) = Path("failures").glob("*.json")
    found = sequences.read(file)
    assert isinstance(found, CallSequence)
    assert len(found.steps) == 2 or (len(found.steps) == 1 and found.steps[0].times == 2)
    for part in ("exp: sequence failed for remembers on cpu", "2 calls of one process", f"saved {file}"):
        assert part in message
    assert f"python -m conformance reproduce {file} --implementation remembers" in message
    assert run.replay(file, partial(sequence_search.replay, run)).failures
    assert command_line.main(["reproduce", str(file), "--implementation", "remembers", "--device", "cpu"]) == 1
    assert "sequence failed: call 2 of 2, values: " in capsys.readouterr().out
    assert command_line.main(["reproduce", str(file), "--implementation", "torch", "--device", "cpu"]) == 0
    assert command_line.main(["show", str(file)]) == 0
    assert "operand 0 of step 1: " in capsys.readouterr().out
    assert command_line.main(["list", "--op", "exp", "--corpus", "failures"]) == 0
    assert f"{file}: sequence failed for remembers" in capsys.readouterr().out


def test_a_call_that_fails_alone_is_a_case(run, tmp_path):
    (tmp_path / "wrong.py").write_text(
        "import torch\n\ndef exp(input, *, out=None):\n    return torch.exp(input, out=out) + 1\n"
    )
    child = Child("wrong", "cpu")
    try:
        (message,) = sequence_search.search(
            Run(child.implementation, CPU, ("float32",), None, tmp_path / "failures", run.settings, 0, child=child),
            "exp",
        ).failures
    finally:
        child.close()
    (file,) = Path("failures").glob("*.json")
    assert isinstance(sequences.read(file), Case)
    assert "values failed for wrong on cpu" in message or "metadata failed" in message


def test_sequences_that_are_there_twice_are_pruned(tmp_path, capsys):
    first = corpus.keep_sequence(of(Step(EXP), Step(HALF)), "", tmp_path)
    corpus.keep_sequence(of(Step(HALF), Step(EXP)), "", tmp_path)
    corpus.keep(EXP, "", tmp_path)
    copy = tmp_path / "z.json"
    copy.write_bytes(first.read_bytes())
    assert command_line.main(["corpus", "prune", str(tmp_path)]) == 0
    assert "1 removed" in capsys.readouterr().out
    assert not copy.exists()
    assert len(list(tmp_path.glob("*.json"))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("op", ["cross_entropy", "linear_cross_entropy"])
def test_no_call_has_an_index_that_stops_a_gpu(op):
    """torch's CPU raises an IndexError for an index that is no class and not ignored; a GPU does nothing any more."""

    def is_taken(case: Case) -> bool:
        args, kwargs, _ = cases.materialize(case)
        message = ""
        # A variation may be refused in any way but this one, which is looked for below.
        try:
            registry()[case.op].reference(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            message = str(error)
        assert "out of bounds" not in message
        return not message

    drawn = sequence_draws.drawn(op, registry()[op].dtypes, 6, 3)
    calls = {cases.case_id(step.case): step.case for sequence in drawn for step in sequence.steps}
    taken = [case for case in calls.values() if is_taken(case)]
    assert len(taken) > 100
    for case in taken:
        for number, change in enumerate(sequence_variations.VARIATIONS.values()):
            is_taken(sequence_variations.vary(change, case, number))


@pytest.mark.slow
def test_rows_are_appended_to_one_cache_that_changes_in_between():
    found = []
    for sequence in sequence_draws.drawn("scaled_dot_product_attention", ("float32",), 8, 0):
        steps = [step.case for step in sequence.steps if step.memory == "same"]
        steps = [case for case in steps if type(case.kwargs.get("present_key_slot")) is int]
        slots = [case.kwargs["present_key_slot"] for case in steps]
        found += [steps[n : n + 5] for n in range(len(slots)) if slots[n : n + 5] == [0, 1, 2, 3, 4]]
    assert len(found) > 3
    for steps in found:
        caches = [case.kwargs["present_key"] for case in steps]
        assert len({cache.shape for cache in caches}) == 1
        assert len({cache.seed for cache in caches}) == 5
        args, kwargs, _ = cases.materialize(steps[0])
        assert registry()["scaled_dot_product_attention"].reference(*args, **kwargs).shape[-2] == 1


@pytest.mark.slow
@pytest.mark.parametrize("op", ["rms_norm", "add", "softmax"])
def test_the_first_call_is_of_the_operator_that_is_judged(op):
    found = sequence_draws.drawn(op, ("float32",), 40, 0)
    assert all(sequence.ops[0] == op for sequence in found)


@pytest.mark.parametrize("op", ["mm", "exp", "softmax"])
def test_other_operators_are_called_with_options_before_the_ordinary_call(op):
    sequences = list(sequence_draws.drawn(op, ("float32",), 4, 0))
    relatives = [other for other in sequence_draws.relatives(op) if "float32" in registry()[other].dtypes]
    plain = [[step for step in one.steps if not step.gradients] for one in sequences]
    called = {step.case.op for steps in plain for step in steps} - {op}
    assert len(called & {*relatives}) >= min(len(relatives), sequence_draws.RELATIVES)
    for steps in plain:
        pairs = [pair for pair in itertools.pairwise(steps) if pair[0].case.op in relatives]
        filled = [second for first, second in pairs if 0 not in cases.operands(first.case)[0].shape]
        assert all(second.case.op == op for _, second in pairs[-sequence_draws.RELATIVES :])
        assert sum(cases.case_id(second.case) == cases.case_id(filled[-1].case) for second in filled) > 1


def test_what_another_operator_leaves_shows():
    """The factor of addmm stays in the launcher that mm shares."""
    state = {"alpha": 1}

    class Provider:
        @staticmethod
        def addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
            state["alpha"] = alpha
            return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha, out=out)

        @staticmethod
        def mm(input, mat2, *, out=None):
            left, state["alpha"] = state["alpha"], 1
            result = torch.mm(input, mat2, out=out)
            return result if left == 1 or out is not None else result * left

    implementation = Implementation("own", Provider, {}, {})
    found = sequence_draws.drawn("mm", ("float32",), 3, 0)
    assert any(sequence_judge.judge(sequence, implementation).failure for sequence in found)
