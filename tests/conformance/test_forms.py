"""Forms of a call: each means what the plain one means, reaches the implementation as it is written, and replays."""

from __future__ import annotations

import runpy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from conformance import call_contexts, case_files, cases, drawing, forms, messages, repro, runner
from conformance.calls import Local
from conformance.cases import Case, CaseError, DType, NonFinite, Same, Variant
from conformance.implementations import Implementation
from conformance.spec import registry
from strategies.specs import Layout, Special, TensorSpec

CPU = torch.device("cpu")
X = TensorSpec((3, 4), "float32", seed=1)
NORM = Case(op="layer_norm", args=(X, (4,)), kwargs={"bias": TensorSpec((4,), "float32"), "eps": 0.5})
EXAMPLES = {
    forms.BY_POSITION: NORM,
    forms.BY_NAME: Case(op="sub", args=(X, TensorSpec((4,), "float32")), kwargs={"alpha": 2.0}),
    forms.DEFAULTS: Case(op="softmax", args=(X, -1)),
    forms.NUMPY: Case(
        op="addmm", args=(X, TensorSpec((3, 2), "float32"), TensorSpec((2, 4), "float32")), kwargs={"beta": 0.1}
    ),
    forms.TENSORS: Case(op="sub", args=(X, replace(X, seed=2)), kwargs={"alpha": 0.5}),
    forms.SIZES: Case(op="rms_norm", args=(X, (4,))),
    forms.ENUMS: Case(op="gelu", args=(X,), kwargs={"approximate": "tanh"}),
    forms.AXES: Case(op="sum", args=(X, 1), kwargs={"keepdim": True}),
    forms.DIM_ENUMS: Case(op="amax", args=(X,), kwargs={"dim": (0, -1)}),
    forms.DIM_TENSORS: Case(op="softmax", args=(X, 1)),
    forms.FLAGS: Case(op="relu", args=(X,), kwargs={"inplace": True}),
    call_contexts.OWN: Case(
        op="scaled_dot_product_attention",
        args=(TensorSpec((1, 1, 3, 4), "float32"), *[TensorSpec((1, 1, 5, 4), "float32")] * 2),
        kwargs={"is_causal": True, "causal_variant": Variant("LOWER_RIGHT")},
    ),
    call_contexts.PARAMETERS: Case(op="exp", args=(X,), kwargs={"out": TensorSpec((0,), "float32")}),
    call_contexts.NEGATED: Case(
        op="relu", args=(replace(X, layout=Layout(order=(1, 0)), specials=(Special(0, "nan"),)),)
    ),
    call_contexts.WIDE: Case(op="div", args=(replace(X, dtype="int32"), replace(X, dtype="int32", values="positive"))),
    call_contexts.TRAINING: Case(
        op="layer_norm", args=(X, (4,)), kwargs={"weight": TensorSpec((4,), "float32", seed=1)}
    ),
    call_contexts.TOGETHER: Case(op="mm", args=(X, TensorSpec((4, 5), "float32", layout=Layout(order=(1, 0)), seed=1))),
    call_contexts.ADJACENT: Case(op="mm", args=(X, TensorSpec((4, 5), "float32", layout=Layout(offset=3), seed=1))),
    call_contexts.COLUMNS: Case(op="sub", args=(X, replace(X, seed=2))),
    call_contexts.ROWS: Case(op="mul", args=(X, replace(X, seed=2))),
    call_contexts.LEAVES: Case(op="relu", args=(X,), kwargs={"inplace": True}),
    call_contexts.UPDATED: Case(op="silu", args=(X,), kwargs={"inplace": True}),
    call_contexts.INFERENCE: Case(op="add", args=(X, X)),
    call_contexts.DETERMINISTIC: Case(op="add", args=(X, X)),
    call_contexts.THREADS: Case(op="add", args=(X, X)),
    call_contexts.STRICT: Case(op="add", args=(X, X)),
    call_contexts.KEPT: Case(op="add", args=(X, X)),
    call_contexts.VIEWS: Case(op="silu", args=(replace(X, layout=Layout(offset=3)),), kwargs={"inplace": True}),
    call_contexts.FOREIGN: Case(op="exp", args=(X,), kwargs={"out": X}),
    call_contexts.ENTIRE: Case(op="exp", args=(X,)),
    call_contexts.ALONE: Case(op="argmax", args=(X,)),
    call_contexts.ANOMALIES: Case(op="softmax", args=(X, 1)),
}  # fmt: skip
REFUSED = call_contexts.LEAVES, call_contexts.FOREIGN
"""The forms in which torch writes to nothing."""


