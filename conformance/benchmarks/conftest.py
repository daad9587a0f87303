"""Options and table of the operator benchmarks; binds the timer before any implementation is imported."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import runner
from conformance.benchmarks import _sampled

PACKAGES = ("triton", "ninetoothed")
COMPILED = "torch.compile"

_ROWS = pytest.StashKey[list[dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("benchmarks", "Benchmarks of operators").addoption
    peers = "time this beside the implementation; repeatable (default: torch, on a GPU torch.compile too)"
    add("--sampled", type=_count, metavar="N", help="time N calls drawn as models make them, not the rows of each op")
    add("--seed", type=int, default=0, metavar="S", help="of the calls that are drawn (default: %(default)s)")
    add("--ieee", action="store_true", help="float32 products in IEEE arithmetic, torch's default (default: TF32)")
    add("--peer", action="append", metavar="MODULE", help=peers)
    add(
        "--seconds",
        type=_positive,
        default=0.1,
        metavar="S",
        help="device time of each function and row (default: %(default)g)",
    )


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _positive(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError(text)
    return float(text)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []
    try:
        # Decides between compiled and interpreted, which has to be known before ntops is imported.
        runner.resolve_device(config.getoption("--device"))
    except runner.DeviceError as error:
        raise pytest.UsageError(str(error)) from None
    # Before the implementation, so that the clock is torch's own.
    import ntops.timing  # noqa: F401


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """Return the rows of this run, for the table at its end."""
    return pytestconfig.stash[_ROWS]


@pytest.fixture(scope="session")
def about(pytestconfig: pytest.Config) -> dict[str, Any]:
    """Return the facts about the machine and its software that every row holds."""
    import ntops

    device = runner.resolve_device(pytestconfig.getoption("--device"))
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "driver": _driver() if device.type == "cuda" else None,
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, **versions, "ntops": ntops.__version__},
        "commit": _commit(pytestconfig.rootpath),
        "implementation": pytestconfig.getoption("--implementation"),
    }


def _driver() -> str | None:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def _commit(root: Path) -> str | None:
    """Return the measured commit: the text of the file COMMIT, for sources without git, else what git describes."""
    noted = root / "COMMIT"
    if noted.is_file():
        return noted.read_text().strip()
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return
    terminalreporter.section(f"{rows[0]['implementation']} on {rows[0]['gpu'] or 'the CPU, host time only'}")
    for line in table(rows):
        terminalreporter.line(line)
    if found := _sampled.distribution(rows):
        for line in _sampled.table(found):
            terminalreporter.line(line)
    for name, value in (rows[0].get("ceilings") or {}).items():
        terminalreporter.line(f"measured in this run: {name} {value / 1e12:.2f} T/s")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as text: times in us, the speed relative to each peer (over 1 is faster), the share of the
    roofline."""
    peers = list(dict.fromkeys(peer for row in rows for peer in row["peers"]))
    head = ["op", "dtype", "operands", "clock", "us", *peers, *(f"vs {peer}" for peer in peers), "roofline"]
    lines = [head]
    for row in rows:
        found = [row["peers"].get(peer) for peer in peers]
        times = [f"{peer['median'] * 1e6:.1f}" if peer else "-" for peer in found]
        ratios = [f"{peer['ratio'][0]:.3f}" if peer else "-" for peer in found]
        share = "-" if row["share"] is None else f"{row['share']:.0%}"
        us = f"{row['median'] * 1e6:.1f}"
        lines.append([row["op"], row["dtype"], row["label"], row["clock"], us, *times, *ratios, share])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    aligned = [
        "  ".join(
            cell.ljust(width) if column < 4 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return aligned + [f"{row['op']} {row['label']}: {row['note']}" for row in rows if row["note"]]


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Round times to five digits, more than any clock here has; drop the machine's name; add commit and
    distribution."""
    output_json["machine_info"].pop("node", None)
    if output_json["benchmarks"] and (commit := output_json["benchmarks"][0]["extra_info"].get("commit")):
        output_json["commit_info"] = {"id": commit, "project": "ntops"}
    for row in output_json["benchmarks"]:
        if "data" in row["stats"]:
            row["stats"]["data"] = [float(f"{seconds:.5g}") for seconds in row["stats"]["data"]]
    rows = [row["extra_info"] for row in output_json["benchmarks"]]
    if found := _sampled.distribution([row for row in rows if "family" in row]):
        output_json["distribution"] = found
