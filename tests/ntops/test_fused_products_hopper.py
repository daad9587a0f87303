"""The form for Hopper of fp8_gemm and fused_gated_mlp: its choice anywhere, and what it computes on such a GPU."""

import sys

import pytest
import torch
from hopper import hopper

from ntops.host import fp8, fused_products_hopper, mm_hopper, product_configs
from ntops.launch import configuration
from ntops.torch import dequantize_fp8, fp8_gemm, fused_gated_mlp, quantize_fp8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16
gated = sys.modules["ntops.torch.fused_gated_mlp"]
LIMITS = (232448, 132)
FEW = product_configs.Options(16, 64, 128, 4, 6, form=product_configs.HOPPER)
SHAPES = [(1, 128, 64), (333, 264, 1040), (130, 4000, 144), (3000, 5000, 272)]
"""Rows, columns and terms: less than a tile, what tiles and steps do not divide, more tiles than multiprocessors."""


def random(*shape, dtype=HALF, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


# --- the choice ----------------------------------------------------------------------------------------------------


def test_large_calls_that_it_takes_have_it_and_a_fixed_configuration_may_be_any_of_both_forms():
    for choose, rest in ((fp8.config, (True, True, False, *LIMITS)), (gated._config, (4096, HALF, False, *LIMITS))):
        known = choose.alternatives(1, 1, *rest, True)
        assert {type(one) is fused_products_hopper.Options for one in known} == {True, False}
        assert choose(4096, 4096, *rest, True) in known
        assert type(choose(4096, 4096, *rest, True)) is fused_products_hopper.Options
        assert type(choose(4096, 4096, *rest, False)) is not fused_products_hopper.Options
        assert type(choose(16, 4096, *rest, True)) is not fused_products_hopper.Options


def test_a_gated_mlp_of_few_rows_and_many_columns_is_one_of_mm():
    rest = (8192, HALF, False, *LIMITS)
    assert FEW in gated._config.alternatives(1, 1, *rest, True)
    assert gated._config(16, 28672, *rest, True) == gated._config(1, 28672, *rest, True) == FEW
    others = ((16, 28672, False), (16, 14336, True), (17, 28672, True))
    assert FEW not in [gated._config(m, n, *rest, hopper) for m, n, hopper in others]
    assert mm_hopper.shared_memory(FEW, HALF) + 64 * 128 * 2 * 6 <= LIMITS[0], "another left factor"


@hopper
def test_what_it_takes_depends_on_no_layout():
    assert fused_products_hopper.takes(64, 8, 2, 2)
    assert not fused_products_hopper.takes(60, 8, 2, 2)
    assert not fused_products_hopper.takes(64, 12, 1, 2)
    assert not fused_products_hopper.takes(0, 8, 2, 2)


# --- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.fixture
def forced(monkeypatch, request):
    """Every call that it takes has it, whatever its sizes, and those of other forms fail."""

    def options(*args):
        assert args[-1] is True or args[-2] is True, "the form takes the call"
        return tile if tile == FEW else fused_products_hopper.options(*tile, 4, LIMITS[0])

    tile = getattr(request, "param", (2, 2))
    monkeypatch.setattr(fp8, "config", options)
    monkeypatch.setattr(gated, "_config", options)


def operands(m, n, k, formats=(torch.float8_e4m3fn,) * 2, by=("row", "row")):
    """``a``, ``b``, and scales of rows or of matrices."""
    a, b = random(m, k).to(formats[0]), random(n, k, seed=1).to(formats[1])
    scales = [random(len(one), dtype=torch.float32, seed=2).abs() + 0.5 for one in (a, b)]
    first, second = (scale[:, None] if form == "row" else scale[0] for scale, form in zip(scales, by, strict=True))
    return a, b, first, second


def assert_product(found, a, b, a_scale, b_scale):
    left, right = (dequantize_fp8(*pair, torch.float32).double() for pair in ((a, a_scale), (b, b_scale)))
    # Of the result half an ulp more.
    right, magnitude = left @ right.mT, left.abs() @ right.abs().mT
    rounded = torch.finfo(found.dtype).eps * right.abs()
    assert ((found - right).abs() <= 2.0**-10 * magnitude + rounded).all()


TILES = pytest.mark.parametrize("forced", [(2, 2), (3, 1), (2, 1)], indirect=True, ids=str)


@hopper
@TILES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("out_dtype", fp8.WIDE)
def test_fp8_products(shape, out_dtype, forced):
    a, b, a_scale, b_scale = operands(*shape)
    assert_product(fp8_gemm(a, b.mT, a_scale, b_scale.mT, out_dtype), a, b, a_scale, b_scale)


E4M3, E5M2 = fp8.FORMATS


@hopper
@pytest.mark.parametrize(
    ("formats", "by"),
    [
        ((E4M3, E5M2), ("row", "tensor")),
        ((E5M2, E4M3), ("tensor", "row")),
        ((E5M2, E5M2), ("tensor", "tensor")),
    ],
    ids=str,
)
def test_formats_and_scales(formats, by, forced):
    a, b, a_scale, b_scale = operands(200, 400, 528, formats, by)
    result = fp8_gemm(a, b.mT, a_scale, b_scale.mT if b_scale.ndim else b_scale, torch.float32)
    assert_product(result, a, b, a_scale, b_scale)


@hopper
@pytest.mark.parametrize("forced", [(2, 1)], indirect=True, ids=str)
@pytest.mark.parametrize("forms", [("block", "block"), ("block", "row"), ("tensor", "block")], ids=" ".join)
@pytest.mark.parametrize("shape", SHAPES)
def test_scales_of_blocks(forms, shape, forced):
    m, n, k = shape
    (a, a_scale), (b, b_scale) = (
        quantize_fp8(one * torch.arange(1, k + 1, device=DEVICE), granularity=form)
        for one, form in zip((random(m, k), random(n, k, seed=1)), forms, strict=True)
    )
    result = fp8_gemm(a, b.mT, a_scale, b_scale.mT if b_scale.ndim else b_scale, torch.float32)
    assert_product(result, a, b, a_scale, b_scale)


@hopper
@pytest.mark.parametrize("forced", [(2, 1)], indirect=True, ids=str)
def test_scales_that_are_expanded(forced):
    a, b, _, b_scale = operands(100, 264, 528)
    by_block = random(1, 5, dtype=torch.float32, seed=3).abs() + 0.5

    for scale in (by_block.expand(100, 5), by_block[:, :1].expand(100, 1), b_scale[:100].expand(100, 5)):
        wanted = fp8_gemm(a, b.mT, scale.contiguous(), b_scale.mT, torch.float32)
        assert_product(wanted, a, b, scale.contiguous(), b_scale)
        found = fp8_gemm(a, b.mT, scale, b_scale.mT, torch.float32)
        assert_product(found, a, b, scale.contiguous(), b_scale)
        # Scales may be multiplied in another order: of each, seven roundings of sum|terms|, 4.6e-4.
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-3)


