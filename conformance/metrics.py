"""Count a run's results by op and dtype: where cases are judged, then merged where the run is reported."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from conformance import bound_power, semantics
from conformance.cases import Case, canonical, dtype_of
from conformance.checks import DEVIATION, UNCLAIMED
from conformance.coverage import Counter, Coverage, Seen
from conformance.cpu_cuda_differences import cpu_alone_refuses
from conformance.environment import environment
from conformance.runner import NOT_PROVIDED, Verdict

EDGES = tuple(2.0**power for power in range(-10, 1))
"""Upper edges of the buckets in which shares of the bound are counted, after those of exactly 0; then over 1."""
COUNTS = ("cases", "passed", "failed", "not_provided", "deviated", "out_of_memory", "refused", "legal")
"""The fields of a record that are added up."""


class Worst(msgspec.Struct, frozen=True):
    """The case that used the largest share of the bound, among those that passed, and torch's own share of it there."""

    share: float
    torch_share: float
    id: str
    case: Case


class Example(msgspec.Struct):
    """The number of times that something was seen, and one case that shows it."""

    count: int
    case: Case


class Failure(msgspec.Struct, frozen=True):
    """One failing case as it is reported."""

    id: str
    check: str
    case: Case


class Record(msgspec.Struct):
    """The counts of one op and dtype. A case is counted once, whatever number of times it was drawn; those judged
    only on the way to a smaller failing case are not counted."""

    op: str
    dtype: str
    cases: int = 0
    passed: int = 0
    failed: int = 0
    not_provided: int = 0
    deviated: int = 0
    out_of_memory: int = 0
    """Cases for which torch or the oracle needs more memory than there is."""
    refused: int = 0
    """Calls that torch refuses, of which the refusal was judged; they are among the passed or failed."""
    legal: int = 0
    """Calls that were drawn as legal ones, and have a verdict."""
    legal_refused: Example | None = None
    """The legal ones that torch refuses all the same; not those that only the CPU refuses, by its semantics."""
    left_out: dict[str, Example] = {}
    """Calls that the implementation leaves out, by its reason; they are among the not provided."""
    worst: Worst | None = None
    torch_largest: float | None = None
    """The largest share of the bound that torch itself used in any case."""
    ulps: float | None = None
    """The largest error in units in the last place, among those that passed."""
    torch_ulps: float | None = None
    """The same of torch's own results, in any case."""
    shares: list[int] = []
    """Cases by the largest share of the bound that they used: exactly 0, up to each of ``EDGES``, over 1."""
    failures: list[Failure] = []
    deviations: dict[str, Example] = {}
    """Known deviations of torch, by name."""
    unclaimed: dict[str, Example] = {}
    """Properties that do not hold and are not claimed, by check."""

    @property
    def judged(self) -> int:
        """Calls that torch takes, and of which the result was judged."""
        return self.passed + self.failed - self.refused


class Tally:
    """Records by op and dtype, and which features the cases had. ``add`` counts a verdict, ``merge`` takes in what
    another process counted."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.coverage = Counter()
        self._seen: set[str] = set()
        self.merge(records)

    def add(self, case: Case, verdict: Verdict, legal: bool = False, alone: bool = True) -> None:
        """Count one case, unless this tally has it already. ``legal``: it was drawn as a call that torch takes; not
        ``alone``: the verdict is on a sequence of calls of which it is the first, or by few checks, and the coverage
        does not count it."""
        if verdict.id in self._seen:
            return
        self._seen.add(verdict.id)
        case = canonical(case)
        if alone and not verdict.refused and verdict.status != NOT_PROVIDED:
            self.coverage.add(case)
        record = self._record(case.op, dtype_of(case))
        record.cases += 1
        if verdict.status in ("passed", "failed"):
            record.refused += verdict.refused
            record.legal += legal
            if legal and verdict.refused and not (semantics.of_cpu() and cpu_alone_refuses(case)):
                record.legal_refused = _more(record.legal_refused, Example(1, case))
        match verdict.status:
            case "passed":
                record.passed += 1
            case "failed":
                record.failed += 1
                record.failures.append(Failure(verdict.id, verdict.failure.check if verdict.failure else "", case))
            case "deviation":
                record.deviated += 1
            case "out_of_memory":
                record.out_of_memory += 1
            case _:
                record.not_provided += 1
                _see(record.left_out, verdict.reason, Example(1, case))
        for finding in verdict.findings:
            if finding.status == DEVIATION:
                _see(record.deviations, finding.message, Example(1, case))
            elif finding.status == UNCLAIMED:
                _see(record.unclaimed, finding.check, Example(1, case))
        if verdict.torch_share is not None:
            record.torch_largest = max(record.torch_largest or 0.0, verdict.torch_share)
        if verdict.share is not None:
            bucket = 0 if verdict.share == 0 else 1 + bisect.bisect_left(EDGES, verdict.share)
            _add(record.shares, [int(number == bucket) for number in range(len(EDGES) + 2)])
        for finding in verdict.findings:
            if finding.torch_ulps is not None:
                record.torch_ulps = max(record.torch_ulps or 0.0, finding.torch_ulps)
            if finding.ulps is not None and verdict.status == "passed":
                record.ulps = max(record.ulps or 0.0, finding.ulps)
        if verdict.share is not None and verdict.status == "passed":
            _worse(record, Worst(verdict.share, verdict.torch_share or 0.0, verdict.id, case))

    def lacks(self, op: str, dtype: str) -> None:
        """Count an op that the implementation does not provide."""
        record = self._record(op, dtype)
        record.cases += 1
        record.not_provided += 1

    def merge(self, records: Iterable[Record], seen: Iterable[Seen] = ()) -> None:
        """Add another tally's records to these, and what its cases showed; the two must not hold the same cases."""
        self.coverage.merge(seen)
        for other in records:
            mine = self._record(other.op, other.dtype)
            for count in COUNTS:
                setattr(mine, count, getattr(mine, count) + getattr(other, count))
            if other.legal_refused is not None:
                mine.legal_refused = _more(mine.legal_refused, other.legal_refused)
            for name, example in other.left_out.items():
                _see(mine.left_out, name, example)
            mine.failures.extend(other.failures)
            for name, example in other.deviations.items():
                _see(mine.deviations, name, example)
            for name, example in other.unclaimed.items():
                _see(mine.unclaimed, name, example)
            for largest in ("torch_largest", "ulps", "torch_ulps"):
                if (value := getattr(other, largest)) is not None:
                    setattr(mine, largest, max(getattr(mine, largest) or 0.0, value))
            _add(mine.shares, other.shares)
            if other.worst is not None:
                _worse(mine, other.worst)

    def sorted(self) -> list[Record]:
        """Return all records, by op and dtype."""
        return [self.records[key] for key in sorted(self.records)]

    def by_op(self) -> list[Record]:
        """Return one record for each op, its dtypes added up."""
        total = Tally()
        total.merge(msgspec.structs.replace(record, dtype="") for record in self.sorted())
        return total.sorted()

    def _record(self, op: str, dtype: str) -> Record:
        return self.records.setdefault((op, dtype), Record(op, dtype))


