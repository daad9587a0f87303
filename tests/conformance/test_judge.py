"""Judging one case: whatever an implementation does is a finding about it, and nothing ends the run."""

from __future__ import annotations

import dataclasses
import math
import sys
from types import SimpleNamespace

import msgspec
import pytest
import torch

from conformance import corpus, runner
from conformance import spec as specs
from conformance.cases import Case, Same
from conformance.checks import ALWAYS, CHECKS, DERIVED, RARE
from conformance.implementations import CLAIMS, Implementation, ImplementationError, load
from conformance.runner import judge
from strategies.specs import Layout, Special, TensorSpec

X = TensorSpec((3, 4), "float32")
ROW = TensorSpec((4,), "float32", seed=1)
ADD = Case(op="add", args=(X, ROW))
OUT = Case(op="add", args=(X, ROW), kwargs={"out": TensorSpec((3, 4), "float32")})
REFUSED = Case(op="add", args=(X, TensorSpec((5,), "float32")))


def implementation(add, claims=()) -> Implementation:
    return Implementation("tested", SimpleNamespace(add=add), {"*": claims})


def add(input, other, *, alpha=1, out=None):
    return torch.add(input, other, alpha=alpha, out=out)


def failing(verdict) -> dict[str, str]:
    return {finding.check: finding.message for finding in verdict.findings if finding.status == "failed"}


@pytest.mark.parametrize("case", [ADD, OUT, REFUSED])
def test_right_implementation_passes(case):
    verdict = judge(case, implementation(add))
    assert (verdict.status, verdict.refused, failing(verdict)) == ("passed", case is REFUSED, {})
    always = {*ALWAYS} - {*DERIVED} | {*specs.registry()[case.op].checks}
    # Their turn does not come for these cases.
    always -= {*RARE}
    applicable = [check for check in CHECKS if check in always and (check != "gradients" or case is ADD)]
    assert [finding.check for finding in verdict.findings if finding.check not in DERIVED] == (
        ["guard_bands", "errors", "inputs_unchanged", "state"] if case is REFUSED else applicable
    )


def test_shares_of_the_bound():
    verdict = judge(ADD, implementation(add))
    assert 0 < verdict.share <= 1
    assert verdict.share == verdict.torch_share
    nothing_allowed = judge(ADD, implementation(lambda *a, **k: add(*a, **k) * math.nan))
    assert nothing_allowed.share == sys.float_info.max
    for one in (verdict, nothing_allowed):
        assert msgspec.json.decode(msgspec.json.encode(one), type=runner.Verdict) == one


class Odd(BaseException):
    pass


def raising(error):
    def call(*args, **kwargs):
        raise error

    return call


@pytest.mark.parametrize("checks", [None, ["values"], ["deterministic"]])
@pytest.mark.parametrize(
    ("add", "check", "message"),
    [
        (raising(RuntimeError("no\n kernel")), "errors", "torch takes this call; raised RuntimeError: no kernel"),
        (raising(NotImplementedError("later")), "errors", "raised NotImplementedError: later"),
        (raising(SystemExit(3)), "errors", "raised SystemExit: 3"),
        (raising(Odd("odd")), "errors", "raised Odd: odd"),
        (lambda input: input, "errors", "raised TypeError"),
        (lambda *a, **k: None, "metadata", "returned None instead of a tensor"),
        (lambda *a, **k: 1.5, "metadata", "returned an object of type float instead of a tensor"),
        (lambda *a, **k: (torch.zeros(3, 4),), "metadata", "returned 1 results in a tuple instead of one tensor"),
        (lambda *a, **k: [torch.zeros(3, 4)] * 2, "metadata", "returned 2 results in a list instead of one tensor"),
    ],
)
def test_nothing_to_judge_is_a_failure_under_any_checks(add, check, message, checks):
    verdict = judge(ADD, implementation(add), checks=checks)
    assert verdict.status == "failed"
    assert message in failing(verdict)[check]


