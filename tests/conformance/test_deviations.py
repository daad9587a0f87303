"""The tables of where torch's CPU answers otherwise than CUDA: each entry excuses its own case and no other."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from op_tools import by_torch, call, judged, normal

from conformance import cpu_cuda_differences, cuda_refusals, deviations, runner
from conformance.cases import Case, NonFinite, View
from conformance.implementations import load
from conformance.spec import registry
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import materialize

ROOT = Case(op="pow", args=(TensorSpec((5,), "int8"), -0.5))


@pytest.mark.parametrize("deviation", deviations.DEVIATIONS, ids=lambda d: d.name)
def test_a_deviation_excuses_its_own_case_on_its_own_device(deviation, monkeypatch):
    table = (dataclasses.replace(d, present=lambda: True) for d in deviations.DEVIATIONS)
    monkeypatch.setattr(deviations, "DEVIATIONS", tuple(table))
    (check, *_), (device, *_) = deviation.checks, deviation.devices
    assert deviations.named_deviation(deviation.case, check, device) == deviation.name
    assert deviations.named_deviation(deviation.case, "metadata", device) is None
    for other in {"cpu", "cuda"} - set(deviation.devices):
        assert deviations.named_deviation(deviation.case, check, other) != deviation.name


@pytest.mark.parametrize(
    "name",
    [
        "half sums and products with scalars on the CPU",
        "half products with a tensor of one element on the CPU",
        "softmax across rows on the CPU",
        "reciprocal roots of bfloat16 on the CPU",
        "large elements in uneven rows of CPU layer_norm",
        "queries with strides of channels last in CPU attention",
        "beta of half types in CPU products of nothing",
    ],
)
def test_torch_really_deviates(name):
    # Those of products, and of infinite scores in attention, depend on the processor.
    case = next(d.case for d in deviations.DEVIATIONS if d.name == name)
    assert not judged(case).passed


def test_torch_really_adds_weights_up_in_another_order_under_a_mode():
    deviation = next(d for d in deviations.DEVIATIONS if d.name == "the mean of smoothed losses with weights")
    found = runner.judge(deviation.case, load("torch"), "cpu")
    assert deviation.name in [one.message for one in found.findings if one.status == "deviation"]


@pytest.mark.parametrize("refusal", cuda_refusals.REFUSALS, ids=lambda r: r.name)
def test_what_cuda_alone_refuses_the_cpu_takes_or_refuses_otherwise(refusal):
    assert registry()[refusal.ops[0]].cuda_refuses(call(refusal.case)) is refusal.error
    raised = None
    try:
        by_torch(refusal.case)
    except RuntimeError as error:
        raised = type(error)
    assert raised is not refusal.error
    assert deviations.named_deviation(refusal.case, "errors", "cpu") == refusal.name
    assert deviations.named_deviation(refusal.case, "errors", "cuda") is None


@pytest.mark.parametrize("stand_in", cpu_cuda_differences.STAND_INS, ids=lambda s: s.name)
def test_what_the_cpu_answers_otherwise_has_a_stand_in(stand_in):
    case, reference = stand_in.case, registry()[stand_in.case.op].reference
    assert cpu_cuda_differences.find(case.op, call(case)) is stand_in
    assert judged(case).passed
    given = call(case)
    if stand_in.check == "errors":
        with pytest.raises(RuntimeError):
            reference(*given.args, **given.kwargs)
    elif stand_in.check == "metadata":
        assert reference(*given.args, **given.kwargs).stride() != by_torch(case).stride()
    named = None if stand_in.check == "values" else stand_in.name
    assert deviations.named_deviation(case, stand_in.check, "cpu") == named
    assert deviations.named_deviation(case, stand_in.check, "cuda") is None
    assert deviations.named_deviation(case, "values", "cpu") is None or stand_in.check == "errors"


HALF_PRODUCTS = {
    "mm": ((33, 65), (65, 17)),
    "bmm": ((2, 33, 65), (2, 65, 17)),
    "addmm": ((17,), (33, 65), (65, 17)),
    "matmul": ((2, 1, 33, 65), (3, 65, 17)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("op", "shapes"), HALF_PRODUCTS.items(), ids=str)
def test_half_products_are_rounded_once_and_otherwise_torchs(op, shapes, dtype):
    """Their values do not depend on the CPU's instructions; strides, ``out`` and what is refused are torch's."""
    operands = tuple(TensorSpec(shape, dtype, seed=place) for place, shape in enumerate(shapes))
    reference, case = registry()[op].reference, Case(op=op, args=operands)
    given, found = call(case), by_torch(case)
    theirs = reference(*given.args)
    exact = reference(*(x.double() for x in given.args))
    assert (found.dtype, found.stride()) == (theirs.dtype, theirs.stride())
    step = torch.finfo(found.dtype).eps * exact.abs() / 2
    assert ((found - exact).abs() <= 1.001 * step + 1e-4).all()
    for out in (torch.empty(0, dtype=found.dtype), torch.full_like(theirs.mT, torch.nan).mT):
        version = out._version
        answered = cpu_cuda_differences.answer(op, reference, call(case))(*given.args, out=out)
        assert answered is out
        assert out._version > version
        assert torch.equal(out, found)
    with pytest.raises(RuntimeError):
        cpu_cuda_differences.answer(op, reference, call(case))(*given.args, out=torch.empty(0, dtype=torch.float64))


@pytest.mark.parametrize("shapes", [((65,), (65,)), ((65,), (65, 3)), ((3, 65), (65,)), ((2, 3, 65), (65,))], ids=str)
def test_half_products_of_vectors(shapes):
    operands = tuple(TensorSpec(shape, "bfloat16", seed=place) for place, shape in enumerate(shapes))
    assert cpu_cuda_differences.find("matmul", call(Case(op="matmul", args=operands))) is not None
    assert judged(Case(op="matmul", args=operands)).passed


def test_nothing_is_excused_that_is_not_in_the_table():
    plain = Case(op="mm", args=(TensorSpec((5, 64), "bfloat16"), TensorSpec((64, 5), "bfloat16")))
    assert deviations.named_deviation(plain, "values", "cpu") is None
    assert deviations.named_deviation(normal("add", "float16", 5), "values", "cpu") is None
    assert deviations.named_deviation(normal("div", "float16", 5), "values", "cpu") is None
    assert deviations.named_deviation(normal("softmax", "float32", 500), "values", "cpu") is None
    assert registry()["mm"].cuda_refuses(call(plain)) is None


def test_products_that_are_subnormal_count_as_subnormal_operands_do():
    named = "bfloat16 subnormals in CPU products"
    # All of them normal; the least of the second is 1.4e-38.
    first = TensorSpec((130, 64), "bfloat16", values="descending", seed=182)
    second = TensorSpec((64, 130), "bfloat16", values="every_exponent", seed=244, layout=Layout(expanded=(0,)))
    assert materialize(second, 1).abs().min() > torch.finfo(torch.bfloat16).smallest_normal
    assert deviations.named_deviation(Case(op="mm", args=(first, second)), "values", "cpu") == named
    assert deviations.named_deviation(Case(op="mm", args=(first, first)), "values", "cpu") is None


@pytest.mark.parametrize(
    ("case", "default", "name"),
    [
        (normal("rsqrt", "uint8", 5), torch.float16, "half rsqrt on the CPU"),
        (ROOT, torch.bfloat16, "reciprocal roots of bfloat16 on the CPU"),
    ],
)
def test_integers_become_the_default_dtype(case, default, name):
    assert deviations.named_deviation(case, "values", "cpu") is None
    torch.set_default_dtype(default)
    try:
        assert deviations.named_deviation(case, "values", "cpu") == name
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "eq"])
def test_infinite_numbers_are_asked_about_too(op):
    """As they are in cases that were read, beside a half type, for which deviations look at the numbers."""
    case = Case(op=op, args=(NonFinite("inf"), TensorSpec((1,), "float16")))
    assert deviations.named_deviation(case, "values", "cuda") is None


@pytest.mark.parametrize("bound", ["min", "max"])
def test_what_versions_differ_in_is_excused_where_the_installed_one_does_so(bound, monkeypatch):
    """torch 2.11 takes NaN for no bound."""
    case = Case(op="clamp", args=(TensorSpec((40,), "float32"),), kwargs={bound: NonFinite("nan")})
    given, named = call(case), "clamp by a NaN number on the CPU"
    ignored = not torch.clamp(*given.args, **given.kwargs).isnan().all()
    assert deviations.named_deviation(case, "values", "cpu") == (named if ignored else None)
    for clamped, name in ((lambda x, **limits: x, named), (lambda x, **limits: x + math.nan, None)):
        monkeypatch.setattr(torch.Tensor, "clamp", clamped)
        assert deviations.named_deviation(case, "values", "cpu") == name


@pytest.mark.parametrize("special", ["-0", "min"])
def test_what_kinds_of_cpus_differ_in_is_excused_where_this_one_does_so(special, monkeypatch):
    """Without AVX-512 gelu of -0 is +0."""
    case = Case(op="gelu", args=(TensorSpec((40,), "float32", values="positive", specials=(Special(0, special),)),))
    named = "the sign of zeros of CPU gelu"
    torchs = "gelu of large numbers on the CPU" if special == "min" else named
    assert judged(case).passed or deviations.named_deviation(case, "values", "cpu") in (named, torchs)
    (deviation,) = (d for d in deviations.DEVIATIONS if d.name == named)
    assert deviation.applies(case)
    for function, present in ((lambda x: x + 0.0, True), (lambda x: -torch.zeros_like(x), False)):
        monkeypatch.setattr(torch.nn.functional, "gelu", function)
        assert deviation.present() is present


@pytest.mark.parametrize("changed", [{"beta": 32.0}, {"beta": 0}, {}], ids=str)
def test_a_beta_that_a_half_type_holds_is_not_excused(changed):
    operands = (TensorSpec((9,), "float16"), TensorSpec((1, 0), "float16"), TensorSpec((0, 9), "float16"))
    assert deviations.named_deviation(Case(op="addmm", args=operands, kwargs=changed), "values", "cpu") is None


def test_gelu_of_positive_zeros_is_not_excused(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "gelu", torch.abs)
    for dtype, special in (("float32", "tiny"), ("float64", "-0")):
        case = Case(op="gelu", args=(TensorSpec((40,), dtype, values="positive", specials=(Special(0, special),)),))
        assert deviations.named_deviation(case, "values", "cpu") is None


@pytest.mark.parametrize(("value", "excused"), [("inf", True), ("-inf", False), ("nan", False)])
def test_masks_of_half_types_are_excused_for_infinity(value, excused):
    operands = tuple(TensorSpec((1, 1, length, 8), "bfloat16") for length in (3, 64, 64))
    mask = TensorSpec((3, 64), "float32", specials=(Special(5, value),))
    case = Case(op="scaled_dot_product_attention", args=operands, kwargs={"attn_mask": mask})
    assert bool(deviations.named_deviation(case, "values", "cpu")) is excused


def test_even_rows_and_those_without_large_elements_are_not_excused():
    for columns, specials in ((16384, (Special(16383, "max"),)), (16385, ())):
        case = Case(op="layer_norm", args=(TensorSpec((1, columns), "float16", specials=specials), (columns,)))
        assert deviations.named_deviation(case, "values", "cpu") is None


@pytest.mark.parametrize(("dtype", "exponent"), [("float16", -0.5), ("bfloat16", 0.5), ("bfloat16", -1.0)])
def test_powers_by_other_numbers_are_not_excused(dtype, exponent):
    case = Case(op="pow", args=(TensorSpec((7,), dtype, values="positive"), exponent))
    assert deviations.named_deviation(case, "values", "cpu") is None


@pytest.mark.parametrize("layout", [Layout(), Layout(order=(0, 1, 3, 2)), Layout(expanded=(1,))], ids=str)
def test_queries_of_other_strides_are_not_excused(layout):
    query = TensorSpec((2, 3, 5, 19), "float64", layout=layout)
    case = Case(op="scaled_dot_product_attention", args=(query, *(TensorSpec((2, 3, 8, 19), "float64"),) * 2))
    assert deviations.named_deviation(case, "values", "cpu") is None


@pytest.mark.parametrize("op", ["add", "mul", "addmm", "bmm"])
def test_arguments_that_are_parts_of_others_are_looked_at_as_tensors(op):
    spec = TensorSpec((4, 4), "float16")
    args = (spec, View(0, 1, 0, 1), *[TensorSpec((1, 4), "float16")] * (op == "addmm"))
    names = {None, *(one.name for one in deviations.DEVIATIONS)}
    for check in ("values", "gradients", "batch_invariant"):
        assert deviations.named_deviation(Case(op=op, args=args), check, "cpu") in names