def seen(case: Case):
    """The arguments that an implementation gets, and what it finds set."""
    found = []

    def function(*args, **kwargs):
        found.append((args, kwargs, torch.get_default_dtype(), torch.is_grad_enabled()))
        return args[0]

    runner.prepare(replace(case, form=""), CPU)
    prepared = runner.prepare(case, CPU)
    assert prepared.guarded(Local(function)).error is None or not found
    return found[0]


def test_every_form_has_an_example_and_is_possible_where_it_says_something():
    assert set(EXAMPLES) == set(forms.FORMS)
    for form, case in EXAMPLES.items():
        # torch takes no call in that form.
        assert (form in forms.possible(case)) == (form != call_contexts.FOREIGN)
    modes = [call_contexts.INFERENCE, call_contexts.DETERMINISTIC, call_contexts.THREADS, call_contexts.STRICT]
    modes += [call_contexts.KEPT, call_contexts.VIEWS, call_contexts.ENTIRE, call_contexts.ALONE]
    assert forms.possible(Case(op="add", args=(2.0, replace(X, dtype="bool")))) == [
        forms.NUMPY,
        call_contexts.WIDE,
        *modes,
    ]
    many = Case(op="isnan", args=(replace(X, dtype="bool", shape=(4096,)),))
    assert forms.possible(many) == modes


@pytest.mark.parametrize("form", forms.FORMS)
def test_torch_passes_in_every_form_and_the_call_is_named(form):
    case = replace(EXAMPLES[form], form=form)
    verdict = runner.judge(case, "torch", CPU, thorough=False)
    assert verdict.status in ("passed", "deviation")
    assert verdict.refused == (form in REFUSED)
    assert form in messages.call(case)
    assert cases.case_id(case) != cases.case_id(EXAMPLES[form])
    assert case_files.decode(cases.encode(case)) == cases.canonical(case)


@pytest.mark.parametrize("op", [op for op, spec in registry().items() if spec.inplace])
def test_torch_in_place_passes_in_every_form(op):
    """Composite functions, such as dropout, are watched otherwise than those of one kernel."""
    case = Case(op=op, args=(X,), kwargs={"inplace": True})
    found = {
        form: runner.judge(replace(case, form=form), "torch", CPU, thorough=False) for form in forms.possible(case)
    }
    assert {form: verdict.failure for form, verdict in found.items() if verdict.status == "failed"} == {}


@pytest.mark.slow
def test_torch_takes_gradients_where_it_takes_tensors():
    """A bound that it takes for a number wants none; what it refuses is judged by nobody, so that is all of it."""
    bounds = {"min": 0, "max": TensorSpec((), "float32", values="positive")}
    mixed = Case(op="clamp", args=(replace(X, dtype="int32"),), kwargs=bounds)
    assert runner.prepare(mixed, CPU).refusal is None
    assert runner.prepare(replace(mixed, form=call_contexts.TRAINING), CPU).refusal is TypeError
    for spec in (spec for op, spec in registry().items() if op != "clamp"):
        for case in drawing.drawn(spec.cases(spec.dtypes[:1]), 0, 20):
            if call_contexts.TRAINING in forms.possible(case) and runner.prepare(case, CPU).refusal is None:
                assert runner.prepare(replace(case, form=call_contexts.TRAINING), CPU).refusal is None, messages.call(
                    case
                )


