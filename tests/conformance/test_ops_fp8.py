"""The FP8 ops: compositions of torch's operators and torch._scaled_mm pass, and sums that are not float32's fail."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from op_tools import call, drawn

from conformance import case_files, cases, repro, runner
from conformance.cases import Case, DType
from conformance.compare import compare
from conformance.implementations import Implementation, load
from conformance.ops import _fp8 as fp8
from conformance.selftest.fp8 import cut_off
from conformance.spec import Call, registry
from strategies.specs import Special, TensorSpec

OPS = ("quantize_fp8", "dequantize_fp8", "fp8_gemm")
COMPOSED = SimpleNamespace(quantize_fp8=fp8.quantize, dequantize_fp8=fp8.dequantize, fp8_gemm=fp8.gemm)


@pytest.mark.parametrize("op", OPS)
def test_the_composition_passes_and_refuses(op):
    spec, composed = registry()[op], Implementation("composed", COMPOSED, {"*": ("deterministic",)})
    for case in (*drawn(spec.cases(spec.dtypes), 8), *(refused := drawn(spec.refused(spec.dtypes), 25))):
        verdict = runner.judge(case, composed, thorough=False)
        assert verdict.status == "passed", verdict
    kinds = {runner.prepare(case, "cpu").refusal for case in refused}
    assert kinds >= {RuntimeError, TypeError, NotImplementedError}


@pytest.mark.parametrize("shape", [(0,), (3, 4)])
def test_the_composition_does_not_depend_on_the_default_dtype(shape):
    wide = torch.ones(shape, dtype=torch.float16)
    plain = fp8.quantize(wide)
    torch.set_default_dtype(torch.float64)
    try:
        assert [x.dtype for x in fp8.quantize(wide)] == [x.dtype for x in plain]
    finally:
        torch.set_default_dtype(torch.float32)


def product(k: int, values: str = "positive", *specials: Special) -> Case:
    first = TensorSpec((8, k), "float8_e4m3fn", values, 1, specials=specials)
    second = TensorSpec((k, 6), "float8_e4m3fn", values, 1)
    return Case(op="fp8_gemm", args=(first, second), kwargs={"out_dtype": DType("float32")})


def judged(case: Case, wrong: torch.Tensor):
    return compare(wrong, registry()["fp8_gemm"].expected(call(case)))


@pytest.mark.parametrize("k", [4096, 8192])
def test_sums_in_14_bits_pass_128_terms_at_a_time_and_not_all_at_once(k):
    a, b = call(product(k)).args
    assert judged(product(k), cut_off(a, b.mT, 128)).passed
    assert judged(product(k), cut_off(a, b.mT, 1 << 30)).failed > 40


def test_small_terms_beside_large_ones_may_be_cut_off():
    case = product(2048, "positive", Special(0, "max", 64))
    a, b = call(case).args
    right, cut = (a.double() @ b.double()).float(), cut_off(a, b.mT, 128)
    terms = a.double().abs() @ b.double().abs()
    assert ((cut - right).abs() > 2.0**-10 * terms).any()
    assert judged(case, cut).passed
    assert judged(case, right).passed


@pytest.mark.parametrize("seed", range(20))
def test_what_is_cut_off_beside_ties_is_within_the_bound(seed):
    """A product whose element was a tie loses other bits than the middle of its two numbers."""
    generator = np.random.default_rng(seed)
    whole = (generator.integers(1, 16, (2, 1, 96)) * 2.0 ** generator.integers(-3, 4, (2, 1, 96))).astype(float)
    if seed % 2:
        whole *= generator.choice([-1.0, 1.0], whole.shape)
    steps = 2.0 ** (np.frexp(whole)[1] - 4) / 2 * (generator.random(whole.shape) < 0.1)
    formats = (torch.float8_e4m3fn, torch.float8_e4m3fn)
    (_, lost), *others = fp8.tensor_core_sums(*(whole + steps), 128, formats, tuple(steps))
    assert not others
    for _ in range(100):
        a, b = whole + 2 * steps * generator.integers(0, 2, whole.shape)
        assert np.abs(a @ b.T - next(fp8.tensor_core_sums(a, b, 128, formats))[0]) <= lost
        assert next(fp8.tensor_core_sums(a, b, 128, formats))[1] <= lost
    exact = next(fp8.tensor_core_sums(*whole, 128, formats))[1]
    assert exact <= next(fp8.tensor_core_sums(*whole, 128, formats, (np.zeros((1, 96)),) * 2))[1] <= exact


SCALES = {"a_scale": (32, 1), "b_scale": (1, 48)}
BY_ROW = {name: TensorSpec(shape, "float32", "positive") for name, shape in SCALES.items()}


@pytest.mark.parametrize("scales", [{}, BY_ROW], ids=["one", "by row"])
def test_scaled_mm_passes(scales):
    args = TensorSpec((32, 256), "float8_e4m3fn"), TensorSpec((256, 48), "float8_e5m2")
    case = Case(op="fp8_gemm", args=args, kwargs={**scales, "out_dtype": DType("bfloat16")})
    concrete = call(case)
    if scales and torch.torch_version.TorchVersion(torch.__version__) < "2.13":
        # On a CPU it takes one scale for each matrix.
        with pytest.raises(NotImplementedError):
            fp8.scaled_mm(*concrete.args, **concrete.kwargs)
        return
    assert judged(case, fp8.scaled_mm(*concrete.args, **concrete.kwargs)).passed


def test_a_tie_of_an_exact_quotient_is_even_and_one_of_a_rounded_quotient_either():
    expected = registry()["quantize_fp8"].expected
    for scale, either in ((2.0, False), (3.0, True)):
        tensor = torch.tensor([17 * scale, 19 * scale, 16 * scale])
        found, _ = expected(Call((tensor, torch.tensor(scale)), {}, None))
        for first, second in ((16, 20), (18, 20), (16, 18), (18, 18)):
            output = torch.tensor([first, second, 16.0]).to(torch.float8_e4m3fn)
            assert compare(output, found).passed is (either or (first, second) == (16, 20))
        assert not compare(torch.tensor([16, 20, 18.0]).to(torch.float8_e4m3fn), found).passed


@pytest.mark.parametrize(
    ("name", "case", "judged_by", "status"),
    [
        ("quantize_fp8_toward_zero", Case(op="quantize_fp8", args=(TensorSpec((3, 200), "float16"),)), None, 1),
        ("fp8_gemm_fast_accumulation", product(4096), "ntops.torch", 0),
    ],
    ids=["wrong", "right"],
)
def test_a_script_judges_without_the_harness(name, case, judged_by, status, tmp_path, monkeypatch):
    implementation = load(f"conformance.selftest.planted:{name}")
    verdict = runner.judge(case, implementation)
    assert verdict.failure.check == "values"
    assert case_files.decode(cases.encode(case)) == case
    path = tmp_path / "repro.py"
    path.write_text(repro.script(case, verdict, implementation, torch.device("cpu")))
    monkeypatch.setattr("sys.argv", [str(path), judged_by or implementation.name])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == status


@pytest.mark.parametrize(
    ("terms", "last"),
    [
        ([(1.0, 1.0)], 13),
        ([(-1.0, 1.0)], 13),
        # The sum has one more bit before its point.
        ([(1.75, 1.75)], 12),
        ([(2.0**-6, 64.0)], 13),
        # A subnormal factor.
        ([(2.0**-8, 256.0)], 11),
        ([(1.0, 1.0), (0.0, 256.0)], 13),
    ],
)
def test_sums_of_tensor_cores_are_those_of_an_h200(terms, last):
    """Which 2^-j beside other terms changes their sum there."""
    formats = (torch.float8_e4m3fn, torch.float8_e4m3fn)

    def added(*terms):
        a, b = np.array(terms).T
        return next(fp8.tensor_core_sums(a[None], b[None], 128, formats))[0].item()

    seen = [j for j in range(18) if added(*terms, (2.0 ** -(j // 2), 2.0 ** -(j - j // 2))) != added(*terms)]
    assert max(seen) == last
