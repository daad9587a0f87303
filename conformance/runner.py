"""Judging one case: a function of the case, the implementation and the device, and of nothing else."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec
import torch

import strategies.tensors
from conformance import cases, deviations, stand_ins
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import (
    CHECKS,
    DEVIATION,
    FAILED,
    LAST_WORD,
    SAMPLED,
    Finding,
    Outcome,
    Trial,
    applicable,
    refuses_as,
)
from conformance.guards import Guard
from conformance.implementations import TORCH, Implementation, load
from conformance.spec import Call, OpSpec

NOT_PROVIDED = "not_provided"
OUT_OF_MEMORY = "out_of_memory"
CRASH, TIMEOUT = "crash", "timeout"
"""What failures are called that no check finds: the process that judged the case died, or took too long."""


class Verdict(msgspec.Struct, frozen=True):
    """What came of one case.

    ``status``: "passed"; "failed"; "not_provided", the implementation lacks the op or leaves the call out by
    declaration; "deviation", torch itself, where it is known to differ from the oracle; "out_of_memory", nothing was
    judged, since torch or the oracle needs more memory than there is.
    """

    id: str
    op: str
    status: str
    findings: tuple[Finding, ...] = ()
    refused: bool = False
    """torch refuses the call, so that only the refusal was judged."""

    @property
    def share(self) -> float | None:
        """The largest share of the bound used, where values were judged."""
        return next((finding.share for finding in self.findings if finding.share is not None), None)

    @property
    def torch_share(self) -> float | None:
        """torch's own, by the same measure."""
        return next((finding.torch_share for finding in self.findings if finding.torch_share is not None), None)

    @property
    def failure(self) -> Finding | None:
        """The finding after which a failure is called: the first that failed."""
        return next((finding for finding in self.findings if finding.status == FAILED), None)


Watch = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], contextlib.AbstractContextManager[Any]]


def _unwatched(
    inputs: Sequence[torch.Tensor], writable: Sequence[torch.Tensor]
) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def _interpreter() -> ModuleType | None:
    """The interpreter that runs Triton kernels in this process; None where nothing has installed it."""
    # Not imported here: importing ntops chooses between interpreted and compiled, for the implementation to do.
    found = sys.modules.get("ntops.interpreter")
    return found if found is not None and found.installed() else None


def _watch() -> Watch:
    found = _interpreter()
    return _unwatched if found is None else found.watch


def _is_memory_fault(error: BaseException | None) -> bool:
    found = _interpreter()
    return found is not None and isinstance(error, found.MemoryFault)


class DeviceError(ValueError):
    """A device that this machine does not have. The message is for people."""


