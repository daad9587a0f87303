"""What the conformance suite draws seldom: every number of a half type, in place, and forms that must agree."""

import pytest
import torch

import ntops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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
