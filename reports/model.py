"""The structures of a report's input files, with the values that each field may have.

Decoding checks them, so that later code can divide, take logarithms and draw.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

SCHEMA = 1

Count = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(ge=1e-10, le=1e6)]
"""No clock here resolves less, and no run lasts longer."""
Rate = Annotated[float, Meta(ge=1e3, le=1e21)]
"""Bytes or FLOP a second."""
Share = Annotated[float, Meta(ge=0)]


class Worst(msgspec.Struct, frozen=True):
    """The passing case that used the largest share of the bound."""

    share: Share = 0.0
    torch_share: Share = 0.0
    id: str = ""
    case: msgspec.Raw = msgspec.Raw(b"null")


class Failure(msgspec.Struct, frozen=True):
    """A failing case; ``case`` is its JSON, undecoded."""

    id: str = ""
    check: str = ""
    case: msgspec.Raw = msgspec.Raw(b"null")


class Counted(msgspec.Struct, frozen=True):
    """The number of times that something was seen."""

    count: Count = 0


class Record(msgspec.Struct):
    """The fields of ``conformance.metrics.Record``, for an op and dtype, that a report shows."""

    op: Name
    dtype: str = ""
    cases: Count = 0
    passed: Count = 0
    failed: Count = 0
    not_provided: Count = 0
    deviated: Count = 0
    out_of_memory: Count = 0
    refused: Count = 0
    left_out: dict[str, Counted] = {}
    worst: Worst | None = None
    torch_largest: Share | None = None
    ulps: Share | None = None
    torch_ulps: Share | None = None
    shares: list[Count] = []
    failures: list[Failure] = []
    deviations: dict[str, Counted] = {}
    unclaimed: dict[str, Counted] = {}

    def __post_init__(self) -> None:
        self.failed = max(self.failed, len(self.failures))
        if self.failed > self.judged:
            raise ValueError(f"{self.failed} failing of {self.judged} judged cases")

    @property
    def judged(self) -> int:
        """The number of cases that have a verdict."""
        return self.cases - self.not_provided - self.out_of_memory

    @property
    def parts(self) -> str:
        """The parts into which the cases are divided, in words."""
        values = max(0, self.passed + self.failed - self.refused)
        parts = {"judged by value": values, "refused by torch": self.refused, "not provided": self.not_provided}
        parts |= {"excused by name": self.deviated, "out of memory": self.out_of_memory}
        return ", ".join(f"{count:,} {name}" for name, count in parts.items())

    @property
    def share(self) -> float | None:
        """The largest share of the bound in a passing case."""
        return self.worst.share if self.worst else None


class Pairs(msgspec.Struct, frozen=True):
    """The coverage of pairs of features of one op: how many are feasible, how many were hit."""

    op: Name
    feasible: Count = 0
    hit: Count = 0
    holes: list[str] = []

    def __post_init__(self) -> None:
        if self.hit > self.feasible:
            raise ValueError(f"{self.hit} pairs hit of {self.feasible} feasible ones")


class Peer(msgspec.Struct, frozen=True):
    """Another implementation, timed in the same rounds."""

    median: Seconds
    seconds: list[Seconds] = []
    note: str = ""


class Row(msgspec.Struct):
    """One benchmark, in seconds. All ratios are of medians, so that printed figures fit together."""

    op: Name
    dtype: str
    label: str
    clock: str
    median: Seconds
    seconds: list[Seconds] = []
    bytes: Count = 0
    flops: Count = 0
    share: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    note: str = ""
    peers: dict[Name, Peer] = {}
    ceilings: dict[str, Rate] = {}

    def __post_init__(self) -> None:
        if self.ceilings and "copy" not in self.ceilings:
            raise ValueError("ceilings without `copy`")

    @property
    def name(self) -> str:
        """The name by which the same row is found in another file."""
        return f"{self.op}[{self.dtype} {self.label}]"

    def times_as_fast(self, peer: str) -> float | None:
        """Return how many times as fast ours is as this peer; None if the peer was not timed."""
        return self.peers[peer].median / self.median if peer in self.peers else None

    @property
    def best_peer(self) -> str | None:
        """The fastest peer, or None."""
        return min(self.peers, key=lambda name: self.peers[name].median, default=None)

    @property
    def ratio(self) -> float | None:
        """How many times as fast ours is as the best peer; None without one."""
        return self.times_as_fast(self.best_peer) if self.best_peer else None


class Planted(msgspec.Struct, frozen=True):
    """The self-test's counts for one op or check (``of``): defects planted, and defects found."""

    name: str
    of: str = "op"
    planted: Count = 0
    killed: Count = 0
    examples: Annotated[float, Meta(ge=0, le=2**53)] | None = None
    """The median number of cases that it took to find a defect."""
    survivors: list[str] = []

    def __post_init__(self) -> None:
        if self.killed > self.planted:
            raise ValueError(f"{self.killed} found of {self.planted} planted defects")


