"""FP8: GPUs without it convert as those with it do, scales of every form, and the linear layer."""

import itertools

import pytest
import torch

import ntops.torch
from ntops.host import fp8
from ntops.torch import FP8Linear, dequantize_fp8, fp8_gemm, quantize_fp8

# isort: split
import ninetoothed

from ntops import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BFLOAT16 = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).to(DEVICE)
ONE = torch.tensor(1.0, device=DEVICE)
HALF = (torch.float16, torch.bfloat16)


def random(*shape, dtype=torch.float16, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def bits(tensor):
    return tensor.view(torch.uint8)


@pytest.fixture(params=[True, False], ids=["native", "emulated"])
def native(request, monkeypatch):
    if request.param and not fp8.has_fp8():
        pytest.skip("this GPU has no FP8")
    monkeypatch.setattr(fp8, "has_fp8", lambda: request.param)
    return request.param


@pytest.mark.parametrize("dtype", fp8.FORMATS)
def test_every_number_is_rounded_as_torch_rounds_it(dtype, native):
    largest, nan = torch.finfo(dtype).max, BFLOAT16.isnan()
    found, _ = quantize_fp8(BFLOAT16, ONE, dtype=dtype)
    right = BFLOAT16.float().clamp(-largest, largest).to(dtype)
    assert torch.equal(bits(found)[~nan], bits(right)[~nan])
    assert found.float()[nan].isnan().all()


@pytest.mark.parametrize("dtype", fp8.FORMATS)
@pytest.mark.parametrize("wide", fp8.WIDE)
def test_every_number_comes_back(dtype, wide, native):
    numbers = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(dtype)
    found = dequantize_fp8(numbers, ONE, wide)
    torch.testing.assert_close(found, numbers.to(wide), rtol=0, atol=0, equal_nan=True)


def assert_product(found, a, b, a_scale, b_scale):
    """``a @ b.mT`` with scales, within what tensor cores cut off, which keep 14 bits of a sum."""
    left, right = (dequantize_fp8(*pair, torch.float32).double() for pair in ((a, a_scale), (b, b_scale)))
    assert ((found - left @ right.mT).abs() <= 2.0**-10 * (left.abs() @ right.abs().mT)).all()


@pytest.mark.parametrize("forms", list(itertools.product(fp8.GRANULARITIES, repeat=2)), ids=" ".join)
def test_products_with_scales_of_any_two_forms(forms, native):
    a, a_scale = quantize_fp8(random(5, 300), granularity=forms[0])
    b, b_scale = quantize_fp8(random(7, 300, seed=1), granularity=forms[1], dtype=torch.float8_e5m2)
    assert_product(
        fp8_gemm(a, b.mT, a_scale, b_scale.mT if b_scale.ndim else b_scale, torch.float32), a, b, a_scale, b_scale
    )


def test_scales_that_are_expanded_change_no_bit():
    a, b = random(1, 1000), random(1000, 1, seed=1)
    # Of each 128 terms a sum is -0 or 0, of all of them -0.
    scale = torch.tensor([[-0.0]], device=DEVICE).expand(8, 1)
    found, wanted = (fp8_gemm(a, b, b_scale=one) for one in (scale, scale.contiguous()))
    assert torch.equal(found.view(torch.int16), wanted.view(torch.int16))


@pytest.mark.parametrize("value", [0.0, 1.5, -3e-5, 6e4])
@pytest.mark.parametrize("granularity", fp8.GRANULARITIES)
@pytest.mark.parametrize("dtype", HALF)
def test_zeros_and_equal_magnitudes_are_exact(value, granularity, dtype):
    tensor = torch.full((3, 130), value, dtype=dtype, device=DEVICE)
    tensor[1] *= -1
    quantized, scale = quantize_fp8(tensor, granularity=granularity)
    assert torch.equal(dequantize_fp8(quantized, scale, dtype), tensor)
    assert (quantized.float().abs() == (448 if value else 0)).all()


@pytest.mark.parametrize("granularity", fp8.GRANULARITIES)
def test_nan_never_comes_from_finite_numbers(granularity):
    tensor = torch.tensor(
        [[3e38, 1e-45, -1e-45, 0.0], [1e-45, 0.0, 0.0, 0.0], [1e-38, -1e-38, 0.0, 2.0]], device=DEVICE
    )
    for scale in (None, torch.tensor(0.0), torch.tensor(1e-45), torch.tensor(3e38)):
        quantized, _ = quantize_fp8(tensor, scale, granularity=granularity)
        assert quantized.float().isfinite().all()


def test_infinities_saturate_and_take_no_part_in_amax():
    tensor = torch.tensor([[1.0, torch.inf, -torch.inf, torch.nan]], device=DEVICE)
    for dtype in fp8.FORMATS:
        largest = torch.finfo(dtype).max
        quantized, scale = quantize_fp8(tensor, dtype=dtype)
        assert scale == 1 / torch.tensor(largest)
        torch.testing.assert_close(
            quantized.float().cpu(), torch.tensor([[largest, largest, -largest, torch.nan]]), equal_nan=True
        )


def test_rows_longer_than_a_tile_and_a_chunk_have_one_scale(monkeypatch):
    monkeypatch.setattr(fp8, "_CHUNKS", 2)
    tensor = random(2, 70000, dtype=torch.float32)
    for granularity, amax in (("row", tensor.abs().amax(1, keepdim=True)), ("tensor", tensor.abs().max())):
        quantized, scale = quantize_fp8(tensor, granularity=granularity)
        # By a tensor: torch on CUDA multiplies with the reciprocal of a number.
        assert torch.equal(scale, amax / torch.full_like(amax, 448))
        assert torch.equal(bits(quantized), bits((tensor * (1 / scale)).to(quantized.dtype)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: quantize_fp8(x.double()), NotImplementedError, "argument 'tensor' has dtype torch.float64"),
        (lambda x: quantize_fp8(x, granularity="rows"), ValueError, "'granularity' is 'rows'; valid are tensor, row"),
        (lambda x: quantize_fp8(x, x[:, :1]), RuntimeError, "argument 'scale' has dtype torch.float16; scales are"),
        (
            lambda x: quantize_fp8(x, x.float()),
            RuntimeError,
            r"'scale' has shape \(3, 200\); valid are \(\), \(3, 1\), ",
        ),
        (lambda x: dequantize_fp8(x, ONE), NotImplementedError, "argument 'quantized' has dtype torch.float16"),
        (lambda x: fp8_gemm(x, x), RuntimeError, "cannot be multiplied: 200 columns against 3 rows"),
        (
            lambda x: fp8_gemm(x, x.mT, b_scale=torch.ones(3, 1, device=DEVICE)),
            RuntimeError,
            r"'b_scale' has shape \(3, 1\); valid are \(\), \(1, 3\), \(2, 3\)",
        ),
    ],
)
def test_refusals_say_what_is_valid(call, error, message):
    with pytest.raises(error, match=message):
        call(random(3, 200))


