"""Arithmetic, casts and products."""

import torch
import triton
import triton.language as tl

from kernels.registry import family, floats, integers, size


@triton.jit
def float_kernel(out, x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(x + i, mask=mask, other=1.0)
    b = tl.load(y + i, mask=mask, other=2.0)
    positive = tl.abs(a) + 0.25
    r = tl.floor(a) - tl.ceil(b) - tl.sqrt(positive) * tl.rsqrt(positive)
    r = tl.where(a > b, r, -r) + tl.minimum(a, b) * scale - tl.maximum(a, b) + tl.erf(a)
    r = r - (a / positive) + (a - b) * 0.5
    tl.store(out + i, r, mask=mask)


@triton.jit
def elementary_kernel(out, x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(x + i, mask=mask, other=1.0)
    b = tl.load(y + i, mask=mask, other=2.0)
    positive = tl.abs(a) + 0.25
    r = tl.exp(a * 0.01) + tl.log(positive) + tl.sin(a) * tl.cos(b) + tl.exp2(b * 0.01) / tl.log2(positive + 2.0)
    tl.store(out + i, r, mask=mask)


# Triton's own takes NumPy's in float32, of which the last bit depends on the CPU.
@family(like_stock=False)
def elementary_functions(rng):
    n, block = size(rng), int(2 ** rng.integers(3, 7))

    return (
        elementary_kernel,
        (triton.cdiv(n, block),),
        [torch.zeros(n), floats(rng, n), floats(rng, n), n],
        {"BLOCK": block},
    )


@family
def float_arithmetic(rng):
    n, block = size(rng), int(2 ** rng.integers(3, 7))
    x, y = floats(rng, n), floats(rng, n)

    return (
        float_kernel,
        (triton.cdiv(n, block),),
        [torch.zeros(n), x, y, n, float(rng.standard_normal())],
        {"BLOCK": block},
    )


@triton.jit
def integer_kernel(out, x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(x + i, mask=mask, other=1)
    b = tl.load(y + i, mask=mask, other=3)
    d = tl.where(b == 0, 1, b)
    r = a // d + a % d * 3 - (a & b) + (a | 5) ^ b
    r += (a << 2) + (b >> 1) - tl.abs(a) * -b
    r += tl.where((a <= b) & (a != 3) | (b >= 7), a, b) + tl.minimum(a, b) - tl.maximum(a, 7)
    r += (a > b).to(r.dtype) + ~a
    tl.store(out + i, r, mask=mask)


@family
def integer_arithmetic(rng):
    n, block = size(rng), int(2 ** rng.integers(3, 7))
    dtype = [torch.int8, torch.int16, torch.int32, torch.int64][rng.integers(4)]
    limit = 11 if dtype == torch.int8 else 100
    x, y = (integers(rng, n, dtype=dtype, low=-limit, high=limit) for _ in range(2))

    return integer_kernel, (triton.cdiv(n, block),), [torch.zeros(n, dtype=dtype), x, y, n], {"BLOCK": block}


@triton.jit
def cast_kernel(out, x, n, MIDDLE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    tl.store(out + i, a.to(MIDDLE).to(out.dtype.element_ty), mask=i < n)


@family
def casts(rng):
    dtypes = [torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
    middles = [tl.int8, tl.int16, tl.int32, tl.int64, tl.float16, tl.float32, tl.float64, tl.uint8, tl.int1]
    n = size(rng)
    x = integers(rng, n, low=0, high=100).to(dtypes[rng.integers(len(dtypes))])
    out = torch.zeros(n, dtype=dtypes[rng.integers(len(dtypes))])

    return cast_kernel, (triton.cdiv(n, 32),), [out, x, n], {"MIDDLE": middles[rng.integers(len(middles))], "BLOCK": 32}


@triton.jit
def half_kernel(out, x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    b = tl.load(y + i, mask=i < n, other=1.0)
    r = a * b + a - b
    r = tl.where(a > b, r, a) * 2.0 + tl.sum(a, 0)
    tl.store(out + i, r, mask=i < n)


@family
def halves(rng):
    n = size(rng, 100)
    x, y = floats(rng, n, dtype=torch.float16), floats(rng, n, dtype=torch.float16)

    return half_kernel, (triton.cdiv(n, 16),), [torch.zeros_like(x), x, y, n], {"BLOCK": 16}


@family(like_stock=False)
def bfloats(rng):
    n = size(rng, 100)
    x, y = floats(rng, n, dtype=torch.bfloat16), floats(rng, n, dtype=torch.bfloat16)

    return half_kernel, (triton.cdiv(n, 16),), [torch.zeros_like(x), x, y, n], {"BLOCK": 16}


@triton.jit
def scalar_kernel(out, x, n):
    p = tl.program_id(0)
    value = tl.load(x + p, mask=p < n, other=0.0)
    largest = max(value, 0.5)
    smallest = min(largest, 2.0)
    same = value == largest or value > 10.0
    tl.store(out + p, tl.where(same, smallest, -smallest) + p, mask=p < n)


@family(like_stock=False)
def scalars(rng):
    n = size(rng, 20)

    return scalar_kernel, (n + 3,), [torch.zeros(n), floats(rng, n), n], {}


@triton.jit
def random_kernel(out, integers, seed, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.rand(seed, i))
    tl.store(integers + i, tl.randint(seed, i).to(tl.int32, bitcast=True))


@family
def random_numbers(rng):
    programs = size(rng, 4)
    n = 16

    return (
        random_kernel,
        (programs,),
        [torch.zeros(programs * n), torch.zeros(programs * n, dtype=torch.int32), int(rng.integers(2**31))],
        {"N": n},
    )


@triton.jit
def normal_kernel(out, seed, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.randn(seed, i))


@family(like_stock=False)
def normal_numbers(rng):
    programs, n = size(rng, 4), 16

    return normal_kernel, (programs,), [torch.zeros(programs * n), int(rng.integers(2**31))], {"N": n}


@triton.jit
def dot_kernel(c, a, b, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    p, q = tl.program_id(0), tl.program_id(1)
    i = p * M + tl.arange(0, M)
    j = q * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        l = start + tl.arange(0, K)
        x = tl.load(a + i[:, None] * k + l[None, :], mask=(i[:, None] < m) & (l[None, :] < k), other=0.0)
        y = tl.load(b + l[:, None] * n + j[None, :], mask=(l[:, None] < k) & (j[None, :] < n), other=0.0)
        total = tl.dot(x, y, acc=total, input_precision="ieee")
    tl.store(c + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


@family(like_stock=False)
def products(rng):
    m, n, k = size(rng, 40), size(rng, 40), size(rng, 50)
    dtype = [torch.float16, torch.float32][rng.integers(2)]
    a, b = floats(rng, m, k, dtype=dtype), floats(rng, k, n, dtype=dtype)

    return (
        dot_kernel,
        (triton.cdiv(m, 16), triton.cdiv(n, 16)),
        [torch.zeros(m, n), a, b, m, n, k],
        {"M": 16, "N": 16, "K": 16},
    )


@triton.jit
def batched_kernel(out, a, b, B: tl.constexpr, N: tl.constexpr):
    p = tl.program_id(0) * B * N * N
    i = tl.arange(0, B)[:, None, None] * N * N + tl.arange(0, N)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    x, y = tl.load(a + p + i), tl.load(b + p + i)
    tl.store(out + p + i, tl.dot(x, tl.trans(y, 0, 2, 1), input_precision="ieee") + x.T.to(tl.float32).sum())


@family(like_stock=False)
def batched_products(rng):
    programs, n = size(rng, 4), 16
    dtype = [torch.float16, torch.float32, torch.bfloat16][rng.integers(3)]
    a, b = (floats(rng, programs, 2, n, n, dtype=dtype) for _ in range(2))

    return batched_kernel, (programs,), [torch.zeros(programs, 2, n, n), a, b], {"B": 2, "N": n}
