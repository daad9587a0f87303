"""Read what sanitizers printed: how much they found, and where."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

CONSAN = "consan"
"""Triton's own sanitizer of concurrency, compiled into the kernel. It knows mbarriers, TMA and wgmma."""
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
"""The tools of compute-sanitizer."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """An error or a hazard."""

    what: str
    kernel: str = ""
    """Empty where the sanitizer does not say."""
    place: str = ""
    """File and line, where the kernel was compiled with them."""

    def __str__(self) -> str:
        where = " at ".join(filter(None, (self.kernel, self.place)))
        return f"{where}: {self.what}" if where else self.what


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of one process under one tool."""

    count: int
    """The number of errors or hazards."""
    findings: tuple[Finding, ...]
    """The errors or hazards that were printed, of which there is a limit."""
    notes: tuple[str, ...]
    """Notes that make the result less certain: what the tool could not track."""
    unusable: str
    """Why the tool could not do its work; empty where it could."""


_PREFIX = re.compile(r"^=========(?: |$)", re.MULTILINE)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards? displayed.*)")
_IGNORED = re.compile(
    r"COMPUTE-SANITIZER|.* SUMMARY: .*|Target application returned an error|LEAK .*|Tracking kernels launched .*|"
)
_NOTE = re.compile(r"Warning: (?!Race reported|Potential).*")
_UNUSABLE = re.compile(
    r"(?:Error: |Internal Sanitizer Error: )*(?:(?:Device not supported|No attachable process|Unable to|Failed to|"
    r"Could not connect|The Sanitizer encountered an error|Confidential compute|process didn't terminate|"
    r"Target application terminated before|WDDM).*)|Internal Sanitizer Error.*"
)
_AT = re.compile(r"\b(?:at|Frame:) (?P<name>.+?)[+:]0x[0-9a-f]+(?: in (?P<place>.+?:\d+))?(?: \[\d+ hazards?\])?$")
_AT_OFFSET = re.compile(r"\bat 0x[0-9a-f]+ in (?:(?P<place>\S+:\d+):)?(?P<name>.+?)(?: \[\d+ hazards?\])?$")
_LEVEL = re.compile(r"^(?:Error|Warning): ", re.IGNORECASE)
_ASSERTED = re.compile(
    r"^(?P<place>\S+:\d+): (?P<name>\S+): block: \[.*?\], thread: \[.*?\] Assertion `(?P<what>.*?)` failed",
    re.MULTILINE,
)


def read(tool: str, text: str) -> Report:
    """Read the report from the output of a process under the tool: one of ``TOOLS``, or ``CONSAN``."""
    return _asserted(text) if tool == CONSAN else _sanitized(text)


def _asserted(text: str) -> Report:
    """Read ConSan's report: an assertion that fails ends the CUDA context, and many threads print it."""
    seen = {Finding(one["what"], one["name"], _file(one["place"])): None for one in _ASSERTED.finditer(text)}
    return Report(len(seen), tuple(seen), (), "")


def _sanitized(text: str) -> Report:
    counts: list[int] = []
    findings: list[Finding] = []
    notes: dict[str, None] = {}
    unusable = ""
    for first, *others in _blocks(text):
        if summary := _SUMMARY.fullmatch(first):
            counts.append(int(summary[1]))
        elif _UNUSABLE.match(first):
            unusable = unusable or first
        elif _NOTE.fullmatch(first):
            notes[first.removeprefix("Warning: ")] = None
        elif not _IGNORED.fullmatch(first):
            findings.append(_finding(first, others))
    if not counts and not unusable:
        unusable = "it ended without a summary"
    return Report(sum(counts), tuple(findings), tuple(notes), unusable)


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield each line that is not indented, with the indented ones below it."""
    block: list[str] = []
    for line in text.splitlines():
        if not (prefix := _PREFIX.match(line)):
            # The program itself printed the line.
            continue
        line = line[prefix.end() :]
        if line.startswith(" ") and block:
            block.append(line.strip())
            continue
        if block:
            yield block
        block = [line.strip()] if line.strip() else []
    if block:
        yield block


def _finding(first: str, others: Iterable[str]) -> Finding:
    """Return a finding: the first line names the function that the access was inlined from, the outermost frame the
    kernel."""
    kernel = place = ""
    for line in (first, *others):
        if "Host Frame" in line or not (at := _AT.search(line) or _AT_OFFSET.search(line)):
            continue
        if not kernel or "Device Frame" in line:
            kernel = at["name"]
        place = place or _file(at["place"] or "")
    return Finding(_LEVEL.sub("", first), kernel, place)


def _file(place: str) -> str:
    return place.rpartition("/")[2]