def test_both_operands_lie_along_k_where_no_copy_is_made(monkeypatch):
    seen = []
    monkeypatch.setattr(fp8.recorder, "launch", lambda kernel, grid, options, *args: seen.append(args))
    a, b = (random(32, 32).to(torch.float8_e4m3fn) for _ in range(2))
    fp8_gemm(a, b.mT)
    fp8_gemm(a.mT, b)
    pointers = [[tensor.data_ptr() for tensor in args[1:3]] for args in seen]
    given = [a.data_ptr(), b.data_ptr()]
    assert pointers[0] == given
    assert not set(pointers[1]) & set(given)


# --- in NineToothed, for those who build ahead of time ----------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["row", "block"])
def test_the_form_of_quantization_in_ninetoothed(granularity):
    tensor = random(5, 256)
    quantized, scale = quantize_fp8(tensor, granularity=granularity)
    columns = 256 if granularity == "row" else 128
    kernel = ninetoothed.make(
        *kernels.quantize_fp8.premake(block_rows=2, block_columns=columns), kernel_name="quantize"
    )
    found = torch.empty_like(quantized), torch.empty_like(scale)
    kernel(bits(found[0]), found[1], tensor)
    assert torch.equal(bits(found[0]), bits(quantized))
    assert torch.equal(found[1], scale)
    kernel = ninetoothed.make(*kernels.dequantize_fp8.premake(2, block_size=64), kernel_name="dequantize")
    result = torch.empty(5, 256, device=DEVICE)
    kernel(result, bits(quantized), scale.repeat_interleave(columns, 1))
    assert torch.equal(result, dequantize_fp8(quantized, scale, torch.float32))


