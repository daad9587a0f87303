"""layer_norm and rms_norm: what norms get wrong does not pass, oracles agree with mpmath."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from op_tools import by_torch, call, missing

from conformance import cases
from conformance.cases import Case
from conformance.compare import compare
from conformance.ops import _elementwise as elementwise
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import Special, TensorSpec

OPS = ("layer_norm", "rms_norm")
INF, NAN = math.inf, math.nan


def normal(op: str, dtype: str, columns: int, values: str = "normal", rows: int = 8, **kwargs: object) -> Case:
    return Case(op=op, args=(TensorSpec((rows, columns), dtype, values), (columns,)), kwargs=kwargs)


def affine(op: str, dtype: str, columns: int) -> Case:
    names = ("weight", "bias") if op == "layer_norm" else ("weight",)
    return normal(op, dtype, columns, **{name: TensorSpec((columns,), dtype) for name in names})


def judged(case: Case, wrong: torch.Tensor):
    return compare(wrong, registry()[case.op].expected(call(case)))


def norm(x: torch.Tensor, eps: float, op: str) -> torch.Tensor:
    """In float64."""
    x = x.double()
    x = x - x.mean(-1, keepdim=True) if op == "layer_norm" else x
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


# --- power -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
@pytest.mark.parametrize("columns", [17, 257, 4096])
def test_an_all_zero_output_fails_almost_everywhere(op, dtype, columns):
    case = affine(op, dtype, columns if dtype != "float64" else min(columns, 257))
    output = by_torch(case)
    assert judged(case, output).passed
    assert judged(case, torch.zeros_like(output)).failed >= 0.99 * output.numel()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_row_that_misses_its_last_element_fails(op, dtype):
    case = normal(op, dtype, 129)
    (x, _) = call(case).args
    eps = 1e-5 if op == "layer_norm" else torch.finfo(torch.float64 if dtype == "float64" else torch.float32).eps
    right = norm(x, eps, op)
    assert judged(case, right.to(x.dtype)).passed
    mean = x.double()[:, :-1].mean(-1, keepdim=True) if op == "layer_norm" else 0.0
    wrong = (x.double() - mean) / ((x.double()[:, :-1] - mean).square().mean(-1, keepdim=True) + eps).sqrt()
    assert judged(case, wrong.to(x.dtype)).failed > 0.4 * x.numel()


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_an_unbiased_variance_fails(dtype):
    case = normal("layer_norm", dtype, 65)
    x = call(case).args[0].double()
    wrong = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
    assert judged(case, wrong.to(dtype_names.to_torch(dtype))).failed > 0.4 * x.numel()


def test_a_variance_from_the_mean_of_squares_fails_where_the_mean_is_large():
    case = normal("layer_norm", "float32", 1000, "large_mean")
    x = call(case).args[0]
    variance = x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()
    wrong = (x - x.mean(-1, keepdim=True)) / (variance.clamp(min=0) + 1e-5).sqrt()
    assert judged(case, by_torch(case)).passed
    assert judged(case, wrong).failed > 0.5 * x.numel()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_eps_of_the_half_type_fails(dtype):
    case = normal("rms_norm", dtype, 65, "normal_small")
    x = call(case).args[0]
    assert judged(case, by_torch(case)).passed
    wrong = norm(x, torch.finfo(x.dtype).eps, "rms_norm").to(x.dtype)
    assert judged(case, wrong).failed > 0.9 * x.numel()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_eps_counts(op, dtype):
    case = normal(op, dtype, 33, "normal_small", eps=2.0**-10)
    x = call(case).args[0]
    assert judged(case, norm(x, 2.0**-10, op).to(x.dtype)).passed
    assert judged(case, norm(x, 0.0, op).to(x.dtype)).failed > 0.9 * x.numel()


@pytest.mark.parametrize("dtype", dtype_names.HALF)
def test_a_result_rounded_to_a_half_type_before_the_weight_fails(dtype):
    case = affine("rms_norm", dtype, 4096)
    x, _ = call(case).args
    plain = torch.nn.functional.rms_norm(x, (4096,))
    assert not judged(case, plain * call(case).kwargs["weight"]).passed


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_forgotten_weight_or_bias_fails(op, dtype):
    case = affine(op, dtype, 33)
    for name in case.kwargs:
        less = Case(op=op, args=case.args, kwargs={other: v for other, v in case.kwargs.items() if other != name})
        # The operands keep their numbers and with them their elements.
        arguments = call(case)
        kept = {other: value for other, value in arguments.kwargs.items() if other in less.kwargs}
        wrong = registry()[op].reference(*arguments.args, **kept)
        assert judged(case, wrong).failed > 0.5 * wrong.numel()


# --- oracles -----------------------------------------------------------------------------------------------------


def floats(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def expected(op: str, *args: object, **kwargs: object):
    return registry()[op].expected(Call(args, kwargs, None))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_against_mpmath(op, dtype):
    generator = torch.Generator().manual_seed(6)
    x, w, b = (
        (torch.randn(*shape, generator=generator, dtype=torch.float64) * 3).to(dtype)
        for shape in ((3, 2, 5), *[(2, 5)] * 2)
    )
    found = expected(op, x, (2, 5), w, *([b] if op == "layer_norm" else []), eps=0.25)
    with mpmath.workprec(200):
        for row in range(3):
            terms = [mpmath.mpf(value) for value in x[row].flatten().tolist()]
            mean = mpmath.fsum(terms) / 10 if op == "layer_norm" else mpmath.mpf(0)
            scale = mpmath.sqrt(mpmath.fsum([(t - mean) ** 2 for t in terms]) / 10 + mpmath.mpf(0.25))
            for place, (i, j) in enumerate((i, j) for i in range(2) for j in range(5)):
                want = (terms[place] - mean) / scale * mpmath.mpf(w[i, j].item())
                want += mpmath.mpf(b[i, j].item()) if op == "layer_norm" else 0
                low = 0.0 if found.low is None else found.low[row, i, j].item()
                got = mpmath.mpf(found.value[row, i, j].item()) + mpmath.mpf(low)
                assert abs(got - want) <= 10 * mpmath.mpf(2) ** (-46 if found.low is None else -100)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_is_not_finite(dtype):
    rows = torch.stack([floats(1.0, NAN, 2.0), floats(INF, 1.0, -1.0), floats(1.0, 2.0, 3.0)]).to(dtype)
    layer = expected("layer_norm", rows, (3,)).value
    assert layer[:2].isnan().all()
    assert layer[2].isfinite().all()
    rms = expected("rms_norm", rows, (3,)).value
    assert rms[0].isnan().all()
    assert (math.isnan(rms[1, 0]), rms[1, 1:].tolist()) == (True, [0, 0])
    weight = floats(INF, 1.0, NAN, dtype=dtype)
    (found,) = expected("rms_norm", rows[2:], (3,), weight).value.tolist()
    assert (found[0], math.isfinite(found[1]), math.isnan(found[2])) == (INF, True, True)


def test_eps_none_is_that_of_the_compute_dtype():
    for dtype, eps in ((torch.float16, 2.0**-23), (torch.float32, 2.0**-23), (torch.float64, 2.0**-52)):
        x = torch.tensor([[2.0**-13]], dtype=dtype)
        (found,) = expected("rms_norm", x, (1,)).value.tolist()
        assert found == pytest.approx([2.0**-13 / math.sqrt(2.0**-26 + eps)], rel=1e-14)
        assert expected("rms_norm", x, (1,), None, 0.0).value.tolist() == [[1.0]]


def test_a_weight_of_another_dtype_counts_as_it_is():
    x = floats(3.0, 4.0, dtype=torch.float16)[None]
    for weight in (floats(2.0, -1.0), torch.tensor([2, -1]), torch.tensor([2.0, -1.0], dtype=torch.float64)):
        (found,) = expected("rms_norm", x, (2,), weight, 0.0).value.tolist()
        assert found == pytest.approx([6 / math.sqrt(12.5), -4 / math.sqrt(12.5)], rel=1e-14)


@pytest.mark.parametrize("op", OPS)
def test_squares_that_leave_the_range_are_not_judged(op):
    x = torch.tensor([[1e20, 1.0], [1e-30, 2e-30], [1.0, 2.0]])
    assert expected(op, x, (2,), eps=0.0).judged.tolist() == [[False] * 2, [False] * 2, [True] * 2]
    assert expected(op, x, (2,)).judged.tolist() == [[False] * 2, [True] * 2, [True] * 2]
    assert expected(op, x.double(), (2,), eps=0.0).judged.all()
    assert not expected(op, torch.tensor([[1e200, 1.0]], dtype=torch.float64), (2,)).judged.any()


def test_an_infinite_weight_of_what_may_be_zero_is_not_judged():
    x = torch.full((1, 3), 0.1)
    assert expected("layer_norm", x, (3,), floats(INF, 1.0, 1.0)).judged.tolist() == [[False, True, True]]


@pytest.mark.parametrize("special", [NAN, INF, -INF])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_what_one_element_does_to_its_row_is_judged(op, special):
    x = floats(special, 1.0, 2.0, 3.0)[None]
    found = expected(op, x, (4,))
    assert found.judged.all()
    if op == "layer_norm" or special != special:
        assert found.value.isnan().all()
    else:
        assert found.value.isnan().tolist() == [[True, False, False, False]]


def test_what_may_overflow_before_the_bias_is_not_judged():
    """Normalized elements are 1 and -1, off by a few roundings."""
    x, weight = floats(1.0, -1.0)[None], floats(torch.finfo(torch.float32).max, 1e38)
    assert expected("layer_norm", x, (2,), weight, floats(-INF, 0.0), eps=0.0).judged.tolist() == [[False, True]]


# --- reach -------------------------------------------------------------------------------------------------------


def features(case: Case) -> set[str]:
    input, shape = case.args
    found = {f"dims {len(shape)}", f"rank {len(input.shape)}"}
    found |= {f"{name} given" for name in case.kwargs}
    found |= {"eps 0"} if case.kwargs.get("eps") == 0.0 else set()
    found |= {f"layout {layouts.layout_class(input.layout, input.shape)}"}
    found |= {"large mean"} if input.values == "large_mean" else set()
    columns = math.prod(shape)
    found |= {"longer than a tile"} if columns > 16384 else {"long"} if columns > 2048 else set()
    found |= {"empty"} if not columns else {"no rows"} if 0 in input.shape else set()
    found |= {"many rows"} if columns and math.prod(input.shape) // columns > 64 else set()
    found |= {"one column"} if columns == 1 else set()
    found |= {f"columns {columns - 2**k:+}" for k in range(4, 12) if abs(columns - 2**k) <= 1}
    weight = case.kwargs.get("weight")
    found |= {"weight of another dtype"} if isinstance(weight, TensorSpec) and weight.dtype != input.dtype else set()
    return found


REACHED = {
    *("dims 1", "dims 2", "dims 3", "dims 4", "weight given", "eps given", "eps 0", "large mean", "long"),
    *("longer than a tile", "empty", "no rows", "many rows", "one column", "columns -1", "columns +0", "columns +1"),
    *(f"layout {name}" for name in ("contiguous", "permuted", "sliced", "expanded", "padded")),
}


def test_equal_elements_without_eps_are_not_judged():
    """Their mean in float64 is another number, and what is left of them is over itself: finite, where torch has NaN."""
    row = torch.full((1, 36), -0.7951449032, dtype=torch.float64)
    assert (row.numpy() - row.numpy().sum() / 36).any()
    zeros, ones = torch.zeros(36, dtype=torch.float64), torch.ones(36, dtype=torch.float64)
    assert not expected("layer_norm", row, (36,), zeros, ones, eps=0.0).judged.any()
    assert expected("layer_norm", row, (36,), zeros, ones, eps=1e-5).judged.all()


@pytest.mark.parametrize(("op", "more"), [("layer_norm", "bias given"), ("rms_norm", "weight of another dtype")])
def test_strategies_reach(op, more):
    assert missing(registry()[op].cases(dtype_names.FLOATING), REACHED | {more}, features) == set()


@pytest.mark.parametrize("op", OPS)
def test_benchmarks_count_bytes(op):
    for benchmark in registry()[op].benchmarks:
        operands = [elementwise.meta(operand) for operand in cases.operands(benchmark.case)]
        moved = sum(x.numel() * x.element_size() for x in operands)
        assert benchmark.bytes == moved + operands[0].numel() * operands[0].element_size()
        assert benchmark.flops > operands[0].numel()
    shapes = [cases.operands(benchmark.case)[0].shape for benchmark in registry()[op].benchmarks]
    assert {(8192, 1024), (8192, 4096), (4096, 16384)} <= set(shapes)


def test_what_overflows_or_not_by_the_bound_is_not_judged():
    """Of nearly equal elements rms_norm is about the weight, the largest number here; of [0, 1] sqrt(2) times it."""
    largest = torch.finfo(torch.float64).max
    weight = TensorSpec((2,), "float64", "listed:1", specials=(Special(0, "max"), Special(1, "max")))
    nearly = normal("rms_norm", "float64", 2, f"listed:{2**52},{2**52 + 4}", rows=1, weight=weight, eps=0.0)
    expected = registry()["rms_norm"].expected(call(nearly))
    assert compare(by_torch(nearly), expected).passed
    either = expected.value.isinf() & ~expected.judged
    assert either.any()
    assert compare(torch.where(either, largest, expected.value), expected).passed
    certain = Case(op="rms_norm", args=(TensorSpec((1, 2), "float64", "listed:0,1"), (2,)), kwargs={"weight": weight})
    assert compare(by_torch(certain), registry()["rms_norm"].expected(call(certain))).judged == 2
    assert not judged(certain, torch.tensor([[0.0, largest]], dtype=torch.float64)).passed
