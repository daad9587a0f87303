"""bmm, addmm and matmul: wrong products do not pass, oracles agree with fractions, strategies reach."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from op_tools import by_torch, call, drawn, missing

from conformance import cases, float_formats
from conformance.cases import Case, Same
from conformance.compare import compare
from conformance.ops import _elementwise as elementwise
from conformance.ops import _products as products
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies.specs import Special, TensorSpec

OPS = ("bmm", "addmm", "matmul")
INF, NAN = math.inf, math.nan


def normal(op: str, dtype: str, length: int) -> Case:
    """A product of normal(0, 1) data, 24 columns and rows of sums of ``length``."""
    batch = () if op == "addmm" else (2,)
    operands = (TensorSpec((*batch, 24, length), dtype), TensorSpec((*batch, length, 24), dtype))
    return Case(op=op, args=(TensorSpec((24,), dtype), *operands) if op == "addmm" else operands)


def judged(case: Case, wrong: torch.Tensor):
    return compare(wrong, registry()[case.op].expected(call(case)))


# --- power -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_an_all_zero_output_fails_almost_everywhere(op, dtype):
    case = normal(op, dtype, 129 if dtype == "float64" else 4096)
    output = by_torch(case)
    assert judged(case, output).passed
    assert judged(case, torch.zeros_like(output)).failed >= 0.99 * output.numel()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_missing_term_fails(op, dtype):
    case = normal(op, dtype, 129)
    *first, left, right = call(case).args
    wrong = registry()[op].reference(*first, left[..., :-1].contiguous(), right[..., :-1, :].contiguous())
    assert judged(case, wrong).failed > 0.8 * wrong.numel()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", dtype_names.HALF)
def test_one_element_off_by_a_thousandth_fails(op, dtype):
    case = normal(op, dtype, 4096)
    expected = registry()[op].expected(call(case))
    right = expected.value.to(dtype_names.to_torch(dtype))
    place = np.unravel_index(int(expected.value.abs().argmax()), right.shape)
    # bfloat16 has no number a thousandth away: at least its next but one.
    value = expected.value[place].item()
    step = max(1e-3 * abs(value), 2 * float(float_formats.ulp(np.array(value), right.dtype)))
    for change in (step, -step):
        wrong = right.clone()
        wrong[place] = value + change
        found = compare(wrong, expected)
        assert (found.failed, found.index) == (1, tuple(place))


@pytest.mark.parametrize("op", ["bmm", "matmul"])
def test_batches_that_are_mixed_up_fail(op):
    case = normal(op, "float32", 17)
    assert judged(case, by_torch(case).flip(0)).failed > 0.9 * 2 * 24 * 24


@pytest.mark.parametrize(("beta", "alpha"), [(0.5, 1), (1, 0.5), (0, 2), (-1, -1)])
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_addmm_without_a_factor_fails(dtype, beta, alpha):
    plain = normal("addmm", dtype, 33)
    case = Case(op="addmm", args=plain.args, kwargs={"beta": beta, "alpha": alpha})
    right = by_torch(case)
    assert judged(case, right).share < 1.5
    assert judged(case, by_torch(plain)).failed > 0.9 * 24 * 24


# --- oracles -----------------------------------------------------------------------------------------------------


def floats(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def expected(op: str, *args: torch.Tensor, **kwargs: object):
    return registry()[op].expected(Call(args, kwargs, None))


def exact(found, place: tuple[int, ...]) -> Fraction:
    low = 0.0 if found.low is None else found.low[place].item()
    return Fraction(found.value[place].item()) + Fraction(low)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_addmm_against_fractions(dtype):
    generator = torch.Generator().manual_seed(4)
    input, a, b = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((4,), (3, 40), (40, 4))
    )
    found = expected("addmm", input, a, b, beta=-1.5, alpha=0.375)
    for i in range(3):
        for j in range(4):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
            want = Fraction(-3, 2) * Fraction(input[j].item()) + Fraction(3, 8) * sum(terms)
            size = sum(map(abs, terms)) + abs(want)
            assert abs(exact(found, (i, j)) - want) <= size * Fraction(2) ** (-48 if found.low is None else -100)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 1, 4, 5), (3, 5, 2)), ((5,), (2, 5, 3)), ((2, 3, 4, 5), (5,))],
)
def test_matmul_against_fractions(dtype, left, right):
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in (left, right))
    found = expected("matmul", a, b)
    whole = torch.matmul(a.double(), b.double())
    assert found.value.shape == whole.shape

    assert torch.allclose(found.value, whole, rtol=1e-12, atol=1e-12)
    if len(left) == len(right) == 1:
        terms = [Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert abs(exact(found, ()) - sum(terms)) <= sum(map(abs, terms)) * Fraction(2) ** (
            -50 if found.low is None else -100
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_addmm_ignores_input_with_beta_0_and_sees_it_otherwise(dtype):
    ones = torch.ones(1, 1, dtype=dtype)
    input = floats(NAN, INF, 1.0, dtype=dtype)
    row = torch.ones(1, 3, dtype=dtype)
    assert expected("addmm", input, ones, row, beta=0).value.tolist() == [[1, 1, 1]]
    assert expected("addmm", input, ones, row, beta=0.0, alpha=2).value.tolist() == [[2, 2, 2]]
    (found,) = expected("addmm", input, ones, row, beta=-1).value.tolist()
    assert math.isnan(found[0])
    assert found[1:] == [-INF, 0]
    nothing = torch.ones(1, 0, dtype=dtype), torch.ones(0, 3, dtype=dtype)
    assert expected("addmm", input[2:], *nothing, beta=3).value.tolist() == [[3, 3, 3]]
    assert expected("addmm", input[:1], *nothing, beta=0).value.tolist() == [[0, 0, 0]]


def test_addmm_is_not_judged_where_alpha_0_meets_infinity_nor_where_terms_overflow():
    big = floats(3e38)[None]
    found = expected("addmm", floats(1.0), floats(INF, 1.0)[:, None], torch.ones(1, 1), alpha=0)
    assert found.judged.tolist() == [[False], [True]]
    assert expected("addmm", floats(1.0), big, torch.ones(1, 1), alpha=2).judged.tolist() == [[False]]
    assert expected("addmm", floats(3e38), big * 0, torch.ones(1, 1), beta=2).judged.tolist() == [[False]]
    assert expected("addmm", floats(INF), big * 0, torch.ones(1, 1), beta=2).judged.tolist() == [[True]]


def test_a_batch_keeps_infinities_and_nan_to_itself():
    a = torch.stack([floats(1.0, 1.0)[None], floats(INF, 1.0)[None]])
    b = torch.tensor([[1.0, -1.0], [1.0, 1.0]]).expand(2, 2, 2)
    assert expected("bmm", a, b).value.tolist() == [[[2, 0]], [[INF, -INF]]]


# --- reach -------------------------------------------------------------------------------------------------------


def features(case: Case) -> set[str]:
    tensors = [argument for argument in case.args if isinstance(argument, TensorSpec)]
    ranks = [min(len(tensor.shape), 3) for tensor in tensors]
    found = {f"ranks {ranks}", f"out {type(case.kwargs.get('out')).__name__}"}
    found |= {"empty" for tensor in tensors if 0 in tensor.shape}
    found |= {"expanded batch" for tensor in tensors if set(tensor.layout.expanded) & {*range(len(tensor.shape) - 2)}}
    found |= {"long" for tensor in tensors if 2049 in tensor.shape}
    found |= {"special" for tensor in tensors if tensor.specials}
    found |= {"same" for argument in case.args if isinstance(argument, Same)}
    found |= {f"{name} 0" for name in ("beta", "alpha") if case.kwargs.get(name) == 0}
    found |= {f"{name} {type(case.kwargs[name]).__name__}" for name in ("beta", "alpha") if name in case.kwargs}
    if len(tensors) == 3 and case.op == "addmm":
        m, n = tensors[1].shape[0], tensors[2].shape[1]
        if min(m, n) > 1:
            found.add({(m, n): "whole", (n,): "row", (m, 1): "column", (): "0-d"}.get(tensors[0].shape, "other"))
    if len(tensors) == 2 and case.op == "matmul":
        batches = [tensor.shape[:-2] for tensor in tensors]
        found |= {"broadcast batches"} if batches[0] != batches[1] and all(batches) else set()
    if case.op == "bmm":
        found.add(f"batch {min(tensors[0].shape[0], 4)}")
    return found


COMMON = {"empty", "long", "special", "out NoneType", "out TensorSpec"}
REACHED = {
    "bmm": COMMON | {"expanded batch", "same", *(f"batch {n}" for n in range(5))},
    "addmm": COMMON
    | {"whole", "row", "column", "0-d", "beta 0", "alpha 0", "out Same", "beta float", "alpha float", "beta int"},
    "matmul": COMMON
    | {"expanded batch", "broadcast batches"}
    | {f"ranks {[a, b]}" for a in (1, 2, 3) for b in (1, 2, 3)},
}


@pytest.mark.parametrize("op", OPS)
def test_strategies_reach(op):
    assert missing(registry()[op].cases(dtype_names.FLOATING), REACHED[op], features) == set()


@pytest.mark.parametrize("op", OPS)
def test_benchmarks_count_bytes_and_flops(op):
    for benchmark in registry()[op].benchmarks:
        operands = cases.operands(benchmark.case)
        moved = sum(math.prod(x.shape) * dtype_names.to_torch(x.dtype).itemsize for x in operands)
        result = registry()[op].reference(*(elementwise.meta(operand) for operand in operands))
        assert benchmark.bytes == moved + result.numel() * result.element_size()
        assert benchmark.flops == 2 * result.numel() * operands[-1].shape[-2]


def test_a_special_reaches_one_matrix_of_a_batch():
    case = Case(
        op="bmm",
        args=(TensorSpec((2, 3, 5), "float32", specials=(Special(0, "nan"),)), TensorSpec((2, 5, 4), "float32")),
    )
    value = registry()["bmm"].expected(call(case)).value
    assert value.isnan().nonzero().tolist() == [[0, 0, column] for column in range(4)]


@pytest.mark.parametrize("elements", [1 << 10, 1 << 12, 1 << 14])
def test_large_sizes_of_few_elements_are_sizes(elements):
    """Sequences take the large calls of an operator with few elements."""
    assert all(min(sizes) >= 0 for sizes in drawn(products.large_sizes(elements), 2000))