def test_interrupts_pass_through():
    with pytest.raises(KeyboardInterrupt):
        judge(ADD, implementation(raising(KeyboardInterrupt())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result.double(), "dtype torch.float64, torch's is torch.float32"),
        (lambda result: result[None], "shape [1, 3, 4], torch's is [3, 4]"),
        (lambda result: result.t().contiguous().t(), "strides (1, 3), torch's is (4, 1)"),
        (lambda result: torch.empty_like(result, device="meta"), "device meta, torch's is cpu"),
    ],
)
def test_metadata(change, message):
    verdict = judge(ADD, implementation(lambda *a, **k: change(add(*a, **k))), checks=["metadata"])
    assert message in failing(verdict)["metadata"]


def test_strides_of_dims_of_one_element_mean_nothing():
    case = Case(op="add", args=(TensorSpec((1, 4), "float32"), 1.0))
    call = implementation(lambda *a, **k: add(*a, **k).as_strided((1, 4), (77, 1)))
    verdict = judge(case, call, checks=["metadata"])
    assert verdict.status == "passed"


def test_out_is_returned_and_is_what_is_compared():
    verdict = judge(OUT, implementation(lambda input, other, *, alpha=1, out: add(input, other)))
    assert "torch returns operand 2 itself" in failing(verdict)["metadata"]
    verdict = judge(OUT, implementation(lambda input, other, *, alpha=1, out: out))
    assert set(failing(verdict)) == {"values", "versions"}


def test_result_has_memory_of_its_own():
    case = Case(op="add", args=(X, 0.0))
    verdict = judge(case, implementation(lambda input, other, *, alpha=1, out=None: input))
    assert failing(verdict)["metadata"] == "shares memory with operand 0; torch's does not"


def changing(place):
    """Changes one element of the storage of the first operand, counted from two before its first."""

    def call(input, other, *, alpha=1, out=None):
        result = add(input, other, out=out)
        flat = torch.empty(0).set_(input.untyped_storage())
        flat[input.storage_offset() - 2 + place] = 7.0
        return result

    return call


def test_inputs_unchanged_over_the_whole_storage():
    padded = TensorSpec((3,), "float32", layout=Layout(steps=(2,), offset=2))
    case = Case(op="add", args=(padded, Same(0)))
    for place in range(8):
        verdict = judge(case, implementation(changing(place)))
        assert failing(verdict) == {
            "inputs_unchanged": f"operand 0 (an input) was changed at element {place} of its storage"
        }
    case = msgspec.structs.replace(case, kwargs={"out": Same(0)})
    for place in range(8):
        verdict = judge(case, implementation(changing(place)), checks=["inputs_unchanged"])
        assert bool(failing(verdict)) == (place not in (2, 4, 6)), "what was given may be written, nothing beside it"


def test_nan_that_stays_is_no_change():
    case = Case(op="add", args=(TensorSpec((3,), "float32", specials=(Special(0, "nan"),)), 1.0))
    assert judge(case, implementation(add)).status == "passed"


def test_an_operand_that_is_resized_has_changed():
    def call(input, other, *, alpha=1, out=None):
        result = add(input, other)
        input.resize_(1, 2)
        return result

    assert "shape [1, 2]" in failing(judge(ADD, implementation(call)))["inputs_unchanged"]


def test_deterministic_is_a_failure_where_it_is_claimed():
    flips = iter(range(1000))

    def call(input, other, *, alpha=1, out=None):
        result = add(input, other)
        result[1, 2] += next(flips) % 2 * 2.0**-20
        return result

    claimed = judge(ADD, implementation(call, ["deterministic"]), checks=["deterministic"])
    assert claimed.status == "failed"
    assert "two equal calls differ at [1, 2]" in failing(claimed)["deterministic"]
    unclaimed = judge(ADD, implementation(call), checks=["deterministic"])
    assert "one is wrong: 1 of 12 elements" in failing(unclaimed)["deterministic"]


