"""The shapes of blocks; reductions, scans, histograms and sorting along them."""

import torch
import triton
import triton.language as tl

from kernels.registry import family, floats, integers, size


@triton.jit
def shape_kernel(out, x, rows, columns, stride, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.program_id(1) * N + tl.arange(0, N)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    a = tl.load(x + r[:, None] * stride + c[None, :], mask=inside, other=0.0)
    t = tl.trans(a)
    u = tl.reshape(t, (M * N,))
    v = tl.reshape(u, (M, N)) + a * 2.0
    left, right = tl.split(tl.reshape(v, (M, N // 2, 2)))
    v = tl.reshape(tl.join(right, left), (M, N)) + tl.permute(t, (1, 0))
    row = tl.sum(v, axis=1)
    v += row[:, None] + tl.broadcast_to(tl.expand_dims(tl.max(a, axis=0), 0), (M, N))
    v += tl.interleave(left, right) + tl.zeros((M, N), tl.float32) + tl.full((M, N), 1.5, tl.float32)
    tl.store(out + r[:, None] * stride + c[None, :], v, mask=inside)


@family
def shapes(rng):
    rows, columns, stride = size(rng, 40), size(rng, 40), 41
    m, n = int(2 ** rng.integers(1, 5)), int(2 ** rng.integers(1, 5))
    x = floats(rng, rows, stride)

    return (
        shape_kernel,
        (triton.cdiv(rows, m), triton.cdiv(columns, n)),
        [torch.zeros(rows, stride), x, rows, columns, stride],
        {"M": m, "N": n},
    )


@triton.jit
def _multiply_add(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def _larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def reduce_kernel(out, x, M: tl.constexpr, N: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + p * M * N + i)
    s = tl.sum(a, axis=1) + tl.max(a, axis=1) * tl.min(a, axis=1)
    s += tl.reduce(a, 1, _larger)
    t = tl.sum(a, axis=0) - tl.max(a, axis=0, keep_dims=True) + tl.reduce(a * 0.5, 0, _larger)
    total = tl.sum(a) + tl.max(tl.min(a, axis=0), axis=0)
    position = tl.argmax(a, axis=1) + tl.argmin(a, axis=1)
    first, second = tl.reduce((a, a * 0.5), 1, _multiply_add)
    value, place = tl.max(a, axis=1, return_indices=True)
    result = s[:, None] + t + total + position[:, None] + (first + second)[:, None] + (value + place)[:, None]
    tl.store(out + p * M * N + i, result)


@family
def reductions(rng):
    m, n, programs = int(2 ** rng.integers(0, 5)), int(2 ** rng.integers(1, 5)), size(rng, 6)
    x = floats(rng, programs, m, n)

    return reduce_kernel, (programs,), [torch.zeros_like(x), x], {"M": m, "N": n}


@triton.jit
def integer_reduce_kernel(out, x, N: tl.constexpr):
    p = tl.program_id(0)
    a = tl.load(x + p * N + tl.arange(0, N))
    r = tl.sum(a, 0) + tl.xor_sum(a, 0) * 3 + tl.max(a, 0) - tl.min(a, 0) + tl.argmax(a, 0)
    tl.store(out + p, r)


@family
def integer_reductions(rng):
    n, programs = int(2 ** rng.integers(1, 7)), size(rng, 12)
    dtype = [torch.int16, torch.int32, torch.int64][rng.integers(3)]
    x = integers(rng, programs, n, dtype=dtype)

    return integer_reduce_kernel, (programs,), [torch.zeros(programs, dtype=torch.int64), x], {"N": n}


@triton.jit
def scan_kernel(out, x, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + p * M * N + i)
    r = tl.cumsum(a, axis=AXIS, reverse=REVERSE) + tl.cumprod(a * 0.1, axis=AXIS)
    r += tl.associative_scan(a, AXIS, _larger)
    first, second = tl.associative_scan((a * 0.1, a), AXIS, _multiply_add)
    tl.store(out + p * M * N + i, r + first - second)


@family
def scans(rng):
    m, n, programs = int(2 ** rng.integers(1, 4)), int(2 ** rng.integers(1, 4)), size(rng, 4)
    x = floats(rng, programs, m, n)
    options = {"M": m, "N": n, "AXIS": int(rng.integers(2)), "REVERSE": bool(rng.integers(2))}

    return scan_kernel, (programs,), [torch.zeros_like(x), x], options


@triton.jit
def histogram_kernel(out, gathered, x, n, N: tl.constexpr, BINS: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, N)
    a = tl.load(x + p * N + i, mask=i < n, other=0)
    h = tl.histogram(a, BINS, mask=i < n)
    tl.store(out + p * BINS + tl.arange(0, BINS), h)
    tl.store(gathered + p * N + i, tl.gather(a, (i * 3 + p) % N, 0))


@family
def histograms(rng):
    block, bins, programs = int(2 ** rng.integers(2, 7)), int(2 ** rng.integers(1, 5)), size(rng, 8)
    x = integers(rng, programs, block, low=0, high=bins)
    out = torch.zeros(programs, bins, dtype=torch.int32)

    return (
        histogram_kernel,
        (programs,),
        [out, torch.zeros_like(x), x, int(rng.integers(1, block + 1))],
        {"N": block, "BINS": bins},
    )


@triton.jit
def sort_kernel(out, x, N: tl.constexpr, DESCENDING: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, tl.sort(a, descending=DESCENDING) + tl.flip(a, 0))


@family
def sorting(rng):
    n, programs = int(2 ** rng.integers(1, 4)), size(rng, 3)
    x = integers(rng, programs, n)

    return sort_kernel, (programs,), [torch.zeros_like(x), x], {"N": n, "DESCENDING": bool(rng.integers(2))}
