"""The op specs of the elementwise operators: torch passes, wrong results do not, strategies reach their marks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from op_tools import by_torch, call, drawn, failures, features, missing, stepped

from conformance import case_files, cases
from conformance.cases import Case, NonFinite, Same
from conformance.compare import compare
from conformance.ops import _rounded, _sizes
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies.specs import TensorSpec

COMPARISONS = ("ne", "lt", "le", "gt", "ge")
EXACT = ("abs", "neg", "bitwise_not", "bitwise_and", "bitwise_or", "clamp", "isnan", "isinf", *COMPARISONS)
ROUNDED = ("sub", "mul", "pow", "exp", "rsqrt", "sin", "cos", "sigmoid", "tanh", "silu", "gelu")
OPS = (*EXACT, *ROUNDED)
UNARY = ("abs", "neg", "exp", "rsqrt", "sin", "cos", "sigmoid", "tanh", "silu", "gelu", "bitwise_not", "isnan", "isinf")
FLOATS = [(op, dtype) for op in ROUNDED for dtype in registry()[op].dtypes if dtype in dtype_names.FLOATING]
WIDE_STEPS = {"sigmoid": 10, "silu": 10, "gelu": 40, "tanh": 8, "pow": 40, "exp": 6, "sin": 6, "cos": 6, "rsqrt": 6}
"""Steps that fail where the output dtype is the compute dtype, whose ulps the bounds of these count."""


@pytest.mark.parametrize("op", OPS)
def test_torch_itself_passes(op):
    spec = registry()[op]
    assert failures(drawn(spec.cases(spec.dtypes), 120)) == []


@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op in OPS for dtype in registry()[op].dtypes])
def test_cases_of_one_dtype(op, dtype):
    spec = registry()[op]
    for case in drawn(spec.cases((dtype,)), 10):
        assert {tensor.dtype for tensor in cases.operands(case)} == {dtype}
        assert sum(math.prod(tensor.shape) for tensor in cases.operands(case)) <= 4 * _sizes.MANY_ELEMENTS
        case_files.validate(case)
    assert drawn(spec.refused((dtype,)), 5)


@pytest.mark.parametrize("op", OPS)
def test_torch_refuses_what_is_to_be_refused(op):
    spec = registry()[op]
    for case in drawn(spec.refused(spec.dtypes), 100):
        if spec.cuda_refuses(call(case)) is None:
            with pytest.raises(Exception):  # noqa: B017, PT011  whichever torch raises
                by_torch(case)


def test_whole_numbers_are_equal_to_others_once_they_are_rounded():
    pairs = _rounded.pairs(dtype_names.ALL)
    assert ("int64", "float32") in pairs
    assert ("int16", "bfloat16") in pairs
    assert not {("int64", "float64"), ("int16", "float32"), ("int8", "float16")} & {*pairs}
    for operands in drawn(_rounded.operands(dtype_names.ALL), 100):
        given, _, _ = cases.materialize(Case(op="eq", args=operands))
        whole, rounded = sorted(given, key=torch.is_floating_point)
        assert torch.equal(whole.to(rounded.dtype), rounded)
        assert not (whole.double() == rounded.double()).any()


# --- power -------------------------------------------------------------------------------------------------------


def normal(op: str, dtype: str) -> Case:
    operand = TensorSpec((4096,), dtype, "positive" if op == "rsqrt" else "normal")
    if op in UNARY:
        return Case(op=op, args=(operand,))
    if op == "pow":
        return Case(op=op, args=(TensorSpec((4096,), dtype, "positive"), operand))
    return Case(op=op, args=(operand, TensorSpec((4096,), dtype, seed=1)))


@pytest.mark.parametrize(("op", "dtype"), FLOATS)
def test_an_all_zero_output_fails_and_so_do_a_few_ulps(op, dtype):
    case = normal(op, dtype)
    expected = registry()[op].expected(call(case))
    right = expected.value.to(dtype_names.to_torch(dtype))
    assert compare(right, expected).passed
    nonzero = int((right != 0).sum())
    assert compare(torch.zeros_like(right), expected).failed >= 0.99 * nonzero
    steps = WIDE_STEPS.get(op, 4) if dtype in ("float32", "float64") else 4
    for sign in (1, -1):
        wrong = torch.where(right != 0, stepped(right, sign * steps), right)
        # Left of a power of two steps are half as wide; where gelu all but vanishes its bound does not.
        assert compare(wrong, expected).failed >= (0.6 if op == "gelu" else 0.97) * nonzero


@pytest.mark.parametrize("op", EXACT)
def test_one_bit_fails_where_nothing_is_rounded(op):
    dtype = "int32" if op.startswith("bitwise") else "float32"
    case = normal(op, dtype)
    expected, right = registry()[op].expected(call(case)), by_torch(case)
    assert compare(right, expected).passed
    wrong = right.clone()
    wrong[77] = ~right[77] if right.dtype == torch.bool else stepped(right, 1)[77]
    assert compare(wrong, expected).failed == 1


@pytest.mark.parametrize("op", ["neg", "tanh", "sin", "silu", "gelu", "mul"])
def test_the_sign_of_a_zero_counts(op):
    zeros = TensorSpec((4,), "float32", "zeros")
    case = Case(op=op, args=(zeros,) if op in UNARY else (zeros, 2.0))
    expected, right = registry()[op].expected(call(case)), by_torch(case)
    assert compare(right, expected).passed
    assert compare(-right, expected).failed == 4


# --- what the strategies reach -----------------------------------------------------------------------------------


OUTS = {"no out", "out", "empty out", "out of another size", "strided out", "out is an input"}
ANY = {"0-d", "empty", "several blocks", "layout permuted", "layout expanded", "layout mixed", "layout sliced"}
SPECIAL = {f"special {name}" for name in ("nan", "inf", "-inf", "-0", "max", "tiny")}
PAIR = {"mixed dtypes", "same operand", "broadcast", "int scalar", "bool scalar"}
REACHED = {
    **dict.fromkeys(COMPARISONS, OUTS | ANY | SPECIAL | PAIR | {"float scalar", "out of another dtype"}),
    **dict.fromkeys(("abs", "neg"), OUTS | ANY | SPECIAL),
    **dict.fromkeys(("exp", "rsqrt", "sin", "cos", "sigmoid", "tanh"), OUTS | ANY | SPECIAL | {"out of another dtype"}),
    **dict.fromkeys(("bitwise_and", "bitwise_or"), OUTS | ANY | PAIR | {"scalar first", "out of another dtype"}),
    **dict.fromkeys(("isnan", "isinf"), ANY | SPECIAL),
    "bitwise_not": OUTS | ANY,
    "silu": ANY | SPECIAL | {"inplace True", "inplace False"},
    "gelu": ANY | SPECIAL | {"approximate none", "approximate tanh"},
    "mul": OUTS | ANY | SPECIAL | PAIR | {"float scalar", "scalar first", "out of another dtype"},
    "pow": OUTS | ANY | SPECIAL | PAIR | {"float scalar", "scalar first", "out of another dtype"},
    "sub": OUTS | ANY | SPECIAL | (PAIR - {"bool scalar"}) | {"scalar first", "alpha int", "alpha float"},
    "clamp": OUTS
    | ANY
    | SPECIAL
    | {"broadcast", "mixed dtypes", "same operand", "float scalar", "out of another dtype"},
}


@pytest.mark.parametrize("op", OPS)
def test_strategies_reach_every_feature(op):
    spec = registry()[op]
    wanted = REACHED[op] | {f"dtype {name}" for name in spec.dtypes}
    assert missing(spec.cases(spec.dtypes), wanted, features) == set()


def of_clamp(case: Case) -> set[str]:
    low, high = (case.args[n] if len(case.args) > n else case.kwargs.get(k) for n, k in ((1, "min"), (2, "max")))
    kinds = {TensorSpec: "a tensor", Same: "a tensor"}
    names = ["no" if bound is None else kinds.get(type(bound), "a number") for bound in (low, high)]
    nan = any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high))
    return {f"{names[0]} min, {names[1]} max"} | ({"NaN"} if nan else set())


def test_clamp_reaches_every_form_of_bounds():
    wanted = {f"{a} min, {b} max" for a in ("no", "a number", "a tensor") for b in ("no", "a number", "a tensor")}
    wanted = (wanted | {"NaN"}) - {"no min, no max"}
    assert missing(registry()["clamp"].cases(dtype_names.ALL), wanted, of_clamp) == set()


def of_pow(case: Case) -> set[object]:
    base, exponent = (float(x.value) if isinstance(x, NonFinite) else x for x in case.args)
    found: set[object] = set()
    if not isinstance(exponent, TensorSpec | Same):
        found.add(str(float(exponent)) if base.dtype in dtype_names.FLOATING else f"whole {type(exponent).__name__}")
    if not isinstance(base, TensorSpec):
        found.add(f"base {float(base)}")
    return found


def test_pow_reaches_the_exponents_that_have_shortcuts():
    wanted = {str(float(n)) for n in (0, 1, 2, 3, -1, -2, 0.5, -0.5, math.inf, math.nan)}
    wanted |= {"whole int", "whole float", "whole bool", "base 1.0", "base 0.0", "base -2.0", "base nan"}
    assert missing(registry()["pow"].cases(dtype_names.ALL), wanted, of_pow) == set()


@pytest.mark.parametrize("op", ["exp", "sin", "tanh"])
def test_the_interesting_ranges_are_reached(op):
    def of_values(case: Case) -> set[str]:
        input = call(case).args[0]
        if input.dtype != torch.float32 or not input.numel():
            return set()
        size = input[input.isfinite()].abs()
        tests = {
            "overflow": (size > 88.8) & (size < 104),
            "range reduction": (size > 1e9) & (size < 1e30),
            "subnormal": (size > 0) & (size < 1e-38),
            "saturation": (size > 8) & (size < 20),
        }
        return {name for name, found in tests.items() if found.any()}

    wanted = {"overflow", "range reduction", "subnormal", "saturation"}
    assert missing(registry()[op].cases(("float32",)), wanted, of_values) == set()


@pytest.mark.parametrize("op", OPS)
def test_benchmarks(op):
    contiguous = [benchmark for benchmark in registry()[op].benchmarks if len(benchmark.case.args[0].shape) == 1]
    assert {(1024,), (1 << 26,)} <= {benchmark.case.args[0].shape for benchmark in contiguous}
    for benchmark in contiguous:
        size = sum(math.prod(x.shape) * dtype_names.to_torch(x.dtype).itemsize for x in cases.operands(benchmark.case))
        written = (
            1 if op in (*COMPARISONS, "isnan", "isinf") else dtype_names.to_torch(benchmark.case.args[0].dtype).itemsize
        )
        assert benchmark.bytes == size + written * benchmark.case.args[0].shape[0]


def test_a_signalling_nan_beside_one_and_zero_is_not_judged():
    quiet, signalling = np.array([0x7FF8 << 48, 0x7FF0 << 48 | 1], np.uint64).view(np.float64)
    base = torch.from_numpy(np.array([1.0, 1.0, 2.0, quiet, signalling]))
    exponent = torch.from_numpy(np.array([quiet, signalling, signalling, 0.0, 0.0]))
    found = registry()["pow"].expected(Call((base, exponent), {}, torch.pow(base, exponent)))
    assert found.judged.tolist() == [True, False, True, True, False]
    one, power = torch.ones((), dtype=torch.float64), exponent[1]
    found = registry()["pow"].expected(Call((one, power), {}, torch.pow(one, power)))
    assert not found.judged
    assert found.judged.shape == ()