def test_the_form_of_the_product_in_ninetoothed():
    (a, a_scale), (b, b_scale) = (quantize_fp8(random(9, 200, seed=n), granularity="row") for n in range(2))
    blocks = {"block_size_m": 16, "block_size_n": 16, "block_size_k": 128}
    kernel = ninetoothed.make(*kernels.fp8_gemm.premake(**blocks), kernel_name="fp8_gemm")
    result = torch.empty(9, 9, device=DEVICE)
    kernel(result, bits(a), bits(b).mT, a_scale.expand(9, 9), b_scale.mT.expand(9, 9))
    assert_product(result, a, b, a_scale, b_scale)


# --- the linear layer -------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def linear(request):
    torch.manual_seed(0)
    return torch.nn.Linear(150, 20, bias=request.param, device=DEVICE, dtype=torch.bfloat16).eval()


@torch.no_grad()
def test_a_linear_layer_and_back(linear):
    x = random(2, 3, 150, dtype=torch.bfloat16)
    module = FP8Linear.from_linear(linear)
    assert module(x).shape == (2, 3, 20)
    assert module(x).dtype is torch.bfloat16
    assert not module.training
    # Each factor is rounded to 4 bits: 2^-4 of each term at most.
    terms = x.float().abs() @ linear.weight.float().abs().mT
    assert ((module(x) - linear(x)).float().abs() <= 2**-3 * terms + 2**-6).all()
    back = module.to_linear()
    assert back.bias is linear.bias
    assert back.weight.dtype is (torch.bfloat16 if linear.bias is not None else torch.float32)
    weight = dequantize_fp8(module.weight, module.weight_scale, back.weight.dtype)
    assert torch.equal(back.weight, weight)
    # Quantizing what was quantized changes nothing.
    assert torch.equal(bits(FP8Linear.from_linear(back).weight), bits(module.weight))


@torch.no_grad()
def test_the_bias_is_added(linear):
    x, module = random(4, 150, dtype=torch.bfloat16), FP8Linear.from_linear(linear)
    bias, module.bias = module.bias, None
    without = module(x)
    module.bias = bias
    assert torch.equal(module(x), without if bias is None else without + bias)


def test_state_dict_round_trip(linear):
    module = FP8Linear.from_linear(linear)
    other = FP8Linear(150, 20, linear.bias is not None, DEVICE, torch.bfloat16)
    assert not torch.equal(bits(other.weight), bits(module.weight))
    other.load_state_dict(module.state_dict())
    assert set(module.state_dict()) == {"weight", "weight_scale"} | ({"bias"} if linear.bias is not None else set())
    for name, tensor in module.state_dict().items():
        assert torch.equal(bits(other.state_dict()[name]), bits(tensor))


def test_the_state_of_a_linear_layer_is_refused(linear):
    module = FP8Linear.from_linear(linear)
    with pytest.raises(
        RuntimeError, match=r"weight is torch.bfloat16, not torch.float8_e4m3fn: .* FP8Linear.from_linear"
    ):
        module.load_state_dict(linear.state_dict(), strict=False)


def test_a_cast_is_for_the_bias_alone():
    module = FP8Linear(16, 8, device=DEVICE)
    before = bits(module.weight).clone()
    module.to(torch.float16)
    assert (module.weight.dtype, module.weight_scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert module.bias.dtype is torch.float16
    assert torch.equal(bits(module.weight), before)
    assert FP8Linear(16, 8, device="meta").to_empty(device=DEVICE).weight.dtype is torch.float8_e4m3fn


def test_new_weights_are_those_of_torch_s_layer():
    module = FP8Linear(400, 100, device=DEVICE)
    weight = dequantize_fp8(module.weight, module.weight_scale, torch.float32)
    assert weight.abs().max() <= 1 / 20
    assert abs(weight.std().item() * 20 - 3**-0.5) < 0.02
    assert repr(module) == "FP8Linear(in_features=400, out_features=100, bias=True)"


def test_what_is_no_linear_layer_is_refused():
    with pytest.raises(TypeError, match=r"argument 'linear' must be a torch.nn.Linear, not Conv1d"):
        FP8Linear.from_linear(torch.nn.Conv1d(1, 1, 1))


def test_it_is_exported():
    assert ntops.torch.FP8Linear is FP8Linear
    assert "FP8Linear" in ntops.torch.__all__
