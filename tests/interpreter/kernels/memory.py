"""Stores in place, atomics, locks, descriptors and block pointers."""

import torch
import triton
import triton.language as tl

from kernels.registry import family, floats, integers, size


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
    n = size(rng, 100)

    return inplace_kernel, (triton.cdiv(n, 8),), [floats(rng, n), n], {"BLOCK": 8}


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
    n, block = size(rng, 80), 8
    grid = triton.cdiv(n, block)
    tensors = [torch.zeros(3), torch.zeros(6, dtype=torch.int32), torch.zeros(grid, dtype=torch.int32)]

    return atomic_kernel, (grid,), [*tensors, torch.zeros(1, dtype=torch.int32), floats(rng, n), n], {"BLOCK": block}


@triton.jit
def lone_atomic_kernel(counts, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + i, mask=i < n, other=0), 0.1, mask=i < n)


@family
def lone_atomics(rng):
    n = size(rng, 100)

    return (
        lone_atomic_kernel,
        (triton.cdiv(n, 16),),
        [torch.zeros(4), integers(rng, n, low=0, high=4), n],
        {"BLOCK": 16},
    )


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
    programs = size(rng, 5)
    tensors = [torch.full((3,), 255, dtype=torch.int32), torch.zeros(2), torch.zeros(3, dtype=torch.float16)]

    return bitwise_atomic_kernel, (programs,), [*tensors, floats(rng, programs * 8)], {"BLOCK": 8}


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
    n = size(rng, 10)
    scalar = torch.zeros(1, dtype=torch.int32)

    return lock_kernel, (n,), [scalar, scalar.clone(), torch.zeros(n, dtype=torch.int32)], {}


@triton.jit
def descriptor_kernel(out, x, rows, columns, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([i, j], source.load([i, j]) * 2.0 + i)


@family
def descriptors(rng):
    rows, columns = size(rng, 30), 4 * size(rng, 8)
    # A descriptor needs an aligned base, which a large allocation has.
    x = floats(rng, rows, columns)
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
        rows, columns = size(rng, 30), size(rng, 30)
        x = floats(rng, rows, columns)

        return block_pointer_kernel, (triton.cdiv(rows, 8),), [torch.zeros_like(x), x, rows, columns], {"M": 8, "N": 8}


@triton.jit
def gather_kernel(out, x, rows, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [1, C])
    target = tl.make_tensor_descriptor(out, [64, 32], [32, 1], [1, C])
    r = tl.load(rows + tl.arange(0, R))
    column = tl.program_id(0) * C
    target.scatter(source.gather(r, column) * 2.0, r + tl.arange(0, R) * 2, column)


@family
def gathered_descriptors(rng):
    x, rows = floats(rng, 16, 32), integers(rng, 8, low=0, high=20)

    return gather_kernel, (4,), [torch.zeros(64, 32), x, rows], {"R": 8, "C": 8}
