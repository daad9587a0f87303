"""Read a report's input files. The page omits missing fields, and names files that cannot be read, or that hold
impossible values, with the reason.

The contents of a file tell its kind, not its name: metrics of ``pytest conformance --metrics``, pytest-benchmark's JSON
of ``conformance/benchmarks/test_ops.py``, the self-test's, or an earlier report's. ``reports.model`` says what may be
in them.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from reports import model
from reports.model import SCHEMA, Counted, Device, Planted, Record, Row

KEPT = 100
"""The number of failing cases of one op and dtype that are kept with all arguments; the others are counted."""
COMMIT = "commit"


class InputError(ValueError):
    """A file that cannot be used. The message is for people and names the file."""


class OtherKind(InputError):
    """A file of valid JSON that is not an input of a report."""


CPU = "CPU, interpreted"
ANY = "any device"
"""The device name for the self-test, which tests the harness wherever it ran."""


def slug(name: str) -> str:
    """Return the name of a device as a folder name: "NVIDIA H200" becomes "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


def files(paths: Iterable[Path]) -> list[Path]:
    """Return the JSON files among ``paths`` and directly inside them, omitting an earlier report from a folder with
    others.

    Raises InputError: a path that does not exist, or a folder without any.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.json"))
            inside = [file for file in inside if file.name != "report.json"] or inside
            if not inside:
                raise InputError(f"{path}: holds no JSON file")
            found.extend(inside)
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path}: there is no such file or folder")
    return list(dict.fromkeys(found))


def read(paths: Iterable[Path]) -> tuple[list[Device], list[str]]:
    """Return the devices of the files, shards of one device joined, and messages about files that could not be read."""
    given = list(paths)
    devices: dict[str, Device] = {}
    problems: list[str] = []
    for path in files(given):
        try:
            for device in read_file(path):
                if known := devices.get(device.name):
                    # Sources are named without their folders, so that a page is the same wherever its files are.
                    problems += [f"{path.name}: {problem}" for problem in join(known, device)]
                else:
                    devices[device.name] = device
        except InputError as error:
            # A folder of results may hold other measurements, too.
            if path in given or not isinstance(error, OtherKind):
                problems.append(str(error))
    if ANY in devices and len(devices) > 1:
        harness = devices.pop(ANY)
        for device in devices.values():
            join(device, harness)
    return list(devices.values()), problems


def read_file(path: Path) -> list[Device]:
    """Return the contents of one file. Raises InputError, which names it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not data.strip():
        raise InputError(f"{path}: is empty; the run that should have written it may have been cut off")
    try:
        data.decode()
        kind = msgspec.json.decode(data, type=model.Kind)
        if kind.schema != SCHEMA:
            raise InputError(f"{path}: its schema is {kind.schema}, and this version reads schema {SCHEMA} only")
        for field, reader in (
            ("records", _metrics), ("benchmarks", _bench), ("defects", _selftest), ("devices", _report),
        ):  # fmt: skip
            if len(memoryview(getattr(kind, field))):
                del kind
                found = reader(data)
                for device in found:
                    device.sources = device.sources or [path.name.encode(errors="replace").decode()]
                return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: damaged, or not of this kind: {error}") from None
    raise OtherKind(f"{path}: neither metrics nor benchmarks nor a self-test nor a report")


def _metrics(data: bytes) -> list[Device]:
    whole = msgspec.json.decode(data, type=model.Metrics)
    records = [_record(raw) for raw in whole.records]
    environment = {name: version for name, version in whole.versions.items() if version}
    environment |= {"platform": whole.platform} if whole.platform else {}
    about = {"implementation": whole.implementation, "profile": whole.profile}
    about |= {"examples": str(whole.max_examples), "seed": str(whole.seed)}
    about |= {"shard": whole.shard} if whole.shard else {}
    # Those of CUDA, which hold by default, need no word.
    about |= {"semantics": whole.semantics} if whole.semantics == "cpu" else {}
    return [
        Device(
            whole.gpu or CPU, environment, _joined(records), whole.coverage, about=about, complaints=whole.complaints
        )
    ]


def _record(raw: msgspec.Raw) -> Record:
    """Read one record at a time: of a million failures all are counted and some are kept, each with its own copy of the
    case, so that the text of the file can be freed."""
    record = msgspec.json.decode(raw, type=Record)
    record.failures = [msgspec.structs.replace(kept, case=kept.case.copy()) for kept in record.failures[:KEPT]]
    if record.worst is not None:
        record.worst = msgspec.structs.replace(record.worst, case=record.worst.case.copy())
    return record


def _bench(data: bytes) -> list[Device]:
    whole = msgspec.json.decode(data, type=model.Bench)
    devices: dict[str, Device] = {}
    for number, benchmark in enumerate(whole.benchmarks):
        if "op" not in msgspec.json.decode(benchmark.extra_info, type=dict[str, msgspec.Raw]):  # of another suite
            continue
        try:
            row = msgspec.json.decode(benchmark.extra_info, type=Row)
            row.seconds = msgspec.json.decode(benchmark.stats, type=model.Stats).data
            about = msgspec.json.decode(benchmark.extra_info, type=model.About)
        except msgspec.DecodeError as error:
            raise msgspec.ValidationError(f"benchmark {number}: {error}") from None
        environment = {"driver": about.driver, COMMIT: about.commit, **about.versions}
        mine = Device(about.gpu or CPU, {name: value for name, value in environment.items() if value})
        device = devices.setdefault(mine.name, mine)
        _commits(device, mine)
        device.about = {"implementation": about.implementation, "benchmarked": whole.datetime[:10]}
        device.rows.append(row)
    if not devices:
        raise msgspec.ValidationError("no row of conformance/benchmarks/test_ops.py in it")
    return list(devices.values())


