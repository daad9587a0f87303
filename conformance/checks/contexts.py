"""Checks of a call in another context: what it is there equals what it is outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from conformance import cases, compiler_faults, context_calls, forms
from conformance.cases import Case
from conformance.checks import least_tried
from conformance.checks.call_record import (
    DEVIATION,
    FAILED,
    PASSED,
    UNCLAIMED,
    Finding,
    Outcome,
    Trial,
    describe,
    difference,
    different,
    malformed,
)
from conformance.checks.forms import with_out_or_in_place
from conformance.checks.invariance import entangled
from conformance.checks.result import METADATA, sharing, wrong

CONTEXTS = ("fake", "compiled", "opcheck", "export")
"""The checks of contexts of torch's own that are made for implementations that claim them alone. Of ``autocast``,
``vmap`` and ``transforms`` a call that is not claimed may be refused, but not wrong."""
_COMPILED_OUTS = ("right",)
_FAKE_OUTS = ("right", "empty", "wrong size", "strided")


def fake(trial: Trial) -> Finding:
    """Check that the call of fake tensors (``FakeTensorMode``) gives shape, dtype, device and strides of the real
    one, returns the operands and views that it returns, and resizes what it resizes: as it is, in place and with
    ``out=``."""
    if "fake" not in trial.implementation.claims(trial.case.op):
        return unclaimed("fake")
    for what, derived in variants(trial, "fake", _FAKE_OUTS):
        outcome = derived.bare(context={"kind": context_calls.FAKE})
        if message := unlike(derived, outcome):
            if outcome.error is not None and type(outcome.error).__name__ in _DEPENDENT and needs_elements(derived):
                continue
            return failed(trial, "fake", derived.case, f"of fake tensors{what}: {message}")
    return Finding("fake", PASSED)


def compiled(trial: Trial) -> Finding:
    """Check that a call that ``torch.compile`` takes into a graph, alone or amid copies of its operands, gives the bits
    of the call outside of it, and leaves them in the operands that it writes."""
    if "compiled" not in trial.implementation.claims(trial.case.op):
        return unclaimed("compiled")
    faults = []
    for what, derived in variants(trial, "compiled", _COMPILED_OUTS, one=True):
        if not fits_graph(derived):
            continue
        # The lower bits of a seed decide which cases are compiled at all.
        plain, turn = derived.bare(), cases.seed(trial.case) >> 9
        for dynamic, amid in product((False, True), repeat=2):
            if not trial.thorough and (dynamic, amid) != (bool(turn & 1), bool(turn & 2)):
                continue
            how = {"kind": context_calls.COMPILED, "dynamic": dynamic, "amid": amid}
            outcome = derived.bare(context=how)
            if not (message := _unlike_plain(derived, plain, outcome, amid)):
                continue
            if fault := _compiler_fault(derived, plain, outcome, how):
                faults.append(fault)
                continue
            words = f"compiled{', with sizes as symbols' * dynamic}{', amid copies of its operands' * amid}{what}"
            return failed(trial, "compiled", derived.case, f"{words}: {message}")
    return Finding("compiled", DEVIATION, faults[0]) if faults else Finding("compiled", PASSED)


def _compiler_fault(trial: Trial, plain: Outcome, outcome: Outcome, how: dict[str, Any]) -> str:
    """Return the name of the fault of torch's compiler for which a compiled call differs from the plain one; empty:
    there is none, and the difference is the implementation's."""
    inputs = context_calls.copied(trial.inputs)
    args, kwargs = forms.bind(trial.case, inputs)
    if how["dynamic"] and compiler_faults.has_minus_zero(args, kwargs):
        again = trial.bare(context=how | {"constants": True})
        if not _unlike_plain(trial, plain, again, how["amid"]):
            return compiler_faults.SIGN
    error = outcome.error
    if error is not None and compiler_faults.fails_for_copies(inputs, args, kwargs, error, how["dynamic"]):
        return compiler_faults.SHARED
    return ""


