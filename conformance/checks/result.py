"""Checks of one call: its result or its refusal, and its operands afterwards."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from conformance import call_contexts, result_samples
from conformance.cases import Same
from conformance.checks.call_record import FAILED, PASSED, Finding, Outcome, Trial, describe, malformed, refuses_as
from conformance.compare import Comparison, compare
from conformance.guards import bits, memory_of, same
from conformance.implementations import NotProvided
from conformance.result_samples import Sample
from conformance.spec import Expected

Part = tuple[int, int, int]
"""A dim of a result, and the start and length of a part of it."""
Answers = tuple[tuple[Expected, ...], Sample | None]
"""The oracle's answers, and the sample of a large result that they are for."""


def memory(trial: Trial) -> Finding:
    """Check what the interpreter saw while it ran the call: no access outside an argument, no element unwritten, read
    before it is written or written twice, no store to an input. On a GPU, and without Triton, it sees nothing."""
    return Finding("memory", FAILED if trial.ours.fault else PASSED, trial.ours.fault)


def errors(trial: Trial) -> Finding:
    """Check that a call that torch refuses is refused with the same built-in exception class, and one that torch takes
    is taken."""
    error, refusal = trial.ours.error, trial.refusal
    if error is None and refusal is None:
        return Finding("errors", PASSED)
    if refusal is None:
        which = "this call" if trial.spec.widened(trial.case) is None else "the call that this one stands for"
        return Finding("errors", FAILED, f"torch takes {which}; raised {describe(error)}")
    theirs = trial.reference.error
    theirs = describe(theirs) if theirs is not None else f"{refusal.__name__} (on CUDA; the CPU takes the call)"
    if error is None:
        return Finding("errors", FAILED, f"took a call that torch refuses with {theirs}")
    if not refuses_as(error, refusal) and (trial.spec.refusals or not isinstance(error, Exception)):
        return Finding("errors", FAILED, f"raised {describe(error)}\n  torch raises {theirs}")
    return Finding("errors", PASSED)


def metadata(trial: Trial) -> Finding:
    """Check that shape, dtype, device and strides of the results are torch's; so is whether a result is one of the
    operands, an inference tensor or negated lazily, and whether an operand keeps its storage."""
    wrong = malformed(trial.ours.value, trial.reference.value)
    if wrong:
        return Finding("metadata", FAILED, wrong)
    problems = []
    for place, (ours, theirs) in enumerate(zip(trial.ours.tensors(), trial.reference.tensors(), strict=True)):
        which = f"result {place}: " if isinstance(trial.ours.value, tuple) else ""
        for name, get in METADATA.items():
            if get(ours) != get(theirs) and (name != "strides" or trial.spec.strides):
                problems.append(f"{which}{name} {get(ours)}, torch's is {get(theirs)}")
        problems += [f"{which}{problem}" for problem in _identity(trial, ours, theirs)]
        traits, torchs = (outcome.traits()[place] for outcome in (trial.ours, trial.reference))
        if any(ours is operand for operand in trial.ours.operands):
            # The result is an operand, whose traits were given.
            continue
        if sharing(ours, trial.ours.operands) is not None:
            traits = tuple(trait for trait in traits if trait != call_contexts.LARGER)
        problems += [f"{which}is {trait}; torch's is not" for trait in traits if trait not in torchs]
        problems += [
            f"{which}is not {trait}; torch's is" for trait in torchs if trait not in (*traits, call_contexts.LARGER)
        ]
    problems += _shared(trial)
    for number, (ours, theirs) in enumerate(zip(trial.ours.replaced, trial.reference.replaced, strict=True)):
        if ours and not theirs:
            problems.append(
                f"operand {number} was given another storage; torch resizes its own, which others may share"
            )
    return Finding("metadata", FAILED if problems else PASSED, "\n  ".join(problems))


def values(trial: Trial) -> Finding:
    """Check that every element is within the bound of the oracle."""
    if wrong := malformed(trial.ours.value, trial.reference.value):
        return Finding("values", FAILED, wrong)
    finding = judged(trial, trial.ours)
    if finding.status != PASSED or trial.change[0] != "deterministic":
        return finding
    # Calls that gave something else have to be right as well.
    for outcome in filter(None, (trial.second, trial.unsteady)):
        again = failing(trial, outcome)
        if again is not None and again.check == "values":
            return msgspec.structs.replace(again, message=f"another of some equal calls: {again.message}")
    return finding


