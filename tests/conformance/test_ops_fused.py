"""The fused operators: compositions of torch's operators and the oracles agree, and the bounds are what they say."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from op_tools import by_torch, call, drawn, failures, missing

from conformance import bounds, cases, runner
from conformance.cases import Case
from conformance.compare import compare
from conformance.ops import _elementwise as elementwise
from conformance.ops import fused_gated_mlp as mlp
from conformance.ops import fused_rmsnorm_rope as norm
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import TensorSpec

NORM, MLP = registry()["fused_rmsnorm_rope"], registry()["fused_gated_mlp"]
SPECS = pytest.mark.parametrize("spec", [NORM, MLP], ids=lambda spec: spec.name)


def normal(op: str, dtype: str, **kwargs: object) -> Case:
    if op == "fused_gated_mlp":
        shapes = ((5, 300), (40, 300), (40, 300))
        values = ("normal", "normal_small", "normal_small")
    else:
        shapes, values = ((2, 7, 192), (192,), (9, 32), (9, 32)), ("normal", "normal", "uniform", "uniform")
        kwargs = {"head_dim": 64, **kwargs}
    operands = (TensorSpec(shape, dtype, recipe) for shape, recipe in zip(shapes, values, strict=True))
    return Case(op=op, args=tuple(operands), kwargs=kwargs)


# --- the compositions ----------------------------------------------------------------------------------------------


@SPECS
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_the_composition_passes(spec, dtype):
    found = drawn(spec.cases((dtype,)), 15)
    assert {tensor.dtype for case in found for tensor in cases.operands(case)} == {dtype}
    assert failures(found) == []


@SPECS
def test_what_is_refused_is_refused(spec):
    kinds = set()
    for case in drawn(spec.refused(dtype_names.FLOATING), 60):
        with pytest.raises((RuntimeError, TypeError, ValueError)) as raised:
            by_torch(case)
        kinds.add(raised.type)
    assert kinds == {RuntimeError, TypeError, NotImplementedError} | ({ValueError} if spec is MLP else set())


@SPECS
def test_torch_does_not_provide_it(spec):
    assert runner.judge(normal(spec.name, "float32"), "torch").status == "not_provided"


@SPECS
def test_the_peer_is_about_the_reference_and_too_inexact_to_pass(spec):
    case = normal(spec.name, "bfloat16")
    given, expected = call(case), spec.expected(call(case))
    assert compare(by_torch(case), expected).passed
    peer = spec.peer(*given.args, **given.kwargs)
    assert not compare(peer, expected).passed
    assert (peer.double() - expected.value).norm() < 0.02 * expected.value.norm()
    assert (peer.shape, peer.dtype) == (by_torch(case).shape, torch.bfloat16)


# --- oracles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_norm_and_rotation_against_mpmath(dtype, full, interleaved):
    generator = torch.Generator().manual_seed(5)
    x, weight, cos, sin = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((2, 2, 12), (12,), (3, 3), (3, 3))
    )
    tables = (cos, sin)
    if full:
        tables = [t.repeat_interleave(2, 1) if interleaved else torch.cat((t, t), 1) for t in tables]
    found = NORM.expected(Call((x, weight, *tables, 0.5), {"interleaved": interleaved, "head_dim": 6}, None))
    for b, t, head, pair in torch.cartesian_prod(*map(torch.arange, (2, 2, 2, 3))).tolist():
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 3)
        first, second = 6 * head + first, 6 * head + second
        with mpmath.workprec(120):
            row = [mpmath.mpf(value) for value in x[b, t].tolist()]
            scale = 1 / mpmath.sqrt(mpmath.fsum(row, squared=True) / 12 + mpmath.mpf(0.5))
            n0, n1 = (row[place] * scale * weight[place].item() for place in (first, second))
            c, s = cos[t, pair].item(), sin[t, pair].item()
            for place, want in ((first, n0 * c - n1 * s), (second, n0 * s + n1 * c)):
                low = 0.0 if found.low is None else found.low[b, t, place].item()
                got = mpmath.mpf(found.value[b, t, place].item()) + low
                assert abs(got - want) <= (abs(n0) + abs(n1)) * 2.0 ** (-48 if found.low is None else -95)


def test_a_row_of_zeros_and_what_is_not_finite():
    table = torch.tensor([[1.0]])
    x = torch.tensor([[[0.0, 0.0]], [[math.inf, 1.0]], [[math.nan, 1.0]], [[3.0, 4.0]]])
    weight = torch.ones(2)
    expected = NORM.expected(Call((x, weight, table, 0 * table), {"head_dim": 2}, None))
    assert expected.judged.all(), "a NaN that another element of the row makes, too"
    found = expected.value[:, 0]
    assert found[0].tolist() == [0.0, 0.0]
    # Infinity times the 0 of the sine is NaN in both elements.
    assert found[1:3].isnan().all()
    assert found[3].tolist() == pytest.approx([3 / math.sqrt(12.5), 4 / math.sqrt(12.5)], rel=1e-6)


def test_what_underflows_before_an_infinite_table_is_not_judged():
    x, weight = torch.tensor([[[1.0, 1.0]]]), torch.tensor([1e-45, 1.0])
    tables = torch.tensor([[math.inf]]), torch.tensor([[0.0]])
    found = NORM.expected(Call((x, weight, *tables), {"head_dim": 2}, None))
    assert found.judged.flatten().tolist() == [False, True]
    # Nor what does so before an infinite weight, in both elements of the pair.
    x, weight = torch.tensor([[[1e-38, 1.0, 1.0, 1.0]]]), torch.tensor([math.inf, 1.0, 1.0, 1.0])
    tables = torch.tensor([[1.0]]), torch.tensor([[0.5]])
    found = NORM.expected(Call((x, weight, *tables), {"head_dim": 2}, None))
    assert found.judged.flatten().tolist() == [False, False, True, True]


def test_what_may_overflow_before_it_meets_a_table_is_not_judged():
    """The first element, normalized, is 1 + 2^-51 where torch computes it, and 1 in the oracle."""
    x = torch.full((1, 1, 8384), 0.3297, dtype=torch.float64)
    weight = torch.ones(8384, dtype=torch.float64)
    weight[0] = torch.finfo(torch.float64).max
    tables = torch.tensor([[-0.0]], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)
    found = NORM.expected(Call((x, weight, *tables), {"head_dim": 2, "eps": 0.0}, None))
    assert found.judged.flatten().tolist() == [False] * 2 + [True] * 8382


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_gated_mlp_against_mpmath(dtype, activation):
    generator = torch.Generator().manual_seed(6)
    x, gate, up = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((2, 5), (3, 5), (3, 5))
    )
    found = MLP.expected(Call((x, gate, up, activation), {}, None))
    for row, column in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        with mpmath.workprec(120):
            g, u = (mpmath.fdot(x[row].tolist(), weight[column].tolist()) for weight in (gate, up))
            match activation:
                case "silu":
                    want = g * u / (1 + mpmath.exp(-g))
                case "gelu":
                    want = g * u * mpmath.ncdf(g)
                case "gelu_tanh":
                    inner = mpmath.sqrt(2 / mpmath.pi) * (g + mpmath.mpf("0.044715") * g**3)
                    want = g * u * (1 + mpmath.tanh(inner)) / 2
            low = 0.0 if found.low is None else found.low[row, column].item()
            got = mpmath.mpf(found.value[row, column].item()) + low
            assert abs(got - want) <= abs(want) * 2.0 ** (-44 if found.low is None else -95)


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
def test_an_activation_is_off_by_no_more_than_its_range(activation):
    formula = mlp.FORMULAS[activation][0]
    x = torch.linspace(-9, 9, 2001, dtype=torch.float64).numpy()
    for error in (1e-6, 1e-2, 0.5, 3.0):
        off = bounds.activated(formula, activation, x, formula(x), error, torch.float64)
        moved = max(
            (abs(formula(x + error * share) - formula(x)) / off).max() for share in torch.linspace(-1, 1, 41).tolist()
        )
        assert 0.9 < moved <= 1


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
def test_factors_of_unknown_sign_are_not_judged_beside_infinities(activation):
    x = torch.tensor([[1.0, -1.0]])
    gate, up = torch.tensor([[math.inf, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    found = MLP.expected(Call((x, gate, up, activation), {}, None))
    # gate is infinity times 1 and 0 times -1; up of it is 1 - 1, which rounding errors may turn.
    assert found.judged.tolist() == [[False, True]]


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
def test_a_product_beyond_float64_is_judged_where_its_factors_are_sure(activation):
    x = torch.full((1, 2), 1e160, dtype=torch.float64)
    gate = torch.tensor([[1.0, 2.0**-53 - 1.0], [1.0, 1.0]], dtype=torch.float64)
    found = MLP.expected(Call((x, gate, torch.full_like(gate, 1e100), activation), {}, None))
    # The first of the gate is 1e144 or, off by what its terms are rounded by, negative.
    assert found.value.tolist() == [[math.inf, math.inf]]
    assert found.judged.tolist() == [[False, True]]


# --- strategies and benchmarks -------------------------------------------------------------------------------------


def features(case: Case) -> set[str]:
    operands = cases.operands(case)
    found = {f"{name} {value}" for name, value in case.kwargs.items() if name in ("interleaved", "activation")}
    found |= {f"layout {layouts.layout_class(operands[0].layout, operands[0].shape)}"}
    found |= {f"rank {len(operands[0].shape)}"} | {f"values {tensor.values}" for tensor in operands[:2]}
    found |= {"empty"} if 0 in operands[0].shape else set()
    found |= {"mixed dtypes"} if len({tensor.dtype for tensor in operands}) > 1 else set()
    if case.op == "fused_rmsnorm_rope":
        size = case.kwargs.get("head_dim") or operands[2].shape[1]
        found |= {"full tables"} if operands[2].shape[1] == size else {"half tables"}
        found |= {"by the width"} if "head_dim" not in case.kwargs else set()
        found |= {"longer tables"} if operands[2].shape[0] > operands[0].shape[1] else set()
        found |= {"long rows"} if operands[0].shape[2] > 16384 else set()
        found |= {"several heads"} if operands[0].shape[2] > size else set()
    else:
        found |= {"several blocks"} if min(operands[0].shape[-1], operands[1].shape[0]) > 64 else set()
    return found


VALUES = {f"values {name}" for name in ("zeros", "one_hot", "every_exponent", "normal_large", "normal_small")}
LAYOUTS = {f"layout {name}" for name in ("contiguous", "permuted", "sliced", "expanded", "offset")}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (
            NORM,
            {"interleaved True", "interleaved False", "full tables", "half tables", "by the width", "longer tables"}
            | {"mixed dtypes", "long rows", "several heads"},
        ),
        (MLP, {f"activation {name}" for name in mlp.ACTIVATIONS} | {"rank 1", "rank 2", "rank 3", "several blocks"}),
    ],
    ids=["norm", "mlp"],
)
def test_strategies_reach(spec, wanted):
    assert missing(spec.cases(dtype_names.FLOATING), wanted | VALUES | LAYOUTS | {"empty"}, features) == set()


def test_tables_of_the_full_width_say_each_number_twice():
    seen = 0
    for case in drawn(NORM.cases(("float32",)), 40):
        given = call(case)
        *_, cos, sin = given.args
        size, interleaved = given.kwargs.get("head_dim", cos.shape[1]), given.kwargs.get("interleaved", False)
        if cos.shape[1] == size and cos.numel():
            seen += 1
            assert all(torch.equal(*norm.pairs(table, interleaved)) for table in (cos, sin))
    assert seen > 5


@SPECS
def test_benchmarks_count_bytes_and_flops(spec):
    for benchmark in spec.benchmarks:
        given = [elementwise.meta(operand) for operand in cases.operands(benchmark.case)]
        moved = sum(x.numel() * x.element_size() for x in given)
        result = given[0] if spec is NORM else given[0] @ given[1].mT
        moved += result.numel() * result.element_size()
        if spec is MLP:
            assert benchmark.flops == 4 * result.numel() * given[0].shape[-1]
        elif given[2].shape[1] == 128:
            # Of the full width half has to be read.
            moved -= sum(x[: given[0].shape[1]].numel() * x.element_size() // 2 for x in given[2:])
        assert benchmark.bytes == moved