def needs_elements(trial: Trial) -> bool:
    """Tell whether torch's function, too, reads elements on the host: a 0-d tensor that stands for a number, say."""
    args, kwargs = forms.bind(trial.case, context_calls.copied(trial.inputs))
    try:
        context_calls.within({"kind": context_calls.FAKE}, trial.spec.reference)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (of several modules of torch)
        return type(error).__name__ in _DEPENDENT
    return False


_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")


def threads(trial: Trial) -> Finding:
    """Check that two threads that make the call at once, one of them with other contents, get what one thread alone
    gets, in whatever order they come to the lines of the implementation; where the implementation claims to be
    deterministic, with the same bits."""
    other = context_calls.copied(trial.inputs, other=True)
    alone = [trial.bare(), trial.bare(inputs=other)]
    # Other contents may be refused for what they are.
    if any(one.error is not None or malformed(one.value, trial.ours.value) for one in alone):
        return Finding("threads", PASSED)
    together = trial.bare(context={"kind": context_calls.THREADS, "seed": cases.seed(trial.case)})
    if together.error is not None:
        return failed(trial, "threads", trial.case, f"from two threads at once: raised {describe(together.error)}")
    count, exact = len(trial.ours.tensors()), "deterministic" in trial.implementation.claims(trial.case.op)
    *results, text = together.value
    places = bytes(text.tolist()).decode().splitlines()
    for number, place in enumerate(place for place in places for _ in (0, 1)):
        second, value = number % 2, tuple(results[number * count : (number + 1) * count])
        outcome = dataclasses.replace(
            alone[second], value=value if isinstance(trial.ours.value, tuple) else value[0], told=None, places=None
        )
        message = difference(alone[second], outcome, "a call of one thread and of two at once")
        if message and not exact:
            # What is right for other contents is not known.
            message = "" if second else wrong(trial, outcome) and message
        if message:
            which = "the thread with other contents" if second else "the first thread"
            return failed(trial, "threads", trial.case, f"in {which}, the first stopped at {place}: {message}")
    return Finding("threads", PASSED)


def from_threads(trial: Trial) -> bool:
    """Tell whether a call is made from threads: as ``in_context``, one that draws nothing and writes to no operand."""
    return in_context(trial) and not trial.spec.writes(trial.case) and "distribution" not in trial.spec.checks


def in_context(trial: Trial) -> bool:
    """Tell whether the checks of contexts apply to a call: to one in the plain form that is small."""
    tensors = (*trial.inputs, *trial.reference.tensors())
    return not trial.case.form and sum(one.untyped_storage().nbytes() for one in tensors) <= MOST


MOST = 1 << 17
"""The most bytes of operands and results together."""


def fits_graph(trial: Trial) -> bool:
    """Tell whether torch's compiler takes such a call of any library: an ``out`` has the right size and no gaps."""
    out = forms.bind(trial.case, trial.inputs)[1].get("out")
    if not isinstance(out, torch.Tensor):
        return True
    return not entangled(trial.case) and out.is_contiguous() and out.shape == trial.ours.tensors()[0].shape


