"""Checks of calls that only libraries take that are registered with torch's dispatcher: ``torch.func.vmap``,
``torch.library.opcheck`` and ``torch.export``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance import cases, context_calls, dispatcher_calls, forms
from conformance.checks.call_record import PASSED, Finding, Outcome, Trial, describe, difference, malformed
from conformance.checks.contexts import failed, fits_graph, from_threads, in_context, unclaimed
from conformance.checks.gradient_kinds import floating_operands
from conformance.checks.gradients import differentiable
from conformance.checks.invariance import entangled
from conformance.checks.modes import with_operands
from conformance.checks.result import judged
from conformance.implementations import TORCH
from strategies import layouts

NESTED = 3
"""Of so many calls in a batch one lies in a second ``vmap``."""


def vmap(trial: Trial) -> Finding:
    """Check that ``torch.func.vmap`` of the call gives the results of a loop of calls, whichever operands have a batch,
    and in whichever dim; also inside of another one. What torch's function refuses there may be refused, and anything
    by NotImplementedError; without a claim, by any exception."""
    arguments, seed = tensor_arguments(trial), cases.seed(trial.case) >> 8
    batched = [place for place in range(len(arguments)) if seed >> place & 1] or [seed % len(arguments)]
    dims = [seed // 7 % (one.ndim + 1) if place in batched else None for place, one in enumerate(arguments)]
    other = context_calls.copied(trial.inputs, other=True)
    numbers = [number_of(trial, arguments[place]) for place in batched]
    mixed = [other[number] if number in numbers else one for number, one in enumerate(trial.inputs)]
    loop = {False: trial.bare(), True: trial.bare(inputs=mixed)}
    # Other contents may be refused for what they are.
    if any(one.error is not None or malformed(one.value, trial.ours.value) for one in loop.values()):
        return Finding("vmap", PASSED)
    nested = not seed // 13 % NESTED
    context = {"kind": dispatcher_calls.VMAP, "dims": dims, "nested": nested}
    outcome = trial.bare(context=context)
    where = f"in a batch of torch.func.vmap(in_dims={tuple(dims)}){', inside of another one' * nested}"
    if outcome.error is not None:
        if "vmap" not in trial.implementation.claims(trial.case.op):
            return unclaimed("vmap")
        refused = isinstance(outcome.error, NotImplementedError) or trial.theirs(context=context).error is not None
        return (
            Finding("vmap", PASSED) if refused else _wrong(trial, "vmap", f"{where}: raised {describe(outcome.error)}")
        )
    count = len(trial.ours.tensors())
    if len(outcome.value) != count * len(dispatcher_calls.BATCH):
        return _wrong(trial, "vmap", f"{where}: returned another number of results than {count}")
    for number, contents in enumerate(dispatcher_calls.BATCH):
        part = outcome_of_one(trial, outcome, number)
        inputs = mixed if contents else trial.inputs
        # What torch itself does there has a name.
        is_torch = trial.implementation.name == TORCH
        theirs = None if is_torch else functools.partial(of_torch, trial, number, context=context)
        if message := unlike_plain(trial, inputs, loop[contents], part, "a call of a loop and of vmap", theirs):
            found = _wrong(trial, "vmap", f"{where}, part {number}: {message}")
            return trial.excused(found, trial.case, "values")
    return Finding("vmap", PASSED)


def is_batched(trial: Trial) -> bool:
    """Tell whether ``vmap`` and ``export`` apply to a call: as to ``threads``, and no operand is a part of another."""
    return from_threads(trial) and not entangled(trial.case) and bool(trial.inputs)


def opcheck(trial: Trial) -> Finding:
    """Check with ``torch.library.opcheck`` the operators that a call is made of: that schemas say what is written and
    returned, that kernels of fake tensors and of gradients are registered, and that graphs compute the same."""
    claims = trial.implementation.claims(trial.case.op)
    if "opcheck" not in claims:
        return unclaimed("opcheck")
    wanted: list[int] = []
    # torch's own copy of an expanded operand lies otherwise, and so sums may be added in another order.
    apart = not any(layouts.overlaps(one.layout) or one.layout.expanded for one in cases.operands(trial.case))
    if "gradients" in claims and apart and differentiable(trial) and cases.seed(trial.case) >> 11 & 1:
        floating = [one for number, one in enumerate(trial.inputs) if number in floating_operands(trial.case)]
        wanted = [place for place, one in enumerate(tensor_arguments(trial)) if any(one is other for other in floating)]
    outcome = trial.bare(context={"kind": dispatcher_calls.OPCHECK, "wanted": wanted})
    if outcome.error is None:
        return Finding("opcheck", PASSED)
    return _wrong(trial, "opcheck", f"in torch.library.opcheck: {describe(outcome.error)}")


def is_checked(trial: Trial) -> bool:
    """Tell whether ``opcheck`` applies to a call: torch makes graphs of it, and its tools take its operands, which have
    elements."""
    return in_context(trial) and fits_graph(trial) and all(one.numel() for one in trial.inputs)


def export(trial: Trial) -> Finding:
    """Check that a program of ``torch.export`` of the call, with dynamic sizes, gives the result of the call, and that
    of a call of a part of the batch. What torch's function refuses there may be refused."""
    if "export" not in trial.implementation.claims(trial.case.op):
        return unclaimed("export")
    plain, strict = trial.bare(), bool(cases.seed(trial.case) >> 11 & 1)
    parts, inputs = _part(trial)
    context = {"kind": dispatcher_calls.EXPORT, "strict": strict, "parts": parts}
    outcome, where = trial.bare(context=context), f"exported{', strictly' * strict}"
    if outcome.error is not None:
        if trial.theirs(context=context).error is not None:
            return Finding("export", PASSED)
        return _wrong(trial, "export", f"{where}: raised {describe(outcome.error)}")
    count = len(trial.ours.tensors())
    if len(outcome.value) != count * (1 + bool(parts)):
        return _wrong(trial, "export", f"{where}: returned another number of results than {count}")
    if message := unlike_plain(
        trial, trial.inputs, plain, outcome_of_one(trial, outcome, 0), "a call and the same exported"
    ):
        return _wrong(trial, "export", f"{where}: {message}")
    if parts:
        alone, found = trial.bare(inputs=inputs), outcome_of_one(trial, outcome, 1)
        if message := unlike_plain(trial, inputs, alone, found, "a call of a part of the batch and the same exported"):
            return _wrong(trial, "export", f"{where}: {message}")
    return Finding("export", PASSED)


