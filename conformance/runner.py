"""Judge one case: a function of the case, the implementation, the device and the ``semantics``, and of nothing else."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from conformance import calls, cases, cpu_cuda_differences, deviations, forms, runtime, semantics
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import (
    CHECKS,
    DERIVED,
    DEVIATION,
    FAILED,
    LAST_WORD,
    RARE,
    Finding,
    Outcome,
    Trial,
    applicable,
    refuses_as,
)
from conformance.implementations import TORCH, Implementation, load
from conformance.remote_calls import Remote
from conformance.spec import Call, OpSpec
from strategies.tensors import digest

NOT_PROVIDED = "not_provided"
OUT_OF_MEMORY = "out_of_memory"
REASON = 100
"""The most characters that are kept of the reason why an implementation leaves a call out."""
CRASH, TIMEOUT = "crash", "timeout"
"""Failures that no check finds: the process that judged the case died, or took too long."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of judging one case.

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
        """torch's own share, by the same measure."""
        return next((finding.torch_share for finding in self.findings if finding.torch_share is not None), None)

    @property
    def reason(self) -> str:
        """The implementation's reason for leaving a call out."""
        return next(
            (finding.message for finding in self.findings if finding.status == NOT_PROVIDED), "it has no such function"
        )

    @property
    def failure(self) -> Finding | None:
        """The finding that a failure is named after: the first that failed."""
        return next((finding for finding in self.findings if finding.status == FAILED), None)


LARGE = {"": 1 << 24, "vectorised": 1 << 20, "interpreted": 0}
"""The most elements that a large call may have, by how the implementation runs Triton's kernels on the device."""


class DeviceError(ValueError):
    """A device that this machine does not have. The message is for people."""


class Answered(NamedTuple):
    """torch's answer to a case."""

    reference: Outcome
    call: Call
    refusal: type[BaseException] | None


