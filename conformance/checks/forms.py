"""Checks of calls that follow from a case: with ``out=``, in place, of operands that share memory, of special values.
torch's answer to the same call is the reference, also where it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from msgspec.structs import replace

from conformance import call_contexts, cases
from conformance.cases import Case
from conformance.checks import derived_calls, least_tried
from conformance.checks.call_record import FAILED, PASSED, Finding, Outcome, Trial, difference, malformed
from conformance.checks.derived_calls import Variants
from conformance.checks.invariance import entangled
from conformance.checks.result import errors, inputs_unchanged, judged, metadata, versions
from conformance.forms import is_torchs


def out_argument(trial: Trial) -> Finding:
    """Check that ``out=`` of any size, dtype and strides, or of an input's memory, is taken or refused as by torch."""
    variants = derived_calls.outs(trial.case, trial.reference.value, trial.spec.outs)
    found = [first(trial, "out_argument", variants)]
    plain = variants.get("out= of the right size")
    # A trial that is not thorough makes a second call half of the time.
    if plain is not None and not trial.case.form and (trial.thorough or cases.seed(trial.case) // 31 % 2):
        dressed = {f"out= with operands that are {form}": replace(plain, form=form) for form in _written_forms(trial)}
        found.append(first(trial, "out_argument", dressed, "out_argument of others"))
    return _worst(found)


def _written_forms(trial: Trial) -> list[str]:
    """Return the forms in which an operand that is written is another kind of tensor than usual. torch refuses some."""
    # A reference that is nobody's function says nothing of what is refused.
    if not is_torchs(trial.case.op):
        return [call_contexts.VIEWS]
    recorded = [call_contexts.TRAINING, call_contexts.LEAVES, call_contexts.UPDATED]
    # A composite function, as a random one is, refuses tensors of inference mode only where no mode watches it.
    refused = [] if "distribution" in trial.spec.checks else [call_contexts.FOREIGN]
    return [*(recorded if _is_recorded(trial) else ()), call_contexts.VIEWS, call_contexts.ENTIRE, *refused]


def _worst(findings: Sequence[Finding]) -> Finding:
    return max(findings, key=lambda one: (one.status == FAILED, one.status != PASSED))


def inplace(trial: Trial) -> Finding:
    """Check that an in-place call returns the operand, which holds the right result: if the implementation claims to be
    deterministic, the bits of the call that is not in place, but for a zero's sign (torch's own relu has the other one)
    and the kind of NaN. Where gradients are recorded torch refuses to write a leaf that requires one."""
    changed = derived_calls.with_arguments(trial.case, inplace=True)
    # A trial that is not thorough makes a second call half of the time.
    if not trial.case.form and not entangled(trial.case) and (trial.thorough or cases.seed(trial.case) // 31 % 2):
        written = [form for form in _written_forms(trial) if form != call_contexts.TRAINING]
        dressed = {f"in place, {form}": replace(changed, form=form) for form in written}
        finding = first(trial, "inplace", dressed, "inplace of others")
        if finding.status != PASSED:
            return finding
    derived = trial.derive(changed)
    finding = _judge(trial, "inplace", "in place", derived)
    claimed = "deterministic" in trial.implementation.claims(trial.case.op)
    # A random op drops by the seed, which differs from call to call.
    if (
        finding.status != PASSED
        or not claimed
        or derived.ours.error is not None
        or derived.expected[0].instead is not None
    ):
        return finding
    message = difference(*map(_unsigned_zeros, (trial.ours, derived.ours)), "a call and the same in place")
    return Finding("inplace", FAILED, message) if message else finding


def _unsigned_zeros(outcome: Outcome) -> Outcome:
    found = tuple(result + 0 for result in outcome.tensors())
    return dataclasses.replace(outcome, value=found if isinstance(outcome.value, tuple) else found[0])


def aliasing(trial: Trial) -> Finding:
    """Check that operands may share memory with each other, and that a result shares none with another call's."""
    given = [operand.untyped_storage().data_ptr() for operand in trial.ours.operands]
    results = zip(trial.ours.tensors(), trial.ours.memory(), strict=True)
    earlier = {place for result, place in results if result.numel()} - {*given}
    again = trial.second
    well = again.error is None and not malformed(again.value, trial.reference.value)
    if well and earlier.intersection(again.memory()):
        return Finding("aliasing", FAILED, "the second of two calls returned the memory that the first had returned")
    # One element before an operand lies NaN, which torch's CPU does not propagate in all of its fused operators.
    apart, shapes = bool(trial.spec.outs), [operand.shape for operand in trial.inputs]
    broadcasts = apart and trial.reference.error is None and trial.reference.tensors()[0].shape == _broadcast(shapes)
    return first(trial, "aliasing", derived_calls.aliases(trial.case, apart, broadcasts))


def _broadcast(shapes: Sequence[torch.Size]) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None


def special_values(trial: Trial) -> Finding:
    """Check that NaN, infinities, zeros and limits at the first and the last element and at the edges of blocks give
    what they should, and change nothing in other parts of the batch."""
    planted = derived_calls.planted(trial.case, trial.spec.batch(trial.case))
    assert planted is not None
    derived, part, batch = trial.derive(planted[0]), planted[1], trial.spec.batch(trial.case)
    finding = _judge(trial, "special_values", "with other special values", derived)
    if finding.status != PASSED or part is None or batch is None or trial.change[0] or derived.refusal is not None:
        return finding
    for start, length in ((0, part), (part + 1, batch.size - part - 1)):
        outcomes = (outcome.part(batch.result, start, length) for outcome in (trial.ours, derived.ours))
        what = f"without and with special values in [{part}] of dim {batch.result}, [{start}, {start + length})"
        if message := difference(*outcomes, what):
            return trial.excused(Finding("special_values", FAILED, message), derived.case, "values")
    return finding


def _is_recorded(trial: Trial) -> bool:
    """Tell whether gradients of the plain call are claimed to be recorded, and torch has a function that does so."""
    claimed = "gradients" in trial.implementation.claims(trial.case.op) and is_torchs(trial.case.op)
    return claimed and trial.spec.gradients is not None and not trial.case.form and not entangled(trial.case)


def has_out(trial: Trial) -> bool:
    """Tell whether the op has ``out=``, and the call does not."""
    return bool(derived_calls.outs(trial.case, trial.reference.value, trial.spec.outs))


def has_inplace(trial: Trial) -> bool:
    """Tell whether the op has ``inplace=``, and the call is not in place."""
    return trial.spec.inplace and trial.case.kwargs.get("inplace") is not True


def with_out_or_in_place(trial: Trial, kinds: Iterable[str]) -> Variants:
    """Return the call in place, if there is one, and with each ``out`` of these kinds, of those in which torch's CPU
    and CUDA agree."""
    outs = derived_calls.outs(trial.case, trial.reference.value, [kind for kind in trial.spec.outs if kind in kinds])
    found = {"in place": derived_calls.with_arguments(trial.case, inplace=True)} if has_inplace(trial) else {}
    return {what: case for what, case in (found | outs).items() if trial.spec.takes(case)}


def not_in_place(trial: Trial) -> bool:
    """Tell whether the result should have memory of its own."""
    return not trial.spec.writes(trial.case)


def has_numbers(trial: Trial) -> bool:
    """Tell whether there is an operand in which special values may be planted."""
    return derived_calls.planted(trial.case, trial.spec.batch(trial.case)) is not None


# --- judging a call that follows from a case ---------------------------------------------------------------------


def first(trial: Trial, name: str, variants: Variants, among: str = "") -> Finding:
    """Return the first variant that fails; a trial that is not thorough tries one variant, in turn.

    :param among: The kind of choice, as of ``least_tried.choose``; empty: the name of the check.
    """
    variants = {what: case for what, case in variants.items() if trial.spec.takes(case)}
    chosen: Iterable[tuple[str, Case]] = variants.items()
    if not trial.thorough and variants:
        what = least_tried.choose(trial.case, among or name, [*variants], trial.tells)
        chosen = [(what, variants[what])]
    found = (_judge(trial, name, what, trial.derive(case)) for what, case in chosen)
    kept = [finding for finding in found if finding.status != PASSED]
    return next((f for f in kept if f.status == FAILED), kept[0] if kept else Finding(name, PASSED))


def _judge(trial: Trial, name: str, what: str, derived: Trial) -> Finding:
    """Make the checks of a result on another call."""
    # Other values may be refused for what they are, a zero by which integers are divided; forms, by torch alone.
    if derived.left_out or (
        derived.refusal is not None
        and name in ("aliasing", "special_values", "call_forms", "layouts", "plain_operands")
    ):
        return Finding(name, PASSED)
    if derived.ours.trespass:
        return Finding(name, FAILED, f"{what}: {derived.ours.trespass}", case=derived.case)
    for check in _checks(derived):
        finding = check(derived)
        if finding.status == FAILED:
            message = f"{what}: {finding.check}: {finding.message}"
            found = Finding(name, FAILED, message, index=finding.index, case=derived.case)
            return trial.excused(found, derived.case, finding.check)
    return Finding(name, PASSED)


def _checks(trial: Trial) -> tuple[Callable[[Trial], Finding], ...]:
    if trial.refusal is not None:
        return errors, inputs_unchanged
    if trial.ours.error is not None:
        return (errors,)
    if malformed(trial.ours.value, trial.reference.value):
        return (metadata,)
    return metadata, lambda trial: judged(trial, trial.ours), inputs_unchanged, versions
