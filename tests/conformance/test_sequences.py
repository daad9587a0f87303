"""Sequences of calls: what is drawn, judged, shrunk, saved and replayed; defects that no call alone shows."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import hypothesis
import msgspec
import pytest
import torch

from conformance import __main__ as command_line
from conformance import (
    cases,
    corpus,
    implementations,
    sequence_draws,
    sequence_judge,
    sequence_search,
    sequence_variations,
    sequences,
)
from conformance.cases import Case, CaseError
from conformance.implementations import Implementation
from conformance.profiles import PROFILES
from conformance.selftest import defect_registry, search, sequence_runs
from conformance.sequence_staging import applied
from conformance.sequences import CallSequence, Settings, Step
from conformance.session import Run
from conformance.spec import parameters, registry
from conformance.worker import Child
from strategies.specs import Layout, TensorSpec

pytest_plugins = ["pytester"]

CPU = torch.device("cpu")
X = TensorSpec((4, 8), "float32")
EXP = Case(op="exp", args=(X,))
STATE = {name: defect for name, defect in defect_registry.bank().items() if defect.check == sequence_judge.SEQUENCE}


def of(*steps: Step) -> CallSequence:
    return CallSequence(steps=steps)


def other(case: Case, seed: int) -> Case:
    return sequences.reseeded(case, seed)


def judge(sequence: CallSequence, name: str) -> str:
    """The message of the failure, if there is one."""
    failure = sequence_judge.judge(sequence, STATE[name].anew().implementation).failure
    return failure.message if failure else ""


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


@pytest.mark.parametrize("op", ["add", "dropout", "isnan", "layer_norm", "scaled_dot_product_attention"])
def test_what_is_drawn_is_always_the_same_and_can_be_saved(op):
    dtypes = registry()[op].dtypes
    first, again = (list(sequence_draws.drawn(op, dtypes, 2, 5)) for _ in range(2))
    assert first == again
    assert len(first) == 2
    for sequence in first:
        assert sequences.decode(sequences.encode(sequence)) == sequences.canonical(sequence)
        assert sequence.ops[0] == op
        required = parameters(op, required=True)
        assert all(parameters(other, required=True) == required for other in sequence.ops)
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


def _operands(memory: str, count: int) -> list[tuple[int, int, int]]:
    """Address, version and id of the operand of each call."""
    seen = []

    def exp(x):
        seen.append((x.data_ptr(), x._version, id(x)))
        return x.exp()

    sequence = of(*(Step(other(EXP, seed), memory) for seed in range(count)))
    assert sequence_judge.judge(sequence, _as_implementation(exp)).status == "passed"
    return seen


@pytest.mark.parametrize("memory", ["address", "freed", "same", "behind"])
def test_operands_lie_where_those_before_lay(memory):
    places, versions, ids = zip(*_operands(memory, 2), strict=True)
    assert places[0] == places[1]
    assert (versions[0] == versions[1]) is (memory != "same")
    # Of an object that is gone another one has the id nearly always.
    assert memory == "freed" or (ids[0] == ids[1]) is (memory != "address")


def test_new_operands_lie_elsewhere():
    assert len({place for place, *_ in _operands("new", 20)}) == 20


def test_a_tensor_in_the_place_of_a_number_requires_no_gradient():
    """torch refuses a parameter there."""
    case = Case(op="clamp", args=(X,), kwargs={"max": 1, "min": TensorSpec((), "float32")})
    sequence = of(Step(case, settings=Settings(mode="parameters")))
    assert sequence_judge.judge(sequence, implementations.load("torch")).status == "passed"


def test_settings_are_those_of_the_call_alone():
    seen = []

    def exp(x):
        seen.append((torch.get_float32_matmul_precision(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return x.exp()

    settings = (
        Settings(precision="high", thread=True),
        Settings(mode="inference"),
        Settings(mode="no_grad"),
        Settings(),
    )
    steps = of(*(Step(EXP, settings=one) for one in settings))
    assert sequence_judge.judge(steps, _as_implementation(exp)).status == "passed"
    assert seen == [
        ("high", False, True),
        ("highest", True, False),
        ("highest", False, False),
        ("highest", False, True),
    ]
    with applied({"default_dtype": "float64", "deterministic": True}):
        assert torch.get_default_dtype() == torch.float64
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


def _as_implementation(exp) -> Implementation:
    class Provider:
        pass

    provider = Provider()
    provider.exp = exp
    return Implementation("given", provider, {})


HALF = Case(op="exp", args=(TensorSpec((4, 8), "float16"),))
TURNED = Case(op="exp", args=(TensorSpec((4, 8), "float32", layout=Layout(order=(1, 0))),))


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("exp_memo_by_shape", (Step(EXP), Step(HALF)), "call 2 of 2, metadata: dtype torch.float32"),
        ("exp_memo_by_layout", (Step(EXP), Step(other(EXP, 1))), "call 2 of 2, values: "),
        ("exp_memo_by_address", (Step(EXP, "address"), Step(other(EXP, 1), "address")), "call 2 of 2, values: "),
        ("exp_memo_by_address_and_version", (Step(EXP, "same"), Step(other(EXP, 1), "behind")), "call 2 of 2, values"),
        (
            "exp_memo_by_id_and_version",
            (Step(EXP, "freed"), *(Step(other(EXP, n), "freed") for n in range(1, 9))),
            "values: ",
        ),
        ("exp_memo_shared", (Step(EXP, result="overwritten"), Step(EXP)), "call 2 of 2, values: "),
        ("exp_ring_of_1", (Step(EXP), Step(other(EXP, 1))), "after call 1 of 2, what the user kept of it changed"),
        ("exp_ring_of_4", (Step(EXP, times=5),), "after call 1 of 5, what the user kept of it changed: result changed"),
        ("exp_ring_of_16", (Step(EXP, times=17),), "after call 1 of 17"),
        ("exp_pool", (Step(EXP, result="view"), Step(other(EXP, 1))), "after call 1 of 2"),
    ],
)
def test_what_is_kept_under_too_small_a_key_shows(name, steps, message):
    assert message in judge(of(*steps), name)
    # Each call alone is right, and so is what is right.
    assert all(not judge(of(msgspec.structs.replace(step, times=1)), name) for step in steps)
    assert sequence_judge.judge(of(*steps), search.right("exp")).status == "passed"


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("exp_memo_by_address", (Step(EXP), Step(other(EXP, 1)))),
        ("exp_memo_by_address_and_version", (Step(EXP, "same"), Step(other(EXP, 1), "same"))),
        ("exp_ring_of_4", (Step(EXP, times=4),)),
        ("exp_ring_of_1", (Step(EXP, result="dropped"), Step(other(EXP, 1)))),
        ("exp_pool", (Step(EXP), Step(other(EXP, 1)))),
    ],
)
def test_what_a_key_holds_does_not_show(name, steps):
    assert judge(of(*steps), name) == ""


def test_a_write_into_an_operand_of_an_earlier_call_shows():
    given = []

    def exp(x):
        given.append(x)
        if len(given) > 1:
            given[0].zero_()
        return x.exp()

    found = sequence_judge.judge(of(Step(EXP), Step(other(EXP, 1))), _as_implementation(exp))
    assert "after call 1 of 2, what the user kept of it changed: operand changed" in found.failure.message


def test_what_is_refused_disturbs_no_later_call():
    broken = []

    def exp(x):
        if not isinstance(x, torch.Tensor):
            broken.append(x)
            raise TypeError("no tensor")
        return x.exp() + len(broken)

    refused = Case(op="exp", args=("x",))
    assert sequence_judge.judge(of(Step(EXP), Step(refused)), _as_implementation(exp)).status == "passed"
    found = sequence_judge.judge(of(Step(refused), Step(EXP)), _as_implementation(exp))
    assert "call 2 of 2, values" in found.failure.message


def test_an_operator_that_writes_into_the_result_of_another_one_shows():
    returned = []

    class Provider:
        @staticmethod
        def exp(x):
            returned.append(x.exp())
            return returned[-1]

        @staticmethod
        def sin(x):
            # In the buffer that both have.
            return returned[-1].copy_(x.sin())

    library = Implementation("given", Provider(), {})
    sequence = of(Step(EXP), Step(msgspec.structs.replace(EXP, op="sin")))
    assert "after call 1 of 2" in sequence_judge.judge(sequence, library).failure.message
    # What else is wrong there is judged where it is asked for.
    Provider.sin = staticmethod(lambda x: x.clone())
    assert sequence_judge.judge(sequence, library).status == "passed"


def test_operands_of_the_same_tensors_count_as_written_where_they_changed():
    seen = []

    def add(x, y):
        seen.append((x._version, y._version, type(x)))
        return x + y

    class Provider:
        pass

    provider = Provider()
    provider.add = add
    first = Case(op="add", args=(X, X))
    second = msgspec.structs.replace(first, args=(X, msgspec.structs.replace(X, seed=9)))
    for settings, kind in ((Settings(), torch.Tensor), (Settings(mode="parameters"), torch.nn.Parameter)):
        seen.clear()
        steps = (Step(case, "same", settings=settings) for case in (first, second))
        assert sequence_judge.judge(of(*steps), Implementation("given", provider, {})).status == "passed"
        (x, y, _), (x_later, y_later, _) = seen
        assert (x_later == x, y_later > y) == (True, True)
        assert {one for *_, one in seen} == {kind}


@pytest.mark.slow
@pytest.mark.parametrize("op", ["exp", "mm"])
def test_state_is_caught_and_right_implementations_are_silent(op):
    defects = [defect for defect in STATE.values() if defect.op == op]
    tallies = [search.Control(control.name, op) for control in search.controls(op)]
    results = sequence_runs.study(op, defects, tallies, controlled=10000)
    assert [result.name for result in results if not result.killed] == []
    assert [(tally.name, tally.message) for tally in tallies if tally.alarms] == []
    assert all(tally.sequences == sequence_runs.EXAMPLES for tally in tallies)


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


@pytest.mark.parametrize("op", ["rms_norm", "add", "softmax"])
def test_the_first_call_is_of_the_operator_that_is_judged(op):
    found = sequence_draws.drawn(op, ("float32",), 40, 0)
    assert all(sequence.ops[0] == op for sequence in found)


def test_an_operand_of_an_arena_that_is_returned_is_that_operand():
    kwargs = {"granularity": "block"}
    case = Case(op="quantize_fp8", args=(TensorSpec((9, 4), "float32"), TensorSpec((9, 1), "float32")), kwargs=kwargs)
    verdict = sequence_judge.judge(of(Step(case, "arena")), "ntops.torch")
    assert verdict.status == "passed", verdict
