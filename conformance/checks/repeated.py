"""Checks that make the call again, in memory that holds something else, and compare the results."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

import torch

from conformance import cases
from conformance.checks.call_record import (
    FAILED,
    PASSED,
    UNCLAIMED,
    Finding,
    Outcome,
    Trial,
    describe,
    difference,
    malformed,
)
from conformance.checks.result import Part, failing, worst
from conformance.compare import compare, kept
from conformance.implementations import FIXED
from conformance.mask_statistics import enough, entropy, faults, favoured, unlikely
from conformance.random_calls import BATCHED, MANY, REPLAYED, THREAD
from conformance.spec import parameters
from strategies.specs import TensorSpec

REPEATED = 6
"""One in so many drawn calls of random ops with few elements is repeated often."""
TIMES, TIMES_OF_KERNELS = 1000, 300
"""The calls whose masks all differ, of compiled code and of interpreted kernels. Of seeds of 16 bits two are the same
with a probability of 0.9995 and 0.5."""
SMALL = 1 << 12
"""The most elements of these calls."""
RANDOMNESS = ("different", "different", "same", "error")
"""Arguments of ``torch.func.vmap`` that say how the parts of a batch draw."""
MANY_ELEMENTS = 1 << 22
"""Of more elements than these it is only counted how many are kept."""
BITS = 90
"""The least that two equal masks agree in: in a million pairs by chance with 1e-21."""


def guard_bands(trial: Trial) -> Finding:
    """Check that nothing is written around any operand or allocated tensor, and no result depends on what lies
    there."""
    if trial.ours.trespass:
        return Finding("guard_bands", FAILED, trial.ours.trespass)
    check, message = trial.change if trial.ours.error is None else ("", "")
    if trial.ours.error is None and trial.second.trespass:
        # The margins hold another pattern: a stray store may have matched the first one.
        return Finding("guard_bands", FAILED, trial.second.trespass)
    return Finding("guard_bands", FAILED, message) if check == "guard_bands" else Finding("guard_bands", PASSED)


def fully_written(trial: Trial) -> Finding:
    """Check that every element of a result was written, and none depends on what was in memory before."""
    check, message = trial.change
    return Finding("fully_written", FAILED, message) if check == "fully_written" else Finding("fully_written", PASSED)


def deterministic(trial: Trial) -> Finding:
    """Check that the same call twice gives the same bits; where the implementation does not claim that, right
    results."""
    check, message = trial.change
    if check != "deterministic":
        return Finding("deterministic", PASSED)
    return differing(trial, "deterministic", message, *filter(None, (trial.second, trial.unsteady)))


def keywords(trial: Trial) -> Finding:
    """Check that every argument is taken by torch's name for it, and means the same: if the implementation claims to be
    deterministic, with the bits of the call by position."""
    names = parameters(trial.case.op)
    given = ", ".join(f"{name}=" for name in names[: len(trial.case.args)])
    outcome = trial.attempt(names=names)
    found, first = failing(trial, outcome), None
    if found is not None:
        first = failing(trial, trial.ours)
    if found is not None and (first is None or first.check != found.check):
        message = f"called as {trial.case.op}({given}) it is wrong: {found.message}"
        return trial.excused(Finding("keywords", FAILED, message), trial.case, found.check)
    if "deterministic" not in trial.implementation.claims(trial.case.op):
        return Finding("keywords", PASSED)
    message = difference(trial.ours, outcome, f"a call by position and as {trial.case.op}({given})")
    return Finding("keywords", FAILED if message else PASSED, message)


def has_names(trial: Trial) -> bool:
    """Tell whether torch takes the arguments by name: not where the first one is a number, nor where torch's table of
    signatures ends before the last one, as for ``torch.sum(input, dim, keepdim)``."""
    args = trial.case.args
    return bool(args) and isinstance(args[0], TensorSpec) and len(args) <= len(parameters(trial.case.op))


def distribution(trial: Trial) -> Finding:
    """Check that a random op keeps as many elements as it should, independently of their neighbours in any dim, of the
    call before and of one with the next seed, the same ones for one seed and one state, and scales them exactly; of
    few elements none is favoured in many calls. Of more than ``MANY_ELEMENTS`` the number alone is checked. Who takes a
    batch of ``torch.func.vmap`` draws as that says, or refuses to."""
    expected = trial.expected[0]
    if expected.instead is None:
        return Finding("distribution", PASSED)
    own, seen = kept(trial.ours.value, expected)
    if own.numel() > MANY_ELEMENTS:
        message = unlikely(own[seen], expected.chance)
        return Finding("distribution", FAILED if message else PASSED, message)
    masks = []
    # Calls in sequence, since a generator that does not advance repeats itself; seeded anew, so that what other checks
    # have drawn does not matter.
    for how in ({}, {"seeded": False}, {"seed_by": 1}):
        # Generators are not put back, as they are where a call is known to change its surroundings.
        outcome = trial.attempt(**how, state=False)
        if finding := _unscaled(trial, outcome):
            return finding
        mask, seen = kept(outcome.value, expected)
        masks.append(mask)
    found = list(faults(masks, seen, expected.chance))
    if other := int((own != masks[0])[seen].sum()):
        found.insert(0, f"after the same torch.manual_seed {other} of {own.numel()} elements are dropped otherwise")
    if not trial.spec.writes(trial.case):
        recorded = bool(cases.seed(trial.case) // 17 % 2)
        outcome = trial.bare(context={"kind": REPLAYED, "recorded": recorded}, state=False)
        pair = outcome.value if outcome.error is None else (None,)
        outcomes = [dataclasses.replace(outcome, value=value) for value in pair]
        if finding := next(filter(None, (_unscaled(trial, one) for one in outcomes)), None):
            return finding
        first, again = (kept(one.value, expected)[0] for one in outcomes)
        if other := int((first != again)[seen].sum()):
            where = f"after torch.set_rng_state{', where gradients are recorded,' * recorded}"
            found.insert(0, f"{where} {other} of {own.numel()} elements are dropped otherwise")
        found += _elsewhere(trial, own, seen)
        times = TIMES_OF_KERNELS if trial.implementation.kernels else TIMES
        few = own.numel() <= SMALL and int(seen.sum()) * entropy(expected.chance) >= BITS
        if few and (trial.thorough or not cases.seed(trial.case) // 13 % REPEATED):
            outcome = trial.bare(context={"kind": MANY, "times": times}, state=False)
            if outcome.error is not None:
                return Finding("distribution", FAILED, f"one of {times} calls raised {describe(outcome.error)}")
            if int(outcome.value) < times:
                found.append(f"of {times} calls {times - int(outcome.value)} have the result of another one")
    count = enough(expected.chance, own.numel())
    if count and not found and (trial.thorough or not cases.seed(trial.case) // 11 % REPEATED):
        outcomes = [trial.bare(seeded=False, state=False) for _ in range(count)]
        if finding := next(filter(None, (_unscaled(trial, outcome) for outcome in outcomes)), None):
            return finding
        found = list(favoured([kept(outcome.value, expected)[0] for outcome in outcomes], seen, expected.chance))
    return Finding("distribution", FAILED if found else PASSED, "\n  ".join(found[:5]))


def _elsewhere(trial: Trial, own: torch.Tensor, seen: torch.Tensor) -> list[str]:
    """Say how masks of another thread, or of two parts of a batch, are not as they should be: those of one seed are the
    same in each thread, and those of two parts are as ``torch.func.vmap`` was told. Who takes no batches raises.

    :param own: The mask of the call itself.
    :param seen: Where masks can be told.
    """
    expected, found = trial.expected[0], []

    def masks(outcome: Outcome) -> list[torch.Tensor]:
        return [kept(value, expected)[0] for value in outcome.value]

    outcome = trial.bare(context={"kind": THREAD, "seed": cases.seed(trial.case)}, state=False)
    if outcome.error is not None:
        return [f"in another thread it raised {describe(outcome.error)}"]
    for value in outcome.value:
        if finding := _unscaled(trial, dataclasses.replace(outcome, value=value)):
            return [f"in another thread: {finding.message}"]
    if other := max(int((one != own)[seen].sum()) for one in masks(outcome)):
        found.append(f"after the same torch.manual_seed in another thread {other} elements are dropped otherwise")
    randomness = RANDOMNESS[cases.seed(trial.case) // 19 % len(RANDOMNESS)]
    batched = trial.bare(context={"kind": BATCHED, "randomness": randomness}, state=False)
    if batched.error is not None or any(malformed(one, trial.reference.value) for one in batched.value):
        return found
    where = f'under torch.func.vmap(randomness="{randomness}")'
    differ = bool((operator.ne(*masks(batched)))[seen].any())
    draws = int(seen.sum()) * entropy(expected.chance) >= BITS
    if randomness == "error" and draws:
        found.append(f"{where} it draws, which torch refuses")
    if randomness == "same" and differ:
        found.append(f"{where} two parts of a batch have two masks")
    if randomness == "different" and draws and not differ:
        found.append(f"{where} two parts of a batch have one mask")
    return found


def _unscaled(trial: Trial, outcome: Outcome) -> Finding | None:
    """Return what is wrong with a repeated call of a random op, other than which elements it keeps; None: nothing."""
    if outcome.error is not None:
        return Finding("distribution", FAILED, f"a repeated call raised {describe(outcome.error)}")
    if wrong := malformed(outcome.value, trial.reference.value):
        return Finding("distribution", FAILED, f"a repeated call {wrong}")
    comparison = compare(outcome.value, trial.expected[0])
    if comparison.passed:
        return None
    message = f"neither dropped nor scaled exactly: {worst(comparison, trial.reference.value)}"
    return Finding("distribution", FAILED, message, index=comparison.index)


def differing(
    trial: Trial,
    claim: str,
    message: str,
    *outcomes: Outcome,
    inputs: Sequence[torch.Tensor] | None = None,
    part: Part | None = None,
) -> Finding:
    """Return the finding that equal calls differ: a failure where the property is claimed, or where one of them is
    wrong.

    ``inputs``, ``part``: as of ``failing``."""
    if broken(trial, claim) == FAILED:
        return Finding(claim, FAILED, message)
    found = next(filter(None, (failing(trial, outcome, inputs, part) for outcome in outcomes)), None)
    if found is None:
        return Finding(claim, UNCLAIMED, message)
    wrong = Finding(claim, FAILED, f"{message}; and one is wrong: {found.message}")
    return trial.excused(wrong, trial.case, found.check)


def broken(trial: Trial, claim: str) -> str:
    """Return the status of a finding that one of ``implementations.CLAIMS`` does not hold; a ``FIXED`` claim is broken
    where configurations can be fixed."""
    claims = trial.implementation.claims(trial.case.op)
    fixed = claim + FIXED in claims and trial.configurations
    return FAILED if claim in claims or fixed else UNCLAIMED
