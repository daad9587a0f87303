"""Time sampled products in every tile of Hopper's kernel: ``python -m conformance.benchmarks.tiles FILE``.

The rates of ``ntops.host.mm_hopper`` are fitted to such times. Writes a line of JSON for each product: its sizes, then
the microseconds of torch, of the rule's choice and of each tile, with K in parts or not. Each is a CUDA graph that is
replayed in turn with the others, the L2 cache flushed before. Needs an H100 or H200.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch

import ntops.torch
from conformance import cases
from conformance.benchmarks import _sampled
from ntops.host import mm_hopper, product_configs, split_k
from ntops.launch import config_selection
from strategies import layouts

ROUNDS, ROUNDS_OF_LONG = 7, 5
LONG = 1e11
"""The multiplications of a product of which there are fewer rounds."""
FLUSHED = 96 << 20
"""Bytes that are written before each replay: more than the L2 cache holds."""
FEWEST_TERMS = 192
"""The fewest terms of a part of K."""
CLOSE = 0.01
"""The most by which a product may differ from torch's, relative to its norm."""

Product = tuple[int, int, int, int, str, bool]
"""The number of products of a batch (0: a single one), M, N, K, the dtype, and whether K is innermost in the right
factor."""


def drawn(count: int, seeds: list[int]) -> list[Product]:
    """Return the sizes of sampled products whose rows begin at multiples of 16 bytes, half types as bfloat16."""
    found = set()
    for seed in seeds:
        for spec, row in _sampled.drawn(count, seed, ("mm", "addmm", "bmm", "matmul"), ()).values():
            left, right = cases.operands(row.case)[-2:]
            batch = left.shape[0] if spec.name == "bmm" else 0
            m = left.shape[1] if batch else math.prod(left.shape[:-1])
            k, n = right.shape[-2:]
            dtype, size = ("float32", 4) if left.dtype == "float32" else ("bfloat16", 2)
            turned = layouts.strides(right.layout, right.shape)[-1] != 1
            if k * size % 16 == n * size % 16 == 0:
                found.add((batch, m, n, k, dtype, turned))
    return sorted(found)


def configurations(product: Product, multiprocessors: int) -> Iterator[product_configs.Options]:
    """Yield the tiles that may be the fastest, each with the parts of K that it may have."""
    batch, m, n, k, dtype, _ = product
    for tile in mm_hopper.known(getattr(torch, dtype)):
        rows, columns = tile[:2]
        if rows > max(64, 2 * m) or (rows < 64 and m > 8 * rows) or (columns > 64 and columns >= 2 * n):
            continue
        tiles = -(-m // rows) * -(-n // columns)
        for parts in (1, *mm_hopper.SPLITS):
            fit = not batch and split_k.has_parts(k, parts) and k // parts >= FEWEST_TERMS
            if parts == 1 or (fit and tiles * parts <= multiprocessors):
                yield product_configs.Options(*tile, splits=parts, form=product_configs.HOPPER)


def timed(product: Product, multiprocessors: int, stream: torch.cuda.Stream, memory: torch.Tensor) -> dict[str, float]:
    """Return the microseconds of torch, of the rule and of each configuration."""
    batch, m, n, k, dtype, turned = product
    lead = [batch] if batch else []
    a, b = (torch.randn([*lead, *shape], device="cuda").to(getattr(torch, dtype)) for shape in ((m, k), (n, k)))
    b = b.mT if turned else b.mT.contiguous()
    name = "bmm" if batch else "mm"
    ours, theirs = getattr(ntops.torch, name), getattr(torch, name)
    expected = theirs(a, b).float()
    graphs = {"torch": _captured(lambda: theirs(a, b), stream), "rule": _captured(lambda: ours(a, b), stream)}
    for options in configurations(product, multiprocessors):
        with config_selection.forced(name, options):
            graphs["x".join(map(str, vars(options).values()))] = _captured(lambda: ours(a, b), stream)
    events: dict[str, list[Any]] = {label: [] for label in graphs}
    for turn in range(ROUNDS_OF_LONG if max(batch, 1) * m * n * k > LONG else ROUNDS):
        for label, (graph, result) in graphs.items():
            if not turn:
                result.fill_(float("nan"))
            memory.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            events[label].append((begin, end))
    torch.cuda.synchronize()
    for label, (_, result) in graphs.items():
        if not (result.float() - expected).norm() <= CLOSE * expected.norm():
            raise ValueError(f"{product}, {label}: the product is wrong")
    times = {label: [begin.elapsed_time(end) * 1e3 for begin, end in pairs] for label, pairs in events.items()}
    return {label: round(statistics.median(one), 2) for label, one in times.items()}


def _captured(function: Callable[[], torch.Tensor], stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Any]:
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = function()
    return graph, result


@contextlib.contextmanager
def _tf32() -> Generator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where the lines are written")
    parser.add_argument("--count", type=int, default=260, help="sampled calls of each seed (default: %(default)s)")
    parser.add_argument("--seed", type=int, action="append", help="repeatable (default: 9101)")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no product begins")
    given = parser.parse_args()
    if torch.cuda.is_available():
        # Triton reads the device's properties.
        torch.cuda.init()
    if not torch.cuda.is_available() or not config_selection.device(0).hopper:
        parser.error("this needs an H100 or H200")
    end, count = time.monotonic() + given.budget, 0
    products = drawn(given.count, given.seed or [9101])
    multiprocessors = config_selection.device(0).multiprocessors
    stream, memory = torch.cuda.Stream(), torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    with _tf32(), given.file.open("w") as file:
        for product in products:
            if time.monotonic() > end:
                break
            file.write(json.dumps({"product": product, "us": timed(product, multiprocessors, stream, memory)}) + "\n")
            file.flush()
            count += 1
            print(f"{count} of {len(products)}: {product}", flush=True)
            torch.cuda.empty_cache()
    print(f"{count} of {len(products)} products: {given.file}")


if __name__ == "__main__":
    main()