@hopper
@TILES
def test_terms_are_added_up_in_float32(forced):
    """Of one sign and many: what tensor cores cut off would add up."""
    a, b, a_scale, b_scale = operands(64, 128, 65536)
    a, b = (one.float().abs().to(one.dtype) for one in (a, b))
    assert_product(fp8_gemm(a, b.mT, a_scale, b_scale.mT, torch.float32), a, b, a_scale, b_scale)


@hopper
def test_fp8_layouts_change_no_bit(forced):
    a, b, a_scale, b_scale = operands(200, 400, 528)
    wanted = fp8_gemm(a, b.mT, a_scale, b_scale.mT)

    for one, other in ((a.mT.contiguous().mT, b.mT.contiguous().mT), (misaligned(a), misaligned(b))):
        scales = a_scale.expand(200, 3)[:, 1:2].clone(), b_scale.expand(400, 2).contiguous()[:, 1:]
        assert torch.equal(fp8_gemm(one, other.mT, scales[0], scales[1].mT), wanted)


def misaligned(matrix):
    return torch.nn.functional.pad(matrix.float(), (3, 2)).to(matrix.dtype)[:, 3:-2]


GATED = pytest.mark.parametrize("forced", [(2, 2), FEW], indirect=True, ids=["many rows", "few"])


@hopper
@GATED
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float16, HALF])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated_mlp(shape, dtype, activation, forced):
    m, n, k = shape
    x, gate, up = random(m, k, dtype=dtype), *(random(n, k, dtype=dtype, seed=1 + i) / k**0.5 for i in range(2))
    result = fused_gated_mlp(x, gate, up, activation)
    first, second = (x.double() @ weight.double().mT for weight in (gate, up))
    functional = torch.nn.functional
    activated = (
        functional.silu(first)
        if activation == "silu"
        else functional.gelu(first, approximate="tanh" if activation == "gelu_tanh" else "none")
    )
    # An ulp of the result; and less than its factors may be off, 4u sqrt(K) sum|terms|, which is 1.5e-4 of 1040 terms.
    torch.testing.assert_close(result.double(), activated * second, rtol=torch.finfo(dtype).eps, atol=1e-4)


@hopper
@GATED
def test_gated_layouts_change_no_bit(forced):
    x, gate, up = random(300, 136), random(400, 136, seed=1), random(400, 136, seed=2)
    wanted = fused_gated_mlp(x, gate, up)
    turned = [one.mT.contiguous().mT for one in (x, gate, up)]

    for tensors in (turned, (x, turned[1], up), [misaligned(one) for one in (x, gate, up)]):
        assert torch.equal(fused_gated_mlp(*tensors), wanted)

    assert torch.equal(fused_gated_mlp(x.view(3, 100, 136), gate, up).view(300, 400), wanted)
    assert torch.equal(fused_gated_mlp(x[:1].expand(5, 136), gate, up), wanted[:1].expand(5, 400))


@hopper
def test_calls_that_come_again_are_of_their_own_tensors():
    a, b, a_scale, b_scale = operands(2048, 4096, 256)
    x, gate, up = random(2048, 256), random(17000, 256, seed=1), random(17000, 256, seed=2)

    for call, tensors in (
        (fp8_gemm, (a, b.mT, a_scale, b_scale.mT)),
        (fused_gated_mlp, (x, gate, up)),
        (fused_gated_mlp, (x[:16], gate, up)),
    ):
        first = call(*tensors)
        call(tensors[0].flip(0), *tensors[1:])
        assert torch.equal(call(*(one.clone() for one in tensors)), first)


@hopper
def test_configurations_agree():
    a, b, a_scale, b_scale = operands(100, 256, 512)
    with configuration.fixed() as names:
        wanted = fp8_gemm(a, b.mT, a_scale, b_scale.mT)
    assert len(names) > 2
    for number in range(len(names)):
        with configuration.fixed(number):
            # Two roundings to float16; and less than each may be off, 2^-10 sum|terms|, which is 0.08 and more.
            torch.testing.assert_close(fp8_gemm(a, b.mT, a_scale, b_scale.mT), wanted, rtol=2e-3, atol=2e-2)
