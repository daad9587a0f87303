"""The checks: each looks at one trial, which is one call made, and gives one finding with one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance import cases
from conformance.checks import forms
from conformance.checks.again import deterministic, distribution, fully_written, guard_bands, has_names, keywords
from conformance.checks.forms import aliasing, inplace, out_argument, special_values
from conformance.checks.invariance import (
    batch_invariant,
    config_invariant,
    has_configurations,
    has_settings,
    in_batches,
    laid_out,
    layout_invariant,
    settings,
)
from conformance.checks.result import errors, inputs_unchanged, memory, metadata, values, versions, written
from conformance.checks.trial import (
    DEVIATION,
    FAILED,
    PASSED,
    UNCLAIMED,
    Finding,
    Outcome,
    Trial,
    builtin_class,
    malformed,
    refuses_as,
)

__all__ = [
    "CHECKS",
    "DEVIATION",
    "FAILED",
    "PASSED",
    "UNCLAIMED",
    "Finding",
    "Outcome",
    "Trial",
    "applicable",
    "builtin_class",
    "findings",
    "refuses_as",
]

CHECKS: dict[str, Callable[[Trial], Finding]] = {
    check.__name__: check
    for check in (
        *(memory, guard_bands, fully_written),
        *(errors, metadata, values, inputs_unchanged, written, versions, deterministic),
        *(layout_invariant, batch_invariant, config_invariant, settings),
        *(keywords, inplace, out_argument, aliasing, special_values, distribution),
    )
}
"""By name, in the order in which they are made: the first that fails is what a failure is called."""

SAMPLED: dict[str, Callable[[Trial], bool]] = {
    "layout_invariant": laid_out,
    "batch_invariant": in_batches,
    "config_invariant": has_configurations,
    "settings": has_settings,
    "inplace": forms.has_inplace,
    "out_argument": forms.has_out,
    "aliasing": forms.not_in_place,
    "special_values": forms.has_numbers,
}
"""Those that take calls of their own, and where each says something. A drawn case makes one of them, chosen by its id;
a saved case makes all, and one on the way to a smaller failing one those that have failed."""

SELDOM = 16
"""``keywords`` is about an op more than about a case: one drawn case in so many makes it, beside the others."""

ALWAYS = ("guard_bands", "fully_written", "versions", "keywords", *SAMPLED)
"""Those that no OpSpec has to name."""

LAST_WORD = ("memory", "guard_bands", "fully_written")
"""After one of these failed nothing else is judged: calls that write anywhere are not repeated, and what nobody wrote
has no value."""

REFUSED_CHECKS = ("guard_bands", "errors", "inputs_unchanged")
"""Those that apply to a call that torch refuses."""


def applicable(trial: Trial, checks: Sequence[str] | None, thorough: bool = True) -> list[str]:
    """Which of the checks that are named, or (None) of those of the op, can be made.

    ``thorough``: unless they are named, all that are ``SAMPLED`` and not one.
    """
    named = (*ALWAYS, *trial.spec.checks) if checks is None else checks
    if trial.memory_fault:
        return ["memory"]
    if trial.refusal is not None:
        return [check for check in CHECKS if check in named and check in REFUSED_CHECKS] or ["errors"]
    if trial.ours.error is not None:
        return [check for check in ("guard_bands",) if check in named] + ["errors"]
    if malformed(trial.ours.value, trial.reference.value):
        return ["metadata"]
    sampled = [check for check, applies in SAMPLED.items() if check in named and applies(trial)]
    if checks is None and not thorough and sampled:
        sampled = [sampled[cases.seed(trial.case) % len(sampled)]]
    seldom = checks is None and not thorough and cases.seed(trial.case) % SELDOM
    left = () if has_names(trial) and not seldom else ("keywords",)
    made = (*(check for check in (*ALWAYS, *trial.spec.checks) if check not in (*SAMPLED, *left)), *sampled)
    return [check for check in CHECKS if check in named and check in made]
