"""Judging one case: a function of the case, the implementation and the device, and of nothing else."""

from __future__ import annotations

import contextlib
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
from conformance.checks import CHECKS, DEVIATION, FAILED, REFUSED_CHECKS, Finding, Outcome, Trial, malformed
from conformance.implementations import TORCH, Implementation, load
from conformance.limits import CaseTimeout
from conformance.spec import Call, OpSpec

NOT_PROVIDED = "not_provided"


class Verdict(msgspec.Struct, frozen=True):
    """What came of one case.

    ``status``: "passed"; "failed"; "not_provided", the implementation lacks the op or leaves the call out by
    declaration; "deviation", torch itself, where it is known to differ from the oracle.
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

    def invoke(self, function: Callable[..., Any], watch: Watch = _unwatched, *, seeded: bool = True) -> Outcome:
        """Call ``function`` on operands of its own, whatever it does. A SystemExit is taken for its failure.

        ``watch``: what looks at every access of an interpreted kernel to memory; a fault ends the call.
        Before each call torch's generators are seeded from the case, unless not ``seeded``.
        """
        operands = tuple(_copy(tensor, self.device) for tensor in self.inputs)
        args, kwargs = cases.bind(self.case, operands)
        writable = [operands[number] for number in self.spec.writes(self.case)]
        if seeded:
            torch.manual_seed(cases.seed(self.case))
        try:
            # torch warns of every ``out`` that it resizes, and here that is what was asked for.
            with (
                warnings.catch_warnings(action="ignore"),
                watch(operands, writable) as watcher,
            ):
                value = function(*args, **kwargs)
                if watcher is not None:
                    watcher.check_written(value)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return Outcome(operands, value=value)
        except (KeyboardInterrupt, CaseTimeout):
            raise
        # What is judged is somebody else's code: anything that it raises is a finding, never a crash of the run.
        except BaseException as error:  # noqa: BLE001
            return Outcome(operands, error=error)


def prepare(case: Case, device: torch.device | str) -> Prepared:
    """Make the inputs and ask torch for its answer. Raises what torch raises when it runs out of memory."""
    spec, device = specs.registry()[case.op], torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    args, kwargs, inputs = cases.materialize(case)
    prepared = Prepared(case, spec, device, inputs, Outcome(()), Call(args, kwargs, None), None)
    on_cpu = device.type == "cpu"
    reference = prepared.invoke(stand_ins.answer(case.op, spec.reference, prepared.call) if on_cpu else spec.reference)
    if isinstance(reference.error, torch.OutOfMemoryError):
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
) -> Verdict:
    """Run one case and all checks that apply, or those named.

    Nothing that the implementation does ends the run: a call that raises where torch does not, or that returns what
    cannot be judged, is a failure under any choice of checks. Only KeyboardInterrupt passes through.
    """
    if isinstance(implementation, str):
        implementation = load(implementation)
    identity = cases.case_id(case)
    function = implementation.function(case.op)
    if function is None:
        return Verdict(identity, case.op, NOT_PROVIDED)
    prepared = prepare(case, device)
    if changed := _changed_inputs(prepared):
        return Verdict(identity, case.op, FAILED, (Finding("inputs", FAILED, changed),))
    watched = prepared.device.type == "cpu" and "memory" in (CHECKS if checks is None else checks)
    ours = prepared.invoke(function, _watch() if watched else _unwatched)
    if (
        prepared.refusal is None
        and isinstance(ours.error, NotImplementedError)
        and prepared.spec.left_out(prepared.call)
    ):
        return Verdict(identity, case.op, NOT_PROVIDED)
    trial = Trial(
        case=case,
        spec=prepared.spec,
        implementation=implementation,
        inputs=prepared.inputs,
        call=prepared.call,
        reference=prepared.reference,
        refusal=prepared.refusal,
        ours=ours,
        again=lambda: prepared.invoke(function),
        following=lambda: prepared.invoke(function, seeded=False),
        memory_fault=str(ours.error) if _is_memory_fault(ours.error) else "",
    )
    findings = tuple(
        _named(CHECKS[check](trial), trial, prepared.device)
        for check in _applicable(trial, checks or prepared.spec.checks)
    )
    worst = [status for status in (FAILED, DEVIATION) if any(finding.status == status for finding in findings)]
    return Verdict(identity, case.op, next(iter(worst), "passed"), findings, prepared.refusal is not None)


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


def _applicable(trial: Trial, checks: Sequence[str]) -> list[str]:
    if trial.memory_fault:
        return ["memory"]
    if trial.refusal is not None:
        return [check for check in CHECKS if check in checks and check in REFUSED_CHECKS] or ["errors"]
    if trial.ours.error is not None:
        return ["errors"]
    if malformed(trial.ours.value, trial.reference.value):
        return ["metadata"]
    return [check for check in CHECKS if check in checks and check in trial.spec.checks]


def _named(finding: Finding, trial: Trial, device: torch.device) -> Finding:
    """A failure of torch itself that is known is a deviation."""
    if finding.status != FAILED or trial.implementation.name != TORCH:
        return finding
    name = deviations.named_deviation(trial.case, finding.check, device)
    return msgspec.structs.replace(finding, status=DEVIATION, message=name) if name else finding


def _changed_inputs(prepared: Prepared) -> str:
    """What differs between the inputs made now and those that the case was saved with."""
    digests = prepared.case.digests
    found = [strategies.tensors.digest(tensor) for tensor in prepared.inputs] if digests else []
    return "; ".join(
        f"operand {number} is not what it was when the case was saved: digest {now}, saved {then}"
        for number, (now, then) in enumerate(zip(found, digests, strict=True))
        if now != then
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
