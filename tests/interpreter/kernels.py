"""Raw Triton kernels that between them use every construct, and random launches of them.

Nothing here knows ntops: the same launches run under Triton's own interpreter or compiled (see ``outcomes.py``).
"""

import numpy as np
import torch
import triton
import triton.language as tl

FAMILIES = {}
# What Triton's own interpreter does otherwise on purpose or by mistake, in some version that we run on.
NOT_LIKE_STOCK = set()


def family(function=None, *, like_stock=True):
    """Register a function that makes one random launch: (kernel, grid, positional arguments, keyword arguments)."""

    def register(function):
        FAMILIES[function.__name__] = function

        if not like_stock:
            NOT_LIKE_STOCK.add(function.__name__)

        return function

    return register(function) if function is not None else register


def launches(name, count):
    """``count`` launches of a family, the same for every process."""
    for number in range(count):
        yield FAMILIES[name](np.random.default_rng([number, *name.encode()]))


def run(launch, device="cpu"):
    """Run one launch on copies of its arguments, and return the copies that are tensors."""
    kernel, grid, args, options = launch
    args = [argument.to(device, copy=True) if isinstance(argument, torch.Tensor) else argument for argument in args]
    kernel[grid](*args, **options)

    return [argument.cpu() for argument in args if isinstance(argument, torch.Tensor)]


def _floats(rng, *shape, dtype=torch.float32):
    return torch.from_numpy(rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3)).to(dtype)


def _integers(rng, *shape, dtype=torch.int32, low=-1000, high=1000):
    return torch.from_numpy(rng.integers(low, high, shape)).to(dtype)


def _size(rng, largest=200):
    return int(rng.integers(1, largest))


