"""Where Triton's own interpreter lies, each row with what the compiled kernel does."""

import fractions
import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

SIZE = 64


def launch(kernel, out, *tensors, **constants):
    kernel[(2,)](out, *tensors, BLOCK=len(out) // 2, **constants)

    return out


@triton.jit
def relu(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, max(tl.load(x + i), 0.0))


def test_builtin_max_of_blocks():
    x = torch.linspace(-1, 1, SIZE)

    assert torch.equal(launch(relu, torch.empty(SIZE), x), x.clamp(min=0))


@triton.jit
def is_infinite(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(out + i, a == float("inf") or a == float("-inf"))


@triton.jit
def is_inside(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(out + i, (a > -1.0 and a < 1.0) and not (a == 0.0))


def test_boolean_operators_of_blocks():
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, 0.5, -0.5, 2.0, -2.0])

    assert torch.equal(launch(is_infinite, torch.empty(8, dtype=torch.bool), x), x.isinf())
    assert torch.equal(launch(is_inside, torch.empty(8, dtype=torch.bool), x), (x.abs() < 1) & (x != 0))


@triton.jit
def chained(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 < tl.load(x + i) <= 5)


def test_chained_comparison_of_blocks():
    x = torch.arange(8)

    assert torch.equal(launch(chained, torch.empty(8, dtype=torch.bool), x), (x > 2) & (x <= 5))


@triton.jit
def power(out, x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, libdevice.pow(tl.load(x + i), tl.load(y + i)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_libdevice(dtype):
    x, y = torch.rand(SIZE, dtype=dtype) * 3, torch.randn(SIZE, dtype=dtype)
    expected = torch.pow(x.double(), y.double()).to(dtype)

    torch.testing.assert_close(launch(power, torch.empty(SIZE, dtype=dtype), x, y), expected, rtol=1e-6, atol=0)


@triton.jit
def rounding(out, x, BLOCK: tl.constexpr, WHICH: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    if WHICH == "rint":
        r = libdevice.rint(a)
    elif WHICH == "trunc":
        r = libdevice.trunc(a)
    elif WHICH == "tanh":
        r = libdevice.tanh(a)
    else:
        r = libdevice.round(a)
    tl.store(out + i, r)


@pytest.mark.parametrize("which", ["rint", "trunc", "round", "tanh"])
def test_libdevice_functions_of_one_argument(which):
    x = torch.tensor([-2.5, -0.5, 0.49999997, 0.5, 1.5, 2.5, 8388609.0, -7.3])
    expected = {
        "rint": x.round(),
        "trunc": x.trunc(),
        "round": torch.tensor([math.copysign(math.floor(abs(v) + 0.5), v) for v in x.double().tolist()]).float(),
        "tanh": x.double().tanh().float(),
    }[which]

    assert torch.equal(launch(rounding, torch.empty(8), x, WHICH=which), expected)


@triton.jit
def fast_quotient(out, x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, libdevice.fast_dividef(tl.load(x + i), tl.load(y + i)))


def test_the_fast_quotient_flushes_large_divisors():
    x = torch.tensor([1.0, 1.0, -3.0, 1.0, 1.0, -torch.inf, torch.inf, 1.0])
    y = torch.tensor([3.0, 2.0**126, 2.0**127, torch.inf, torch.nan, torch.inf, 2.0**127, 0.0])
    expected = torch.tensor([1 / 3, 2.0**-126, -0.0, 0.0, torch.nan, torch.nan, torch.nan, torch.inf])
    torch.testing.assert_close(launch(fast_quotient, torch.empty(8), x, y), expected, equal_nan=True)


@triton.jit
def unknown_function(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, libdevice.cyl_bessel_i0(tl.load(x + i)))


def test_a_libdevice_function_that_is_missing_is_refused():
    with pytest.raises(Exception, match="has no __nv_cyl_bessel_i0f"):
        launch(unknown_function, torch.empty(8), torch.ones(8))


@triton.jit
def combine(out, x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.where(a < b, a * b + a, -(a - b)) * 3.0)


def test_bfloat16_arithmetic_rounds_after_every_operation():
    x, y = torch.randn(SIZE).bfloat16(), torch.randn(SIZE).bfloat16()
    expected = torch.where(x < y, x * y + x, -(x - y)) * 3.0

    assert torch.equal(launch(combine, torch.empty(SIZE, dtype=torch.bfloat16), x, y), expected)


@triton.jit
def cast(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


def all_of(dtype):
    """Every value of a 16-bit or 8-bit dtype."""
    if dtype.itemsize == 2:
        return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)

    return torch.arange(2**8, dtype=torch.int32).to(torch.uint8).view(dtype)


def same_bits(a, b):
    unsigned = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]

    return torch.equal(a.view(unsigned), b.view(unsigned))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_copies_keep_every_bit(dtype):
    x = all_of(dtype)

    assert same_bits(launch(cast, torch.empty_like(x), x), x)


def test_float32_to_bfloat16_rounds_to_nearest_even():
    bits = torch.randint(-(2**31), 2**31, (4032,), dtype=torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor([1.00390625, 1.01171875, 3.4e38, float("inf")] * 16)])
    result = launch(cast, torch.empty(len(x), dtype=torch.bfloat16), x)

    assert same_bits(result[~x.isnan()], x.bfloat16()[~x.isnan()])
    assert result[x.isnan()].isnan().all()


@pytest.mark.parametrize("wide", [torch.float16, torch.float32])
@pytest.mark.parametrize("narrow", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_casts(wide, narrow):
    x = all_of(narrow)
    torch.testing.assert_close(
        launch(cast, torch.empty(256, dtype=wide), x), x.to(wide), rtol=0, atol=0, equal_nan=True
    )

    limit = torch.finfo(narrow).max
    y = torch.cat([torch.linspace(-limit, limit, 4096), torch.randn(4088) / 64, torch.tensor([1.96, float("nan")] * 4)])
    y = y.to(wide)
    result = launch(cast, torch.empty(len(y), dtype=narrow), y)
    torch.testing.assert_close(result.float(), y.to(narrow).float(), rtol=0, atol=0, equal_nan=True)


def test_fp8_casts_saturate_as_on_an_nvidia_gpu():
    x = torch.tensor([1e6, -1e6, float("inf"), float("-inf")])

    assert launch(cast, torch.empty(4, dtype=torch.float8_e4m3fn), x).float().tolist() == [448, -448, 448, -448]


def test_floats_to_integers_saturate():
    x = torch.tensor([1e10, -1e10, float("nan"), float("inf"), 2147483520.0, -3.7, 3.7, 0.0])
    expected = [2**31 - 1, -(2**31), 0, 2**31 - 1, 2147483520, -3, 3, 0]

    assert launch(cast, torch.empty(8, dtype=torch.int32), x).tolist() == expected


@triton.jit
def largest(out, x, y, BLOCK: tl.constexpr, ALL: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    if ALL:
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        r = tl.clamp(tl.maximum(a, b), -10.0, 10.0)
    tl.store(out + i, r)


def test_maximum_and_clamp_drop_nan_unless_asked_to_keep_it():
    x = torch.tensor([float("nan"), 1.0, float("nan"), 2.0])
    y = torch.tensor([1.0, float("nan"), float("nan"), 3.0])

    assert launch(largest, torch.empty(4), x, y, ALL=False).tolist() == [1.0, 1.0, -10.0, 3.0]
    assert launch(largest, torch.empty(4), x, y, ALL=True).isnan().tolist() == [True, True, True, False]


@triton.jit
def fused(out, x, y, z, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_fma_rounds_once(dtype):
    x, y = torch.randn(2, 512).to(dtype)
    z = (-(x * y).double() * (1 + torch.randn(512).double() * 2.0 ** -(torch.finfo(dtype).bits // 2))).to(dtype)
    result = launch(fused, torch.empty(512, dtype=dtype), x, y, z)
    kind = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}[dtype]

    for a, b, c, r in zip(*(t.tolist() for t in (x, y, z, result)), strict=True):
        exact = fractions.Fraction(a) * fractions.Fraction(b) + fractions.Fraction(c)
        neighbours = [np.nextafter(kind(r), kind(np.inf)), np.nextafter(kind(r), kind(-np.inf))]

        assert all(abs(fractions.Fraction(r) - exact) <= abs(fractions.Fraction(float(n)) - exact) for n in neighbours)


def test_fma_of_subnormal_products_is_their_product():
    """Its error is no number of the dtype."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, generator=generator).double() * 2.0**-1030
    y, none = torch.randn(512, generator=generator).double(), torch.zeros(512).double()
    assert torch.equal(launch(fused, torch.empty(512).double(), x, y, none), x * y)
    assert torch.equal(launch(fused, torch.empty(512).double(), x, y, x), x * y + x)


@triton.jit
def exactly_rounded(out, x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.div_rn(tl.load(x + i), tl.load(y + i)) + tl.sqrt_rn(tl.load(y + i)))


def test_exact_division_and_root():
    x, y = torch.randn(SIZE), torch.rand(SIZE) + 0.1

    # Through float64, since the float32 root of torch on a CPU is an ulp off now and then.
    root = y.double().sqrt().float()

    assert torch.equal(launch(exactly_rounded, torch.empty(SIZE), x, y), x / y + root)


@triton.jit
def product(out, a, b, N: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    r = tl.dot(tl.load(a + i), tl.load(b + i), input_precision=PRECISION)
    tl.store(out + i, r)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8])
def test_products(dtype, precision):
    a, b = (torch.randint(-9, 9, (32, 32)).to(dtype) for _ in range(2))
    out = torch.empty(32, 32, dtype={torch.int8: torch.int32, torch.float64: torch.float64}.get(dtype, torch.float32))
    product[(1,)](out, a, b, N=32, PRECISION=precision)

    assert torch.equal(out.double(), a.double() @ b.double())


@triton.jit
def negate(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, ~tl.load(x + i))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool])
def test_inverted_bits(dtype):
    x = torch.tensor([0, 1, 1, 0]) if dtype == torch.bool else torch.tensor([0, 1, 100, 127])

    assert torch.equal(launch(negate, torch.empty(4, dtype=dtype), x.to(dtype)), ~x.to(dtype))


@triton.jit
def constant(out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.full((BLOCK,), 1.2, out.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_constants_of_narrow_floats(dtype):
    assert (
        launch(constant, torch.empty(4, dtype=dtype)).float().tolist()
        == torch.tensor([1.2] * 4).to(dtype).float().tolist()
    )


@triton.jit
def wrapped(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * 3 + 1)


def test_integers_wrap():
    x = torch.tensor([2**31 - 1, -(2**31), 2**30, 5], dtype=torch.int32)

    assert torch.equal(launch(wrapped, torch.empty_like(x), x), x * 3 + 1)


@triton.jit
def index_of_largest(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    _, place = tl.reduce((tl.load(x + i), i * 10), 0, tl.standard._argmax_combine_tie_break_left)
    tl.store(out, place)


def test_a_reduction_with_indices_uses_the_indices_given():
    out = torch.zeros(1, dtype=torch.int32)
    index_of_largest[(1,)](out, torch.tensor([1.0, 5.0, 5.0, 2.0]), N=4)

    assert out.item() == 10
