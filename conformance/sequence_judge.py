"""Judge one sequence: a function of the sequence, the implementation, the device and what the process made before."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

from conformance import calls, runner, sequence_gradients
from conformance.checks import DEVIATION, FAILED, PASSED, Finding, Outcome, Trial
from conformance.checks.call_record import malformed
from conformance.checks.result import errors, inputs_unchanged, judged, metadata, versions, written
from conformance.implementations import Implementation, load
from conformance.runner import NOT_PROVIDED, OUT_OF_MEMORY, Prepared, Verdict, excuses
from conformance.sequence_calls import Calls
from conformance.sequence_staging import applied
from conformance.sequences import CallSequence, Settings, Step, sequence_id

SEQUENCE = "sequence"
"""The check that a failure of a sequence is named after."""


class Made(msgspec.Struct, frozen=True):
    """One call of a sequence, prepared."""

    step: int
    how: Step
    prepared: Prepared


def judge(sequence: CallSequence, implementation: Implementation | str, device: torch.device | str = "cpu") -> Verdict:
    """Make the calls of a sequence and judge each, and in the end the results that were kept.

    Nothing that the implementation does ends the run, as in ``runner.judge``.
    """
    if isinstance(implementation, str):
        implementation = load(implementation)
    if not any(implementation.function(op) for op in sequence.ops):
        return Verdict(sequence_id(sequence), sequence.ops[0], NOT_PROVIDED)
    try:
        return judge_prepared(sequence, prepare(sequence, device), implementation)
    except (MemoryError, RuntimeError) as error:
        if not calls.is_out_of_memory(error):
            raise
        return Verdict(sequence_id(sequence), sequence.ops[0], OUT_OF_MEMORY)


def prepare(sequence: CallSequence, device: torch.device | str) -> list[Made]:
    """Prepare all calls, before any is made. Equal calls share their right answers."""
    known: dict[bytes, Prepared] = {}
    found = []
    for number, step in enumerate(sequence.steps):
        for case in step.calls():
            key = msgspec.json.encode((case, _of_reference(step.settings)))
            if key not in known:
                known[key] = runner.shared(runner.prepare(case, device))
            found.append(Made(number, step, known[key]))
    return found


def judge_prepared(sequence: CallSequence, made: Sequence[Made], implementation: Implementation) -> Verdict:
    """Judge a sequence that is prepared already."""
    findings, left_out = [], []
    for finding in _findings(made, implementation):
        if finding.status == NOT_PROVIDED:
            left_out.append(finding)
            continue
        if finding not in findings:
            findings.append(finding)
        if finding.status == FAILED:
            break
    op = made[0].prepared.case.op
    judged = [one for one in made if one.prepared.case.op == op and one.prepared.refusal is None]
    if left_out and not findings and len(left_out) == len(judged):
        return Verdict(sequence_id(sequence), sequence.ops[0], NOT_PROVIDED, (left_out[0],))
    # The findings are deviations of torch, or a failure, which is the last of all.
    status = findings[-1].status if findings else PASSED
    return Verdict(sequence_id(sequence), sequence.ops[0], status, tuple(findings))


def _findings(made: Sequence[Made], implementation: Implementation) -> Iterator[Finding]:
    """Yield what is wrong, call by call. The index of a finding is the step."""
    if not made:
        return
    calls = Calls(implementation, made[0].prepared.device, [one.prepared for one in made])
    for number, one in enumerate(made):
        op = one.prepared.case.op
        if implementation.function(op) is None:
            continue
        if op == made[0].prepared.case.op:
            yield from _call(calls, number, one, len(made), implementation)
        else:
            # Another op is judged where it is asked for; here it may disturb the others.
            calls.make(number, one.prepared, one.how)
    calls.finish()
    for number, one in enumerate(made):
        if one.how.gradients and one.prepared.case.op == made[0].prepared.case.op:
            yield from _gradients(calls, number, one, len(made), implementation)
    if found := calls.changed():
        number, how = found
        message = f"after {_which(number, len(made))}, what the user kept of it changed: {how}"
        yield Finding(SEQUENCE, FAILED, message, index=(made[number].step,), case=made[number].prepared.case)


def _call(calls: Calls, number: int, one: Made, count: int, implementation: Implementation) -> Iterator[Finding]:
    prepared = one.prepared
    # The case was saved with the digests of its operands.
    wrong = runner.changed_inputs(prepared)
    if wrong:
        yield Finding("inputs", FAILED, f"{_which(number, count)}: {wrong}", index=(one.step,))
        return
    outcome = calls.make(number, prepared, one.how)
    with applied(_of_reference(one.how.settings)):
        # A refused call is judged where calls are judged alone; here it may disturb those that follow.
        if prepared.refusal is not None:
            return
        trial = _trial(prepared, implementation, outcome, one.how.settings.mode)
        if trial.left_out:
            yield Finding("provided", NOT_PROVIDED, runner.reason(outcome.error))
            return
        found = _first(trial, one.how.settings, prepared)
    if found is not None and found.status == DEVIATION:
        yield Finding(found.check, DEVIATION, found.message)
    elif found is not None:
        message = f"{_which(number, count)}, {found.check}: {found.message}"
        yield Finding(SEQUENCE, found.status, message, index=(one.step,), case=prepared.case)


def _gradients(calls: Calls, number: int, one: Made, count: int, implementation: Implementation) -> Iterator[Finding]:
    """Yield what is wrong with the gradients of a call that has returned something."""
    prepared, result = one.prepared, calls.result(number)
    if result is None or not sequence_gradients.wanted(prepared):
        return
    with applied(_of_reference(one.how.settings)):
        wrong = sequence_gradients.wrong(prepared, calls.gradients(number), result, implementation)
    if wrong:
        message = f"{_which(number, count)}, gradients {one.how.gradients}: {wrong}"
        name = runner.excuses(implementation, prepared.device)(prepared.case, "gradients")
        found = Finding(SEQUENCE, FAILED, message, index=(one.step,), case=prepared.case)
        yield Finding("gradients", DEVIATION, name) if name else found


def _first(trial: Trial, settings: Settings, prepared: Prepared) -> Finding | None:
    """Return the first finding that did not pass, of the checks that need no further call."""
    order = [errors]
    if trial.ours.error is None:
        order = [metadata]
        if not malformed(trial.ours.value, trial.reference.value):
            order += [_values, inputs_unchanged]
            order += [written] * ("written" in trial.spec.checks)
            # In inference mode torch counts otherwise.
            order += [versions] * (settings.mode != "inference")
    for check in order:
        finding = check(trial)
        finding = trial.excused(finding, trial.case, finding.check)
        finding = runner.as_torchs(finding, prepared, trial, finding.check)
        if finding.status != PASSED:
            return finding
    return None


def _values(trial: Trial) -> Finding:
    return judged(trial, trial.ours)


def _trial(prepared: Prepared, implementation: Implementation, outcome: Outcome, mode: str) -> Trial:
    return Trial(
        case=prepared.case,
        spec=prepared.spec,
        implementation=implementation,
        inputs=prepared.inputs,
        call=prepared.call,
        reference=_in_mode(prepared.reference, mode),
        refusal=prepared.refusal,
        ours=outcome,
        attempt=functools.partial(_never, "again"),
        bare=functools.partial(_never, "bare"),
        derive=functools.partial(_never, "another"),
        excuse=excuses(implementation, prepared.device),
    )


def _in_mode(reference: Outcome, mode: str) -> Outcome:
    """Return torch's answer as it is in inference mode, for operands that were made outside of it."""
    if mode != "inference" or reference.error is not None:
        return reference
    given = (any(result is operand for operand in reference.operands) for result in reference.tensors())
    return dataclasses.replace(reference, told=tuple(() if one else ("an inference tensor",) for one in given))


def _never(what: str, *_: Any, **__: Any) -> Any:
    raise AssertionError(f"a check of a sequence makes no call {what}")


def _of_reference(settings: Settings) -> dict[str, Any]:
    """Return the settings that change torch's answers and the bounds; the others are about the call alone."""
    return {"precision": settings.precision, "default_dtype": settings.default_dtype}


def _which(number: int, count: int) -> str:
    return f"call {number + 1} of {count}"