class Prepared(msgspec.Struct, frozen=True):
    """A case on a device, with all that does not depend on the implementation.

    torch is asked when its answer is first needed, after the first call of the implementation: whatever that reads,
    even the memory of this process, holds no answer yet.
    """

    case: Case
    spec: OpSpec
    device: torch.device
    inputs: tuple[torch.Tensor, ...]
    given: Call
    """The call without a result."""
    known: list[Answered] = msgspec.field(default_factory=list)

    @property
    def answered(self) -> Answered:
        """torch's answer. Raises what torch raises when it runs out of memory."""
        if not self.known:
            self.known.append(self._ask())
        return self.known[0]

    @property
    def reference(self) -> Outcome:
        """torch's answer on the device."""
        return self.answered.reference

    @property
    def call(self) -> Call:
        """The call with torch's result."""
        return self.answered.call

    @property
    def refusal(self) -> type[BaseException] | None:
        """The exception that torch raises, on CUDA or by the ``semantics`` of the CPU, where it refuses the call."""
        return self.answered.refusal

    def _ask(self) -> Answered:
        on_cpu, reference = self.device.type == "cpu", self.spec.reference
        asked = cpu_cuda_differences.answer(self.case.op, reference, self.given) if on_cpu else reference
        outcome = msgspec.structs.replace(self, case=forms.asked(self.case)).invoke(calls.Local(asked))
        if outcome.error is not None and calls.is_out_of_memory(outcome.error):
            raise outcome.error
        value = calls.on_cpu(outcome.value) if outcome.error is None else None
        call = Call(self.given.args, self.given.kwargs, value)
        refusal = self.spec.cuda_refuses(call) if on_cpu else None
        if refusal is None and outcome.error is not None:
            refusal = type(outcome.error)
        return Answered(outcome, call, refusal)

    def invoke(
        self,
        maker: calls.Local | Remote,
        *,
        seeded: bool = True,
        seed_by: int = 0,
        guard: tuple[int, int] | None = None,
        inputs: Sequence[torch.Tensor] | None = None,
        case: Case | None = None,
        names: Sequence[str] = (),
        watch: bool = False,
        observe: bool = False,
        configuration: int | None = None,
        setting: int | None = None,
        state: bool = False,
        other: bool = False,
        before: str | None = None,
        gradients: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Let ``maker`` make the call on operands of its own.

        Before each call torch's generators are seeded from the case, with a seed larger by ``seed_by``, if ``seeded``.
        ``guard``: which poison lies in new memory and around operands, as of ``guards.Guard``; None leaves torch alone.
        ``inputs``: other operands than the case's, on the CPU; ``case``: the call of them, if it is another one.
        ``names``: the parameters' names, by which every argument is then given.
        ``watch``: look at every access of an interpreted kernel to memory; a fault ends the call.
        ``observe``: note the configurations that the call could have. ``configuration`` and ``setting``: the number of
        one to make it in.
        ``state``: compare the surroundings of the call before and after it. ``other``: make them as of
        ``process_state.other``. ``before``: make a call with other contents before, of the "same" operands, changed in
        place since, also "behind" torch's back, in "inference" mode, by "swapped" ``.data``, of other "parts" of them,
        or of some that were freed for "new" ones; others make none, and say in which memory operands lie.
        ``gradients``: the wanted ones, as of ``checks.gradient_kinds.Wish``; the last of ``inputs`` is that of the
        result. ``context``: where the call is made, as of ``context_calls.within``.
        """
        inputs, case = self.inputs if inputs is None else inputs, case or self.case
        args, kwargs = forms.bind(case, inputs)
        if names:
            args, kwargs = [], dict(zip(names[: len(args)], args, strict=True)) | kwargs
        call = calls.described(
            case.op,
            args,
            kwargs,
            inputs,
            form=case.form,
            written=sorted(self.spec.writes(case)),
            guard=guard,
            seed=cases.seed(self.case) + seed_by if seeded else None,
            watch=watch,
            observe=observe,
            configuration=configuration,
            setting=setting,
            state=state,
            other=other,
            before=before,
            gradients=gradients,
            context=context,
        )
        return maker.made(call, inputs, self.device)

    def new_paths(self, maker: calls.Local | Remote, differentiate: bool) -> calls.Reached:
        """Let ``maker`` make the call, with the backward pass if that is wanted, and return what it came to in the
        code."""
        args, kwargs = forms.bind(self.case, self.inputs)
        how = {"form": self.case.form, "written": sorted(self.spec.writes(self.case)), "seed": cases.seed(self.case)}
        call = calls.described(self.case.op, args, kwargs, self.inputs, differentiate=differentiate, **how)
        return maker.new_paths(call, self.inputs, self.device)

    def widened(self) -> Prepared | None:
        """Return the same operands with torch's answer to the call that this one stands for, where torch refuses this
        one and an implementation may take it; else None."""
        meant = self.spec.widened(self.case) if self.refusal is not None else None
        if meant is None:
            return None
        derived = self.derived(meant)
        return msgspec.structs.replace(derived, case=self.case, known=[derived.answered])

    def derived(self, case: Case) -> Prepared:
        """Return the same for another call that follows from this case."""
        return prepare(case, self.device)

    def guarded(self, maker: calls.Local | Remote, *, fill: int = 0, around: int = 0, **how: Any) -> Outcome:
        """Make the call as ``invoke`` does, with margins around all memory. ``fill`` and ``around`` choose the poison,
        as of ``Guard``."""
        return self.invoke(maker, guard=(fill, around), **how)


def prepare(case: Case, device: torch.device | str) -> Prepared:
    """Make the inputs."""
    spec, device = specs.registry()[case.op], torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    args, kwargs, inputs = cases.materialize(case)
    return Prepared(case, spec, device, inputs, Call(args, kwargs, None))


def shared(prepared: Prepared) -> Prepared:
    """Return the same for several calls, so that the oracle is asked once."""
    answers: dict[Any, Any] = {}

    def once(call: Call) -> Any:
        if call.places not in answers:
            answers[call.places] = prepared.spec.expected(call)
        return answers[call.places]

    return msgspec.structs.replace(prepared, spec=dataclasses.replace(prepared.spec, expected=once))


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
        if not calls.is_out_of_memory(error):
            raise
        return Verdict(cases.case_id(case), case.op, OUT_OF_MEMORY)


def judge_prepared(
    prepared: Prepared, implementation: Implementation, checks: Sequence[str] | None = None, thorough: bool = True
) -> Verdict:
    """Judge a case that is prepared already, so that several implementations share its preparation."""
    case, identity = prepared.case, cases.case_id(prepared.case)
    if implementation.function(case.op) is None:
        return Verdict(identity, case.op, NOT_PROVIDED)
    if changed := changed_inputs(prepared):
        return Verdict(identity, case.op, FAILED, (Finding("inputs", FAILED, changed),))
    watched = prepared.device.type == "cpu" and "memory" in (CHECKS if checks is None else checks)
    if implementation.judged is not None:
        implementation.judged.forget()
    trial = tried(prepared, implementation, watched, checks is not None or thorough)
    if trial.left_out:
        return Verdict(identity, case.op, NOT_PROVIDED, (Finding("provided", NOT_PROVIDED, reason(trial.ours.error)),))
    findings = []
    for check in applicable(trial, checks, thorough):
        makes_others = check in (*DERIVED, *RARE, "bare", "gradients")
        if makes_others and any(finding.status == FAILED for finding in findings):
            continue
        findings.append(as_torchs(trial.excused(CHECKS[check](trial), case, check), prepared, trial, check))
        if check in LAST_WORD and findings[-1].status == FAILED:
            break
    worst = [status for status in (FAILED, DEVIATION) if any(finding.status == status for finding in findings)]
    return Verdict(identity, case.op, next(iter(worst), "passed"), tuple(findings), trial.refusal is not None)


def as_torchs(finding: Finding, prepared: Prepared, trial: Trial, check: str) -> Finding:
    """Return the finding. By the semantics of torch's CPU it is a deviation if torch fails the check alike and the
    failure has a name: a library that calls torch gets its answers."""
    if finding.status != FAILED or not semantics.of_cpu() or trial.implementation.name == TORCH:
        return finding
    torchs = [dataclasses.replace(load(TORCH), name=name) for name in (TORCH, "")]  # Nothing excuses the second.
    if torchs[0].function(prepared.case.op) is None:
        return finding
    named, unexcused = (tried(prepared, one, False, trial.thorough) for one in torchs)
    found, theirs = named.excused(CHECKS[check](named), prepared.case, check), CHECKS[check](unexcused)
    alike = len({one.message.partition("; the worst")[0].rpartition(": ")[2] for one in (finding, theirs)}) == 1
    return found if found.status == DEVIATION and alike else finding


def reason(error: BaseException | None) -> str:
    """Return in one line why a call was left out."""
    return " ".join(runtime.said(error).split())[:REASON] or "no reason given"


def resolve_device(name: str, worker: int = 0) -> torch.device:
    """Return the device for ``--device auto|cpu|cuda`` (or ``cuda:N``); worker ``n`` takes the n-th GPU, round and
    round.

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


def choose_semantics(name: str, device: torch.device) -> None:
    """Choose the semantics of this process, as of ``semantics``. Raises DeviceError: torch's CPU is not asked there."""
    if name == semantics.CPU and device.type != "cpu":
        raise DeviceError(f"{semantics.OPTION} {name}: what is judged is on {device}; say --device cpu")
    semantics.choose(name)


def tried(prepared: Prepared, implementation: Implementation, watch: bool = False, thorough: bool = True) -> Trial:
    """Make the call of a case for the first time, for checks to look at."""
    maker = implementation.maker(prepared.case.op)
    ours = prepared.guarded(maker, watch=watch, observe=True, state=True)
    if prepared.refusal is not None and not refuses_as(ours.error, prepared.refusal):
        prepared = prepared.widened() or prepared
    return Trial(
        case=prepared.case,
        spec=prepared.spec,
        implementation=implementation,
        inputs=prepared.inputs,
        call=prepared.call,
        reference=prepared.reference,
        refusal=prepared.refusal,
        ours=ours,
        # State that a call has changed once is restored each time.
        attempt=functools.partial(prepared.guarded, maker, state=bool(ours.state)),
        bare=functools.partial(prepared.invoke, maker, state=True),
        derive=lambda case: tried(prepared.derived(case), implementation, False, thorough),
        excuse=excuses(implementation, prepared.device),
        thorough=thorough,
        may_end=implementation.judged is not None and not implementation.kernels and prepared.device.type == "cpu",
        theirs=functools.partial(_of_torch, prepared),
    )


def _of_torch(prepared: Prepared, function: Any = None, on_cpu: bool = False, **how: Any) -> Outcome:
    prepared = msgspec.structs.replace(prepared, device=torch.device("cpu")) if on_cpu else prepared
    return prepared.invoke(calls.Local(function or prepared.spec.reference), **how)


def excuses(implementation: Implementation, device: torch.device) -> Callable[[Case, str], str | None]:
    """Return a function from a case and a check to the named deviation that excuses a failure; None: nothing does."""
    if implementation.name != TORCH:
        return lambda case, check: None
    return lambda case, check: deviations.named_deviation(case, check, device)


def changed_inputs(prepared: Prepared) -> str:
    """Say how the inputs made now differ from those that the case was saved with; empty: not at all."""
    digests = prepared.case.digests
    found = [digest(tensor) for tensor in prepared.inputs] if digests else []
    return "; ".join(
        f"operand {number} is not what it was when the case was saved: digest {now}, saved {then}"
        for number, (now, then) in enumerate(zip(found, digests, strict=True))
        if now != then
    )
