"""rotary_position_embedding: the composition of torch's operators and the oracle agree, and wrong rotations fail."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from op_tools import by_torch, call, drawn, failures, missing

from conformance import cases, runner
from conformance.cases import Case
from conformance.compare import compare
from conformance.ops import _elementwise as elementwise
from conformance.ops import _sizes
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import TensorSpec

OP = "rotary_position_embedding"
SPEC = registry()[OP]


def normal(dtype: str, interleaved: bool = True, table: str | None = None) -> Case:
    tables = (TensorSpec((40, 32), table or dtype, "uniform") for _ in range(2))
    return Case(op=OP, args=(TensorSpec((2, 33, 3, 64), dtype), *tables), kwargs={"interleaved": interleaved})


def judged(case: Case, wrong: torch.Tensor):
    return compare(wrong, SPEC.expected(call(case)))


def test_the_composition_passes():
    assert failures(drawn(SPEC.cases(dtype_names.FLOATING), 120)) == []


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_the_composition_passes_with_one_dtype(dtype):
    found = drawn(SPEC.cases((dtype,)), 30)
    assert {tensor.dtype for case in found for tensor in cases.operands(case)} == {dtype}
    assert failures(found) == []
    assert drawn(SPEC.refused((dtype,)), 5)


def test_what_is_refused_is_refused():
    kinds = set()
    for case in drawn(SPEC.refused(dtype_names.FLOATING), 150):
        with pytest.raises((RuntimeError, TypeError)) as raised:
            by_torch(case)
        kinds.add(raised.type)
    assert kinds == {RuntimeError, TypeError, NotImplementedError}


def test_torch_does_not_provide_it():
    assert runner.judge(normal("float32"), "torch").status == "not_provided"


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_wrong_rotations_fail(dtype, interleaved):
    case = normal(dtype, interleaved)
    input, sin, cos = call(case).args
    right = by_torch(case)
    assert judged(case, right).passed
    wrongs = {
        "zeros": torch.zeros_like(right),
        "not rotated": input,
        "the other pairs": SPEC.reference(input, sin, cos, not interleaved),
        "the other direction": SPEC.reference(input, -sin, cos, interleaved),
        "sine and cosine swapped": SPEC.reference(input, cos, sin, interleaved),
        "a position off": SPEC.reference(input, sin[1:], cos[1:], interleaved),
    }
    for name, wrong in wrongs.items():
        assert judged(case, wrong).failed > 0.9 * right.numel(), name


@pytest.mark.parametrize("dtype", dtype_names.HALF)
def test_arithmetic_in_a_half_type_fails(dtype):
    case = normal(dtype, False)
    input, sin, cos = call(case).args
    x0, x1 = input.chunk(2, -1)
    s, c = (table[:33, None] for table in (sin, cos))
    assert judged(case, torch.cat([x0 * c - x1 * s, x0 * s + x1 * c], -1)).failed > 0.1 * input.numel()


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_four_ulps_fail_where_terms_do_not_cancel(dtype):
    case = normal(dtype)
    expected = SPEC.expected(call(case))
    right = expected.value.to(dtype_names.to_torch(dtype))
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[right.element_size()]
    assert compare(right, expected).passed
    assert compare((right.view(bits) + 4).view(right.dtype), expected).failed > 0.7 * right.numel()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_against_fractions(dtype, interleaved):
    generator = torch.Generator().manual_seed(7)
    x, sin, cos = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((2, 3, 2, 4), (5, 2), (5, 2))
    )
    found = SPEC.expected(Call((x, sin, cos, interleaved), {}, None))
    for b, t, h, pair in torch.cartesian_prod(*map(torch.arange, (2, 3, 2, 2))).tolist():
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 2)
        x0, x1 = (Fraction(x[b, t, h, place].item()) for place in (first, second))
        s, c = (Fraction(table[t, pair].item()) for table in (sin, cos))
        for place, want in ((first, x0 * c - x1 * s), (second, x0 * s + x1 * c)):
            low = 0.0 if found.low is None else found.low[b, t, h, place].item()
            got = Fraction(found.value[b, t, h, place].item()) + Fraction(low)
            size = abs(x0) + abs(x1)
            assert abs(got - want) <= size * Fraction(2) ** (-50 if found.low is None else -98)


def test_terms_that_leave_the_range_are_not_judged():
    x = torch.tensor([3e38, 1.0, 1.0, math.inf]).view(1, 1, 1, 4)
    table = torch.tensor([[2.0, 1.0]])
    found = SPEC.expected(Call((x, table, table), {}, None))
    assert found.judged.flatten().tolist() == [False, False, True, True]
    assert found.value.flatten()[2:].tolist() == [-math.inf, math.inf]


def features(case: Case) -> set[str]:
    input, sin, _ = case.args
    found = {f"{name} {case.kwargs.get(name)}" for name in ("interleaved", "inplace")}
    found |= {"longer table"} if sin.shape[0] > input.shape[1] else set()
    found |= {"tables of another dtype"} if sin.dtype != input.dtype else set()
    found |= {f"layout {layouts.layout_class(input.layout, input.shape)}"}
    found |= {"strided in place"} if case.kwargs.get("inplace") and input.layout.order else set()
    found |= {"empty"} if 0 in input.shape else {"large"} if math.prod(input.shape) > 1024 else set()
    return found


def test_strategies_reach():
    wanted = {"interleaved None", "interleaved True", "interleaved False", "inplace None", "inplace True"}
    wanted |= {"longer table", "tables of another dtype", "strided in place", "empty", "large"}
    wanted |= {f"layout {name}" for name in ("contiguous", "permuted", "sliced", "expanded", "channels_last")}
    assert missing(SPEC.cases(dtype_names.FLOATING), wanted, features) == set()


def test_cases_are_modest():
    for case in drawn(SPEC.cases(dtype_names.FLOATING), 100):
        assert sum(math.prod(tensor.shape) for tensor in cases.operands(case)) <= 4 * _sizes.ELEMENTS


def test_benchmarks_count_bytes_and_flops():
    for benchmark in SPEC.benchmarks:
        operands = [elementwise.meta(operand) for operand in cases.operands(benchmark.case)]
        moved = sum(x.numel() * x.element_size() for x in operands)
        assert benchmark.bytes == moved + operands[0].numel() * operands[0].element_size()
        assert benchmark.flops == 3 * operands[0].numel()
