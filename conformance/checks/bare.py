"""Checks of a call as a user makes it, in ordinary memory with nothing around it, and of what it leaves behind."""

from __future__ import annotations

import dataclasses

import torch

from conformance import cases
from conformance.calls import Lost, Outcome
from conformance.checks import least_tried
from conformance.checks.call_record import FAILED, PASSED, Finding, Trial, describe, difference, refuses_as
from conformance.checks.repeated import differing
from conformance.checks.result import failing
from conformance.far_memory import FAR_OFFSET, FAR_ROWS
from conformance.process_state import GENERATORS
from conformance.runtime import FIXED, INFERENCE, PARTS, READ_ONLY, RETURNED, SWAPPED

LARGE = 1 << 24
"""The most elements of the operands, and of the results, of a call that is made in other memory. Of larger ones those
of weights are, of which libraries keep what they made."""
TOKENS = 1 << 6
"""A matrix is of weights if it has so many times as many elements as all else."""
OTHER = 8
"""One drawn case in so many is also called under other settings."""


UNTRACED = "behind"
"""Of the version counter's back."""
_WHERE = {
    "same": "the same tensors, changed in place",
    UNTRACED: "the same tensors, changed without a trace in the version counter",
    SWAPPED: "the same parameters and tensors, whose .data is other memory by now",
    PARTS: "other parts of the same tensors",
    INFERENCE: "the same tensors of inference mode, changed in place",
    RETURNED: "results of the implementation's own",
    "new": "memory that was used before",
    READ_ONLY: "memory that may not be written",
    FIXED: "memory that torch cannot resize",
    FAR_OFFSET: "memory of which one operand is far behind the beginning",
    FAR_ROWS: "memory of which the rows of one operand are far apart",
}


def bare(trial: Trial) -> Finding:
    """Check that a call without margins, mode or watch is right too, at addresses where an earlier call had other
    contents, of an operand that lies far away, and in memory that torch cannot resize; where the implementation claims
    to be deterministic, with the same bits, except where operands are parameters or other memory. Nor may it write an
    operand for a while: in memory that may not be written that ends the process."""
    if trial.elements > LARGE:
        return _bare(trial, UNTRACED)
    plain = not trial.case.form
    alone = plain and not trial.spec.writes(trial.case)
    left = {READ_ONLY: not trial.may_end, SWAPPED: not plain, PARTS: not alone, INFERENCE: not alone}
    left[RETURNED] = not (alone and _is_like_result(trial))
    left |= dict.fromkeys((FAR_OFFSET, FAR_ROWS), not plain or _is_resized(trial))
    # There torch's memory is its own.
    left[FIXED] = any(one.is_cuda for one in trial.reference.operands)
    ways = tuple(how for how in _WHERE if not left.get(how))
    if not trial.thorough:
        ways = (least_tried.choose(trial.case, "bare", ways, trial.tells),)
    findings = [_bare(trial, how) for how in ways]
    return max(findings, key=lambda one: (one.status == FAILED, one.status != PASSED))


def is_made(trial: Trial) -> bool:
    """Tell whether a call is made in other memory."""
    return trial.elements <= LARGE or _has_weights(trial)


def _has_weights(trial: Trial) -> bool:
    """Tell whether a call that writes no operand has a large matrix beside what is small."""
    sizes = [one.numel() for one in trial.inputs if one.ndim > 1]
    result = trial.reference.value
    beside = cases.elements(trial.case) - max(sizes, default=0)
    small = beside + (result.numel() if isinstance(result, torch.Tensor) else LARGE)
    return beside > 0 and not trial.spec.writes(trial.case) and small * TOKENS < max(sizes, default=0)


def _is_like_result(trial: Trial) -> bool:
    """Tell whether an operand lies in memory as a result of the call does, which is dense."""
    result = trial.reference.value
    if not isinstance(result, torch.Tensor) or not result.is_contiguous():
        return False
    place = result.shape, result.dtype, result.stride(), result.nbytes
    return any((x.shape, x.dtype, x.stride(), x.untyped_storage().nbytes()) == place for x in trial.inputs)


def _is_resized(trial: Trial) -> bool:
    """Tell whether torch may resize an operand: in memory that is far away it would copy all that lies in front."""
    operands = zip(trial.reference.operands, trial.inputs, strict=True)
    return trial.reference.error is not None or any(after.shape != before.shape for after, before in operands)


def _bare(trial: Trial, how: str) -> Finding:
    try:
        outcome = trial.bare(before=how)
    except Lost as lost:
        if how == READ_ONLY:
            # In ordinary memory, as of a script, the same call need not end.
            lost.add_note(f"the operands lay in {_WHERE[how]}, since a call has to leave them alone all the time")
        raise
    if how == FIXED and _is_resized(trial):
        refused = trial.theirs(before=how).error
        if refused is not None and not refuses_as(outcome.error, type(refused)):
            told = "took it" if outcome.error is None else f"raised {describe(outcome.error)}"
            return Finding("bare", FAILED, f"in {_WHERE[how]} it {told}, and torch raised {describe(refused)}")
        if refused is not None:
            return Finding("bare", PASSED)
    found = failing(trial, outcome)
    if found and how == FAR_ROWS and found.check == "metadata" and _is_laid_as_torchs(trial, outcome):
        found = failing(dataclasses.replace(trial, spec=dataclasses.replace(trial.spec, strides=False)), outcome)
    if found:
        what = f"in {_WHERE[how]}"
        message = f"called without anything around it, {what}: {found.check}: {found.message}"
        return trial.excused(Finding("bare", FAILED, message, index=found.index), trial.case, found.check)
    if names := changed(trial, outcome.state):
        return Finding("bare", FAILED, f"called without anything around it, it changed {names}")
    # Of parameters another kernel may be right: torch folds and fuses products otherwise where gradients are asked for.
    # And torch's attention is not the same at each address.
    alike = how not in (SWAPPED, FIXED, FAR_OFFSET, FAR_ROWS) and trial.expected[0].instead is None
    if alike and (message := difference(trial.ours, outcome, "a call and the same, bare,")):
        return trial.excused(differing(trial, "deterministic", message, outcome), trial.case, "deterministic")
    return Finding("bare", PASSED)


def _is_laid_as_torchs(trial: Trial, outcome: Outcome) -> bool:
    """Tell whether a result has the strides that torch gives it where rows are far apart: among operands that are
    broadcast, the order of a result's dims may change with them."""
    ours, theirs = outcome.value, trial.theirs(before=FAR_ROWS).value
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return False
    return (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())


def state(trial: Trial) -> Finding:
    """Check that a call leaves its surroundings as they were: generators, modes and flags, the environment; torch's
    generators move where the operator is random. Under other settings too, whatever the call returns there."""
    if names := changed(trial, trial.ours.state):
        return Finding("state", FAILED, f"the call changed {names}")
    if not trial.thorough and cases.seed(trial.case) // 13 % OTHER:
        return Finding("state", PASSED)
    names = changed(trial, trial.bare(other=True).state)
    where = "where autocast is on, gradients and the garbage collector are off and more is set, "
    return Finding("state", FAILED if names else PASSED, names and f"{where}the call changed {names}")


def changed(trial: Trial, names: tuple[str, ...]) -> str:
    """Return in words what a call changed of its surroundings and should not have."""
    # A random operator that drops nothing draws nothing.
    drawn = "distribution" in trial.spec.checks and (trial.refusal is not None or trial.expected[0].instead is not None)
    return ", ".join(name for name in names if not (drawn and name.startswith(GENERATORS)))
