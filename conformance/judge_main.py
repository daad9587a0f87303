"""The judge's program: it holds the references, the oracles and the verdict, and never imports the implementation.

Another process (``conformance.runtime``) imports it and makes the calls. ``conformance.worker`` starts both, and talks
to the judge, one JSON message at a time, over a socket of its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import pytest
import torch

from conformance import (
    cases,
    code_counts,
    code_search,
    messages,
    plain_calls,
    process_limits,
    repro,
    runner,
    semantics,
    sequence_judge,
    sequences,
    spec_files,
)
from conformance import spec as specs
from conformance.calls import Lost, NotProvided
from conformance.cases import Case
from conformance.checks import FAILED, Finding, least_tried
from conformance.implementations import Implementation, ImplementationError, load_judged
from conformance.remote_calls import GONE, Judged
from conformance.runner import CRASH, Verdict
from conformance.stopwatch import Stopwatch


class Setup(msgspec.Struct, frozen=True):
    """The implementation to judge, where and how."""

    implementation: str
    device: str
    worker: int
    """Workers take the GPUs in turn."""
    checks: Sequence[str] | None
    specs: Sequence[str] = ()
    """Modules of OpSpecs, as of ``spec.bring``."""
    semantics: str = semantics.CUDA
    """Whose semantics count."""


class Importing(msgspec.Struct, frozen=True, tag=True):
    """The first answer to a Setup whose device exists: the implementation is imported now."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The answer to a Setup that can be done."""

    device: str
    device_name: str
    provides: frozenset[str]
    """The ops that the implementation has."""
    claims: Mapping[str, Sequence[str]]
    left_out: Mapping[str, str]
    large: int
    """The most elements that a large call may have."""
    changed: Sequence[str]
    """As ``implementations.Implementation.changed``."""


class Gone(msgspec.Struct, frozen=True, tag=True):
    """The answer to anything where the judged process is found to have ended."""

    note: str = ""
    """Says what is known of the call in which it ended; empty: nothing more."""


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """The answer to a Setup that cannot be done: there is no such device, or no such implementation."""

    what: str
    message: str


class Request(msgspec.Struct, frozen=True, tag=True):
    """Judge a case; with the verdict on it, write the stand-alone script that shows it."""

    case: Case
    thorough: bool = True
    checks: Sequence[str] | None = None
    """None: the checks of the Setup."""
    verdict: Verdict | None = None
    search: str = ""
    """The name of the search that draws the case."""


class Play(msgspec.Struct, frozen=True, tag=True):
    """Judge a sequence of calls."""

    sequence: sequences.CallSequence


class Script(msgspec.Struct, frozen=True, tag=True):
    """Let a script make cases, as a user does."""

    cases: Sequence[Case]
    seconds: float


class Item(msgspec.Struct, frozen=True, tag=True):
    """Run a test of the suite that is no search for cases, with pytest and these arguments."""

    arguments: Sequence[str]


class Numbers(msgspec.Struct, frozen=True, tag=True):
    """Return the numbers in the code of an op."""

    op: str


class Explore(msgspec.Struct, frozen=True, tag=True):
    """Search for calls that come to new places of an op's code, as ``code_search.search``."""

    starts: Sequence[Case]
    calls: int
    elements: int
    seed: str


class Count(msgspec.Struct, frozen=True, tag=True):
    """Find how often calls of one op have to be made, as ``code_counts.counted``."""

    starts: Sequence[Case]