def _selftest(data: bytes) -> list[Device]:
    whole = msgspec.json.decode(data, type=model.Selftest)
    counted = []
    for kind in ("op", "check"):
        for name in sorted({getattr(defect, kind) for defect in whole.defects}):
            mine = [defect for defect in whole.defects if getattr(defect, kind) == name]
            alive = [defect.name for defect in mine if bytes(defect.case) == b"null"]
            took = [defect.examples for defect in mine if bytes(defect.case) != b"null"]
            median = float(statistics.median(took)) if took else None
            counted.append(Planted(name, kind, len(mine), len(mine) - len(alive), median, alive))
    alarms = sum(control.alarms for control in whole.controls) if whole.controls else None
    cases = sum(control.cases for control in whole.controls)
    return [Device(ANY, selftest=counted, false_alarms=alarms, controlled=cases)]


def _report(data: bytes) -> list[Device]:
    return msgspec.json.decode(data, type=model.Report).devices


def join(into: Device, other: Device) -> list[str]:
    """Add the contents of another file about the same device. Return messages about contradictions."""
    problems = []
    _commits(into, other)
    for key, value in other.environment.items():
        mine = into.environment.setdefault(key, value)
        # torch itself reports "2.11.0+cu130", its package "2.11.0".
        if mine.split("+")[0] != value.split("+")[0] and key not in (COMMIT, "python", "numpy", "hypothesis"):
            problems.append(f"{key} is {value} here and {into.environment[key]} in another file of this device")
    into.records, again = _shards(into, other)
    if again:
        which = f"{again[0].op} {again[0].dtype}"
        problems.append(f"{len(again)} records have the same cases in another file ({which} for one); the last counts")
    for key, value in other.about.items():
        into.about.setdefault(key, value)
    rows = {row.name: row for row in into.rows}
    twice = [row.name for row in other.rows if row.name in rows]
    if twice:
        problems.append(f"{len(twice)} benchmarks are in another file too, {twice[0]} for one; the last file counts")
    into.rows = list((rows | {row.name: row for row in other.rows}).values())
    into.complaints = list(dict.fromkeys((*into.complaints, *other.complaints)))
    into.coverage = list({pairs.op: pairs for pairs in (*into.coverage, *other.coverage)}.values())
    into.selftest = list({(one.of, one.name): one for one in (*into.selftest, *other.selftest)}.values())
    if other.false_alarms is not None:
        into.false_alarms = (into.false_alarms or 0) + other.false_alarms
    into.controlled += other.controlled
    into.sources = [*into.sources, *other.sources]
    return problems


def _commits(into: Device, other: Device) -> None:
    """Return all commits at which the device was measured."""
    named = [device.environment.get(COMMIT, "") for device in (into, other)]
    if any(named):
        into.environment[COMMIT] = ", ".join(dict.fromkeys(one for part in named for one in part.split(", ") if one))


def _shards(into: Device, other: Device) -> tuple[list[Record], list[Record]]:
    """Return the records of both, and the records of ``other`` that judge the same cases as ``into``, from one seed."""
    again = []
    shards = into.about.get("shard", "").split(", "), other.about.get("shard", "")
    apart = bool(shards[1]) and "" not in shards[0] and shards[1] not in shards[0]
    if apart:
        into.about["shard"] = ", ".join((*shards[0], shards[1]))
    same = all(into.about.get(key) == other.about.get(key) for key in ("implementation", "profile", "seed"))
    if same and not apart:
        known = {(record.op, record.dtype) for record in into.records}
        again = [record for record in other.records if (record.op, record.dtype) in known]
    last = {(record.op, record.dtype) for record in again}
    mine = [record for record in into.records if (record.op, record.dtype) not in last]
    return _joined([*mine, *other.records]), again


def _joined(records: Iterable[Record]) -> list[Record]:
    """Add up shards, as ``conformance.metrics.Tally`` does."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.op, record.dtype)
        mine = found.setdefault(key, record)
        if mine is record:
            continue
        for count in ("cases", "passed", "failed", "not_provided", "deviated", "out_of_memory", "refused"):
            setattr(mine, count, getattr(mine, count) + getattr(record, count))
        for largest in ("torch_largest", "ulps", "torch_ulps"):
            pair = [value for value in (getattr(mine, largest), getattr(record, largest)) if value is not None]
            setattr(mine, largest, max(pair, default=None))
        if record.worst and (mine.worst is None or record.worst.share > mine.worst.share):
            mine.worst = record.worst
        width = max(len(mine.shares), len(record.shares))
        padded = ([*shares, *[0] * (width - len(shares))] for shares in (mine.shares, record.shares))
        mine.shares = [a + b for a, b in zip(*padded, strict=True)]
        mine.failures = [*mine.failures, *record.failures][:KEPT]
        for seen, others in (
            (mine.deviations, record.deviations),
            (mine.unclaimed, record.unclaimed),
            (mine.left_out, record.left_out),
        ):
            for name, counted in others.items():
                seen[name] = Counted(counted.count + (seen[name].count if name in seen else 0))
    return [found[key] for key in sorted(found)]


def by_op(records: Iterable[Record]) -> list[Record]:
    """Return one record for each op, its dtypes added up."""
    return _joined(msgspec.structs.replace(record, dtype="", deviations=dict(record.deviations),
                                           unclaimed=dict(record.unclaimed),
                                           left_out=dict(record.left_out)) for record in records)  # fmt: skip


def share_text(share: float | None) -> str:
    """Return a share of the bound as text for people."""
    if share is None:
        return "-"
    if share >= sys.float_info.max:
        return "∞"
    return f"{share:.3f}" if share < 1000 else f"{share:.2g}"
