"""What the conformance suite draws seldom: every number of a half type, in place, and forms that must agree."""

import pytest
import torch

import ntops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["add", "sub"])
def test_zeros_have_torchs_signs(name, dtype):
    first, second = torch.cartesian_prod(*[torch.tensor([0.0, -0.0, 1.0, -1.0], dtype=dtype)] * 2).T
    for alpha in (0, 0.0, -0.0, 1, -1.0):
        for operands in ((first, second), (first, 1.0), (first[1], -1), (first[:1], second)):
            want = getattr(torch, name)(*operands, alpha=alpha)
            there = [one.to(DEVICE) if isinstance(one, torch.Tensor) else one for one in operands]
            found = getattr(ntops.torch, name)(*there, alpha=alpha)
            assert torch.equal(torch.signbit(found.cpu()), torch.signbit(want)), (alpha, operands)


@pytest.mark.parametrize("number", [-0.7, 0.1, 2**24 + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_is_rounded_before_a_quotient_is_floored(dtype, number):
    rounded = float(torch.tensor(float(number), dtype=torch.float32))
    input = torch.tensor([rounded, -rounded, 3 * rounded], dtype=dtype)
    found = ntops.torch.div(input.to(DEVICE), number, rounding_mode="floor")
    assert torch.equal(found.cpu(), (input.double() / rounded).floor().to(dtype))


@pytest.mark.parametrize("p", [0, 1, 1.0])
def test_dropout_of_all_or_nothing_draws_no_number(p):
    for wanted in (False, True):
        input = torch.ones(9, device=DEVICE, requires_grad=wanted)
        generator = torch.cuda if DEVICE == "cuda" else torch
        before = generator.get_rng_state()
        assert torch.equal(ntops.torch.dropout(input, p), input * (1 - p))
        assert torch.equal(generator.get_rng_state(), before)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_of_zeros_has_the_signs_of_its_formula(interleaved):
    table = torch.tensor([[0.0, -0.0, 1.0, -1.0]])
    first, second = torch.cartesian_prod(*[table[0]] * 2).T
    x0, x1 = (one.reshape(1, 4, 1, 4).to(DEVICE) for one in (first, second))
    input = torch.stack((x0, x1), -1).flatten(-2) if interleaved else torch.cat((x0, x1), -1)
    for sine in (0.0, -0.0):
        sin, cos = torch.full((4, 4), sine, device=DEVICE), torch.ones(4, 4, device=DEVICE)
        found = ntops.torch.rotary_position_embedding(input, sin, cos, interleaved=interleaved)
        found = found.unflatten(-1, (4, 2)).unbind(-1) if interleaved else found.chunk(2, -1)
        s = sin[:, None]
        for one, want in zip(found, (x0 - x1 * s, x0 * s + x1), strict=True):
            assert torch.equal(torch.signbit(one), torch.signbit(want))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_every_half_number_in_place(name, dtype):
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    want = getattr(torch, name)(numbers.double())
    # Half an ulp of the result, which has subnormals, and two of float32.
    finfo = torch.finfo(dtype)
    ulp = finfo.eps * torch.exp2(torch.frexp(want).exponent.double() - 1)
    bound = ulp.clamp(min=finfo.smallest_normal * finfo.eps) / 2 + 2 * 2**-23 * want.abs()

    found = numbers.to(DEVICE)
    getattr(ntops.torch, name)(found, out=found)
    found = found.cpu().double()

    finite = numbers.isfinite()
    assert found[~finite].isnan().all()
    assert ((found - want).abs() <= bound)[finite].all()


@pytest.mark.parametrize("exponent", [2.5, -1.0, 3.0, -0.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_power_is_the_same_of_a_number_and_of_a_tensor(exponent, dtype):
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-40, -1e-40, 3e38, -3e38]
    positive = torch.randn(500, generator=torch.Generator().manual_seed(0)).exp()
    base = torch.cat([torch.tensor(special), positive, -positive]).to(DEVICE, dtype)
    by_number = ntops.torch.pow(base, exponent)
    by_tensor = ntops.torch.pow(base, torch.full_like(base, exponent))
    torch.testing.assert_close(by_number, by_tensor, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(1 / by_number.nan_to_num(), 1 / by_tensor.nan_to_num())  # the signs of zeros


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("exponent", [0.0, 1e-50, float("inf"), float("-inf"), float("nan")])
def test_a_power_that_is_no_ordinary_number(exponent, dtype):
    """Also 0 once it is rounded; then, and of NaN, some powers of special numbers are 1."""
    base = torch.tensor([0.0, -0.0, 0.5, 1.0, -1.0, 2.0, float("inf"), float("-inf"), float("nan")], dtype=dtype)
    want = torch.pow(base.double(), torch.tensor(exponent).to(dtype).double()).to(dtype)
    ntops.torch.pow(base.to(DEVICE), 2.5)
    torch.testing.assert_close(ntops.torch.pow(base.to(DEVICE), exponent).cpu(), want, rtol=0, atol=0, equal_nan=True)