Asked = Request | Play | Script | Item | Numbers | Explore | Count


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Answers any request."""

    verdict: Verdict | None = None
    verdicts: Sequence[Verdict] = ()
    """The verdicts of a Script, on each of its cases."""
    outcome: str = ""
    """The outcome of a test: passed, failed or skipped."""
    message: str = ""
    """Why it failed, or was skipped."""
    script: str = ""
    no_script: str = ""
    """Why there is no script."""
    numbers: Sequence[int | float] = ()
    found: Sequence[Case] = ()
    """The cases that Explore or Count has found."""
    times: Sequence[int] = ()
    """The number of calls that each case of Count takes."""
    fault: str = ""
    """The traceback, where the harness itself failed."""
    lost: bool = False
    """The judged process cannot go on, and both end."""


def main(descriptor: int, judged_descriptor: int, time_descriptor: int) -> None:
    """Answer the requests that come over the socket ``descriptor``, until its other end is closed. The judged process
    is at the other end of ``judged_descriptor``; ``time_descriptor`` is the file of a stopwatch of its work."""
    for one in (descriptor, judged_descriptor, time_descriptor):
        os.set_inheritable(one, False)
    process_limits.prepare()
    judged = Judged(judged_descriptor, Stopwatch(time_descriptor))
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        setup = msgspec.json.decode(connection.recv_bytes(), type=Setup)
        try:
            device = runner.resolve_device(setup.device, setup.worker)
            runner.choose_semantics(setup.semantics, device)
            if device.type == "cpu":
                process_limits.limit_memory()
            spec_files.bring(setup.specs)
            connection.send_bytes(msgspec.json.encode(Importing()))
            implementation = load_judged(setup.implementation, judged, device)
        except Lost:
            connection.send_bytes(msgspec.json.encode(Gone()))
            _end(1)
        except (runner.DeviceError, ImplementationError, specs.SpecError) as error:
            what = "device" if isinstance(error, runner.DeviceError) else "implementation"
            connection.send_bytes(msgspec.json.encode(Unusable(what, str(error))))
            _end(0)
        name = messages.device_name(device)
        claims = {op: tuple(names) for op, names in implementation.claimed.items()}
        provides, large = frozenset(vars(implementation.provider)), runner.LARGE[implementation.kernels]
        ready = Ready(str(device), name, provides, claims, implementation.left_out, large, implementation.changed)
        connection.send_bytes(msgspec.json.encode(ready))
        # Imported objects stay: the collector need not look through them again.
        gc.freeze()
        while True:
            request = msgspec.json.decode(connection.recv_bytes(), type=Asked)
            reply = _answer(request, implementation, device, setup.checks)
            connection.send_bytes(msgspec.json.encode(reply))
            if isinstance(reply, Gone) or reply.lost:
                _end(1)
    _end(0)


def _end(status: int) -> None:
    # Skips the work of a normal exit: libraries that lost their GPU can hang there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _answer(
    request: Asked,
    implementation: Implementation,
    device: torch.device,
    checks: Sequence[str] | None,
) -> Reply | Gone:
    assert implementation.judged is not None
    lost = ""
    try:
        if isinstance(request, Item):
            reply = _run(request, implementation, device)
        elif isinstance(request, Play):
            reply = Reply(sequence_judge.judge(request.sequence, implementation, device))
        elif isinstance(request, Numbers):
            reply = Reply(numbers=implementation.numbers(request.op))
        elif isinstance(request, Explore):
            how = implementation, device, request.calls, request.elements, request.seed
            reply = Reply(found=[cases.canonical(case) for case in code_search.search(request.starts, *how)])
        elif isinstance(request, Count):
            counted = code_counts.counted(request.starts, implementation, device)
            reply = Reply(found=[cases.canonical(case) for case, _ in counted], times=[times for _, times in counted])
        elif isinstance(request, Script):
            reply = Reply(verdicts=plain_calls.judge(request.cases, implementation, device, request.seconds or None))
        elif request.verdict is None:
            if not request.thorough:
                least_tried.within(request.search)
            reply = Reply(
                runner.judge(request.case, implementation, device, request.checks or checks, request.thorough)
            )
        else:
            reply = Reply(script=repro.script(request.case, request.verdict, implementation, device))
        if device.type == "cuda":
            # Whatever the verdict: if the context is gone, nothing that was read from the GPU counts.
            lost = implementation.judged.lost()
            lost = lost and f"{GONE}: {lost}"
    except repro.ReproError as error:
        reply = Reply(no_script=str(error))
    except code_search.Broken as broken:
        # The case that broke it is judged as any other, and tells how it ended.
        return Reply(found=[cases.canonical(case) for case in broken.found], lost=True)
    except Lost as error:
        if not str(error):
            return Gone("; ".join(getattr(error, "__notes__", ())))
        reply, lost = Reply(), str(error)
    # The parent raises it again, as a fault of the harness.
    except Exception:  # noqa: BLE001
        reply = Reply(fault=traceback.format_exc())
    if lost:
        verdict, finding = None, Finding(CRASH, FAILED, lost)
        if isinstance(request, Request):
            verdict = Verdict(cases.case_id(request.case), request.case.op, FAILED, (finding,))
        elif isinstance(request, Play):
            identity, op = sequences.sequence_id(request.sequence), request.sequence.ops[0]
            verdict = Verdict(identity, op, FAILED, (finding,))
        elif isinstance(request, Script):
            identity, op = cases.case_id(request.cases[0]), request.cases[0].op
            verdict = Verdict(identity, op, FAILED, (finding,))
        verdicts = [verdict] if isinstance(request, Script) and verdict else []
        reply = Reply(verdict, verdicts, outcome=FAILED, message=lost, no_script=lost, lost=True)
    return reply


class Within:
    """A plugin for pytest: tells the suite's conftest.py that it runs in the child, with which implementation and
    device; and keeps the result of the one item."""

    def __init__(self, implementation: Implementation, device: torch.device) -> None:
        self.implementation, self.device = implementation, device
        self.reply = Reply(outcome=FAILED, message="the test was not found in the child process")
        self.lost: Lost | None = None
        """Set where the judged process has ended."""

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except NotProvided as missing:
            pytest.skip(f"not provided: {missing}")
        except Lost as lost:
            self.lost = lost
            raise

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            # A skip is the file, the line and the reason.
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.reply = Reply(outcome=report.outcome, message=reason)


def _run(item: Item, implementation: Implementation, device: torch.device) -> Reply:
    within = Within(implementation, device)
    pytest.main([*item.arguments, "-s", "-p", "no:cacheprovider", "-p", "no:terminal"], plugins=[within])
    if within.lost is not None:
        raise within.lost
    return within.reply