class Device(msgspec.Struct):
    """All that is known about one device."""

    name: Name
    environment: dict[str, str] = {}
    records: list[Record] = []
    coverage: list[Pairs] = []
    rows: list[Row] = []
    complaints: list[str] = []
    """The reasons, beside failing cases, why a run is no verdict."""
    selftest: list[Planted] = []
    false_alarms: Count | None = None
    controlled: Count = 0
    """Cases on correct implementations, which include the false alarms."""
    about: dict[str, str] = {}
    sources: list[str] = []
    """The files from which the device was read."""


class Metrics(msgspec.Struct):
    """The file that ``pytest conformance --metrics`` writes."""

    records: list[msgspec.Raw]
    implementation: str = ""
    profile: str = ""
    max_examples: int | None = None
    seed: int | None = None
    shard: str = ""
    semantics: str = ""
    versions: dict[str, str | None] = {}
    platform: str = ""
    gpu: str | None = None
    coverage: list[Pairs] = []
    complaints: list[str] = []


class Stats(msgspec.Struct):
    """pytest-benchmark's own figures, of which only the rounds count."""

    data: list[Seconds] = []


class Benchmark(msgspec.Struct):
    """One benchmark of pytest-benchmark; ``extra_info`` holds a ``Row`` and an ``About`` if it measures an operator."""

    extra_info: msgspec.Raw = msgspec.Raw(b"{}")
    stats: msgspec.Raw = msgspec.Raw(b"{}")


class About(msgspec.Struct):
    """The description of the machine and of the software in each row."""

    op: str | None = None
    gpu: str | None = None
    driver: str | None = None
    versions: dict[str, str | None] = {}
    commit: str | None = None
    implementation: str = ""


class Bench(msgspec.Struct):
    """pytest-benchmark's file."""

    benchmarks: list[Benchmark]
    datetime: str = ""


class Defect(msgspec.Struct):
    """A planted defect; it was not found if it has no ``case``."""

    name: str
    op: str
    check: str
    examples: Count = 0
    case: msgspec.Raw = msgspec.Raw(b"null")


class Control(msgspec.Struct):
    """A correct implementation, and how often it was called wrong."""

    cases: Count = 0
    alarms: Count = 0


class Selftest(msgspec.Struct):
    """The file that ``python -m conformance.selftest --json`` writes."""

    defects: list[Defect]
    controls: list[Control] = []


class Report(msgspec.Struct):
    """An earlier report."""

    devices: list[Device]


class Kind(msgspec.Struct):
    """The fields that tell the kinds of files apart, undecoded."""

    records: msgspec.Raw = msgspec.Raw()
    benchmarks: msgspec.Raw = msgspec.Raw()
    defects: msgspec.Raw = msgspec.Raw()
    devices: msgspec.Raw = msgspec.Raw()
    schema: int = SCHEMA
