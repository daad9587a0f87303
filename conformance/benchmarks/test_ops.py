"""Time operators beside torch and torch.compile: one row for each benchmark of each OpSpec, for each call of a sample
(``--sampled``), or for each saved call of a model (``--workload``).

``pytest conformance/benchmarks/test_ops.py --benchmark-only --benchmark-json FILE`` (``nox -s bench -- ops``). On CUDA
the figure is device time by events, for small calls the host's time; without a GPU host time of the small rows only,
which says nothing about a GPU. All functions of a row are timed in turn on the same inputs (``ntops.timing``).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

import conformance.implementations
from conformance import cases, runner
from conformance.benchmarks import _rows, _sampled, _workloads
from conformance.benchmarks._replay import Replay
from conformance.benchmarks.conftest import COMPILED
from conformance.implementations import TORCH, TORCH_SPACES, Implementation, ImplementationError, load
from conformance.spec import Benchmark, OpSpec
from ntops import timing

CLOCK = Replay()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    ops, dtypes, count, folders = (option(name) or () for name in ("--op", "--dtype", "--sampled", "--workload"))
    if count and folders:
        raise pytest.UsageError("--sampled draws calls, and --workload has them: choose one")
    try:
        if folders:
            found = _workloads.rows(folders, ops, dtypes, option("--max-elements"))
        else:
            found = _sampled.drawn(count, option("--seed"), ops, dtypes) if count else _rows.selected(ops, dtypes)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    metafunc.parametrize(("spec", "row"), found.values(), ids=found)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return runner.resolve_device(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def implementations(pytestconfig: pytest.Config, device: torch.device) -> dict[str, Implementation | None]:
    """Return the implementations to time, ours first; None stands for torch.compile of the reference."""
    compiled = device.type == "cuda" and not pytestconfig.getoption("--sampled")
    peers = pytestconfig.getoption("--peer") or ([TORCH, COMPILED] if compiled else [TORCH])
    names = {pytestconfig.getoption("--implementation"): pytestconfig.getoption("--implementation")}
    for peer in peers:
        names.setdefault(peer.removeprefix(f"{conformance.implementations.__name__}."), peer)
    try:
        return {short: None if name == COMPILED else load(name) for short, name in names.items()}
    except ImplementationError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="module")
def precision(pytestconfig: pytest.Config) -> Iterator[str]:
    """Let float32 products of this file take TF32, as large models do, unless IEEE arithmetic is asked for, torch's
    default."""
    before, wanted = torch.get_float32_matmul_precision(), "highest" if pytestconfig.getoption("--ieee") else "high"
    torch.set_float32_matmul_precision(wanted)
    yield wanted
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def ceilings(pytestconfig: pytest.Config, device: torch.device, precision: str) -> dict[str, float]:
    """Measure the rates that this chip reaches: bytes/s of a copy that moves 1 GiB, FLOP/s of products of 8192, of
    float8_e4m3fn with sums in float32."""
    if device.type != "cuda" or pytestconfig.getoption("--benchmark-disable"):
        return {}
    source, target = (torch.empty(1 << 28, dtype=torch.bfloat16, device=device) for _ in range(2))

    def refresh(args: Any, kwargs: Any) -> None:
        for tensor in args:
            tensor.normal_()

    def accept(*ignored: Any) -> None:
        pass

    times = timing.interleaved({"copy": target.copy_}, [((source,), {})], refresh, accept, seconds=0.05)
    found = {"copy": 2 * source.nbytes / times["copy"].median}
    del source, target, times
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        operands = [torch.empty(8192, 8192, dtype=dtype, device=device) for _ in range(2)]
        times = timing.interleaved({"mm": torch.mm}, [(operands, {})], refresh, accept, seconds=0.05)
        found[str(dtype).removeprefix("torch.")] = 2 * 8192**3 / times["mm"].median
    if torch.cuda.get_device_capability(device) >= (8, 9):
        eight = [torch.empty(8192, 8192, dtype=torch.float8_e4m3fn, device=device) for _ in range(2)]
        one = torch.ones((), device=device)

        def refresh_eight(args: Any, kwargs: Any) -> None:
            for tensor in args:
                tensor.copy_(torch.randn(tensor.shape, device=device))

        def scaled_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch._scaled_mm(a, b.mT, one, one, out_dtype=torch.bfloat16, use_fast_accum=False)

        times = timing.interleaved({"mm": scaled_mm}, [(eight, {})], refresh_eight, accept, seconds=0.05)
        found["float8_e4m3fn"] = 2 * 8192**3 / times["mm"].median
    return found


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Give back the memory of one row before the next."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def of_torch(spec: OpSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return torch's own function for this call, else the OpSpec's peer or reference."""
    for space in reversed(TORCH_SPACES):
        function = getattr(space, spec.name, None)
        if function is not None:
            with contextlib.suppress(TypeError):
                function(*args, **kwargs)
                return function
    return spec.peer or spec.reference


