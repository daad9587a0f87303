"""Control flow, device functions, optional arguments and the grid."""

import torch
import triton
import triton.language as tl

from kernels.registry import family, floats, integers, size


@triton.jit
def branch_kernel(out, x, n, limit, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    if FLAG:
        a = a + 1.0
    else:
        a = a - 1.0
    if p % 3 == 1:
        a = a * 2.0
    elif p % 3 == 2 and limit > 2:
        a = -a
    factor = 3.0 if p > 1 else 4.0
    tl.store(out + i, a * factor, mask=i < n)
    if not p == 0:
        b = tl.load(out + i, mask=i < n, other=0.0)
        tl.store(out + i, b + 1.0, mask=i < n)
    for k in range(p % 4):
        b = tl.load(out + i, mask=i < n, other=0.0)
        for l in range(k, limit):
            b += l * 0.25
        tl.store(out + i, b, mask=i < n)


@family
def branches(rng):
    n, block = size(rng, 120), 16
    x = floats(rng, n)

    return (
        branch_kernel,
        (triton.cdiv(n, block),),
        [torch.zeros(n), x, n, int(rng.integers(1, 5))],
        {"FLAG": bool(rng.integers(2)), "BLOCK": block},
    )


@triton.jit
def while_kernel(out, x, n):
    p = tl.program_id(0)
    value = tl.load(x + p)
    steps = 0
    while value != 1 and steps < 60:
        if value % 2 == 0:
            value = value // 2
        else:
            value = value * 3 + 1
        steps += 1
        if steps % 5 == 0:
            tl.store(out + p, tl.load(out + p) + 1)
    tl.store(out + p, tl.load(out + p) * 100 + steps)


@family(like_stock=False)
def data_dependent_loops(rng):
    n = size(rng, 12)

    return while_kernel, (n,), [torch.zeros(n, dtype=torch.int32), integers(rng, n, low=1, high=60), n], {}


@triton.jit
def _scaled(x, factor, TWICE: tl.constexpr = False):
    if TWICE:
        factor = factor * 2
    return x * factor


@triton.jit
def _pair(x, y):
    return _scaled(x, 2.0), _scaled(y, 3.0, TWICE=True)


@triton.jit
def function_kernel(out, x, y, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    b = tl.load(y + i, mask=i < n, other=0.0)
    c, d = _pair(a, b)
    HALF: tl.constexpr = BLOCK // 2
    e = tl.sigmoid(a) + tl.softmax(b) + tl.cdiv(n, HALF) + tl.zeros_like(a)
    for k in tl.static_range(3):
        e += k * c
    tl.static_assert(BLOCK > 1)
    tl.device_assert(n > 0, "n")
    tl.store(out + i, c - d + e, mask=i < n)


@family(like_stock=False)
def functions(rng):
    n, block = size(rng, 100), int(2 ** rng.integers(1, 6))
    x, y = floats(rng, n), floats(rng, n)

    return function_kernel, (triton.cdiv(n, block),), [torch.zeros(n), x, y, n], {"BLOCK": block}


@triton.jit
def grid_kernel(out, x, a, b, c):
    i, j, k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (i * tl.num_programs(1) + j) * tl.num_programs(2) + k
    value = tl.load(x + place)
    tl.store(out + place, value + i * a + j * b - k * c)


@family
def grids(rng):
    grid = tuple(int(size) for size in rng.integers(1, 5, 3))
    x = integers(rng, *grid)

    return grid_kernel, grid, [torch.zeros_like(x), x, 3, 5, 7], {}


@triton.jit
def optional_kernel(out, x, bias, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    for _ in range(1 if HAS_BIAS else 0):
        a += tl.load(bias + i, mask=i < n)
    for k in range(2):
        if HAS_BIAS:
            a += tl.load(bias + i, mask=i < n) * k
    tl.store(out + i, a, mask=i < n)


@family
def optional_arguments(rng):
    n = size(rng, 60)
    bias = floats(rng, n) if rng.integers(2) else None

    return (
        optional_kernel,
        (triton.cdiv(n, 16),),
        [torch.zeros(n), floats(rng, n), bias, n],
        {"HAS_BIAS": bias is not None, "BLOCK": 16},
    )


@triton.jit
def _twice(f: tl.constexpr, x):
    return f(f(x))


@triton.jit
def _halved(x):
    return x * 0.5


@triton.jit
def mixed_kernel(out, x, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i, j = tl.swizzle2d(p, 0, 4, 4, 2)
    k = tl.arange(0, BLOCK)
    a = tl.load(x + p * BLOCK + k)
    b = _twice(_halved, a) + tl.topk(a, BLOCK // 2).sum() + i - j
    c = tl.cat(a, b, can_reorder=True)
    d = tl.ravel(tl.reshape(c, (2, BLOCK))).sum() + tl.reduce_or((a > 0).to(tl.int32), 0)
    tl.assume(n > 0)
    total = 0.0
    count = 0
    for m in tl.range(0, n, 2):
        total += m.to(tl.float32)
        count += m
    tl.store(out + p * BLOCK + k, b + d + total + count)


@family(like_stock=False)
def mixed(rng):
    programs, n = size(rng, 5), int(2 ** rng.integers(2, 5))
    x = floats(rng, programs, n)

    return mixed_kernel, (programs,), [torch.zeros_like(x), x, int(rng.integers(1, 9))], {"BLOCK": n}
