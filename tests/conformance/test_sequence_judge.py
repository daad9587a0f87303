"""How sequences of calls are judged: where operands lie, under which settings; defects that no call alone shows."""

from __future__ import annotations

import msgspec
import pytest
import torch
from sequence_tools import EXP, HALF, X, of, other

from conformance import implementations, sequence_judge
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.selftest import defect_registry, search, sequence_runs
from conformance.sequence_staging import applied
from conformance.sequences import CallSequence, Settings, Step
from strategies.specs import TensorSpec

STATE = {name: defect for name, defect in defect_registry.bank().items() if defect.check == sequence_judge.SEQUENCE}


def judge(sequence: CallSequence, name: str) -> str:
    """The message of the failure, if there is one."""
    failure = sequence_judge.judge(sequence, STATE[name].anew().implementation).failure
    return failure.message if failure else ""


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


def test_an_operand_of_an_arena_that_is_returned_is_that_operand():
    kwargs = {"granularity": "block"}
    case = Case(op="quantize_fp8", args=(TensorSpec((9, 4), "float32"), TensorSpec((9, 1), "float32")), kwargs=kwargs)
    verdict = sequence_judge.judge(of(Step(case, "arena")), "ntops.torch")
    assert verdict.status == "passed", verdict