@triton.jit
def float_kernel(out, x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(x + i, mask=mask, other=1.0)
    b = tl.load(y + i, mask=mask, other=2.0)
    positive = tl.abs(a) + 0.25
    r = tl.exp(a * 0.01) + tl.log(positive) - tl.sqrt(positive) * tl.rsqrt(positive)
    r += tl.sin(a) * tl.cos(b) + tl.floor(a) - tl.ceil(b) + tl.exp2(b * 0.01) / tl.log2(positive + 2.0)
    r = tl.where(a > b, r, -r) + tl.minimum(a, b) * scale - tl.maximum(a, b) + tl.erf(a)
    r = r - (a / positive) + (a - b) * 0.5
    tl.store(out + i, r, mask=mask)


@family
def float_arithmetic(rng):
    n, block = _size(rng), int(2 ** rng.integers(3, 7))
    x, y = _floats(rng, n), _floats(rng, n)

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
    n, block = _size(rng), int(2 ** rng.integers(3, 7))
    dtype = [torch.int8, torch.int16, torch.int32, torch.int64][rng.integers(4)]
    limit = 11 if dtype == torch.int8 else 100
    x, y = (_integers(rng, n, dtype=dtype, low=-limit, high=limit) for _ in range(2))

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
    n = _size(rng)
    x = _integers(rng, n, low=0, high=100).to(dtypes[rng.integers(len(dtypes))])
    out = torch.zeros(n, dtype=dtypes[rng.integers(len(dtypes))])

    return cast_kernel, (triton.cdiv(n, 32),), [out, x, n], {"MIDDLE": middles[rng.integers(len(middles))], "BLOCK": 32}


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
    rows, columns, stride = _size(rng, 40), _size(rng, 40), 41
    m, n = int(2 ** rng.integers(1, 5)), int(2 ** rng.integers(1, 5))
    x = _floats(rng, rows, stride)

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
    m, n, programs = int(2 ** rng.integers(0, 5)), int(2 ** rng.integers(1, 5)), _size(rng, 6)
    x = _floats(rng, programs, m, n)

    return reduce_kernel, (programs,), [torch.zeros_like(x), x], {"M": m, "N": n}


@triton.jit
def integer_reduce_kernel(out, x, N: tl.constexpr):
    p = tl.program_id(0)
    a = tl.load(x + p * N + tl.arange(0, N))
    r = tl.sum(a, 0) + tl.xor_sum(a, 0) * 3 + tl.max(a, 0) - tl.min(a, 0) + tl.argmax(a, 0)
    tl.store(out + p, r)


@family
def integer_reductions(rng):
    n, programs = int(2 ** rng.integers(1, 7)), _size(rng, 12)
    dtype = [torch.int16, torch.int32, torch.int64][rng.integers(3)]
    x = _integers(rng, programs, n, dtype=dtype)

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
    m, n, programs = int(2 ** rng.integers(1, 4)), int(2 ** rng.integers(1, 4)), _size(rng, 4)
    x = _floats(rng, programs, m, n)
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
    block, bins, programs = int(2 ** rng.integers(2, 7)), int(2 ** rng.integers(1, 5)), _size(rng, 8)
    x = _integers(rng, programs, block, low=0, high=bins)
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
    n, programs = int(2 ** rng.integers(1, 4)), _size(rng, 3)
    x = _integers(rng, programs, n)

    return sort_kernel, (programs,), [torch.zeros_like(x), x], {"N": n, "DESCENDING": bool(rng.integers(2))}


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


@family
def products(rng):
    m, n, k = _size(rng, 40), _size(rng, 40), _size(rng, 50)
    dtype = [torch.float16, torch.float32][rng.integers(2)]
    a, b = _floats(rng, m, k, dtype=dtype), _floats(rng, k, n, dtype=dtype)

    return (
        dot_kernel,
        (triton.cdiv(m, 16), triton.cdiv(n, 16)),
        [torch.zeros(m, n), a, b, m, n, k],
        {"M": 16, "N": 16, "K": 16},
    )


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
    n, block = _size(rng, 120), 16
    x = _floats(rng, n)

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
    n = _size(rng, 12)

    return while_kernel, (n,), [torch.zeros(n, dtype=torch.int32), _integers(rng, n, low=1, high=60), n], {}


@triton.jit
def inplace_kernel(x, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(x + i, tl.load(x + i, mask=mask) + 1.0, mask=mask)
    if p % 2 == 0:
        tl.store(x + i, tl.load(x + i, mask=mask) * 3.0, mask=mask)
    for _ in range(p):
        tl.store(x + i, tl.load(x + i, mask=mask) + 0.5, mask=mask)


@family
def inplace(rng):
    n = _size(rng, 100)

    return inplace_kernel, (triton.cdiv(n, 8),), [_floats(rng, n), n], {"BLOCK": 8}


@triton.jit
def atomic_kernel(total, counts, order, largest, x, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(total, tl.sum(a, 0))
    tl.atomic_add(counts + (i % 5), 1, mask=i < n)
    tl.atomic_max(largest, tl.max(tl.abs(a) * 100, 0).to(tl.int32))
    ticket = tl.atomic_add(counts + 5, 1)
    tl.store(order + ticket, p)
    for k in range(3):
        tl.atomic_add(total + 1 + i * 0, a, mask=i < n)
    if ticket == tl.num_programs(0) - 1:
        tl.store(total + 2, tl.load(total) + tl.load(total + 1))


@family
def atomics(rng):
    n, block = _size(rng, 80), 8
    grid = triton.cdiv(n, block)
    tensors = [torch.zeros(3), torch.zeros(6, dtype=torch.int32), torch.zeros(grid, dtype=torch.int32)]

    return atomic_kernel, (grid,), [*tensors, torch.zeros(1, dtype=torch.int32), _floats(rng, n), n], {"BLOCK": block}


@triton.jit
def lone_atomic_kernel(counts, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + i, mask=i < n, other=0), 0.1, mask=i < n)


@family
def lone_atomics(rng):
    n = _size(rng, 100)

    return (
        lone_atomic_kernel,
        (triton.cdiv(n, 16),),
        [torch.zeros(4), _integers(rng, n, low=0, high=4), n],
        {"BLOCK": 16},
    )


@triton.jit
def lock_kernel(lock, value, log):
    p = tl.program_id(0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    old = tl.load(value)
    tl.store(log + p, old)
    tl.store(value, old * 3 + p)
    tl.atomic_xchg(lock, 0)


@family
def locks(rng):
    n = _size(rng, 10)
    scalar = torch.zeros(1, dtype=torch.int32)

    return lock_kernel, (n,), [scalar, scalar.clone(), torch.zeros(n, dtype=torch.int32)], {}


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


@family
def functions(rng):
    n, block = _size(rng, 100), int(2 ** rng.integers(1, 6))
    x, y = _floats(rng, n), _floats(rng, n)

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
    x = _integers(rng, *grid)

    return grid_kernel, grid, [torch.zeros_like(x), x, 3, 5, 7], {}


@triton.jit
def random_kernel(out, integers, seed, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.rand(seed, i) + tl.randn(seed, i))
    tl.store(integers + i, tl.randint(seed, i).to(tl.int32, bitcast=True))


@family
def random_numbers(rng):
    programs = _size(rng, 4)
    n = 16

    return (
        random_kernel,
        (programs,),
        [torch.zeros(programs * n), torch.zeros(programs * n, dtype=torch.int32), int(rng.integers(2**31))],
        {"N": n},
    )


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
    n = _size(rng, 100)
    x, y = _floats(rng, n, dtype=torch.float16), _floats(rng, n, dtype=torch.float16)

    return half_kernel, (triton.cdiv(n, 16),), [torch.zeros_like(x), x, y, n], {"BLOCK": 16}


@family(like_stock=False)
def bfloats(rng):
    n = _size(rng, 100)
    x, y = _floats(rng, n, dtype=torch.bfloat16), _floats(rng, n, dtype=torch.bfloat16)

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
    n = _size(rng, 20)

    return scalar_kernel, (n + 3,), [torch.zeros(n), _floats(rng, n), n], {}


@triton.jit
def descriptor_kernel(out, x, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([i, j], source.load([i, j]) * 2.0 + i)


@family
def descriptors(rng):
    rows, columns = _size(rng, 30), 4 * _size(rng, 8)
    # A descriptor needs an aligned base, which a large allocation has.
    x = _floats(rng, rows, columns)
    grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 16))

    return descriptor_kernel, grid, [torch.zeros_like(x), x, rows, columns], {"M": 8, "N": 16}


# Triton 3.9 has taken them away.
if triton.__version__ < "3.9":

    @triton.jit
    def block_pointer_kernel(out, x, rows, columns, M: tl.constexpr, N: tl.constexpr):
        source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (tl.program_id(0) * M, 0), (M, N), (1, 0))
        target = tl.make_block_ptr(out, (rows, columns), (columns, 1), (tl.program_id(0) * M, 0), (M, N), (1, 0))
        for _ in range(0, columns, N):
            a = tl.load(source, boundary_check=(0, 1), padding_option="zero")
            tl.store(target, a + tl.sum(a, axis=1)[:, None], boundary_check=(0, 1))
            source = tl.advance(source, (0, N))
            target = tl.advance(target, (0, N))

    @family
    def block_pointers(rng):
        rows, columns = _size(rng, 30), _size(rng, 30)
        x = _floats(rng, rows, columns)

        return block_pointer_kernel, (triton.cdiv(rows, 8),), [torch.zeros_like(x), x, rows, columns], {"M": 8, "N": 8}


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
    n = _size(rng, 60)
    bias = _floats(rng, n) if rng.integers(2) else None

    return (
        optional_kernel,
        (triton.cdiv(n, 16),),
        [torch.zeros(n), _floats(rng, n), bias, n],
        {"HAS_BIAS": bias is not None, "BLOCK": 16},
    )


@triton.jit
def batched_kernel(out, a, b, B: tl.constexpr, N: tl.constexpr):
    p = tl.program_id(0) * B * N * N
    i = tl.arange(0, B)[:, None, None] * N * N + tl.arange(0, N)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    x, y = tl.load(a + p + i), tl.load(b + p + i)
    tl.store(out + p + i, tl.dot(x, tl.trans(y, 0, 2, 1), input_precision="ieee") + x.T.to(tl.float32).sum())


@family(like_stock=False)
def batched_products(rng):
    programs, n = _size(rng, 4), 16
    dtype = [torch.float16, torch.float32, torch.bfloat16][rng.integers(3)]
    a, b = (_floats(rng, programs, 2, n, n, dtype=dtype) for _ in range(2))

    return batched_kernel, (programs,), [torch.zeros(programs, 2, n, n), a, b], {"B": 2, "N": n}


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
    programs, n = _size(rng, 5), int(2 ** rng.integers(2, 5))
    x = _floats(rng, programs, n)

    return mixed_kernel, (programs,), [torch.zeros_like(x), x, int(rng.integers(1, 9))], {"BLOCK": n}


@triton.jit
def bitwise_atomic_kernel(bits, extremes, halves, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    n = (tl.abs(a) * 10).to(tl.int32)
    tl.atomic_or(bits + i * 0, n)
    tl.atomic_and(bits + 1 + i * 0, n | 4)
    tl.atomic_xor(bits + 2 + i * 0, n)
    tl.atomic_max(extremes + i * 0, a)
    tl.atomic_min(extremes + 1 + i * 0, a)
    tl.atomic_add(halves + i % 3, a.to(tl.float16))


@family
def bitwise_atomics(rng):
    programs = _size(rng, 5)
    tensors = [torch.full((3,), 255, dtype=torch.int32), torch.zeros(2), torch.zeros(3, dtype=torch.float16)]

    return bitwise_atomic_kernel, (programs,), [*tensors, _floats(rng, programs * 8)], {"BLOCK": 8}


@triton.jit
def gather_kernel(out, x, rows, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [1, C])
    target = tl.make_tensor_descriptor(out, [64, 32], [32, 1], [1, C])
    r = tl.load(rows + tl.arange(0, R))
    column = tl.program_id(0) * C
    target.scatter(source.gather(r, column) * 2.0, r + tl.arange(0, R) * 2, column)


@family
def gathered_descriptors(rng):
    x, rows = _floats(rng, 16, 32), _integers(rng, 8, low=0, high=20)

    return gather_kernel, (4,), [torch.zeros(64, 32), x, rows], {"R": 8, "C": 8}
