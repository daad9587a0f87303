"""Read and write measured configurations: the shipped tables, and the cache of this machine.

``ntops/tuned/<gpu>.json`` is a table of the best configurations. The cache has a file for each GPU model and each set
of versions, with a line for each measured configuration, below ``NTOPS_CACHE_DIR`` (default: ``$XDG_CACHE_HOME/ntops``
or ``~/.cache/ntops``). A line is appended by a single write, so that processes that measure at once lose no line of
each other, and lines of an interrupted process stay. A damaged line is skipped; if a file cannot be read or written,
one warning says so and the library goes on without it.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

import triton

from ntops._version import __version__

SCHEMA = 1
TABLES = pathlib.Path(__file__).parents[1] / "tuned"
KEPT = 0.98
"""A configuration replaces the earlier choice only if it takes less than this share of its time: runs of one commit
differ by as much."""
_LONGEST = 1 << 24
"""The most bytes of a cache that are read; measuring everything writes less than a tenth of it."""
_warned: set[pathlib.Path] = set()


@dataclasses.dataclass(frozen=True)
class Record:
    """One configuration, measured for one problem."""

    kernel: str
    kind: dict[str, Any]
    """The properties of the problem other than sizes."""
    sizes: dict[str, int]
    options: dict[str, Any]
    seconds: float = math.inf
    """The median; infinite if it failed."""
    share: float = math.inf
    """The share of the reference's time in the same rounds."""
    clock: str = "events"
    """``events`` of a GPU, or ``wall``."""
    reference: bool = False
    """Whether this is the configuration against which others were timed."""
    error: str = ""
    """The reason why there is no figure."""

    @classmethod
    def parse(cls, data: Any) -> "Record":
        """Return the record in a JSON object.

        :raises ValueError: It is not a record; the message says why.
        """
        if not isinstance(data, dict):
            raise ValueError(f"{data!r} is no record")

        fields = {field.name: field for field in dataclasses.fields(cls)}

        if unknown := data.keys() - fields.keys():
            raise ValueError(f"unknown field {min(unknown)!r}; valid are {', '.join(fields)}")

        if missing := {"kernel", "kind", "sizes", "options"} - data.keys():
            raise ValueError(f"field {min(missing)!r} is missing")

        for name, kind in {"kernel": str, "clock": str, "error": str, "reference": bool}.items():
            if name in data and type(data[name]) is not kind:
                raise ValueError(f"field {name!r} is {data[name]!r}, which is no {kind.__name__}")

        for name in ("kind", "sizes", "options"):
            if not isinstance(data[name], dict):
                raise ValueError(f"field {name!r} is {data[name]!r}, which is no object")

        if not data["sizes"] or not all(type(size) is int and size > 0 for size in data["sizes"].values()):
            raise ValueError(f"sizes {data['sizes']} are not all positive integers")

        if not data["options"] or not all(type(one) in (int, bool, str) for one in data["options"].values()):
            raise ValueError(f"options {data['options']} are not all integers, bools or strings")

        for name in ("seconds", "share"):
            if name in data and not (type(data[name]) in (int, float) and 0 < data[name] < math.inf):
                raise ValueError(f"field {name!r} is {data[name]!r}, which is no positive number")

        record = cls(**data)

        if not record.error and not (record.seconds < math.inf and record.share < math.inf):
            raise ValueError("a configuration that did not fail needs 'seconds' and 'share'")

        return record

    def written(self) -> dict[str, Any]:
        """Return the JSON object that :meth:`parse` takes."""
        found = dataclasses.asdict(self)
        return {name: value for name, value in found.items() if value not in (math.inf, "")}


def identity(kernel: str, kind: Mapping[str, Any]) -> str:
    """Return what must be equal for a configuration to count."""
    return json.dumps([kernel, kind], sort_keys=True)


