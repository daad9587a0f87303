"""The op specs: torch itself passes, wrong results do not, and the strategies reach what they are meant to."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from conformance import bounds, cases, deviations, stand_ins
from conformance.cases import Case, Same
from conformance.compare import Comparison, compare
from conformance.ops import _elementwise as elementwise
from conformance.ops import _sizes
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import materialize

OPS = ("add", "div", "eq", "mm", "relu", "softmax")
ELEMENTWISE = ("add", "div", "relu")
PAIRS = [(op, dtype) for op in OPS for dtype in registry()[op].dtypes]
FLOATING = [(op, dtype) for op, dtype in PAIRS if dtype in dtype_names.FLOATING and op != "eq"]


def drawn(strategy, examples: int, start: int = 0) -> list[Case]:
    """As many examples of a strategy, the same ones on every run."""
    found: list[Case] = []

    @seed(start)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def missing(strategy, wanted: set, found: Callable[[Case], set], examples: int = 2000) -> set:
    """What of ``wanted`` so many examples do not show, drawn in several goes, since those of one are much alike."""
    left = set(wanted)
    for start in range(examples // 200):
        if not left:
            break
        left -= set().union(*map(found, drawn(strategy, 200, start)))
    return left


def call(case: Case) -> Call:
    args, kwargs, _ = cases.materialize(case)
    return Call(args, kwargs, None)


def by_torch(case: Case) -> torch.Tensor:
    """torch's own answer; torch warns where it resizes an ``out``."""
    args, kwargs, _ = cases.materialize(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stand_ins.answer(case.op, registry()[case.op].reference, Call(args, kwargs, None))(*args, **kwargs)


def judged(case: Case) -> Comparison:
    return compare(by_torch(case), registry()[case.op].expected(call(case)))


def failures(found: list[Case]) -> list[tuple[Case, Comparison]]:
    """Where torch fails and has no excuse."""
    return [
        (case, result)
        for case in found
        if not (result := judged(case)).passed and not deviations.named_deviation(case, "values", "cpu")
    ]


# --- no false alarm ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_torch_itself_passes(op):
    spec = registry()[op]
    assert failures(drawn(spec.cases(spec.dtypes), 250)) == []


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_torch_itself_passes_with_one_dtype(op, dtype):
    found = drawn(registry()[op].cases((dtype,)), 40)
    assert {tensor.dtype for case in found for tensor in cases.operands(case)} == {dtype}
    assert failures(found) == []


@pytest.mark.parametrize("op", OPS)
def test_torch_refuses_what_is_to_be_refused(op):
    spec = registry()[op]
    for case in drawn(spec.refused(spec.dtypes), 120):
        if spec.cuda_refuses(call(case)) is None:
            with pytest.raises(Exception):  # noqa: B017, PT011  whichever torch raises
                by_torch(case)


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_refused_calls_exist_for_every_dtype(op, dtype):
    assert drawn(registry()[op].refused((dtype,)), 5)


@pytest.mark.parametrize("op", OPS)
def test_cases_are_modest(op):
    spec = registry()[op]
    for case in drawn(spec.cases(spec.dtypes), 150):
        assert sum(math.prod(tensor.shape) for tensor in cases.operands(case)) <= 3 * _sizes.MANY_ELEMENTS


# --- power -------------------------------------------------------------------------------------------------------


def normal(op: str, dtype: str, length: int) -> Case:
    """A call on normal(0, 1) data, with rows or sums of ``length``."""
    if op == "mm":
        return Case(op=op, args=(TensorSpec((24, length), dtype), TensorSpec((length, 24), dtype)))
    operand = TensorSpec((length,), dtype)
    return Case(op=op, args={"relu": (operand,), "softmax": (operand, 0)}.get(op, (operand, operand)))


def stepped(output: torch.Tensor, steps: int) -> torch.Tensor:
    """Every element moved away from zero by as many numbers of its dtype."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[output.element_size()]
    return (output.view(bits) + steps).view(output.dtype)


@pytest.mark.parametrize("length", [1, 257, 4096])
@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op, dtype in PAIRS if dtype != "bool" and op != "eq"])
def test_an_all_zero_output_fails_almost_everywhere(op, dtype, length):
    if op == "mm" and dtype == "float64":
        length = min(length, 257)
    expected = registry()[op].expected(call(normal(op, dtype, length)))
    output = by_torch(normal(op, dtype, length))
    nonzero = int((expected.value != 0).sum())
    assert compare(torch.zeros_like(output), expected).failed >= 0.99 * nonzero


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_all_zero_product_fails_almost_everywhere_with_tf32_too(dtype):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        expected = registry()["mm"].expected(call(normal("mm", dtype, 4096)))
    finally:
        torch.set_float32_matmul_precision(before)
    assert compare(torch.zeros(24, 24).to(dtype_names.to_torch(dtype)), expected).failed >= 0.99 * 24 * 24


@pytest.mark.parametrize(("op", "dtype"), [pair for pair in FLOATING if pair[0] in ELEMENTWISE])
def test_four_ulps_fail_anywhere(op, dtype):
    case = normal(op, dtype, 4096)
    expected = registry()[op].expected(call(case))
    right = by_torch(case)
    assert compare(right, expected).passed
    for steps in (4, -4):
        wrong = torch.where(right != 0, stepped(right, steps), right)
        assert compare(wrong, expected).failed == int((right != 0).sum())


@pytest.mark.parametrize("alpha", [2, 0.3125, -7.5])
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_four_ulps_fail_with_an_alpha_but_where_terms_cancel(dtype, alpha):
    operand = TensorSpec((4096,), dtype)
    case = Case(op="add", args=(operand, operand), kwargs={"alpha": alpha})
    expected = registry()["add"].expected(call(case))
    right = expected.value.to(dtype_names.to_torch(dtype))
    assert compare(right, expected).passed
    assert compare(stepped(right, 4), expected).failed >= 0.9 * 4096


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_whole_quotient_that_is_off_by_one_fails(dtype, mode):
    operand = TensorSpec((4096,), dtype)
    case = Case(op="div", args=(operand, operand), kwargs={"rounding_mode": mode})
    expected = registry()["div"].expected(call(case))
    right = by_torch(case)
    small = right.abs() < 2 ** (bounds.FORMATS[right.dtype].precision - 3)
    wrong = torch.where(small, right + 1, right)
    allowed = int((expected.bound.broadcast_to(right.shape)[small] > 0).sum())
    assert allowed <= 0.01 * 4096
    assert compare(wrong, expected).failed >= int(small.sum()) - allowed


@pytest.mark.parametrize("length", [16, 256, 4096])
@pytest.mark.parametrize("dtype", dtype_names.HALF)
def test_half_products_fail_when_one_element_is_off_by_a_thousandth(dtype, length):
    case = normal("mm", dtype, length)
    expected = registry()["mm"].expected(call(case))
    right = expected.value.to(dtype_names.to_torch(dtype))
    assert compare(right, expected).passed
    place = divmod(int(expected.value.abs().argmax()), 24)
    for factor in (1 + 1e-3, 1 - 1e-3):
        wrong = right.clone()
        # bfloat16 has no number a thousandth away: at least its next but one.
        step = np.sign(factor - 1) * 2 * bounds.ulp(expected.value[place].numpy(), right.dtype)
        change = (factor - 1) * expected.value[place]
        wrong[place] = float(expected.value[place]) + float(max(change, step, key=abs))
        found = compare(wrong, expected)
        assert (found.failed, found.index) == (1, place)


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_product_accumulated_in_half_or_missing_a_term_fails(dtype):
    case = normal("mm", dtype, 257)
    expected = registry()["mm"].expected(call(case))
    first, second = call(case).args
    missing = (first[:, :-1].double() @ second[:-1].double()).to(first.dtype)
    assert compare(missing, expected).failed > 0.8 * 24 * 24
    if dtype in dtype_names.HALF:
        total = torch.zeros(24, 24, dtype=first.dtype)
        for k in range(257):
            total += first[:, k : k + 1] * second[k : k + 1]
        assert not compare(total, expected).passed


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_softmax_that_misses_a_term_fails(dtype):
    case = Case(op="softmax", args=(TensorSpec((8, 129), dtype), -1))
    expected = registry()["softmax"].expected(call(case))
    terms = (x := call(case).args[0].double()).sub(x.amax(-1, True)).exp()
    wrong = terms / terms[:, :-1].sum(-1, keepdim=True)
    assert not compare(wrong.to(x.dtype).to(dtype_names.to_torch(dtype)), expected).passed


# --- what the strategies reach -----------------------------------------------------------------------------------


def features(case: Case) -> set[str]:
    """What a case has that another may lack."""
    tensors = [argument for argument in case.args if isinstance(argument, TensorSpec)]
    scalars = [argument for argument in case.args[:2] if isinstance(argument, bool | int | float)]
    found = {f"layout {layouts.layout_class(tensor.layout, tensor.shape)}" for tensor in tensors}
    found |= {f"special {special.value}" for tensor in tensors for special in tensor.specials}
    found |= {f"dtype {tensor.dtype}" for tensor in tensors}
    found |= {f"{type(scalar).__name__} scalar" for scalar in scalars if case.op != "softmax"}
    found |= {f"{name} {value}" for name, value in case.kwargs.items() if isinstance(value, bool | str)}
    if len({tensor.dtype for tensor in tensors}) > 1:
        found.add("mixed dtypes")
    if case.args[1:] and Same(0) in case.args:
        found.add("same operand")
    if any(not tensor.shape for tensor in tensors):
        found.add("0-d")
    if any(0 in tensor.shape for tensor in tensors):
        found.add("empty")
    if len({tensor.shape for tensor in tensors}) > 1:
        found.add("broadcast")
    if any(math.prod(tensor.shape) > 1024 for tensor in tensors):
        found.add("several blocks")
    if "alpha" in case.kwargs:
        found.add(f"alpha {type(case.kwargs['alpha']).__name__}")
    if not isinstance(case.args[0], TensorSpec):
        found.add("scalar first")
    return found | _of_out(case)


def _of_out(case: Case) -> set[str]:
    match case.kwargs.get("out"):
        case None:
            return {"no out"}
        case Same():
            return {"out is an input"}
        case TensorSpec() as out:
            result = by_torch(
                Case(op=case.op, args=case.args, kwargs={k: v for k, v in case.kwargs.items() if k != "out"})
            )
            found = {"out"}
            if out.shape == (0,) != tuple(result.shape):
                found.add("empty out")
            elif out.shape != tuple(result.shape):
                found.add("out of another size")
            elif layouts.layout_class(out.layout, out.shape) not in ("contiguous", "offset"):
                found.add("strided out")
            if dtype_names.to_torch(out.dtype) != result.dtype:
                found.add("out of another dtype")
            return found
    raise AssertionError(case)


OUTS = {"no out", "out", "empty out", "out of another size", "strided out"}
BINARY = {
    *(f"layout {name}" for name in ("contiguous", "offset", "permuted", "sliced", "padded", "expanded", "mixed")),
    *(f"special {name}" for name in ("nan", "inf", "-inf", "-0", "max", "min", "tiny")),
    *(f"dtype {name}" for name in dtype_names.ALL),
    *OUTS,
    *("mixed dtypes", "same operand", "0-d", "empty", "broadcast", "several blocks"),
    *("int scalar", "float scalar", "bool scalar", "out is an input", "out of another dtype"),
}
REACHED = {
    "add": BINARY | {"scalar first", "alpha int", "alpha float", "alpha bool"},
    "div": BINARY | {"scalar first", "rounding_mode floor", "rounding_mode trunc"},
    "eq": BINARY,
    "relu": {
        "inplace True",
        "inplace False",
        "0-d",
        "empty",
        "special nan",
        "special -0",
        "layout expanded",
        "several blocks",
    },
    "softmax": {"0-d", "empty", "special nan", "special inf", "special -inf", "several blocks", "layout permuted"},
    "mm": OUTS
    | {"empty", "same operand", "layout permuted", "layout expanded", "layout padded", "special nan", "several blocks"},
}


@pytest.mark.parametrize("op", OPS)
def test_strategies_reach_every_feature(op):
    spec = registry()[op]
    assert missing(spec.cases(spec.dtypes), REACHED[op], features) == set()


def of_softmax(case: Case) -> set:
    input, dim = case.args
    found = {dim, input.dtype, *(f"as {dtype.name}" for dtype in case.kwargs.values())}
    if input.shape and input.shape[dim] > 2048:
        found.add("long row")
    if any(special.value == "-inf" and special.run == input.shape[-1] > 1 for special in input.specials if input.shape):
        found.add("whole row of -inf")
    return found


def test_softmax_reaches_every_dim_dtype_and_long_rows():
    wanted = {*range(-4, 4), *(f"as {name}" for name in dtype_names.FLOATING), "long row", "whole row of -inf"}
    assert missing(registry()["softmax"].cases(dtype_names.FLOATING), wanted, of_softmax) == set()


def test_softmax_reaches_integers_where_they_are_named():
    assert missing(registry()["softmax"].cases(dtype_names.ALL), {"int32", "uint8", "bool"}, of_softmax) == set()


def of_mm(case: Case) -> set:
    first = case.args[0]
    m, k, n = *first.shape, (case.args[1] if isinstance(case.args[1], TensorSpec) else first).shape[1]
    found = {f"{name} {kind}" for name, size in zip("MKN", (m, k, n), strict=True) for kind in _kinds_of_size(size)}
    return found | ({"blocks in every dim"} if min(m, k, n) > 128 else set())


def _kinds_of_size(size: int) -> set[str]:
    return {kind for kind, true in (("empty", size == 0), ("wide", size > 256), ("long", size > 1024)) if true}


def test_mm_reaches_empty_and_large_sizes_in_every_dim():
    wanted = {f"{name} {kind}" for name in "MKN" for kind in ("empty", "wide")} | {"K long", "blocks in every dim"}
    assert missing(registry()["mm"].cases(dtype_names.FLOATING), wanted, of_mm) == set()


def test_integer_divisors_are_never_zero_and_never_overflow():
    spec = registry()["div"]
    names = (*dtype_names.INTEGRAL, "bool")
    whole = [case for case in drawn(spec.cases(names), 300) if case.kwargs.get("rounding_mode")]
    assert len(whole) > 50
    for case in whole:
        first, second = call(case).args
        common = torch.result_type(first, second)
        if not common.is_floating_point:
            assert (torch.as_tensor(second).to(common) != 0).all()


def test_refused_overlaps_share_storage():
    case = Case(
        op="add",
        args=(TensorSpec((4,), "float32", layout=Layout(offset=1)), 1),
        kwargs={"out": Same(0, shift=-1)},
    )
    found = call(case)
    out = found.kwargs["out"]
    assert out.data_ptr() + 4 == found.args[0].data_ptr()
    cases.validate(case)
    with pytest.raises(RuntimeError, match="single memory location"):
        by_torch(case)
    beyond = Case(op="add", args=(TensorSpec((4,), "float32"), 1), kwargs={"out": Same(0, shift=-1)})
    with pytest.raises(cases.CaseError, match="out of its storage"):
        cases.validate(beyond)


# --- tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deviation", deviations.DEVIATIONS, ids=lambda d: d.name)
def test_a_deviation_excuses_its_own_case_on_its_own_device(deviation):
    assert deviations.named_deviation(deviation.case, "values", deviation.devices[0]) == deviation.name
    assert deviations.named_deviation(deviation.case, "metadata", deviation.devices[0]) is None
    for other in {"cpu", "cuda"} - set(deviation.devices):
        assert deviations.named_deviation(deviation.case, "values", other) != deviation.name


@pytest.mark.parametrize(
    "name",
    [
        "half sums and products with scalars on the CPU",
        "half products with a 0-d tensor on the CPU",
        "softmax across rows on the CPU",
    ],
)
def test_torch_really_deviates(name):
    # Those of products depend on the processor.
    case = next(d.case for d in deviations.DEVIATIONS if d.name == name)
    assert not judged(case).passed


@pytest.mark.parametrize("refusal", deviations.REFUSALS, ids=lambda r: r.name)
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


@pytest.mark.parametrize("stand_in", stand_ins.STAND_INS, ids=lambda s: s.name)
def test_what_the_cpu_answers_otherwise_has_a_stand_in(stand_in):
    case, reference = stand_in.case, registry()[stand_in.case.op].reference
    assert stand_ins.find(case.op, call(case)) is stand_in
    assert judged(case).passed
    given = call(case)
    if stand_in.check == "errors":
        with pytest.raises(RuntimeError):
            reference(*given.args, **given.kwargs)
    else:
        assert reference(*given.args, **given.kwargs).stride() != by_torch(case).stride()
    assert deviations.named_deviation(case, stand_in.check, "cpu") == stand_in.name
    assert deviations.named_deviation(case, stand_in.check, "cuda") is None
    assert deviations.named_deviation(case, "values", "cpu") is None or stand_in.check == "errors"


def test_nothing_is_excused_that_is_not_in_the_table():
    plain = Case(op="mm", args=(TensorSpec((5, 6), "bfloat16"), TensorSpec((6, 5), "bfloat16")))
    assert deviations.named_deviation(plain, "values", "cpu") is None
    assert deviations.named_deviation(normal("add", "float16", 5), "values", "cpu") is None
    assert deviations.named_deviation(normal("div", "float16", 5), "values", "cpu") is None
    assert deviations.named_deviation(normal("softmax", "float32", 500), "values", "cpu") is None
    assert registry()["mm"].cuda_refuses(call(plain)) is None


@pytest.mark.parametrize("op", OPS)
def test_benchmarks_count_bytes_and_flops(op):
    for benchmark in registry()[op].benchmarks:
        operands = cases.operands(benchmark.case)
        moved = sum(math.prod(x.shape) * dtype_names.to_torch(x.dtype).itemsize for x in operands)
        assert benchmark.bytes > moved
        assert benchmark.flops > 0
        assert elementwise.meta(operands[0]).is_meta
    assert registry()[op].benchmarks


def test_specials_reach_materialized_tensors():
    spec = TensorSpec((40,), "float32", specials=(Special(3, "-inf", 20),))
    assert materialize(spec)[3:23].isneginf().all()