def failing(
    trial: Trial, outcome: Outcome, inputs: Sequence[torch.Tensor] | None = None, part: Part | None = None
) -> Finding | None:
    """Find what is wrong with an outcome of the same call, made in another way; None: it is right.

    ``inputs``: its operands, where they have other strides than those of the case. ``part``: the part of each result
    that it computes.
    """
    if outcome.error is not None:
        if inputs is not None and isinstance(outcome.error, NotProvided):
            return None
        return Finding("errors", FAILED, f"raised {describe(outcome.error)}")
    if outcome.trespass:
        return Finding("guard_bands", FAILED, outcome.trespass)
    if message := malformed(outcome.value, trial.reference.value):
        return Finding("metadata", FAILED, message)
    other, answers = dataclasses.replace(trial, ours=outcome), (trial.expected, trial.sample)
    if inputs is not None:
        # Strides of results follow those of operands.
        other = dataclasses.replace(other, inputs=inputs, spec=dataclasses.replace(trial.spec, strides=False))
    if part is not None:
        sample, within = (None, part) if trial.sample is None else trial.sample.part(*part)
        answers = tuple(one.part(*within) for one in trial.expected), sample
        other = dataclasses.replace(other, reference=trial.reference.part(*part))
    found = [metadata(other), judged(other, outcome, answers), inputs_unchanged(other)]
    if "written" in trial.spec.checks and part is None:
        found.append(written(other))
    return next((finding for finding in found if finding.status == FAILED), None)


def wrong(
    trial: Trial, outcome: Outcome, inputs: Sequence[torch.Tensor] | None = None, part: Part | None = None
) -> str:
    """Say in words what ``failing`` finds; empty: nothing."""
    found = failing(trial, outcome, inputs, part)
    return f"{found.check}: {found.message}" if found and found.check != "errors" else found.message if found else ""


def judged(trial: Trial, outcome: Outcome, answers: Answers | None = None) -> Finding:
    """Compare the results of a well-formed call with the trial's answers or others: of a large result a sample, and if
    that is right, the elements that differ most from torch's."""
    expected, sample = answers or (trial.expected, trial.sample)
    finding = _judged(trial, outcome, expected, sample)
    if finding.status == FAILED or sample is None or trial.parts is None or expected[0].instead is not None:
        return finding
    spots = result_samples.spots(trial.parts, trial.call, outcome.value, trial.reference.value)
    if spots is None:
        return finding
    answer = trial.spec.expected(spots.call)
    assert isinstance(answer, Expected)
    others = _judged(trial, outcome, (answer,), spots)
    return others if others.status == FAILED else finding


def _judged(trial: Trial, outcome: Outcome, answers: Sequence[Expected], sample: Sample | None) -> Finding:
    message, index, found = "", None, []
    for place, (ours, theirs, expected) in enumerate(
        zip(outcome.tensors(), trial.reference.tensors(), answers, strict=True)
    ):
        part = (ours, theirs) if sample is None or ours.shape != theirs.shape else map(sample.of, (ours, theirs))
        comparison, torchs = (compare(one, expected) for one in part)
        if ours.dtype != theirs.dtype:
            comparison = Comparison(False, math.inf, reason=f"dtype {ours.dtype} instead of {theirs.dtype}")
        found.append((comparison.share, torchs.share, comparison.ulps, torchs.ulps))
        if not comparison.passed and not message:
            if sample is not None and comparison.index is not None:
                comparison = msgspec.structs.replace(comparison, index=sample.index(comparison.index))
            message = (f"result {place}: " if place else "") + worst(comparison, theirs)
            index = comparison.index
    largest = (min(max(column), sys.float_info.max) for column in zip(*found, strict=True))
    share, torch_share, ulps, torch_ulps = largest
    return Finding("values", FAILED if message else PASSED, message, share, torch_share, ulps, torch_ulps, index)


def inputs_unchanged(trial: Trial) -> Finding:
    """Check that the call changed only what it is given to write, bit for bit: in no operand, nor beside it in its
    storage. A call that is refused writes nothing."""
    given = trial.spec.writes(trial.case)
    if trial.refusal is not None and trial.ours.error is not None:
        given = _written_by_torch(trial, given)
    out = trial.case.kwargs.get("out")
    shift = out.shift if isinstance(out, Same) and trial.refusal is None else 0
    for number, (before, after) in enumerate(zip(trial.inputs, trial.ours.operands, strict=True)):
        was, now = memory_of(before), _storage(after, before)
        if number in given:
            # Resized: torch may have moved the storage, and what lies outside is nobody's.
            if before.shape != after.shape or was.numel() != now.numel():
                continue
            was, now = was.clone(), now.clone()
            for storage in (was, now):
                _elements(storage, before).zero_()
                _elements(storage, before, shift).zero_()
                if before.stride() != after.stride():
                    # torch made it contiguous where it lies.
                    start = before.storage_offset()
                    storage.view(before.dtype)[start : start + before.numel()].zero_()
        elif (before.shape, before.stride()) != (after.shape, after.stride()) or was.numel() != now.numel():
            message = f"operand {number} became a tensor of shape {list(after.shape)}, strides {after.stride()}"
            return Finding("inputs_unchanged", FAILED, message)
        if not same(was, now):
            element = int((was != now).nonzero()[0]) // before.itemsize
            what = "which the call was given to write, outside its view" if number in given else "an input"
            if number not in given and number in trial.spec.writes(trial.case):
                what = "which a call that is refused does not write"
            message = f"operand {number} ({what}) was changed at element {element} of its storage"
            return Finding("inputs_unchanged", FAILED, message)
    return Finding("inputs_unchanged", PASSED)


