"""The check of calls with tensors of other kinds, which an implementation may refuse, but not mistake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance import cases, forms, kind_calls
from conformance.checks.call_record import FAILED, PASSED, Finding, Outcome, Trial, describe
from conformance.checks.contexts import from_threads
from conformance.checks.invariance import entangled
from conformance.checks.result import judged
from conformance.forms import is_torchs

CLOSE = 0.02
"""The share of the largest element by which floating-point results may differ: no bound is derived for complex numbers,
and a lost part is off by far more."""
ORDINARY = 1e4
"""The largest floating-point operand of a call that is made complex or sparse, or gets a complex number: larger ones
overflow in some orders of computing."""


def kinds(trial: Trial) -> Finding:
    """Check that the call with complex or sparse tensors, real parts of complex ones, unsigned integers, the memory of
    an operand as another dtype (for the second operand or ``out=``), one row of the first operand for the second, an
    ``out`` that is negated lazily, a complex number, a whole number beyond 64 bits, tensors of a subclass (if ``fake``
    is claimed), of the meta device (if it is, or there are no kernels), quantized, or in oneDNN's layout (if there are
    no kernels) raises, or gives what torch's function gives. What torch refuses of complex ones and of such numbers,
    the others refuse too; of other kinds it is not judged."""
    for which in possible(trial):
        context = _context(trial, which)
        theirs = trial.theirs(context=context)
        if theirs.error is not None and which not in kind_calls.REFUSED:
            continue
        outcome = trial.bare(context=context)
        if outcome.error is not None:
            continue
        # Of some calls torch tells another dtype than it computes.
        also = (
            [kind_calls.described(one, True) for one in trial.reference.tensors()] if which == kind_calls.META else []
        )
        slack = error_of_plain_call(trial)
        refused = f"took what torch refuses with {describe(theirs.error)}" if theirs.error is not None else ""
        if message := refused or _unlike(theirs, outcome, also, slack):
            if not refused and _is_torchs_own(trial, theirs, context, also, slack):
                continue
            return trial.excused(Finding("kinds", FAILED, f"{which}: {message}"), trial.case, "kinds")
    return Finding("kinds", PASSED)


def _context(trial: Trial, which: str) -> dict[str, Any]:
    """Return how the call is made with tensors of a kind, as of ``context_calls.within``."""
    context = {"kind": kind_calls.KIND, "which": which, "turn": cases.seed(trial.case) // 23}
    # What the call itself imports may run kernels.
    claims_fake = "fake" in trial.implementation.claims(trial.case.op)
    context["hidden"] = which in _WITHOUT_MEMORY and not (which == kind_calls.META and claims_fake)
    if which in _INTO:
        (result,) = trial.reference.tensors()
        shape, dtype = _shown(result)
        context["out"] = [shape, "complex64" if which == kind_calls.INTO_COMPLEX else dtype]
    return context


_WITHOUT_MEMORY = (kind_calls.META, kind_calls.QUANTIZED, kind_calls.MKLDNN)
"""The kinds whose memory is not that of their elements."""
_INTO = (kind_calls.INTO_COMPLEX, kind_calls.INTO_REAL, kind_calls.INTO_VIEW, kind_calls.INTO_NEGATED)


def _shown(result: torch.Tensor) -> tuple[list[int], str]:
    return list(result.shape), str(result.dtype).removeprefix("torch.")


def has_kinds(trial: Trial) -> bool:
    """Tell whether ``kinds`` applies to a call: to a small one of a function of torch's own, in the plain form, that
    draws nothing, writes to no operand, and whose operands are apart."""
    return from_threads(trial) and is_torchs(trial.case.op) and not entangled(trial.case) and bool(possible(trial))


def possible(trial: Trial) -> list[str]:
    """Return the kinds that the tensors of a call, or its numbers, can be of."""
    args, kwargs = forms.bind(trial.case, trial.inputs)
    numbers = [*args, *kwargs.values()]
    found = [which for which in kind_calls.ALL if kind_calls.applies(which, trial.inputs, numbers)]
    kwargs, results = trial.case.kwargs, trial.reference.tensors()
    exact = not any(one.is_floating_point() for one in results)
    left = set() if exact else {kind_calls.SPECIAL}
    if not trial.spec.outs or "out" in kwargs or len(results) != 1:
        left |= {*_INTO}
    elif "input" not in trial.spec.outs or not kind_calls.viewable(trial.inputs, *_shown(results[0])):
        left.add(kind_calls.INTO_VIEW)
    if not all(one.is_floating_point() for one in results):
        left.add(kind_calls.INTO_NEGATED)
    if not trial.spec.inplace or "inplace" in kwargs:
        left.add(kind_calls.IN_PLACE)
    claims_fake = "fake" in trial.implementation.claims(trial.case.op)
    # Only who is as much at home in torch owes a subclass its class.
    left |= set() if claims_fake else {kind_calls.SUBCLASS}
    if trial.implementation.kernels or any(one.is_cuda for one in results):
        # A kernel that is launched on memory that is not there, or is another, ends the process.
        left |= {kind_calls.QUANTIZED, kind_calls.MKLDNN} | (set() if claims_fake else {kind_calls.META})
    if not claims_fake and (exact or not all(one.numel() for one in (*trial.inputs, *results))):
        # Of nothing, results need no operand.
        left.add(kind_calls.META)
    ordinary = exact or is_ordinary(trial)
    wide = (kind_calls.UNSIGNED, kind_calls.META)
    return [which for which in found if which not in left and (ordinary or which in wide)]


def is_ordinary(trial: Trial) -> bool:
    """Tell whether no floating-point operand is larger than ``ORDINARY``."""
    floating = (one for one in trial.inputs if one.is_floating_point())
    return all(bool((one.double().abs() <= ORDINARY).all()) for one in floating)


def _unlike(theirs: Outcome, outcome: Outcome, also: Sequence[str], slack: float) -> str:
    """Say how the results differ from torch's; empty: not at all.

    :param also: What else each result may be, in words.
    :param slack: As of ``far``.
    """
    right, found = theirs.tensors(), outcome.tensors()
    if len(found) != len(right):
        return f"returned {len(found) // 2} results, torch {len(right) // 2}"
    for place in range(0, len(right), 2):
        kind, wanted = (bytes(one.cpu().tolist()).decode() for one in (found[place], right[place]))
        if kind not in (wanted, *also[place // 2 :][:1]):
            return f"result {place // 2} is {kind}; torch's is {wanted}"
        if kind == wanted and (distance := far(found[place + 1].cpu(), right[place + 1].cpu(), slack)):
            return f"result {place // 2} {distance}"
    return ""


def _is_torchs_own(trial: Trial, theirs: Outcome, context: dict[str, Any], also: Sequence[str], slack: float) -> bool:
    """Tell whether torch is no measure of a call in a context: its plain answer is not right, or its devices answer in
    two ways, as where the answer is undefined (a division by 0, say)."""
    if judged(trial, trial.reference).status == FAILED:
        return True
    elsewhere = trial.theirs(context=context, on_cpu=True)
    if elsewhere.error is not None:
        # That the CPU lacks a kernel, say, makes nothing undefined.
        return "ZeroDivisionError" in describe(elsewhere.error)
    return bool(_unlike(elsewhere, theirs, also, slack))


def error_of_plain_call(trial: Trial) -> float:
    """Return the largest difference of the plain call's results from torch's, which ``values`` has judged. A result may
    be rounding errors alone: a row of equal elements less their mean."""
    pairs = zip(trial.ours.tensors(), trial.reference.tensors(), strict=False)
    found = [
        (ours.double().cpu() - right.double().cpu()).abs()
        for ours, right in pairs
        if right.is_floating_point() and right.numel() and ours.shape == right.shape
    ]
    return max((float(one.nan_to_num(0, 0, 0).max()) for one in found), default=0.0)


def far(found: torch.Tensor, right: torch.Tensor, slack: float) -> str:
    """Say how far elements are from torch's, by ``CLOSE``; empty: not farther.

    :param slack: How far they may be in any case, as of ``error_of_plain_call``.
    """
    if not right.is_floating_point():
        off = found != right
        where = f", at {int(off.sum())} elements"
        return f"is {found[off][0].item()} where torch's is {right[off][0].item()}{where}" if off.any() else ""
    found, right = found.double(), right.double()
    judged = right.isfinite()
    if not judged.any():
        return ""
    largest = right[judged].abs().max()
    # NaN is not close either.
    off = judged & ~((found - right).abs() <= CLOSE * largest + slack)
    return f"is {found[off][0]:g} where torch's is {right[off][0]:g}, at {int(off.sum())} elements" if off.any() else ""