def size_class(sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the sizes rounded up to powers of two, in the order of their names."""
    return tuple(1 << (sizes[name] - 1).bit_length() for name in sorted(sizes))


def slug(gpu: str) -> str:
    """Return the name of a GPU model as a file name."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def versions() -> dict[str, str]:
    """Return the versions of the libraries that make kernels."""
    return {"triton": triton.__version__, "ninetoothed": metadata.version("ninetoothed"), "ntops": __version__}


def path(gpu: str) -> pathlib.Path:
    """Return the file of the cache for a GPU model and these versions."""
    folder = os.environ.get("NTOPS_CACHE_DIR")

    if not folder:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.path.join(base, "ntops")

    name = "_".join(f"{package}-{version}" for package, version in versions().items())
    return pathlib.Path(folder) / "tuned" / slug(gpu) / f"{name}.jsonl"


def read(gpu: str) -> list[Record]:
    """Return the records of the cache; the last one for each problem and options."""
    file = path(gpu)

    try:
        with open(file, "rb") as opened:
            text = opened.read(_LONGEST).decode(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        _warn(file, f"the measured configurations in {file} cannot be read: {error}")
        return []

    found = {}

    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue

        try:
            record = Record.parse(json.loads(line))
        except (ValueError, RecursionError) as error:
            _warn(file, f"line {number} of {file} is skipped, and other damaged ones: {error}")
            continue

        found[_place(record), json.dumps(record.options, sort_keys=True)] = record

    return list(found.values())


def append(gpu: str, record: Record) -> None:
    """Add a record to the cache."""
    file = path(gpu)
    # Begin with a new line, since the line before may have been cut off.
    line = f"\n{json.dumps(record.written(), sort_keys=True)}\n".encode()

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        _warn(file, f"measured configurations cannot be kept in {file}: {error}")


def _place(record):
    return identity(record.kernel, record.kind), size_class(record.sizes)


def fastest(records: Iterable[Record]) -> Record | None:
    """Return the best record of one problem: the reference, unless another is faster by more than noise."""
    timed = sorted((one for one in records if not one.error), key=lambda one: one.share)

    if not timed:
        return None

    return next((one for one in timed if one.reference and timed[0].share > KEPT), timed[0])


def grouped(records: Iterable[Record]) -> dict[tuple[str, tuple[int, ...]], list[Record]]:
    """Group records by problem: :func:`identity` and :func:`size_class`."""
    found: dict[tuple[str, tuple[int, ...]], list[Record]] = {}

    for record in records:
        found.setdefault(_place(record), []).append(record)

    return found


@functools.cache
def best(gpu: str) -> dict[str, dict[tuple[int, ...], Record]]:
    """Return the best measurements on a GPU model, by identity and size class; the cache goes before the table."""
    found: dict[str, dict[tuple[int, ...], Record]] = {}
    places = grouped(_shipped(gpu)) | grouped(read(gpu))

    for (name, sizes), records in places.items():
        if (record := fastest(records)) is not None:
            found.setdefault(name, {})[sizes] = record

    return found


def _shipped(gpu):
    file = TABLES / f"{slug(gpu)}.json"

    try:
        return load_table(file.read_text()) if file.exists() else []
    except (OSError, ValueError) as error:
        _warn(file, f"the table {file} is not used: {error}")
        return []


def load_table(text: str) -> list[Record]:
    """Return the entries of a table.

    :raises ValueError: It is not a table; the message says why.
    """
    data = json.loads(text)

    if not isinstance(data, dict) or data.keys() != {"schema", "gpu", "versions", "entries"}:
        raise ValueError("a table has the fields schema, gpu, versions and entries, and no others")

    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r} is not {SCHEMA}, the one that is known here")

    if not isinstance(data["entries"], list):
        raise ValueError("its entries are no list")

    records = [Record.parse(entry) for entry in data["entries"]]

    if failed := next((record for record in records if record.error or record.clock != "events"), None):
        raise ValueError(f"the entry of {failed.kernel} {failed.sizes} was not measured on a GPU")

    if len(grouped(records)) != len(records):
        raise ValueError("two entries are of one problem")

    return records


def save_table(file: pathlib.Path, gpu: str, records: Iterable[Record]) -> None:
    """Write a table, or add to it, keeping entries of other problems. Concurrent readers see the old table, whole."""
    kept = load_table(file.read_text()) if file.exists() else []
    merged = grouped(kept) | grouped(records)
    entries = [record.written() for _, (record, *_) in sorted(merged.items())]
    data = {"schema": SCHEMA, "gpu": gpu, "versions": versions(), "entries": entries}
    load_table(json.dumps(data))
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(draft, file)


def _warn(file, message):
    """Warn once for each file."""
    if file not in _warned:
        _warned.add(file)
        warnings.warn(message, RuntimeWarning, stacklevel=3)