_PARTS = (
    ("judged", "judged"),
    ("refused", "refused"),
    ("not provided", "not_provided"),
    ("excused", "deviated"),
    ("out of memory", "out_of_memory"),
)
"""The parts into which the cases of a record are divided, by name; all but the last one are columns."""


def table(records: list[Record]) -> list[str]:
    """Return the records as lines of text: one for each op, their sums, then by name what was not judged or is
    excused."""
    head = ("op", "cases", "passed", "failed", *(name for name, _ in _PARTS[:-1]), "of the bound", "torch", "in")
    rows = [
        (
            record.op,
            *map(str, (record.cases, record.passed, record.failed)),
            *(str(getattr(record, count)) for _, count in _PARTS[:-1]),
            _share(record.worst.share) if record.worst else "-",
            _share(record.worst.torch_share) if record.worst else "-",
            f"{record.worst.id} ({dtype_of(record.worst.case)})" if record.worst else "-",
        )
        for record in records
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    left = (0, len(head) - 1)
    lines = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    parts = ((name, sum(getattr(record, count) for record in records)) for name, count in _PARTS)
    lines.append(f"of {sum(record.cases for record in records)} cases " + ", ".join(f"{n} {part}" for part, n in parts))
    for record in records:
        if record.out_of_memory:
            lines.append(f"{record.op}: {record.out_of_memory} cases were not judged: torch itself ran out of memory")
        lines += [f"{record.op}: {e.count} calls left out: {n}" for n, e in record.left_out.items()]
        lines += [f"{record.op}: known deviation of torch, {e.count} times: {n}" for n, e in record.deviations.items()]
        lines += [f"{record.op}: {n} is not claimed and broken in {e.count} cases" for n, e in record.unclaimed.items()]
    return lines


def document(
    records: list[Record],
    about: dict[str, Any],
    coverage: Sequence[Coverage] = (),
    complaints: Sequence[str] = (),
    whole: bool = True,
) -> bytes:
    """Return the metrics file: ``about`` the run (implementation, device, profile, seed), the versions, the records,
    which pairs of features were tried, and why the run failed beside failing cases. Not ``whole``: without power, which
    takes seconds."""
    counted = [record for record in records if record.cases > record.not_provided] if whole else []
    found = (bound_power.power(record.op, record.dtype) for record in counted)
    data = {"schema": 1, **about, **environment(), "power": [one for one in found if one]}
    data |= {"complaints": complaints, "coverage": coverage, "records": records}
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"


def _add(counts: list[int], more: list[int]) -> None:
    counts.extend([0] * (len(more) - len(counts)))
    for place, count in enumerate(more):
        counts[place] += count


def _share(share: float) -> str:
    if share == sys.float_info.max:
        return "inf"
    return f"{share:.3f}" if share < 1000 else f"{share:.2g}"


def _more(known: Example | None, example: Example) -> Example:
    return Example(example.count + (known.count if known else 0), (known or example).case)


def _see(examples: dict[str, Example], name: str, example: Example) -> None:
    examples[name] = _more(examples.get(name), example)


def _worse(record: Record, worst: Worst) -> None:
    # Ties go to the smaller id, so that the result does not depend on the order of merging.
    if record.worst is None or (-worst.share, worst.id) < (-record.worst.share, record.worst.id):
        record.worst = worst
