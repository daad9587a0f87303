"""Small files of the kinds that a report is made of."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SCRIPT = "document.title='owned'"
HOSTILE = f'</style></script><script>{SCRIPT}</script><img src=x onerror="{SCRIPT}">${{7*7}}{{{{7*7}}}}'


def case(op: str, dtype: str = "float32", **kwargs: Any) -> dict[str, Any]:
    tensor = {"type": "tensor", "shape": [33, 47], "dtype": dtype, "values": "normal", "seed": 3}
    return {"schema": 1, "op": op, "args": [tensor, tensor], "kwargs": kwargs, "digests": [], "note": ""}


def record(op: str, dtype: str, share: float = 0.4, failed: int = 0) -> dict[str, Any]:
    worst = {"share": share, "torch_share": 0.3, "id": f"{op}-0123456789", "case": case(op, dtype)}
    failures = [{"id": f"{op}-{n:010x}", "check": "values", "case": case(op, dtype)} for n in range(failed)]
    return {
        "op": op, "dtype": dtype, "cases": 100, "passed": 100 - failed, "failed": failed, "not_provided": 0,
        "deviated": 0, "refused": 20, "worst": worst, "torch_largest": 0.35, "failures": failures,
        "deviations": {}, "unclaimed": {},
    }  # fmt: skip


def metrics(*records: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"implementation": "ntops.torch", "profile": "ci", "max_examples": 100, "seed": 0, "gpu": "Made-up GPU"}
    return {"schema": 1, **about, "versions": {"torch": "2.13.0"}, "records": list(records), **more}


Rows = dict[tuple[str, str], float]


def bench(rows: Rows, *, torch: Rows | None = None, seed: int = 0, noise: float = 0.01, **more: Any) -> dict[str, Any]:
    """Rows of these seconds, torch of 1.1 times as many (or as those of ``torch``), and noise from round to round."""
    chance = random.Random(seed)
    found = []
    for number, ((op, label), seconds) in enumerate(rows.items()):
        means = (seconds, 1.1 * (torch or rows).get((op, label), seconds))
        ours, theirs = ([mean * chance.gauss(1, noise) for _ in range(60)] for mean in means)
        info = {
            "op": op, "dtype": "bfloat16", "label": label, "clock": "events", "median": sorted(ours)[30],
            "interval": [min(ours), max(ours)], "bytes": 4 << 20 << number % 6, "flops": 1 << 22 << number % 9,
            "share": 0.8, "note": "", "best_peer": "torch", "gpu": "Made-up GPU", "driver": "1.2",
            "versions": {"torch": "2.13.0"}, "commit": "abc", "implementation": "ntops.torch",
            "ceilings": {"copy": 4.2e12, "bfloat16": 7.8e14, "float32": 4e14},
            "peers": {"torch": {"median": sorted(theirs)[30], "ratio": [1.1, 1.08, 1.12], "seconds": theirs}},
        }  # fmt: skip
        found.append({"name": f"{op}[{label}]", "extra_info": {**info, **more}, "stats": {"data": ours}})
    return {"machine_info": {}, "benchmarks": found, "datetime": "2026-01-02T03:04:05"}


ROWS = {(op, f"{2**n}x{n}"): 1e-4 * (n + 1) for op in ("add", "rotary_position_embedding", "mm") for n in (1, 2, 3, 4)}


def selftest(**more: Any) -> dict[str, Any]:
    found = [
        {"name": f"defect {n}", "op": "add", "check": "values", "examples": n, "case": case("add")} for n in range(7)
    ]
    alive = {"name": "accumulates in half", "op": "mm", "check": "values", "examples": 100, "case": None}
    controls = [{"name": "float64", "op": "add", "cases": 300, "alarms": 0}]
    return {"schema": 1, "gpu": None, "defects": [*found, alive], "controls": controls, **more}


def write(folder: Path, name: str, document: Any) -> Path:
    """A JSON file of a document, or of the text itself."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def full(folder: Path) -> list[Path]:
    """Files of all kinds, with a failure, long names and a hostile one."""
    dtypes = ("float16", "float32", "int64")
    records = [record(op, dtype) for op in ("add", "mm", "rotary_position_embedding") for dtype in dtypes]
    records += [record("softmax", "float32", failed=3), record(HOSTILE, "float32", share=0.9)]
    records[0]["shares"] = [10, 0, 0, 0, 0, 0, 3, 5, 9, 12, 8, 2, 0]
    pairs = [
        {"op": op, "feasible": 400, "hit": hit, "holes": ["rank 0, float64"]} for op, hit in (("add", 400), ("mm", 310))
    ]
    return [
        write(folder, "metrics.json", metrics(*records, coverage=pairs)),
        write(folder, "bench.json", bench({**ROWS, (HOSTILE, "1"): 1e-4})),
        write(folder, "selftest.json", selftest()),
    ]
