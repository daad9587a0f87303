"""Time kernels under the interpreter, on one core, against the limit of each.

``pytest conformance/benchmarks/test_interpreter.py --benchmark-only`` prints the table; a kernel that takes more than
its limit fails, and so does one that takes more than ``WATCHING`` times as long when its memory is watched. That factor
is ``times_plain`` in the extra info of its watched row.
"""

import time

import pytest
import torch
from torch.nn import functional

from ntops import _runtime, interpreter

if not _runtime.INTERPRETED:
    pytest.skip("kernels are compiled here, not interpreted", allow_module_level=True)

import triton
import triton.language as tl

from conformance.benchmarks import _interpreter_kernels as kernels

ROWS, COLUMNS = 33, 47


@triton.jit
def raw_abs(input, output, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(output + i, tl.abs(tl.load(input + i, mask=i < n)), mask=i < n)


@triton.jit
def raw_softmax(input, output, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < columns
    a = tl.load(input + i, mask=mask, other=float("-inf"))
    powers = tl.exp(a - tl.max(a, 0))
    tl.store(output + i, powers / tl.sum(powers, 0), mask=mask)


@triton.jit
def raw_layer_norm(input, weight, bias, output, columns, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    i = tl.program_id(0) * columns + c
    a = tl.load(input + i, mask=c < columns, other=0.0)
    centred = tl.where(c < columns, a - tl.sum(a, 0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + 1e-5)
    w = tl.load(weight + c, mask=c < columns)
    b = tl.load(bias + c, mask=c < columns)
    tl.store(output + i, centred * scale * w + b, mask=c < columns)


@triton.jit
def raw_mm(a, b, c, m, n, k, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        across = start + tl.arange(0, BLOCK)[None, :]
        down = start + tl.arange(0, BLOCK)[:, None]
        x = tl.load(a + i * k + across, mask=(i < m) & (across < k), other=0.0)
        y = tl.load(b + down * n + j, mask=(down < k) & (j < n), other=0.0)
        total = tl.dot(x, y, acc=total)
    tl.store(c + i * n + j, total, mask=(i < m) & (j < n))


def _matrix():
    return torch.randn(ROWS, COLUMNS)


def absolute():
    x, out, kernel = _matrix(), torch.empty(ROWS, COLUMNS), kernels.absolute(256)

    return lambda: kernel(x, out), out, x.abs()


def add():
    x, y, out, kernel = _matrix(), _matrix(), torch.empty(ROWS, COLUMNS), kernels.add(256)

    return lambda: kernel(x, y, out), out, x + y


def softmax():
    x, out, kernel = _matrix(), torch.empty(ROWS, COLUMNS), kernels.softmax(64)

    return lambda: kernel(x, out), out, x.softmax(1)


def layer_norm():
    x, out, kernel = _matrix(), torch.empty(ROWS, COLUMNS), kernels.layer_norm(64)
    weight, bias = torch.randn(2, 1, COLUMNS)

    return (
        lambda: kernel(x, weight, bias, COLUMNS, out),
        out,
        functional.layer_norm(x, (COLUMNS,), weight[0], bias[0]),
    )


def rms_norm():
    x, out, kernel = _matrix(), torch.empty(ROWS, COLUMNS), kernels.rms_norm(64)
    weight = torch.randn(1, COLUMNS)

    return lambda: kernel(x, weight, COLUMNS, out), out, functional.rms_norm(x, (COLUMNS,), weight[0], 1e-5)


def mm():
    a, b, out, kernel = torch.randn(64, 48), torch.randn(48, 80), torch.empty(64, 80), kernels.mm(64)

    return lambda: kernel(a, b, out), out, a @ b


def attention():
    query, out, kernel = torch.randn(2, 4, 37, 32), torch.empty(2, 4, 37, 32), kernels.attention(64)
    # Two query heads to each key head.
    key, value = (torch.randn(2, 2, 53, 32).repeat_interleave(2, dim=1) for _ in range(2))
    expected = functional.scaled_dot_product_attention(query, key, value)

    return lambda: kernel(query, key, value, 32**-0.5, out), out, expected


def abs_in_triton():
    x, out = _matrix(), torch.empty(ROWS, COLUMNS)

    return lambda: raw_abs[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256), out, x.abs()


def softmax_in_triton():
    x, out = _matrix(), torch.empty(ROWS, COLUMNS)

    return lambda: raw_softmax[(ROWS,)](x, out, COLUMNS, BLOCK=64), out, x.softmax(1)


def layer_norm_in_triton():
    x, out = _matrix(), torch.empty(ROWS, COLUMNS)
    weight, bias = torch.randn(2, COLUMNS)

    return (
        lambda: raw_layer_norm[(ROWS,)](x, weight, bias, out, COLUMNS, BLOCK=64),
        out,
        functional.layer_norm(x, (COLUMNS,), weight, bias),
    )


def mm_in_triton():
    a, b, out = torch.randn(64, 48), torch.randn(48, 80), torch.empty(64, 80)

    return lambda: raw_mm[(1, 2)](a, b, out, 64, 80, 48, BLOCK=64), out, a @ b


# Milliseconds that a prototype of the vectorised interpreter took on one core; the limit is 1.3 times as much.
PROTOTYPE = {
    absolute: 2.2,
    add: 3.3,
    softmax: 6.4,
    layer_norm: 13.2,
    rms_norm: 8.9,
    mm: 6.2,
    attention: 42.5,
    abs_in_triton: 0.38,
    softmax_in_triton: 0.57,
    layer_norm_in_triton: 0.92,
    mm_in_triton: 2.4,
}


# The most that watching may cost, as a multiple of the time of the plain run.
WATCHING = 1.2


@pytest.fixture(params=PROTOTYPE, ids=lambda make: make.__name__)
def row(request, benchmark):
    """Yield a function to time, its output and its limit in milliseconds; check the output afterwards."""
    torch.manual_seed(0)
    run, out, expected = request.param()
    limit = round(1.3 * PROTOTYPE[request.param], 3)
    benchmark.group = f"interpreter: {request.param.__name__}, at most {limit:.2f} ms"
    benchmark.extra_info["limit_ms"] = limit
    yield run, out, limit
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_plain(benchmark, row):
    run, _, limit = row
    benchmark.pedantic(run, rounds=40, warmup_rounds=3)

    if benchmark.enabled:
        # The fastest round: others share the machine with whatever else runs there.
        assert benchmark.stats.stats.min * 1e3 <= limit


def test_watched(benchmark, row):
    run, out, _ = row

    with interpreter.watch() as watcher:

        def watched():
            run()
            watcher.check_written(out)

        benchmark.pedantic(watched, setup=lambda: watcher.allocated(out), rounds=40, warmup_rounds=3)

    if benchmark.enabled:
        benchmark.extra_info["times_plain"] = round(_times_plain(run, out), 3)
        assert benchmark.extra_info["times_plain"] <= WATCHING


def _times_plain(run, out, rounds=200):
    """Return how many times as long a run takes when it is watched, its output declared empty before and checked after.

    Both are timed in turn, so that they meet the same machine, by this thread's clock; the fastest of each counts.
    """
    plain, watched = [], []

    for _ in range(rounds):
        start = time.thread_time()
        run()
        plain.append(time.thread_time() - start)

        with interpreter.watch() as watcher:
            watcher.allocated(out)
            start = time.thread_time()
            run()
            watcher.check_written(out)
            watched.append(time.thread_time() - start)

    return min(watched) / min(plain)
