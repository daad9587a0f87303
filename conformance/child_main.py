"""The program of the child process in which cases are judged: what crashes or hangs there harms nobody else.

``conformance.child`` starts it and talks to it, one JSON message at a time, over a socket of its own: what is judged
may print what it likes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from conformance import cases, repro, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import FAILED, Finding
from conformance.implementations import Implementation, ImplementationError, NotProvided, load
from conformance.processes import dies_with_parent
from conformance.runner import CRASH, Verdict


class Setup(msgspec.Struct, frozen=True):
    """What is judged, where and how."""

    implementation: str
    device: str
    worker: int
    """Workers take the GPUs in turn."""
    checks: Sequence[str] | None


class Importing(msgspec.Struct, frozen=True, tag=True):
    """The first answer to a Setup whose device there is: the implementation is imported now."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The answer to a Setup that can be done."""

    device: str
    device_name: str
    provides: frozenset[str]
    """The ops that the implementation has."""
    claims: Mapping[str, Sequence[str]]


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """The answer to a Setup that cannot be done: there is no such device, or no such implementation."""

    what: str
    message: str


class Request(msgspec.Struct, frozen=True, tag=True):
    """Judge a case; with the verdict on it, write the stand-alone script that shows it."""

    case: Case
    thorough: bool = True
    checks: Sequence[str] | None = None
    """None: those of the Setup."""
    verdict: Verdict | None = None


class Item(msgspec.Struct, frozen=True, tag=True):
    """Run a test of the suite that is no search for cases, with pytest and these arguments."""

    arguments: Sequence[str]


class Reply(msgspec.Struct, frozen=True):
    """The answer to a Request."""

    verdict: Verdict | None = None
    outcome: str = ""
    """Of a test: passed, failed or skipped."""
    message: str = ""
    """Why it failed, or was skipped."""
    script: str = ""
    no_script: str = ""
    """Why there is no script."""
    fault: str = ""
    """The traceback, where the harness itself failed."""
    lost: bool = False
    """This process can judge no more and ends."""


def main(descriptor: int) -> None:
    """Judge what is asked for over the socket ``descriptor``, until its other end is closed."""
    os.set_inheritable(descriptor, False)
    _prepare()
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        setup = msgspec.json.decode(connection.recv_bytes(), type=Setup)
        try:
            device = runner.resolve_device(setup.device, setup.worker)
            connection.send_bytes(msgspec.json.encode(Importing()))
            implementation = load(setup.implementation)
        except (runner.DeviceError, ImplementationError) as error:
            what = "device" if isinstance(error, runner.DeviceError) else "implementation"
            connection.send_bytes(msgspec.json.encode(Unusable(what, str(error))))
            _end(0)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        claims = {op: tuple(names) for op, names in implementation.claimed.items()}
        provides = frozenset(op for op in specs.registry() if implementation.function(op) is not None)
        connection.send_bytes(msgspec.json.encode(Ready(str(device), name, provides, claims)))
        # What was imported stays: garbage is not looked for in it again and again.
        gc.freeze()
        while True:
            request = msgspec.json.decode(connection.recv_bytes(), type=Request | Item)
            reply = _answer(request, implementation, device, setup.checks)
            connection.send_bytes(msgspec.json.encode(reply))
            if reply.lost:
                _end(1)
    _end(0)


def _prepare() -> None:
    """Leave a stack behind when crashing, and nothing else; go when the parent goes; go first when memory runs out."""
    faulthandler.enable(sys.stderr)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    dies_with_parent()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def _end(status: int) -> None:
    # Without what a process does at its end: libraries that lost their GPU can hang there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _answer(
    request: Request | Item, implementation: Implementation, device: torch.device, checks: Sequence[str] | None
) -> Reply:
    try:
        if isinstance(request, Item):
            reply = _run(request, implementation, device)
        elif request.verdict is None:
            reply = Reply(
                runner.judge(request.case, implementation, device, request.checks or checks, request.thorough)
            )
        else:
            reply = Reply(script=repro.script(request.case, request.verdict, implementation, device))
    except repro.ReproError as error:
        reply = Reply(no_script=str(error))
    # The parent raises it again, as a fault of the harness.
    except Exception:  # noqa: BLE001
        reply = Reply(fault=traceback.format_exc())
    # Whatever was said of the case: where the context is gone, nothing that was read from the GPU counts.
    if lost := _lost_context(device):
        message = f"the GPU's context is lost, and the process with it: {lost}"
        verdict = None
        if isinstance(request, Request):
            finding, identity = Finding(CRASH, FAILED, message), cases.case_id(request.case)
            verdict = Verdict(identity, request.case.op, FAILED, (finding,))
        reply = Reply(verdict, outcome=FAILED, message=message, no_script=lost, lost=True)
    return reply


class Within:
    """A plugin for pytest: tells the suite's conftest.py that it runs in the child, and what is judged there; and
    keeps what came of the one item."""

    def __init__(self, implementation: Implementation, device: torch.device) -> None:
        self.implementation, self.device = implementation, device
        self.reply = Reply(outcome=FAILED, message="the test was not found in the child process")

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except NotProvided as missing:
            pytest.skip(f"not provided: {missing}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            # A skip is the file, the line and the reason.
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.reply = Reply(outcome=report.outcome, message=reason)


def _run(item: Item, implementation: Implementation, device: torch.device) -> Reply:
    within = Within(implementation, device)
    pytest.main([*item.arguments, "-s", "-p", "no:cacheprovider", "-p", "no:terminal"], plugins=[within])
    return within.reply


def _lost_context(device: torch.device) -> str:
    """The error that the GPU's context is stuck with (an illegal address, say); empty where it can go on."""
    if device.type != "cuda":
        return ""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""