def test_equal_calls_may_differ_within_the_bound_where_nothing_is_claimed():
    flips = iter(range(1000))

    def exp(input, *, out=None):
        result = torch.exp(input)
        return torch.nextafter(result, 2 * result) if next(flips) % 2 else result

    case, checks = Case(op="exp", args=(X,)), ["values", "deterministic"]
    for claims, status in (((), "unclaimed"), (["deterministic"], "failed")):
        verdict = judge(case, Implementation("tested", SimpleNamespace(exp=exp), {"*": claims}), checks=checks)
        assert [finding.status for finding in verdict.findings] == ["passed", status]


@pytest.mark.parametrize("wrong", [lambda result: None, lambda result: result.double(), lambda result: result[:2]])
def test_a_second_call_that_gives_something_else_is_a_failure_whatever_is_claimed(wrong):
    calls = iter(range(1000))

    def call(input, other, *, alpha=1, out=None):
        result = add(input, other)
        return wrong(result) if next(calls) else result

    assert "deterministic" in failing(judge(ADD, implementation(call)))


@pytest.mark.parametrize(
    ("error", "right"),
    [
        (RuntimeError("shapes do not fit"), True),
        (type("OurError", (RuntimeError,), {})("of our own"), True),
        (NotImplementedError("a RuntimeError too, but not what torch raises"), False),
        (ValueError("shapes do not fit"), False),
        (SystemExit(1), False),
    ],
)
def test_refusals_have_torchs_exception_class(error, right):
    verdict = judge(REFUSED, implementation(raising(error)))
    assert verdict.refused
    assert (verdict.status == "passed") is right
    assert right or "torch raises RuntimeError" in failing(verdict)["errors"]


def test_calls_that_torch_refuses_are_refused():
    verdict = judge(REFUSED, implementation(lambda *a, **k: torch.zeros(3, 4)), checks=["values"])
    assert "took a call that torch refuses with RuntimeError: The size of tensor a" in failing(verdict)["errors"]


def test_cuda_decides_where_the_cpu_is_more_lenient(monkeypatch):
    changed(monkeypatch, cuda_refuses=lambda call: TypeError)
    verdict = judge(ADD, implementation(add))
    assert "TypeError (on CUDA; the CPU takes the call)" in failing(verdict)["errors"]
    assert judge(ADD, implementation(raising(TypeError()))).status == "passed"


def test_what_a_spec_leaves_out_is_not_provided(monkeypatch):
    changed(monkeypatch, left_out=lambda call: True)
    assert judge(ADD, implementation(raising(NotImplementedError()))).status == "not_provided"
    assert judge(ADD, implementation(raising(RuntimeError()))).status == "failed"
    assert judge(ADD, implementation(add)).status == "passed"


def _norms(**taken):
    """Norms of torch that take an int for the shape, as ``taken`` says."""

    def norm(op):
        def function(input, normalized_shape, *args, **kwargs):
            if type(normalized_shape) is int:
                normalized_shape = taken["int"](input, normalized_shape)
            return getattr(torch.nn.functional, op)(input, normalized_shape, *args, **kwargs)

        return function

    return Implementation("tested", SimpleNamespace(**{op: norm(op) for op in ("layer_norm", "rms_norm")}))


