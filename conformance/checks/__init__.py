"""The checks. Each looks at one trial, which is one call made, and returns one finding with one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance import cases
from conformance.checks import contexts, forms, gpu, least_tried
from conformance.checks.bare import bare, is_made, state
from conformance.checks.call_record import (
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
from conformance.checks.calls import call_forms, has_forms, has_layouts, has_no_plain_operands, layouts, plain_operands
from conformance.checks.contexts import compiled, fake, from_threads, in_context, threads
from conformance.checks.dispatcher import export, is_batched, is_checked, opcheck, vmap
from conformance.checks.forms import aliasing, inplace, out_argument, special_values
from conformance.checks.gpu import device, graph, on_gpu, on_two, stream
from conformance.checks.gradients import differentiable, gradients
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
from conformance.checks.kinds import has_kinds, kinds
from conformance.checks.modes import autocast, is_cast, modes
from conformance.checks.repeated import deterministic, distribution, fully_written, guard_bands, has_names, keywords
from conformance.checks.result import errors, inputs_unchanged, memory, metadata, values, versions, written
from conformance.checks.signature import has_signature, signature
from conformance.checks.transforms import is_transformed, transforms

__all__ = [
    "CHECKS",
    "CONTEXTS",
    "DERIVED",
    "DEVIATION",
    "FAILED",
    "HUGE",
    "OF_HUGE",
    "PASSED",
    "RARE",
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
        *(errors, metadata, values, inputs_unchanged, written, versions, state, deterministic, bare),
        *(
            gradients,
            modes,
            kinds,
            signature,
            autocast,
            fake,
            vmap,
            transforms,
            opcheck,
            compiled,
            export,
            threads,
            graph,
            stream,
            device,
        ),
        *(config_invariant, settings, layout_invariant, batch_invariant),
        *(keywords, inplace, out_argument, aliasing, special_values, call_forms, layouts, plain_operands, distribution),
    )
}
"""The checks by name, in the order in which they are made: a failure is named after the first that fails."""

CONTEXTS = (*contexts.CONTEXTS, *gpu.CONTEXTS)
"""The checks of contexts that are made for implementations that claim them alone: others may not be made for such
calls."""

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
"""The checks that make calls of their own, each with a function that tells where it applies. A drawn case makes one of
them, in turn; a saved case makes all, and a case on the way to a smaller failing one makes those that failed."""

RARE = {
    "fake": 32,
    **dict.fromkeys(("modes", "kinds", "autocast"), 16),
    **dict.fromkeys(("opcheck", "compiled", "export"), 512),
    **dict.fromkeys(("vmap", "transforms"), 4),
    "signature": 16,
    **dict.fromkeys(gpu.CONTEXTS, 64),
    "threads": 128,
}
"""One case in so many, drawn or saved, makes these, so that together they take little of the time. A case that was
saved since one of them failed makes that, as its note says."""

TURNS = {name: share for name, share in RARE.items() if share <= 128}
"""Those of which each search of drawn cases makes one at least, if it has a few calls to which they apply; the others
take seconds."""

_APPLY = {
    **dict.fromkeys(RARE, in_context),
    "bare": is_made,
    "kinds": has_kinds,
    "signature": has_signature,
    "autocast": is_cast,
    **dict.fromkeys(("vmap", "export"), is_batched),
    "opcheck": is_checked,
    "threads": from_threads,
    **dict.fromkeys(("graph", "stream"), on_gpu),
    "device": on_two,
    "gradients": differentiable,
    "transforms": is_transformed,
    "plain_operands": has_no_plain_operands,
    "layouts": has_layouts,
    "call_forms": has_forms,
}
"""Functions that tell whether one of these applies to a trial."""

SELDOM = {"keywords": 16, "bare": 3, "call_forms": 4, "layouts": 3, "plain_operands": 2, "gradients": 2, **RARE}
"""One drawn case in so many makes these beside the others: ``keywords`` is about an op more than about a case."""

DERIVED = (*SAMPLED, "call_forms", "layouts", "plain_operands")
"""The checks of calls that follow from a case. Where the case itself fails these would only go wrong in the same way;
and each makes some of its calls, in turn, of a case that was drawn."""

ALWAYS = ("guard_bands", "fully_written", "versions", "state", *SELDOM, *SAMPLED)
"""The checks that no OpSpec has to name."""

LAST_WORD = ("memory", "guard_bands", "fully_written")
"""After one of these failed nothing else is judged: calls that write anywhere are not repeated, and what nobody wrote
has no value."""

REFUSED_CHECKS = ("guard_bands", "errors", "inputs_unchanged", "state")
"""The checks that apply to a call that torch refuses."""


OF_HUGE = ("metadata", "values", "bare", "gradients", "distribution")
"""The checks of a call of more than ``HUGE`` elements, unless others are named: all together take minutes. Of ``bare``
it is one way, of weights."""

HUGE = (1 << 24) + (1 << 16)
"""Elements of all operands, or of all results; large reductions go a little beyond 2^24, and are judged whole."""


def applicable(trial: Trial, checks: Sequence[str] | None, thorough: bool = True) -> list[str]:
    """Return the checks that can be made, of those named, or (None) of the op's.

    ``thorough``: make all ``SAMPLED`` checks and not one, unless checks are named.
    """
    named = (*ALWAYS, *trial.spec.checks) if checks is None else checks
    if trial.ours.fault:
        return ["memory"]
    if trial.refusal is not None:
        return [check for check in CHECKS if check in named and check in REFUSED_CHECKS] or ["errors"]
    if trial.ours.error is not None:
        return [check for check in ("guard_bands",) if check in named] + ["errors"]
    if malformed(trial.ours.value, trial.reference.value):
        return ["metadata"]
    if checks is None and trial.elements > HUGE:
        named = [check for check in named if check in OF_HUGE]
    sampled = [check for check, applies in SAMPLED.items() if check in named and applies(trial)]
    if checks is None and not thorough and sampled:
        sampled = [least_tried.choose(trial.case, "checks", sampled, trial.tells)]
    drawn = checks is None and not thorough
    seed, note = cases.seed(trial.case), trial.case.note
    left = {name for name, share in SELDOM.items() if drawn and seed % share}
    left |= {name for name, share in RARE.items() if checks is None and seed % share}
    left -= {name for name in TURNS if drawn}
    left -= {name for name in RARE if note.startswith(f"{name} failed")}
    left |= set() if has_names(trial) else {"keywords"}
    claims = trial.implementation.claims(trial.case.op)
    left |= {name for name in CONTEXTS if checks is None and name not in claims}
    left |= {name for name, applies in _APPLY.items() if name not in left and not applies(trial)}
    if drawn:
        # Of the calls to which they apply, since a search may have few.
        asked = (name for name in TURNS if name not in left and not note.startswith(f"{name} failed"))
        left |= {name for name in asked if not least_tried.turn(trial.case, name, TURNS[name])}
    made = (*(check for check in (*ALWAYS, *trial.spec.checks) if check not in (*SAMPLED, *left)), *sampled)
    return [check for check in CHECKS if check in named and check in made]