def test_arguments_by_position_with_defaults_between():
    args, kwargs, *_ = seen(replace(NORM, form=forms.BY_POSITION))
    assert (args[1], args[2], args[3].shape, args[4], kwargs) == ((4,), None, (4,), 0.5, {})
    args, kwargs, *_ = seen(Case(op="dropout", args=(X,), kwargs={"training": False}, form=forms.BY_POSITION))
    assert (args[1:], kwargs) == ((0.5, False), {})


def test_arguments_by_name_in_another_order():
    case = replace(EXAMPLES[forms.BY_NAME], form=forms.BY_NAME)
    ways = set()
    for seed in range(20):
        first, *rest = case.args
        args, kwargs = forms.bind(replace(case, args=(replace(first, seed=seed), *rest)), [1, 2])
        ways.add((tuple(args), *kwargs.items()))
    assert ways == {
        ((1,), ("alpha", 2.0), ("other", 2)),
        ((), ("alpha", 2.0), ("other", 2), ("input", 1)),
    }


def test_defaults_are_torchs():
    _, kwargs, *_ = seen(replace(EXAMPLES[forms.DEFAULTS], form=forms.DEFAULTS))
    assert kwargs == {"dtype": None}
    _, kwargs, *_ = seen(Case(op="rms_norm", args=(X, (4,)), form=forms.DEFAULTS))
    assert kwargs == {"weight": None, "eps": None}


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (2.5, {np.float16, np.float32, np.float64}),
        (0.1, {np.float64}),
        (3, {np.int32, np.uint32, np.int64}),
        (-3, {np.int32, np.int64}),
        (2**40, {np.int64}),
        (float("inf"), {np.float16, np.float32, np.float64}),
        (1e39, {np.float64}),
    ],
)
def test_numbers_of_numpy_hold_what_they_stand_for(value, kinds):
    found = [forms.of_numpy(value, 3 * turn) for turn in range(8)]
    assert {type(one) for one in found} == kinds
    assert set(found) == {value}
    assert forms.of_numpy(True) is True
    assert [type(one) for one in forms.of_numpy((2, -3), 3)] == [np.uint32, np.int64]


def test_numbers_of_numpy_reach_the_call():
    args, kwargs, *_ = seen(Case(op="add", args=(X, NonFinite("nan")), kwargs={"alpha": 2}, form=forms.NUMPY))
    assert isinstance(args[1], np.floating)
    assert isinstance(kwargs["alpha"], np.integer)


def test_parameters_without_gradient_mode_and_the_default_dtype():
    args, kwargs, dtype, grad = seen(replace(EXAMPLES[call_contexts.PARAMETERS], form=call_contexts.PARAMETERS))
    assert (type(args[0]), type(kwargs["out"]), dtype, grad) == (torch.nn.Parameter, torch.Tensor, torch.float32, False)
    args, _, dtype, grad = seen(replace(EXAMPLES[call_contexts.WIDE], form=call_contexts.WIDE))
    assert (dtype, grad, torch.get_default_dtype()) == (torch.float64, True, torch.float32)


def test_operands_in_one_storage_the_last_one_first():
    case = Case(op="add", args=(X, replace(X, seed=2)), kwargs={"out": X}, form=call_contexts.TOGETHER)
    (first, second), kwargs, *_ = seen(case)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.data_ptr() < first.data_ptr()
    assert kwargs["out"].untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
    assert torch.equal(first, cases.materialize(replace(case, form=""))[0][0])