def _refuse(kind):
    def refuse(input, size):
        raise kind("no int")

    return refuse


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    ("size", "taken", "refused", "fails"),
    [
        # torch takes no int; who takes one takes it for the tuple of it.
        (4, lambda x, n: (n,), False, None),
        (4, _refuse(TypeError), True, None),
        (4, _refuse(ValueError), False, "errors"),
        (4, lambda x, n: tuple(x.shape), False, "values"),
        # That tuple torch refuses: by another exception, which either is right.
        (3, lambda x, n: (n,), True, None),
        (3, _refuse(TypeError), True, None),
        (3, _refuse(ValueError), True, "errors"),
        (3, lambda x, n: x.shape[-1:], True, "errors"),
        (True, lambda x, n: (1,), True, None),
    ],
)
def test_what_may_be_taken_beyond_torch_is_judged_as_what_it_stands_for(op, size, taken, refused, fails):
    for kwargs in ({}, {"eps": 0.5}):
        case = Case(op=op, args=(X, size), kwargs=kwargs)
        for thorough in (True, False):
            verdict = judge(case, _norms(int=taken), thorough=thorough)
            assert (fails in failing(verdict)) if fails else (verdict.status == "passed"), failing(verdict)
            assert verdict.refused == refused


def test_known_deviations_excuse_torch_alone(monkeypatch):
    monkeypatch.setattr(runner.deviations, "named_deviation", lambda case, check, device: f"{check} of torch")
    wrong = lambda *a, **k: add(*a, **k) + 1  # noqa: E731
    changed(monkeypatch, reference=wrong)
    verdict = judge(ADD, "torch", checks=["values"])
    assert verdict.status == "deviation"
    assert [(finding.status, finding.message) for finding in verdict.findings] == [("deviation", "values of torch")]
    assert judge(ADD, implementation(wrong), checks=["values"]).status == "failed"


def test_an_op_that_is_lacking_is_not_provided():
    assert judge(ADD, Implementation("tested", SimpleNamespace())).status == "not_provided"
    assert judge(ADD, Implementation("tested", SimpleNamespace(add=3))).status == "not_provided"


def test_other_inputs_than_those_saved_are_told():
    saved = corpus.with_digests(ADD)
    assert judge(saved, implementation(add)).status == "passed"
    verdict = judge(msgspec.structs.replace(saved, digests=("0" * 16, saved.digests[1])), implementation(add))
    assert "operand 0 is not what it was when the case was saved" in failing(verdict)["inputs"]


def test_devices(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert runner.resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runner.resolve_device("auto") == torch.device("cpu")
    with pytest.raises(
        runner.DeviceError, match="torch finds no CUDA GPU on this machine; valid here are auto and cpu"
    ):
        runner.resolve_device("cuda")
    with pytest.raises(runner.DeviceError, match="unknown device 'tpu'; valid are auto, cpu, cuda"):
        runner.resolve_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [runner.resolve_device("cuda", worker).index for worker in range(6)] == [0, 1, 2, 3, 0, 1]
    assert runner.resolve_device("cuda:2", 1) == torch.device("cuda", 2)
    with pytest.raises(runner.DeviceError, match="this machine has cuda:0 to cuda:3"):
        runner.resolve_device("cuda:4")


def test_implementations():
    assert load("torch").function("relu") is torch.nn.functional.relu
    assert load("torch").function("nothing_of_torch") is None
    assert load("defects:two_defects").function("add") is not None
    assert load("defects:two_defects").claims("add") == set()
    assert "deterministic" in load("torch").claims("mm")
    assert load("ntops.torch").claims("add") == {*CLAIMS}
    for name, message in {
        "no_such_module": "importing 'no_such_module' failed: ModuleNotFoundError.*Valid are ntops.torch, torch, any",
        "defects:no_such": "defects has no 'no_such'",
        "": "importing '' failed",
        "defects:wrong_claims": "conformance_claims\\['add'\\] holds names of",
    }.items():
        with pytest.raises(ImplementationError, match=message):
            load(name)


def test_modules_that_exit_when_imported_are_told(tmp_path, monkeypatch):
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit('bye')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImplementationError, match="failed: SystemExit: bye"):
        load("exits_at_import")


def changed(monkeypatch, **fields):
    """The registry with another spec of add."""
    spec = dataclasses.replace(specs.registry()["add"], **fields)
    monkeypatch.setattr(specs, "registry", lambda: {"add": spec})