class Prepared(msgspec.Struct, frozen=True):
    """All about a case on a device that does not depend on the implementation."""

    case: Case
    spec: OpSpec
    device: torch.device
    inputs: tuple[torch.Tensor, ...]
    reference: Outcome
    call: Call
    refusal: type[BaseException] | None

    def invoke(
        self,
        function: Callable[..., Any],
        watch: Watch = _unwatched,
        *,
        seeded: bool = True,
        guard: Guard | None = None,
        inputs: Sequence[torch.Tensor] | None = None,
        names: Sequence[str] = (),
    ) -> Outcome:
        """Call ``function`` on operands of its own, whatever it does. A SystemExit is taken for its failure.

        ``watch``: what looks at every access of an interpreted kernel to memory; a fault ends the call.
        Before each call torch's generators are seeded from the case, unless not ``seeded``.
        ``inputs``: other operands than those of the case, on the CPU.
        ``names``: of the parameters, by which every argument is given then.
        ``guard``: what keeps operands and new memory apart; None leaves torch alone.
        """
        given = self.spec.writes(self.case)
        operands = tuple(
            _copy(tensor, self.device) if guard is None else guard.operand(tensor, number in given)
            for number, tensor in enumerate(self.inputs if inputs is None else inputs)
        )
        args, kwargs = cases.bind(self.case, operands)
        if names:
            args, kwargs = (), dict(zip(names[: len(args)], args, strict=True)) | kwargs
        value = error = None
        versions = [operand._version for operand in operands]
        if seeded:
            _seed(cases.seed(self.case), self.device)
        try:
            # torch warns of every ``out`` that it resizes, and here that is what was asked for. The watch is the
            # innermost: it sees what was allocated, and not how it is guarded.
            with (
                warnings.catch_warnings(action="ignore"),
                guard or contextlib.nullcontext(),
                watch(operands, [operands[number] for number in given]) as watcher,
            ):
                value = function(*args, **kwargs)
                if watcher is not None:
                    watcher.check_written(value)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except KeyboardInterrupt:
            raise
        # What is judged is somebody else's code: anything that it raises is a finding, never a crash of the run.
        except BaseException as raised:  # noqa: BLE001
            value, error = None, raised
        moved = tuple(operand._version != was for operand, was in zip(operands, versions, strict=True))
        if guard is None:
            return Outcome(operands, value, error, moved=moved)
        return Outcome(operands, value, error, guard.fresh, guard.trespass(), moved)

    def widened(self) -> Prepared | None:
        """The same operands with torch's answer to the call that this one stands for, where torch refuses this one and
        an implementation may take it; else None."""
        meant = self.spec.widened(self.case) if self.refusal is not None else None
        return None if meant is None else msgspec.structs.replace(self.derived(meant), case=self.case)

    def derived(self, case: Case) -> Prepared:
        """The same for another call that follows from this case. Raises what ``prepare`` raises."""
        return prepare(case, self.device)

    def guarded(
        self,
        function: Callable[..., Any],
        watch: Watch = _unwatched,
        *,
        seeded: bool = True,
        fill: int = 0,
        around: int = 0,
        inputs: Sequence[torch.Tensor] | None = None,
        names: Sequence[str] = (),
    ) -> Outcome:
        """``invoke`` with margins around all memory. ``fill`` and ``around`` choose the poison, as of ``Guard``."""
        guard = Guard(self.device, fill, around)
        return self.invoke(function, watch, seeded=seeded, guard=guard, inputs=inputs, names=names)


def prepare(case: Case, device: torch.device | str) -> Prepared:
    """Make the inputs and ask torch for its answer. Raises what torch raises when it runs out of memory."""
    spec, device = specs.registry()[case.op], torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    args, kwargs, inputs = cases.materialize(case)
    prepared = Prepared(case, spec, device, inputs, Outcome(()), Call(args, kwargs, None), None)
    on_cpu = device.type == "cpu"
    reference = prepared.invoke(stand_ins.answer(case.op, spec.reference, prepared.call) if on_cpu else spec.reference)
    if reference.error is not None and _is_out_of_memory(reference.error):
        raise reference.error
    call = Call(args, kwargs, _on_cpu(reference.value) if reference.error is None else None)
    refusal = spec.cuda_refuses(call) if on_cpu else None
    if refusal is None and reference.error is not None:
        refusal = type(reference.error)
    return Prepared(case, spec, device, inputs, reference, call, refusal)


def judge(
    case: Case,
    implementation: Implementation | str,
    device: torch.device | str = "cpu",
    checks: Sequence[str] | None = None,
    thorough: bool = True,
) -> Verdict:
    """Run one case and all checks that apply, or those named; not ``thorough``, one of those that are sampled.

    Nothing that the implementation does ends the run: a call that raises where torch does not, or that returns what
    cannot be judged, is a failure under any choice of checks. Only KeyboardInterrupt passes through.
    """
    if isinstance(implementation, str):
        implementation = load(implementation)
    if implementation.function(case.op) is None:
        return Verdict(cases.case_id(case), case.op, NOT_PROVIDED)
    try:
        return judge_prepared(prepare(case, device), implementation, checks, thorough)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return Verdict(cases.case_id(case), case.op, OUT_OF_MEMORY)