@pytest.mark.parametrize("form", [call_contexts.COLUMNS, call_contexts.ROWS])
def test_operands_are_parts_of_one_tensor(form):
    case = Case(op="sub", args=(X, replace(X, seed=2)), form=form)
    (first, second), *_ = seen(case)
    columns = X.shape[-1]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.stride() == second.stride() == (2 * columns, 1)
    ahead = first.storage_offset() - second.storage_offset()
    assert ahead == (columns if form == call_contexts.COLUMNS else -columns)
    plain = cases.materialize(replace(case, form=""))[0]
    assert all(map(torch.equal, (first, second), plain))


@pytest.mark.parametrize("form", [call_contexts.COLUMNS, call_contexts.ROWS])
def test_what_is_written_to_parts_of_one_tensor_shows(form):
    def function(first, second):
        return second.data[1].zero_()

    prepared = runner.prepare(Case(op="sub", args=(X, replace(X, seed=2)), form=form), CPU)
    after = prepared.guarded(Local(function)).operands
    assert [torch.equal(*pair) for pair in zip(after, prepared.inputs, strict=True)] == [True, False]


def test_what_is_written_to_operands_in_one_storage_shows():
    def function(first, second):
        return first.add_(1)

    case = Case(op="add", args=(X, replace(X, seed=2)), form=call_contexts.TOGETHER)
    prepared = runner.prepare(case, CPU)
    outcome = prepared.guarded(Local(function))
    assert torch.equal(outcome.operands[0], prepared.inputs[0] + 1)
    assert torch.equal(outcome.operands[1], prepared.inputs[1])


def test_a_gradient_may_be_refused_but_no_call_misread():
    def not_yet(input, **kwargs):
        if input.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError("argument 'input' requires grad")
        return torch.exp(input)

    def negated(input, **kwargs):
        return torch.exp(-input if input.requires_grad and torch.is_grad_enabled() else input)

    for function, failed in ((torch.exp, False), (not_yet, False), (negated, True)):
        provider = Implementation("one", SimpleNamespace(exp=function))
        verdict = runner.judge(Case(op="exp", args=(X,)), provider, checks=["call_forms"])
        assert bool(verdict.failure) == failed
    assert verdict.failure.message.startswith("training: values")


def test_the_very_operand_is_recognized_as_a_parameter_and_negated():
    for form in (call_contexts.PARAMETERS, call_contexts.NEGATED):
        case = Case(op="dropout", args=(X,), kwargs={"training": False}, form=form)
        assert runner.judge(case, "torch", CPU).status == "passed"
        copies = SimpleNamespace(dropout=lambda input, p, training, inplace=False: input.clone())
        broken = Implementation("copies", copies, {})
        case = replace(case, args=(X, 0.5), kwargs={"training": False})
        assert runner.judge(case, broken, CPU).failure.check == "metadata"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint8"])
def test_what_is_negated_lazily_has_the_same_elements_and_is_restored(dtype):
    specials = (Special(0, "nan"), Special(1, "-0")) if "float" in dtype else ()
    spec = replace(X, dtype=dtype, specials=specials, layout=Layout(order=(1, 0), steps=(2, 1)))
    (before,) = cases.materialize(Case(op="abs", args=(spec,)))[2]
    tensor, version = before.clone(), before._version
    operand = cases.materialize(Case(op="abs", args=(spec,)))[2][0]
    given = call_contexts.dressed(call_contexts.NEGATED, [operand], ())
    assert given[0].is_neg()
    assert given[0].data_ptr() == operand.data_ptr()
    assert torch.equal(given[0].resolve_neg().nan_to_num(), before.nan_to_num())
    assert not torch.equal(operand.nan_to_num(), tensor.nan_to_num())
    assert call_contexts.undressed(call_contexts.NEGATED, [operand], given, given[0]) is operand
    assert bytes(operand.untyped_storage()) == bytes(before.untyped_storage())
    assert operand._version == version