def functions(
    spec: OpSpec, named: dict[str, Implementation | None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Callable[..., Any]]:
    """Return the op's function in each implementation, without those that lack it."""
    found: dict[str, Callable[..., Any]] = {}
    theirs = of_torch(spec, args, kwargs)
    for name, implementation in named.items():
        if implementation is None:
            found[name] = torch.compile(theirs, fullgraph=True, dynamic=False)
        elif name == TORCH:
            found[name] = theirs
        elif (function := implementation.function(spec.name)) is not None:
            found[name] = function
    return found


def answering(
    found: dict[str, Callable[..., Any]], ours: str, inputs: _rows.Inputs, check: Callable[..., None]
) -> tuple[dict[str, Callable[..., Any]], str]:
    """Return ours and the peers that answer the call rightly, and notes about the others, whose errors must not end our
    row."""
    args, kwargs = inputs
    kept, notes = {}, []
    for name, function in found.items():
        if name != ours:
            try:
                check(name, function(*args, **kwargs), args, kwargs)
            except Exception as error:  # noqa: BLE001 - another library's mistake, of any kind
                notes.append(textwrap.shorten(f"without {name}: {type(error).__name__}: {error}", 160))
                continue
        kept[name] = function
    return kept, "; ".join(notes)


def floor(row: Benchmark, ceilings: dict[str, float]) -> float | None:
    """Return the least seconds of the row at this chip's measured rates: the slower of moving and computing."""
    if not ceilings:
        return None
    rate = ceilings.get(cases.dtype_of(row.case))
    return max(row.bytes / ceilings["copy"], row.flops / rate if rate else 0.0)


@pytest.mark.benchmark(timer=CLOCK, group="ops")
def test_ops(
    spec: OpSpec,
    row: Benchmark,
    device: torch.device,
    implementations: dict[str, Implementation | None],
    ceilings: dict[str, float],
    precision: str,
    about: dict[str, Any],
    rows: list[dict[str, Any]],
    benchmark: BenchmarkFixture,
    pytestconfig: pytest.Config,
) -> None:
    """Time one call; the extra info holds the times of the peers, the ratios with their intervals, and the roofline."""
    ours = about["implementation"]
    if device.type == "cpu" and not _rows.fits_interpreter(row):
        pytest.skip("takes too long under the interpreter")
    inputs, refresh = _rows.make(row, device)
    found = functions(spec, implementations, *inputs[0])
    if ours not in found:
        pytest.skip(f"not provided by {ours}: {spec.name}")
    check = functools.partial(_rows.check, spec)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        if not benchmark.enabled:  # Compiles all, and looks at what it computes.
            args, kwargs = inputs[0]
            benchmark.pedantic(lambda: check(ours, found[ours](*args, **kwargs), args, kwargs))
            answering(found, ours, inputs[0], check)
            return
        found, missing = answering(found, ours, inputs[0], check)
        limits = (20, 200) if device.type == "cuda" else (5, 50)
        seconds = pytestconfig.getoption("--seconds")
        device_times = times = timing.interleaved(found, inputs, refresh, check, seconds=seconds, rounds=limits)
        if device.type == "cuda" and _rows.is_small(row):
            of_host = timing.host(found, inputs)
            # Of calls one after the other, the caller waits for whichever takes longer.
            times = {name: max(of_host[name], device_times[name], key=lambda one: one.median) for name in found}

    CLOCK.keep(benchmark, times[ours].seconds)
    least = floor(row, ceilings)
    peers = {name: _peer(times[ours], times[name], device_times[name]) for name in found if name != ours}
    dtype = cases.dtype_of(row.case)
    info = {
        **about,
        "op": spec.name,
        "dtype": dtype,
        "label": f"{_rows.label(row.case)}{' in IEEE' if precision == 'highest' and dtype == 'float32' else ''}",
        "family": spec.sampled.family if spec.sampled and pytestconfig.getoption("--sampled") else None,
        "seed": pytestconfig.getoption("--seed"),
        "bytes": row.bytes,
        "flops": row.flops,
        "clock": "host" if times is not device_times or device.type == "cpu" else times[ours].clock,
        "median": times[ours].median,
        "interval": timing.median_interval(times[ours].seconds),
        "device_median": device_times[ours].median if device.type == "cuda" else None,
        "note": "; ".join(note for note in (times[ours].note, missing) if note),
        "floor": least,
        "share": least / times[ours].median if least and times is device_times else None,
        "ceilings": ceilings,
        "peers": peers,
        "best_peer": min(peers, key=lambda name: peers[name]["median"], default=None),
    }
    benchmark.extra_info |= info
    rows.append(info)


def _peer(ours: timing.Times, other: timing.Times, on_device: timing.Times) -> dict[str, Any]:
    """Return a peer's median, the ratio of the medians (over 1: ours is faster) with its interval, and its rounds."""
    return {
        "median": other.median,
        "device_median": on_device.median,
        "ratio": timing.ratio(ours.seconds, other.seconds),
        "seconds": [float(f"{seconds:.5g}") for seconds in other.seconds],
        "note": other.note,
    }