def _written_by_torch(trial: Trial, given: Collection[int]) -> list[int]:
    """Return those of the operands that torch's own function changed before it refused the call: it resizes some
    first, and writes those of inference mode."""
    if trial.case.form == call_contexts.FOREIGN:
        # What a random function writes may look as if it were not written.
        return [*given]
    found = []
    for number in given:
        before, after = trial.inputs[number], trial.reference.operands[number]
        resized = (before.shape, before.stride()) != (after.shape, after.stride())
        # CUDA refuses some calls that the CPU, which is asked, takes and writes.
        if trial.reference.error is not None and (resized or not same(memory_of(before), _storage(after, before))):
            found.append(number)
    return found


def written(trial: Trial) -> Finding:
    """Check that rows that the call copies into operands, a KV cache, are there bit for bit, and the rest of the
    operands is as it was."""
    for number in sorted(trial.spec.writes(trial.case)):
        ours, theirs = trial.ours.operands[number], trial.reference.operands[number]
        differs = (bits(ours) != bits(theirs)).any(1).nonzero()
        if len(differs):
            index = tuple(int(i) for i in np.unravel_index(int(differs[0, 0]), ours.shape))
            message = (
                f"operand {number}, which the call writes, is wrong in {len(differs)} elements; the first is "
                f"{list(index)}: {ours[index].item()}, should be {theirs[index].item()}"
            )
            return Finding("written", FAILED, message)
    return Finding("written", PASSED)


def versions(trial: Trial) -> Finding:
    """Check that the version counter of an operand, which tells autograd that a saved tensor was overwritten, moved
    where torch's function moves it. Counters of operands without elements are not judged, nor any in inference mode: a
    composite function that writes in place moves none there while a dispatch mode watches it."""
    if trial.case.form in (call_contexts.INFERENCE, call_contexts.ENTIRE):
        return Finding("versions", PASSED)
    for number, (ours, theirs) in enumerate(zip(trial.ours.moved, trial.reference.moved, strict=True)):
        if ours != theirs and trial.ours.operands[number].numel():
            wrong = "moved, as if it had been written" if ours else "did not move, though the call writes it"
            message = f"the version counter of operand {number} {wrong}: torch's function does otherwise"
            return Finding("versions", FAILED, message)
    return Finding("versions", PASSED)


def _identity(trial: Trial, ours: torch.Tensor, theirs: torch.Tensor) -> list[str]:
    """Return messages where ``out`` or an in-place call does not return the very operand, or another call returns its
    memory."""
    expected = [i for i, operand in enumerate(trial.reference.operands) if theirs is operand]
    if expected:
        same = any(ours is trial.ours.operands[i] for i in expected)
        return [] if same else [f"not the tensor that was given: torch returns operand {expected[0]} itself"]
    if sharing(theirs, trial.reference.operands) is None and (shared := sharing(ours, trial.ours.operands)) is not None:
        return [f"shares memory with operand {shared}; torch's does not"]
    return []


def _shared(trial: Trial) -> list[str]:
    """Return a message where results lie in one storage and torch's do not."""
    ours, theirs = (
        [place for place, one in zip(outcome.memory(), outcome.tensors(), strict=True) if one.numel()]
        for outcome in (trial.ours, trial.reference)
    )
    return (
        ["results share memory; torch's do not"] if len({*ours}) < len(ours) and len({*theirs}) == len(theirs) else []
    )


def sharing(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> int | None:
    """Return the number of the operand in whose memory a result lies; None: in none's."""
    place = result.untyped_storage().data_ptr()
    if not place or not result.numel():
        return None
    return next((i for i, operand in enumerate(operands) if operand.untyped_storage().data_ptr() == place), None)


def _significant_strides(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Return the strides, with None where they mean nothing: in dims of one element, and in a tensor without
    elements."""
    return tuple(
        stride if size > 1 and tensor.numel() else None
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda tensor: list(tensor.shape),
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: str(tensor.device),
    "strides": _significant_strides,
}


def _storage(tensor: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return the storage of an operand after a call, on the CPU, without the margins that it may have."""
    whole, margin = memory_of(tensor).cpu(), (tensor.storage_offset() - given.storage_offset()) * given.itemsize
    return whole[margin : len(whole) - margin]


def _elements(storage: torch.Tensor, like: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """Return the view of ``storage`` (bytes) with the shape and strides of ``like``, ``shift`` elements beyond its
    place."""
    return storage.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset() + shift)


def worst(comparison: Comparison, theirs: torch.Tensor) -> str:
    """Describe the worst element of a result, beside torch's and the oracle's."""
    if comparison.reason or comparison.index is None:
        return comparison.reason
    times = f"{comparison.share:.4g} times the bound" if math.isfinite(comparison.share) else "nothing is allowed here"
    if comparison.rounded is not None:
        times = f"it rounds to {comparison.rounded!r}, the nearest number, ties to even"
    return (
        f"{comparison.failed} of {comparison.judged} elements are wrong; the worst is {list(comparison.index)}\n"
        f"    ours    {comparison.ours!r}\n"
        f"    torch   {theirs[comparison.index].item()!r}\n"
        f"    oracle  {comparison.oracle!r}\n"
        f"    error   {comparison.error:.6g}, bound {comparison.allowed:.6g}: {times}"
    )