def test_what_cannot_be_negated_stays():
    expanded = torch.ones(1).expand(3)
    for tensor in (
        expanded,
        torch.ones(3) > 0,
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.ones(9).as_strided((3, 3), (1, 2)),
    ):
        assert call_contexts.negated(tensor) is tensor
    out = Case(op="neg", args=(X,), kwargs={"out": Same(0)}, form=call_contexts.NEGATED)
    assert call_contexts.NEGATED not in forms.possible(replace(out, form=""))
    assert not seen(out)[1]["out"].is_neg()


def test_a_lazily_negated_operand_may_be_refused_but_not_misread():
    def of(function):
        return Implementation("planted", SimpleNamespace(neg=function), {})

    def refuses(input, out=None):
        raise NotImplementedError("negated lazily")

    case = Case(op="neg", args=(X,), form=call_contexts.NEGATED)
    assert runner.judge(case, of(refuses), CPU).status == "not_provided"
    assert runner.judge(replace(case, form=""), of(refuses), CPU).status == "failed"
    misread = of(lambda input, out=None: torch.neg(torch._neg_view(input), out=out))
    assert runner.judge(case, misread, CPU).failure.check == "values"


def test_an_unknown_form_is_refused():
    with pytest.raises(CaseError, match="unknown form 'by heart'"):
        case_files.validate(replace(NORM, form="by heart"))


@pytest.mark.parametrize(("interpreted", "expected"), [("1", "passed"), ("0", "failed")])
def test_what_numpy_says_of_numbers_is_no_warning_of_an_interpreted_kernel(interpreted, expected, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)

    def warning(input, *, out=None):
        warnings.warn("overflow encountered in exp", RuntimeWarning, stacklevel=2)
        return torch.exp(input, out=out)

    implementation = Implementation("warning", SimpleNamespace(exp=warning), {})
    case = Case(op="exp", args=(X,), form=call_contexts.STRICT)
    assert runner.judge(case, implementation, CPU).status == expected


def test_what_torch_refuses_in_a_form_is_no_failure():
    case = Case(op="gelu", args=(X,), kwargs={"approximate": "tanh"})
    assert forms.BY_POSITION in forms.possible(case)
    prepared = runner.prepare(replace(case, form=forms.BY_POSITION), CPU)
    assert prepared.refusal is TypeError
    assert runner.judge(case, "torch", CPU, ["call_forms"]).status == "passed"


@pytest.mark.parametrize("form", forms.FORMS)
def test_a_script_makes_the_call_in_its_form(form, tmp_path, monkeypatch, capsys):
    case = replace(EXAMPLES[form], form=form)
    if form == forms.NUMPY:
        case = replace(case, kwargs={"beta": 0.1, "alpha": NonFinite("inf")})
    verdict = runner.judge(case, "torch", CPU)
    script = tmp_path / "script.py"
    implementation = Implementation("torch", registry(), {})
    script.write_text(repro.script(case, verdict, implementation, CPU))
    monkeypatch.setattr("sys.argv", [str(script)])
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(script), run_name="__main__")
    if form != call_contexts.OWN:
        # torch's own function has no variants.
        assert (exit.value.code, capsys.readouterr().out.count("is right")) == (0, 1)
    called = runpy.run_path(str(script))["call"]
    found = []

    def function(*args, **kwargs):
        found.append((args, kwargs, torch.get_default_dtype(), torch.is_grad_enabled()))

    called(function, list(cases.materialize(case)[2]))
    ours = seen(case)
    assert [type(x).__name__ for x in found[0][0]] == [type(x).__name__ for x in ours[0]]
    named = ([(name, type(x).__name__) for name, x in made.items()] for made in (found[0][1], ours[1]))
    assert next(named) == next(named)
    assert found[0][2:] == ours[2:]


def test_a_dtype_by_position():
    args, kwargs, *_ = seen(Case(op="softmax", args=(X, 1), kwargs={"dtype": DType("float64")}, form=forms.BY_POSITION))
    assert (args[1:], kwargs) == ((1, torch.float64), {})