def _part(trial: Trial) -> tuple[list[Any], list[torch.Tensor]]:
    """Return the arguments of ``narrow`` of each tensor argument for a part of the batch, and the operands of that
    part; both empty where there is none."""
    batch = trial.spec.batch(trial.case)
    # Which strides a result has may follow from which of two sizes is larger, and the program is for that alone.
    if batch is None or batch.size < 4 or not all(one.is_contiguous() for one in trial.inputs):
        return [], []
    # A program may be for sizes that differ: a part is none of them long.
    taken = {size for one in trial.inputs for size in one.shape}
    lengths = [length for length in range(2, batch.size - 1) if length not in taken]
    if not lengths:
        return [], []
    length = lengths[cases.seed(trial.case) // 5 % len(lengths)]
    narrow = [None if dim is None else (dim, 1, length) for dim in batch.operands]
    inputs = [one if to is None else one.narrow(*to) for one, to in zip(trial.inputs, narrow, strict=True)]
    return [narrow[number_of(trial, one)] for one in tensor_arguments(trial)], inputs


def tensor_arguments(trial: Trial) -> list[torch.Tensor]:
    """Return the tensor arguments of the call, each once."""
    return context_calls.operands(*forms.bind(trial.case, trial.inputs))


def number_of(trial: Trial, argument: torch.Tensor) -> int:
    """Return the number of the operand that an argument is."""
    return next(number for number, one in enumerate(trial.inputs) if one is argument)


def outcome_of_one(trial: Trial, outcome: Outcome, number: int) -> Outcome:
    """Return the outcome of one call out of that of several, whose results follow each other."""
    count = len(trial.ours.tensors())
    value = tuple(outcome.value[number * count : (number + 1) * count])
    value = value if isinstance(trial.ours.value, tuple) else value[0]
    return dataclasses.replace(outcome, value=value, told=None, places=None)


ROUGH = 2
"""Another result may be so many times as far as torch's, where torch's is beyond the bound."""


def of_torch(trial: Trial, number: int, **how: Any) -> Outcome:
    """Return the outcome of torch's function for a call made so, of several calls that of one."""
    outcome = trial.theirs(**how)
    return outcome if outcome.error is not None else outcome_of_one(trial, outcome, number)


def unlike_plain(
    trial: Trial,
    inputs: Sequence[torch.Tensor],
    plain: Outcome,
    outcome: Outcome,
    what: str,
    theirs: Callable[[], Outcome] | None = None,
) -> str:
    """Say how an outcome differs from the plain call of the same operands, beyond the bound; empty: not at all.

    :param theirs: Returns torch's outcome of a call made in the same way: where that is beyond the bound, which holds
        for one call of torch's own, the other may be the same, or ``ROUGH`` times as far.
    """
    message = difference(plain, outcome, what)
    if not message or not _alike(plain, outcome):
        return message
    answer = trial.theirs(inputs=inputs)
    if answer.error is not None:
        return ""
    asked = with_operands(trial, inputs, answer)
    found = judged(asked, outcome)
    if found.status == PASSED or theirs is None:
        return "" if found.status == PASSED else found.message
    there = theirs()
    if there.error is None and not difference(there, outcome):
        return ""
    if there.error is not None or not _alike(outcome, there):
        return found.message
    own = judged(asked, there)
    is_close = found.share is not None and own.share is not None and found.share <= ROUGH * own.share
    return "" if own.status != PASSED and is_close else found.message


def _alike(first: Outcome, second: Outcome) -> bool:
    """Tell whether results have the same shapes and dtypes."""
    if malformed(second.value, first.value):
        return False
    pairs = zip(first.tensors(), second.tensors(), strict=True)
    return all((one.shape, one.dtype) == (other.shape, other.dtype) for one, other in pairs)


def _wrong(trial: Trial, name: str, message: str) -> Finding:
    return failed(trial, name, trial.case, message)
