"""Bounds that are derived from a reference: torch is within them, what is wrong is not, and nothing is said in vain."""

from __future__ import annotations

import pytest
import torch
from error_analysis_tools import COLUMNS, ROWS, analysed, operands, share
from torch.nn import functional

from conformance.compare import compare
from conformance.error_analysis import NoRule
from conformance.error_analysis.__main__ import BEGIN, END, MEDIAN_MOST, WORST_MOST, Row, page, row
from conformance.error_analysis.rules import RULES
from conformance.spec import Expected, registry


def rotated(x):
    result = torch.empty_like(x)
    result[..., ::2] = x[..., ::2] * 0.5 - x[..., 1::2] * 0.75
    result[..., 1::2] = x[..., ::2] * 0.75 + x[..., 1::2] * 0.5
    return result


FUNCTIONS = {
    "swiglu": lambda x, y: (functional.silu(x.float()) * y.float()).to(x.dtype),
    "softmax": lambda x, y: x.softmax(-1),
    "layer_norm": lambda x, y: functional.layer_norm(x, (COLUMNS,), y[0], y[1]),
    "rms_norm": lambda x, y: functional.rms_norm(x, (COLUMNS,), y[0], 1e-5),
    "group_norm": lambda x, y: functional.group_norm(x.view(1, ROWS, COLUMNS), 2, y[0, :ROWS], y[1, :ROWS]),
    "linear": lambda x, y: functional.linear(x, y, x[0, :ROWS]),
    "einsum": lambda x, y: torch.einsum("bd,cd->bc", x, y),
    "attention": lambda x, y: functional.scaled_dot_product_attention(
        *(z[:, :256].view(1, 2, 3, 256) for z in (x, y, y)), is_causal=True
    ),
    "convolution": lambda x, y: functional.conv1d(x[None], y[:, :3].reshape(1, ROWS, 3)),
    "cross_entropy": lambda x, y: functional.cross_entropy(x.float(), torch.arange(ROWS)),
    "variance": lambda x, y: x.float().var(-1),
    "norm": lambda x, y: torch.linalg.vector_norm(x.float(), dim=-1),
    "cumsum": lambda x, y: x.float().cumsum(-1),
    "power": lambda x, y: x.float().abs() ** 2.7,
    "elu": lambda x, y: functional.elu(x),
    "lerp": lambda x, y: torch.lerp(x.float(), y.float(), 0.3),
    "in place": lambda x, y: x.float().mul_(3).add_(y).clamp_(-2, 2).div_(3),
}
"""References that round where they say so, on the CPU too."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_is_within_the_bound_and_four_ulps_are_not(name, dtype):
    if dtype == torch.float64 and name in ("variance", "norm", "cumsum", "power", "lerp", "cross_entropy", "in place"):
        dtype = torch.float16
    x, y = operands(dtype)
    assert share(FUNCTIONS[name], x, y) <= 1
    # Of sums of many terms the bound is that of any order, and a mistake shows in the half types.
    if dtype == torch.bfloat16:
        assert share(FUNCTIONS[name], x, y, changed=lambda result: result * (1 + 2.0**-5)) > 1


def test_rules_are_many():
    assert len(RULES) >= 80


def test_moves_and_integers_are_exact():
    x, y = operands(torch.float32)
    for function in (
        lambda x, y: torch.cat((x, y.flip(0).roll(1, 1)), -1),
        lambda x, y: x.gather(1, y.argsort(-1)),
        lambda x, y: torch.stack((x, y), 1).permute(2, 0, 1),
        lambda x, y: functional.pad(x, (1, 2), value=3.0),
        lambda x, y: x.masked_fill(y > 0, -1.0).tril(),
        lambda x, y: torch.maximum(x, y).abs().neg().relu(),
        lambda x, y: functional.pad(x[None], (2, 2), mode="reflect"),
        lambda x, y: torch.block_diag(x, y),
        lambda x, y: x.masked_scatter(x > 0, y),
        lambda x, y: x.index_fill(0, torch.tensor([1]), 2.0),
        lambda x, y: x.cummax(-1).values,
        lambda x, y: (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32),
    ):
        found = analysed(function, x, y)
        assert not found.bound.any()
        assert torch.equal(found.value, function(x, y).double())
    packed = torch.arange(256, dtype=torch.uint8)
    found = analysed(lambda p: torch.stack((p & 15, p >> 4), -1).float() - 8, packed)
    assert not found.bound.any()
    assert found.value[17].tolist() == [-7.0, -7.0]


INTEGRAL = (
    lambda x, y: 5 - x,
    lambda x, y: 7 // (x * 0 + 2),
    lambda x, y: torch.rsub(x, 3, alpha=2),
    lambda x, y: x.sub(y, alpha=-2),
    lambda x, y: torch.ops.aten.sum.dim_IntList(x, None),
    lambda x, y: x.sum(0) + x.amax(-1),
    lambda x, y: x.floor() + x.round() + x.trunc(),
    lambda x, y: x.nan_to_num(),
    lambda x, y: x.double(),
    lambda x, y: x.sin(),
    lambda x, y: x / y,
    lambda x, y: x[0, x.tolist()[0][0] % 4],
    lambda x, y: x > 2.5,
    lambda x, y: x < 300,
    lambda x, y: functional.relu(x, inplace=True),
)


@pytest.mark.parametrize("number", range(len(INTEGRAL)))
def test_integers_are_as_torch_has_them(number):
    """Those of 64 bits beyond 2^53, too."""
    function = INTEGRAL[number]
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool):
        x, y = (torch.arange(first, first + 16).view(4, 4).to(dtype) for first in (1, 3))
        if dtype is torch.int64:
            x[1, 1], y[2, 2] = 2**54 + 3, 2**53 + 1
        try:
            result = function(x.clone(), y.clone())
        except RuntimeError:
            # Bools have no difference, for example, and relu takes none.
            assert dtype is torch.bool
            continue
        before = x.clone()
        with torch.inference_mode():
            found = analysed(function, x.clone(), y.clone())
        assert found.dtype == result.dtype
        assert found.judged.all()
        if found.bound is None:
            assert torch.equal(found.value, result)
        else:
            assert compare(result, Expected(found.value, found.bound, found.judged)).share <= 1
        analysed(function, x, y)
        assert torch.equal(x, before)


def test_the_error_of_the_largest_of_a_row_cancels():
    """A softmax subtracts the same number of all terms, whatever it is."""
    x, y = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0)).unbind()
    y = torch.cat((y, y.flip(0), y))[:, :64]
    scores = analysed(lambda x, y: x @ y.T, x, y).bound.amax()
    found = analysed(lambda x, y: (x @ y.T).softmax(-1), x, y)
    # A weight moves by twice the error of a score at most: by its own, and by the others' in the sum.
    assert float((found.bound / found.value).max()) < 2.5 * float(scores)


def test_what_the_error_decides_is_not_judged():
    third = torch.full((3,), 3.0)
    third[2] = 4.0
    found = analysed(lambda x: torch.where((1 / x) * 3 > 1, 0.0, 7.0), third)
    # 1/3 * 3 may be more than 1, or not; either number will do.
    assert found.bound.tolist() == [7.0, 7.0, 0.0]
    # What a cast makes of numbers that the dtype has not is undefined.
    odd = torch.tensor([float("nan"), float("inf"), 300.0, -1.0, 255.9])
    assert analysed(lambda x: x.to(torch.uint8), odd).judged.tolist() == [False, False, False, False, True]
    assert analysed(lambda x: (1 / x) * 3 > 1, third).judged.tolist() == [False, False, True]
    assert analysed(lambda x: (x * 1.1).argmax(-1, True), third).judged.tolist() == [False]
    assert analysed(lambda x: (x * 1.1).cummax(-1)[1], third).judged.tolist() == [False] * 3
    assert not analysed(lambda x: torch.searchsorted(torch.arange(9.0), x * 1.1), third).judged.any()
    assert analysed(lambda x: torch.searchsorted(torch.arange(9.0), x), third).value.tolist() == [3, 3, 4]
    # Beyond float32 on the way, though not at the end.
    large = torch.tensor([1e30, 1.0])
    assert analysed(lambda x: (x * x) / x, large).judged.tolist() == [False, True]
    assert analysed(lambda x: x * x, large).judged.tolist() == [True, True]


def test_not_a_number_is_sure_where_the_operand_is():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 2.0])
    found = analysed(lambda x: functional.silu(x) * 2 - 1, x)
    assert found.judged.all()
    assert found.value[:3].isfinite().tolist() == [False, False, False]
    assert found.bound.isfinite().all()
    # Infinity times what may have become zero.
    tiny = torch.tensor([1e-30])
    assert not analysed(lambda x: (x * 1e-30) * float("inf"), tiny).judged.any()


REDUCTIONS = {
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1),
    "mean of all": lambda x: x.mean(),
    "prod": lambda x: x.prod(-1),
    "prod of all": lambda x: x.prod(),
    "var": lambda x: x.var(-1, correction=0),
    "std_mean": lambda x: torch.std_mean(x, -1, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm of all": lambda x: torch.linalg.vector_norm(x, 3),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "amax": lambda x: x.amax(-1),
    "max": lambda x: x.max(-1),
    "median": lambda x: x.median(-1),
    "median of all": lambda x: x.median(),
    "sort": lambda x: x.sort(-1),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (0, 2), (1,), (2, 1)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_no_dims_and_of_no_elements(name, shape):
    function, x = REDUCTIONS[name], torch.full(shape, 2.5)
    try:
        expected = function(x)
    except IndexError:
        # torch has no largest of none.
        with pytest.raises(IndexError):
            analysed(function, x)
        return
    expected = expected[0] if isinstance(expected, tuple) else expected
    found = analysed(function, x)
    assert (found.value.shape, found.dtype) == (expected.shape, expected.dtype)
    assert compare(expected, Expected(found.value, found.bound, found.judged)).passed


NORMS = {
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: functional.group_norm(x, 2, torch.ones(4), torch.ones(4)),
    "batch_norm": lambda x: functional.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "softmax": lambda x: x.softmax(1),
    # No batch: without heads torch 2.11 divides by their number, which ends the process.
    "attention": lambda x: functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "convolution": lambda x: functional.conv1d(x, torch.ones(2, 4, 1)),
    "average": lambda x: functional.avg_pool1d(x, 1),
    "interpolation": lambda x: functional.interpolate(x, scale_factor=2, mode="linear"),
    "index_add": lambda x: x.index_add(0, torch.zeros(x.shape[0], dtype=torch.long), x),
    "cdist": lambda x: torch.cdist(x, x),
    "mm": lambda x: x @ x.mT,
}


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (1, 4, 1)], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_other_operations_of_no_elements(name, shape):
    function, x = NORMS[name], torch.full(shape, 2.5)
    try:
        expected = function(x)
    except (RuntimeError, ValueError):
        with pytest.raises((RuntimeError, ValueError)):
            analysed(function, x)
        return
    found = analysed(function, x)
    assert (found.value.shape, found.dtype) == (expected.shape, expected.dtype)
    assert compare(expected, Expected(found.value, found.bound, found.judged)).passed


def test_labels_may_be_narrow():
    x, labels = torch.randn(3, 7), torch.tensor([0, 6, 2])
    for dtype in (torch.uint8, torch.int64):
        found = analysed(functional.cross_entropy, x, labels.to(dtype))
        expected = functional.cross_entropy(x, labels)
        assert compare(expected, Expected(found.value, found.bound, found.judged)).passed


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: torch.special.bessel_j0(x), "bessel_j0"),
        (lambda x: functional.dropout(x), "random"),
        (lambda x: x / (x * 1.1).max().item(), "reads a number"),
        (lambda x: torch.rand(3) * x, "random"),
        (lambda x: (x * 1.1).view(torch.int32), "reads the bits"),
        (lambda x: (x * 1.1).tolist()[0] * x, "reads numbers"),
        (lambda x: torch.complex(x, x).abs(), "complex"),
        (lambda x: torch.fft.rfft(x).real, "fft"),
    ],
)
def test_what_has_no_rule_is_named(function, named):
    with pytest.raises(NoRule, match=named):
        analysed(function, torch.ones(3))


@pytest.mark.parametrize("op", ["silu", "softmax", "rms_norm", "mm", "div"])
def test_derived_bounds_are_near_those_by_hand_and_not_less_than_torch_needs(op):
    for dtype in ("float32", "bfloat16"):
        found = row(registry()[op], dtype, examples=8, seed=0)
        assert not found.note
        assert found.median <= MEDIAN_MOST
        assert found.worst <= WORST_MOST
        assert found.torch <= 1
        assert found.judged > 0.95
        assert found.zeros is not None
        assert found.zeros <= 0.01


def test_the_page_has_its_table_between_the_marks():
    rows = [Row("abs", "float32", note="exact"), Row("exp", "float32", 9, 1.0, 1.5, 2.0, 1.0, 0.25, 0.001)]
    text = page(f"before\n{BEGIN}\nold\n{END}\nafter\n", rows, "about")
    assert "old" not in text
    assert "| exp | float32 | 9 | 1.00 | 1.50 | 2.00 | 100.00% | 0.250 | 0.10% |" in text
    assert "Exact by both: `abs`." in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    with pytest.raises(ValueError, match="no <!--"):
        page("no marks", rows, "about")