def _unlike_plain(trial: Trial, plain: Outcome, outcome: Outcome, amid: bool) -> str:
    """Say how a compiled call differs from the plain one; empty: not at all.

    :param amid: Whether copies of the operands from before and after the call follow its results.
    """
    copies: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    if amid and outcome.error is None:
        before, after = (_given(trial, operands) for operands in (trial.inputs, plain.operands))
        results = len(plain.tensors())
        if len(outcome.value) != results + len(before) + len(after):
            return f"returned another number of results than {results}"
        times = [*((f"before, operand {n}", one) for n, one in enumerate(before))]
        times += [(f"after it, operand {n}", one) for n, one in enumerate(after)]
        copies = [(when, was, one) for (when, was), one in zip(times, outcome.value[results:], strict=True)]
        value = outcome.value[:results] if isinstance(plain.value, tuple) else outcome.value[0]
        outcome = dataclasses.replace(outcome, value=value, told=None, places=None)
    if message := unlike(trial, outcome):
        return message
    message = "" if trial.expected[0].instead is not None else difference(plain, outcome, "a call and the same")
    if message and ("deterministic" in trial.implementation.claims(trial.case.op) or wrong(trial, outcome)):
        return message
    for number, (one, other) in enumerate(zip(plain.operands, outcome.operands, strict=True)):
        if one.shape == other.shape and trial.expected[0].instead is None and (where := different(one, other)):
            return f"operand {number} differs {where}"
    for when, one, other in copies:
        if trial.expected[0].instead is None and (where := different(one, other)):
            return f"{when} differs {where}"
    return ""


def _given(trial: Trial, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensor arguments of the call, in the memory of these operands."""
    return context_calls.operands(*forms.bind(trial.case, operands))


def unclaimed(name: str) -> Finding:
    """Return the finding of a check that is not made."""
    return Finding(name, UNCLAIMED, "not claimed")


def failed(trial: Trial, name: str, case: Case, message: str) -> Finding:
    """Return the finding that a call that follows from the case, or the case itself, is wrong."""
    found = Finding(name, FAILED, message, case=None if case is trial.case else case)
    return trial.excused(found, case, name)


def variants(trial: Trial, name: str, outs: tuple[str, ...], one: bool = False) -> list[tuple[str, Trial]]:
    """Return the call itself and calls that follow from it, those that succeed outside of the context. In a trial that
    is not thorough they are the call and one more, in turn; or ``one`` of them all."""
    others = with_out_or_in_place(trial, outs)
    names = ["", *others]
    if not trial.thorough and others:
        options = names if one else [*others]
        chosen = least_tried.choose(trial.case, name, options, trial.tells)
        names = [chosen] if one else ["", chosen]
    found = [(f", {what}", trial.derive(others[what])) if what else ("", trial) for what in names]
    return [(what, derived) for what, derived in found if _is_well(derived)]


def _is_well(trial: Trial) -> bool:
    ours = trial.ours
    return trial.refusal is None and ours.error is None and not malformed(ours.value, trial.reference.value)


def unlike(trial: Trial, outcome: Outcome, other: Outcome | None = None, whose: str = "that of the plain call") -> str:
    """Say how the metadata of an outcome differ from those of another one, without which they are those of the same
    call outside of the context; empty: not at all."""
    other = trial.ours if other is None else other
    if outcome.error is not None:
        return f"raised {describe(outcome.error)}"
    if wrong := malformed(outcome.value, other.value):
        return wrong
    for place, (found, real) in enumerate(zip(outcome.tensors(), other.tensors(), strict=True)):
        which = f"result {place}: " if isinstance(other.value, tuple) else ""
        for name, get in METADATA.items():
            if get(found) != get(real) and (name != "strides" or trial.spec.strides):
                return f"{which}{name} {get(found)}, {whose} is {get(real)}"
        there, here = (_place(one, result) for one, result in ((outcome, found), (other, real)))
        if there != here:
            return f"{which}the result is {there}; {whose} is {here}"
    for number, (found, real) in enumerate(zip(outcome.operands, other.operands, strict=True)):
        if found.shape != real.shape:
            return f"operand {number} then has shape {list(found.shape)}, after the plain call {list(real.shape)}"
    return ""


def _place(outcome: Outcome, result: torch.Tensor) -> str:
    """Say in words which memory a result has."""
    number = next((number for number, operand in enumerate(outcome.operands) if operand is result), None)
    if number is not None:
        return f"operand {number} itself"
    number = sharing(result, outcome.operands)
    return "a tensor with memory of its own" if number is None else f"a part of operand {number}"