def judge_prepared(
    prepared: Prepared, implementation: Implementation, checks: Sequence[str] | None = None, thorough: bool = True
) -> Verdict:
    """``judge`` of a case that is prepared already: what several implementations are judged on is made once."""
    case, identity = prepared.case, cases.case_id(prepared.case)
    if implementation.function(case.op) is None:
        return Verdict(identity, case.op, NOT_PROVIDED)
    if changed := _changed_inputs(prepared):
        return Verdict(identity, case.op, FAILED, (Finding("inputs", FAILED, changed),))
    watched = prepared.device.type == "cpu" and "memory" in (CHECKS if checks is None else checks)
    trial = _trial(prepared, implementation, _watch() if watched else _unwatched, checks is not None or thorough)
    if trial.left_out:
        return Verdict(identity, case.op, NOT_PROVIDED)
    findings = []
    for check in applicable(trial, checks, thorough):
        # Other calls would only go wrong in the same way.
        if check in SAMPLED and any(finding.status == FAILED for finding in findings):
            continue
        findings.append(trial.excused(CHECKS[check](trial), case, check))
        if check in LAST_WORD and findings[-1].status == FAILED:
            break
    worst = [status for status in (FAILED, DEVIATION) if any(finding.status == status for finding in findings)]
    return Verdict(identity, case.op, next(iter(worst), "passed"), tuple(findings), trial.refusal is not None)


def resolve_device(name: str, worker: int = 0) -> torch.device:
    """The device for ``--device auto|cpu|cuda`` (or ``cuda:N``); worker ``n`` takes the n-th GPU, round and round.

    Raises DeviceError. Judging CPU tensors, also on a machine with a GPU, means Triton's interpreter, which has to be
    known before an implementation is imported.
    """
    if name not in ("auto", "cpu") and name.partition(":")[0] != "cuda":
        raise DeviceError(f"unknown device {name!r}; valid are auto, cpu, cuda and cuda:N")
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not available):
        os.environ.setdefault("TRITON_INTERPRET", "1")
        return torch.device("cpu")
    if not available:
        raise DeviceError(f"device {name!r}: torch finds no CUDA GPU on this machine; valid here are auto and cpu")
    number = name.partition(":")[2]
    if number and not (number.isdigit() and int(number) < available):
        raise DeviceError(f"device {name!r}: this machine has cuda:0 to cuda:{available - 1}")
    return torch.device("cuda", int(number) if number else worker % available)


def _trial(prepared: Prepared, implementation: Implementation, watch: Watch, thorough: bool) -> Trial:
    function, device = implementation.function(prepared.case.op), prepared.device
    assert function is not None
    configurations: list[str] = []

    def observed(*args: Any, **kwargs: Any) -> Any:
        with implementation.configurations(prepared.case.op) as names:
            result = function(*args, **kwargs)
        configurations[:] = names
        return result

    ours = prepared.guarded(observed, watch)
    if prepared.refusal is not None and not refuses_as(ours.error, prepared.refusal):
        prepared = prepared.widened() or prepared

    def excuse(case: Case, check: str) -> str | None:
        return deviations.named_deviation(case, check, device) if implementation.name == TORCH else None

    return Trial(
        case=prepared.case,
        spec=prepared.spec,
        implementation=implementation,
        inputs=prepared.inputs,
        call=prepared.call,
        reference=prepared.reference,
        refusal=prepared.refusal,
        ours=ours,
        attempt=functools.partial(prepared.guarded, function),
        derive=lambda case: _trial(prepared.derived(case), implementation, _unwatched, thorough),
        excuse=excuse,
        configurations=tuple(configurations),
        thorough=thorough,
        memory_fault=str(ours.error) if _is_memory_fault(ours.error) else "",
    )


def _changed_inputs(prepared: Prepared) -> str:
    """What differs between the inputs made now and those that the case was saved with."""
    digests = prepared.case.digests
    found = [strategies.tensors.digest(tensor) for tensor in prepared.inputs] if digests else []
    return "; ".join(
        f"operand {number} is not what it was when the case was saved: digest {now}, saved {then}"
        for number, (now, then) in enumerate(zip(found, digests, strict=True))
        if now != then
    )


def _seed(seed: int, device: torch.device) -> None:
    if device.type == "cpu":
        # torch.manual_seed also notes the stack for each kind of device that is not there: half a millisecond a call.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _is_out_of_memory(error: BaseException) -> bool:
    # Of the CPU's memory torch says so with a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def _copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same tensor in a storage of its own on the device: not a view of another, so that it may be resized."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(device, copy=True)
    result = torch.empty(0, dtype=tensor.dtype, device=device)
    return result.set_(storage.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _on_cpu(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_on_cpu, value))
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
