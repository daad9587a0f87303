"""What published libraries get wrong: the oracles say what is right, and the corpus holds a case of each.

The numbers of the traps are those of the notes in ``conformance/corpus``.
"""

from __future__ import annotations

import math
import re
import sys
from fractions import Fraction

import mpmath
import pytest
import torch

from conformance import case_files, cases, corpus, cpu_cuda_differences, deviations
from conformance.compare import compare
from conformance.spec import Call, registry

INF, NAN = math.inf, math.nan
OPS = {
    *("add", "div", "eq", "mm", "relu", "softmax", "bmm", "addmm", "matmul", "layer_norm", "rms_norm", "dropout"),
    *("sub", "mul", "pow", "clamp", "abs", "neg", "exp", "rsqrt", "sin", "cos", "sigmoid", "tanh", "silu", "gelu"),
    *("ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_not", "isnan", "isinf"),
    *("rotary_position_embedding", "scaled_dot_product_attention"),
}
TRAPS = set(range(1, 34))
SHIPPED = [case_files.read(path) for path in corpus.files([corpus.SHIPPED])]
# Their tensors are too large to be made here.
LARGE = [case_files.read(path, max_elements=sys.maxsize) for path in corpus.files([corpus.LARGE])]


def expected(op: str, *args: object, **kwargs: object) -> list[object]:
    """The oracle's values."""
    return registry()[op].expected(Call(args, kwargs, None)).value.tolist()


