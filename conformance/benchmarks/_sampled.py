"""Draw calls as models make them, and sum up how fast they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from conformance import spec as specs
from conformance.benchmarks import _rows
from conformance.spec import Benchmark, OpSpec

MOST_BYTES, MOST_FLOPS = 1 << 30, 2 * 10**12
"""Larger calls are drawn anew: they show nothing that smaller ones do not, and take as long as many."""
WORST = 10


def drawn(count: int, seed: int, ops: Sequence[str], dtypes: Sequence[str]) -> dict[str, tuple[OpSpec, Benchmark]]:
    """Draw ``count`` different calls of these ops and dtypes (no names: all), and return them by
    :func:`_rows.identity`, those of one op together. A seed gives the same calls everywhere.

    Raises ValueError: none of these ops is sampled, or there are not so many different calls.
    """
    known = [spec for name, spec in sorted(specs.registry().items()) if spec.sampled and name in (ops or {name})]
    if not known:
        raise ValueError(f"none of {', '.join(ops)} is sampled")
    chance, found = Random(seed), {}
    for _ in range(1000 * count):
        spec = chance.choices(known, [spec.sampled.weight for spec in known if spec.sampled])[0]
        row = spec.sampled.draw(chance) if spec.sampled else None
        if row is None or row.bytes > MOST_BYTES or row.flops > MOST_FLOPS:
            continue
        if not dtypes or _rows.cases.dtype_of(row.case) in dtypes:
            found.setdefault(_rows.identity(row), (spec, row))
        if len(found) == count:
            return dict(sorted(found.items(), key=lambda item: item[1][0].name))
    raise ValueError(f"no {count} different calls of these ops and dtypes")


def distribution(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the speed of the sampled rows relative to the best peer: for all and for each family the count, the
    geometric mean and the 5th percentile; and the worst rows. Empty where no row was sampled or has a peer."""
    timed = [row for row in rows if row.get("family") and row["best_peer"]]
    if not timed:
        return {}
    families = {}
    for row in timed:
        families.setdefault(row["family"], []).append(row)
    worst = sorted(timed, key=ratio)[:WORST]
    return {
        "seed": timed[0]["seed"],
        "all": _figures(timed),
        "families": {name: _figures(families[name]) for name in sorted(families)},
        "worst": [{"row": f"{row['op']}[{row['dtype']} {row['label']}]", "ratio": ratio(row)} for row in worst],
    }


def ratio(row: dict[str, Any]) -> float:
    """Return how many times as fast a row is as its best peer."""
    return row["peers"][row["best_peer"]]["ratio"][0]


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    ratios = [ratio(row) for row in rows]
    return {
        "count": len(ratios),
        "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
        "percentile_5": float(np.quantile(ratios, 0.05)),
    }


def table(found: dict[str, Any]) -> list[str]:
    """Return a distribution as lines of text."""
    lines = [f"sampled with seed {found['seed']}: how many times as fast as the best peer"]
    for name, figures in {"all": found["all"], **found["families"]}.items():
        mean, low = (f"{figures[key]:.3f}" for key in ("geometric_mean", "percentile_5"))
        lines.append(f"{name:<12} {figures['count']:>4} calls   geometric mean {mean}   5th percentile {low}")
    return [*lines, "the worst:", *(f"{row['ratio']:.3f}  {row['row']}" for row in found["worst"])]
