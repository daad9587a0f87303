"""The op specs: torch itself passes, and the strategies reach what they are meant to."""

from __future__ import annotations

import math

import pytest
import torch
from op_tools import by_torch, call, drawn, failures, features, missing

from conformance import case_files, cases
from conformance.cases import Case, DType, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _sizes
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import materialize

OPS = ("add", "div", "eq", "mm", "relu", "softmax")
NORMS = ("layer_norm", "rms_norm")
PRODUCTS = ("bmm", "addmm", "matmul")
EXAMPLES = {
    **dict.fromkeys(OPS, (250, 40)),
    **dict.fromkeys(NORMS, (100, 25)),
    **dict.fromkeys(PRODUCTS, (60, 20)),
}
"""How many cases of all dtypes, and how many of one dtype, torch is tried with."""
PAIRS = [(op, dtype) for op in EXAMPLES for dtype in registry()[op].dtypes]


# --- no false alarm ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", EXAMPLES)
def test_torch_itself_passes(op):
    spec = registry()[op]
    assert failures(drawn(spec.cases(spec.dtypes), EXAMPLES[op][0])) == []


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_torch_itself_passes_with_one_dtype(op, dtype):
    found = drawn(registry()[op].cases((dtype,)), EXAMPLES[op][1])
    assert {tensor.dtype for case in found for tensor in cases.operands(case)} == {dtype}
    assert failures(found) == []


@pytest.mark.parametrize("op", EXAMPLES)
def test_torch_refuses_what_is_to_be_refused(op):
    spec = registry()[op]
    by_cuda_alone = 0
    for case in drawn(spec.refused(spec.dtypes), 300 if op in PRODUCTS else 150):
        if spec.cuda_refuses(call(case)) is None:
            with pytest.raises((RuntimeError, TypeError, ValueError, IndexError, OverflowError)):
                by_torch(case)
        else:
            by_cuda_alone += 1
    assert by_cuda_alone or op not in PRODUCTS


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_refused_calls_exist_for_every_dtype(op, dtype):
    assert drawn(registry()[op].refused((dtype,)), 5)


@pytest.mark.parametrize("op", EXAMPLES)
def test_cases_are_modest(op):
    spec = registry()[op]
    most = (2 if op in NORMS else 4 if op in PRODUCTS else 3) * _sizes.MANY_ELEMENTS
    for case in drawn(spec.cases(spec.dtypes), 150):
        assert sum(math.prod(tensor.shape) for tensor in cases.operands(case)) <= most


# --- what the strategies reach -----------------------------------------------------------------------------------


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
    case_files.validate(case)
    with pytest.raises(RuntimeError, match="single memory location"):
        by_torch(case)
    beyond = Case(op="add", args=(TensorSpec((4,), "float32"), 1), kwargs={"out": Same(0, shift=-1)})
    with pytest.raises(cases.CaseError, match="out of its storage"):
        case_files.validate(beyond)


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


@pytest.mark.parametrize("op", [op for op, spec in registry().items() if not spec.mixes])
def test_no_call_of_an_op_whose_dtypes_do_not_mix_has_several(op):
    """Else the suite, which draws those of one dtype alone, never makes it."""
    spec = registry()[op]
    for case in drawn(spec.cases(spec.dtypes), 300):
        named = {x.name for x in (*case.args, *case.kwargs.values()) if isinstance(x, DType)}
        assert len(({one.dtype for one in cases.operands(case)} | named) & {*spec.dtypes}) < 2


def test_what_a_cast_makes_of_an_infinity_is_not_judged():
    """CPUs and CUDA make different integers of it, and so different sums."""
    x = torch.ones(3, 33, dtype=torch.float16)
    x[0, 0], x[1, 2] = float("inf"), float("nan")
    found = registry()["sum"].expected(Call((x, 1), {"dtype": torch.int32}, None))
    assert found.judged.tolist() == [False, False, True]