def floats(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def same(found: list[float], *wanted: float) -> bool:
    """Equal, NaN to NaN, and zeros of the same sign."""
    return len(found) == len(wanted) and all(
        (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
        for a, b in zip(found, wanted, strict=True)
    )


# --- the corpus --------------------------------------------------------------------------------------------------


def test_the_corpus_has_a_case_of_every_trap_of_these_ops():
    notes = [case.note for case in SHIPPED + LARGE]
    named = {int(n) for note in notes for part in re.findall(r"traps? ([\d, ]+)", note) for n in part.split(",")}
    assert TRAPS - named == set()
    assert all((case.note and case.digests) or not cases.operands(case) for case in SHIPPED + LARGE)
    assert {case.op for case in SHIPPED} >= OPS


@pytest.mark.parametrize("case", [case for case in SHIPPED if case.op in OPS], ids=cases.case_id)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_torch_passes_or_refuses_the_corpus(case):
    spec = registry()[case.op]
    args, kwargs, _ = cases.materialize(case)
    call = Call(*cases.materialize(case)[:2], None)
    if "raise" in case.note:
        if spec.cuda_refuses(call) is None:
            with pytest.raises((RuntimeError, TypeError, IndexError, ValueError)):
                cpu_cuda_differences.answer(case.op, spec.reference, call)(*args, **kwargs)
        return
    answer = cpu_cuda_differences.answer(case.op, spec.reference, call)
    result = compare(answer(*args, **kwargs), spec.expected(call))
    assert result.passed or deviations.named_deviation(case, "values", "cpu"), result


# --- relu --------------------------------------------------------------------------------------------------------


def test_relu_keeps_nan_and_does_not_judge_the_sign_of_zero():
    assert same(expected("relu", floats(NAN, INF, -INF, 2.5, -2.5)), NAN, INF, 0.0, 2.5, 0.0)
    spec = registry()["relu"].expected(Call((floats(-0.0, -1.0),), {}, None))
    assert compare(floats(0.0, -0.0), spec).passed
    assert compare(floats(-0.0, 0.0), spec).passed
    assert not compare(floats(0.0, -1.0), spec).passed
    assert expected("relu", torch.tensor([-128, 127, 0], dtype=torch.int8)) == [0, 127, 0]


# --- add ---------------------------------------------------------------------------------------------------------


def test_add():
    assert expected("add", torch.tensor([True, True, False]), torch.tensor([True, False, False])) == [True, True, False]
    assert same(expected("add", floats(1.0), floats(INF), alpha=0), NAN)
    for dtype in (torch.float16, torch.float32, torch.float64):
        zeros = floats(-0.0, -0.0, 1.0, dtype=dtype), floats(-0.0, 0.0, -1.0, dtype=dtype)
        assert same(expected("add", *zeros), -0.0, 0.0, 0.0)
    assert expected("add", torch.tensor([127], dtype=torch.int8), torch.tensor([1], dtype=torch.int8)) == [-128]
    assert expected("add", torch.tensor([1], dtype=torch.uint8), -2) == [255]
    assert expected("add", torch.tensor([255], dtype=torch.uint8), torch.tensor([-1], dtype=torch.int8)) == [254]


def test_add_promotes_before_it_adds():
    # float32 to the float16 of the tensor with dims; int32 to float32, where 2^24 + 1 is 2^24.
    assert expected("add", floats(0.0, dtype=torch.float16), torch.tensor(1.0004)) == [1.0]
    assert expected("add", torch.tensor([2**24 + 1]), torch.tensor([0.0])) == [2.0**24]
    # A Python scalar stays at float32.
    scalar = torch.tensor(1.0004).item()
    assert expected("add", floats(0.0, dtype=torch.float16), scalar) == [scalar]


def test_add_is_not_judged_where_the_product_overflows():
    call = Call((floats(-3e38, -3e38), floats(3e38, 1.0)), {"alpha": 2}, None)
    assert registry()["add"].expected(call).judged.tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_add_against_fractions(dtype):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(50, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    found = registry()["add"].expected(Call((a, b), {"alpha": 0.375}, None))
    low = torch.zeros(50) if found.low is None else found.low
    for x, y, value, rest in zip(a.tolist(), b.tolist(), found.value.tolist(), low.tolist(), strict=True):
        want = Fraction(x) + Fraction(3, 8) * Fraction(y)
        assert abs(Fraction(value) + Fraction(rest) - want) <= abs(want) * Fraction(2) ** (
            -100 if found.low is not None else -52
        )


def test_a_result_overflows_in_its_own_dtype_and_not_in_that_of_out():
    halves = floats(60000.0, 60000.0, 1.0, dtype=torch.float16)
    call = Call((halves, halves), {"out": torch.zeros(3)}, None)
    assert registry()["add"].expected(call).value.tolist() == [INF, INF, 2.0]
    assert compare(torch.add(halves, halves, out=torch.zeros(3)), registry()["add"].expected(call)).passed


# --- div ---------------------------------------------------------------------------------------------------------


def test_floor_is_the_limit_and_not_the_floor_of_a_rounded_quotient():
    assert same(expected("div", floats(-1.0, 1.0, 1.0), floats(INF, INF, -INF), rounding_mode="floor"), -1.0, 0.0, -1.0)
    assert same(expected("div", floats(1.0, -1.0, 0.0), floats(0.0, 0.0, 0.0), rounding_mode="floor"), INF, -INF, NAN)
    assert same(expected("div", floats(INF, -INF), floats(2.0, 2.0), rounding_mode="floor"), NAN, NAN)
    # 0.1 is a bit more than a tenth, so that 10 of it are more than 1.
    assert expected("div", floats(1.0), floats(0.1), rounding_mode="floor") == [9.0]
    assert expected(
        "div", floats(1.0, dtype=torch.float64), floats(0.1, dtype=torch.float64), rounding_mode="floor"
    ) == [9.0]
    assert same(expected("div", floats(0.0, -0.0, 0.5), floats(-3.0, 3.0, 3.0), rounding_mode="floor"), -0.0, -0.0, 0.0)


def test_trunc_keeps_large_numbers_infinities_and_the_sign_of_zero():
    large = floats(1e30).item()
    found = expected("div", floats(large, INF, -INF, -0.0, -0.5, 0.5), floats(*[1.0] * 6), rounding_mode="trunc")
    assert same(found, large, INF, -INF, -0.0, -0.0, 0.0)


def test_integer_quotients_are_exact():
    large = 2**62 + 1
    assert expected("div", torch.tensor([large, -large]), 3, rounding_mode="floor") == [large // 3, -large // 3]
    assert expected("div", torch.tensor([-7, 7]), torch.tensor([2, -2]), rounding_mode="trunc") == [-3, -3]
    assert expected("div", torch.tensor([1]), torch.tensor([3])) == [1 / 3]


def test_integer_division_by_zero_is_not_judged():
    call = Call((torch.tensor([5, 5]), torch.tensor([0, 2])), {"rounding_mode": "floor"}, None)
    assert registry()["div"].expected(call).judged.tolist() == [False, True]


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_div_against_fractions(dtype, mode):
    generator = torch.Generator().manual_seed(2)
    a = (torch.randn(200, generator=generator, dtype=torch.float64) * 40).to(dtype)
    b = torch.randn(200, generator=generator, dtype=torch.float64).to(dtype)
    a[::5] = b[::5] * 3  # whole quotients, and just beside whole ones
    found = registry()["div"].expected(Call((a, b), {"rounding_mode": mode}, None))
    low = torch.zeros(200) if found.low is None else found.low
    for x, y, value, rest in zip(a.tolist(), b.tolist(), found.value.tolist(), low.tolist(), strict=True):
        want = Fraction(x) / Fraction(y)
        got = Fraction(value) + Fraction(rest)
        if mode is None:
            assert abs(got - want) <= abs(want) * Fraction(2) ** (-100 if found.low is not None else -53)
        else:
            assert got == (math.floor(want) if mode == "floor" else math.trunc(want))


# --- eq ----------------------------------------------------------------------------------------------------------


def test_eq_wraps_a_scalar_first():
    assert expected("eq", torch.tensor([255, 1], dtype=torch.uint8), -1) == [True, False]
    assert expected("eq", torch.tensor([0, 1], dtype=torch.int8), 256) == [True, False]
    assert expected("eq", torch.tensor([1]), 1.5) == [False]
    assert expected("eq", floats(NAN, 0.0, INF), floats(NAN, -0.0, INF)) == [False, True, True]
    assert expected("eq", torch.tensor([2**24 + 1]), floats(2.0**24)) == [True]


# --- the other elementwise operators -----------------------------------------------------------------------------


def int8(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_functions_at_their_special_points(dtype):
    ends = floats(NAN, INF, -INF, 0.0, -0.0, dtype=dtype)
    assert same(expected("tanh", ends), NAN, 1.0, -1.0, 0.0, -0.0)
    assert expected("tanh", floats(100.0, -100.0, dtype=dtype)) == [1.0, -1.0]
    assert same(expected("sigmoid", ends), NAN, 1.0, 0.0, 0.5, 0.5)
    assert same(expected("silu", ends), NAN, INF, NAN, 0.0, -0.0)
    for approximate in ("none", "tanh"):
        assert same(expected("gelu", ends, approximate=approximate), NAN, INF, NAN, 0.0, -0.0)
    assert same(expected("rsqrt", ends), NAN, 0.0, NAN, INF, -INF)
    assert same(expected("exp", ends), NAN, INF, 0.0, 1.0, 1.0)
    assert same(expected("sin", ends), NAN, NAN, NAN, 0.0, -0.0)
    assert same(expected("cos", ends), NAN, NAN, NAN, 1.0, 1.0)
    assert same(expected("neg", ends), NAN, -INF, INF, -0.0, 0.0)
    assert same(expected("abs", ends), NAN, INF, INF, 0.0, 0.0)
    assert expected("isnan", ends) == [True, False, False, False, False]
    assert expected("isinf", ends) == [False, True, True, False, False]


def test_the_zero_that_silu_underflows_to_has_no_sign_to_judge():
    spec = registry()["silu"].expected(Call((floats(-200.0, -0.0),), {}, None))
    assert compare(floats(0.0, -0.0), spec).passed
    assert compare(floats(-0.0, -0.0), spec).passed
    assert not compare(floats(0.0, 0.0), spec).passed


def test_integers():
    assert expected("abs", int8(-128, -1)) == [-128, 1]
    assert expected("neg", int8(-128, 1)) == [-128, -1]
    assert expected("abs", torch.tensor([True, False])) == [True, False]
    assert expected("isnan", int8(1)) == expected("isinf", int8(1)) == [False]
    assert expected("exp", torch.tensor([2**24 + 1])) == [INF]
    assert expected("bitwise_not", torch.tensor([True, False])) == [False, True]
    assert expected("sub", torch.tensor([1], dtype=torch.uint8), torch.tensor([2], dtype=torch.uint8)) == [255]
    assert expected("mul", int8(100), 3) == [44]
    assert expected("lt", int8(1), 1000) == [False]


def test_pow():
    assert same(expected("pow", floats(NAN, 2.0), 0), 1.0, 1.0)
    assert same(expected("pow", 1, floats(NAN, INF)), 1.0, 1.0)
    assert same(expected("pow", floats(-2.0, -8.0), floats(0.5, 3.0)), NAN, -512.0)
    assert expected("pow", torch.tensor([3]), 39) == [3**39]
    assert expected("pow", int8(2), 7) == [-128]
    assert expected("pow", torch.tensor([2, -1, 1, 0]), torch.tensor([-1, -1, -1, -1])) == [0, -1, 1, 0]
    assert expected("pow", 2, torch.tensor([3, 10])) == [8, 1024]
    # A half type rounds a number: 2.7 is 2.69921875 there.
    (found,) = expected("pow", floats(10.0, dtype=torch.float16), 2.7)
    assert math.isclose(found, 10**2.69921875, rel_tol=1e-12)
    square_root = registry()["pow"].expected(Call((floats(-INF, -0.0, 4.0), 0.5), {}, None))
    assert square_root.judged.tolist() == [False, False, True]


@pytest.mark.parametrize(("op", "function"), [("exp", mpmath.exp), ("sin", mpmath.sin), ("tanh", mpmath.tanh)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_functions_against_mpmath(op, function, dtype):
    x = (torch.randn(60, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 9).to(dtype)
    found = registry()[op].expected(Call((x,), {}, None))
    low = torch.zeros(60) if found.low is None else found.low
    with mpmath.workprec(200):
        for number, value, rest in zip(x.tolist(), found.value.tolist(), low.tolist(), strict=True):
            want = function(mpmath.mpf(number))
            got = mpmath.mpf(value) + mpmath.mpf(rest)
            assert abs(got - want) <= abs(want) * mpmath.mpf(2) ** (-50 if found.low is None else -100)


def test_clamp():
    assert same(expected("clamp", floats(NAN, 5.0, -5.0), -1, 1), NAN, 1.0, -1.0)
    assert same(expected("clamp", floats(0.0, 5.0), NAN), NAN, NAN)
    assert same(expected("clamp", floats(0.0, 5.0), max=floats(NAN, 1.0)), NAN, 1.0)
    assert expected("clamp", floats(0.0), 2, 1) == [1.0]
    assert expected("clamp", int8(1), 0.5) == [1.0]
    assert expected("clamp", torch.tensor([7], dtype=torch.uint8), -1) == [255]
    assert expected("clamp", floats(1.0, dtype=torch.float16), 1e6) == [INF]


# --- softmax -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_softmax_of_infinities(dtype):
    third = 1 / 3
    assert same(expected("softmax", floats(-INF, -INF, dtype=dtype), 0), NAN, NAN)
    assert same(expected("softmax", floats(1.0, INF, dtype=dtype), 0), NAN, NAN)
    assert same(expected("softmax", floats(1.0, NAN, dtype=dtype), 0), NAN, NAN)
    assert same(expected("softmax", floats(-INF, -INF, 5.0, 5.0, 5.0, dtype=dtype), 0), 0.0, 0.0, third, third, third)
    assert same([expected("softmax", torch.tensor(7.0, dtype=dtype), -1)], 1.0)
    assert same([expected("softmax", torch.tensor(-INF, dtype=dtype), -1)], NAN)
    assert expected("softmax", torch.zeros(2, 0, dtype=dtype), 1) == [[], []]
    assert expected("softmax", torch.zeros(0, 2, dtype=dtype), 1) == []


def test_softmax_casts_first():
    assert same(expected("softmax", floats(70000.0, 0.0), 0, dtype=torch.float16), NAN, NAN)
    assert expected("softmax", torch.tensor([3, 3]), 0, dtype=torch.float32) == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 1, -3])
def test_softmax_against_mpmath(dtype, dim):
    x = (torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 30).to(dtype)
    found = registry()["softmax"].expected(Call((x, dim), {}, None))
    with mpmath.workprec(200):
        for place in torch.cartesian_prod(*map(torch.arange, x.shape)):
            terms = [mpmath.exp(mpmath.mpf(value)) for value in _row(x, dim, place)]
            want = mpmath.exp(mpmath.mpf(x[tuple(place)].item())) / mpmath.fsum(terms)
            rest = 0.0 if found.low is None else found.low[tuple(place)].item()
            got = mpmath.mpf(found.value[tuple(place)].item()) + mpmath.mpf(rest)
            assert abs(got - want) <= want * mpmath.mpf(2) ** (-46 if found.low is None else -100)


def _row(x: torch.Tensor, dim: int, place: torch.Tensor) -> list[float]:
    """The elements that are summed for the one at ``place``."""
    index: list[object] = place.tolist()
    index[dim] = slice(None)
    return x[tuple(index)].tolist()


# --- mm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mm_against_fractions(dtype):
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((3, 40), (40, 4)))
    found = registry()["mm"].expected(Call((a, b), {}, None))
    for i in range(3):
        for j in range(4):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
            got = Fraction(found.value[i, j].item()) + Fraction(0.0 if found.low is None else found.low[i, j].item())
            size = sum(map(abs, terms))
            assert abs(got - sum(terms)) <= size * Fraction(2) ** (-48 if found.low is None else -100)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_mm_of_no_terms_and_of_infinities(dtype):
    assert expected("mm", torch.ones(2, 0, dtype=dtype), torch.ones(0, 2, dtype=dtype)) == [[0, 0], [0, 0]]
    a = floats(0.0, 1.0, dtype=dtype)[None]
    b = torch.tensor([[INF, 1.0, -INF, 2.0], [1.0, INF, INF, 3.0]], dtype=dtype)
    (found,) = expected("mm", a, b)
    assert same(found, NAN, INF, NAN, 3.0)
    (found,) = expected("mm", a + 1, b)
    assert same(found, INF, INF, NAN, 8.0)
    (found,) = expected("mm", -a - 1, b)
    assert same(found, -INF, -INF, NAN, -8.0)
    (found,) = expected("mm", a * NAN, b)
    assert same(found, NAN, NAN, NAN, NAN)


def test_mm_is_not_judged_where_a_sum_of_terms_overflows():
    a = floats(3e38, 3e38, dtype=torch.bfloat16)[None]
    found = registry()["mm"].expected(Call((a, torch.tensor([[1.0, 1.0], [-1.0, 0.0]]).bfloat16()), {}, None))
    assert found.judged.tolist() == [[False, True]]
