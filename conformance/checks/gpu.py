"""Checks of a call in contexts that only a GPU has: CUDA graphs, streams, and devices that are not current."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from conformance import context_calls, gpu_calls
from conformance.checks.call_record import PASSED, Finding, Outcome, Trial, describe, difference, different, malformed
from conformance.checks.contexts import failed, in_context, needs_elements, unclaimed, variants
from conformance.checks.result import wrong

CONTEXTS = ("graph", "stream", "device")
"""The checks of contexts of a GPU that are made for implementations that claim them alone."""
_OUTS = ("right",)
_MANY = 64
"""From so many kept elements and so many dropped ones on, two draws of them are not equal by chance."""


def graph(trial: Trial) -> Finding:
    """Check that a call can be captured in a CUDA graph, and that each replay, with other contents in the operands and
    freed memory overwritten, gives what the call gives; a random one draws anew."""
    return _in_context(trial, "graph", "captured in a CUDA graph, {} replay", ("the third", "the first", "the second"))


def stream(trial: Trial) -> Finding:
    """Check that calls on two busy streams, one with other contents, use what was written on their stream before, are
    done when their stream is, and do not disturb each other."""
    rounds = range(1, gpu_calls.ROUNDS + 1)
    names = [f"on the first of two busy streams, call {n}" for n in (rounds[-1], *rounds[:-1])]
    names += [f"on the second of two busy streams, call {n}" for n in rounds]
    return _in_context(trial, "stream", "{}", names)


def device(trial: Trial) -> Finding:
    """Check that a call with operands on a device that is not the current one gives its results there, and leaves the
    current device as it is."""
    return _in_context(trial, "device", "{}", ("with operands on a device that is not current",))


def on_gpu(trial: Trial) -> bool:
    """Tell whether ``graph`` and ``stream`` apply: on a GPU, as other contexts do."""
    tensors = trial.reference.tensors()
    return in_context(trial) and bool(tensors) and all(one.is_cuda for one in tensors)


def on_two(trial: Trial) -> bool:
    """Tell whether ``device`` applies: there are several."""
    return on_gpu(trial) and torch.cuda.device_count() > 1


def _in_context(trial: Trial, name: str, words: str, calls: Sequence[str]) -> Finding:
    """Return the finding of a context that makes these calls, those with other contents among them."""
    if name not in trial.implementation.claims(trial.case.op):
        return unclaimed(name)
    is_random = "distribution" in trial.spec.checks
    for what, derived in variants(trial, name, _OUTS, one=True):
        alone = derived.bare()
        other = derived.bare(inputs=context_calls.copied(derived.inputs, other=True))
        together = derived.bare(context={"kind": name})
        where = f"{words.format(calls[0])}{what}"
        if together.error is not None:
            if name == "graph" and needs_elements(derived):
                # No graph can hold it.
                continue
            return failed(trial, name, derived.case, f"{where}: raised {describe(together.error)}")
        count = len(alone.tensors())
        if len(together.value) != count * len(calls):
            return failed(trial, name, derived.case, f"{where}: returned another number of results than {count}")
        found = [_outcome(together, together.value[count * n : count * (n + 1)], alone) for n in range(len(calls))]
        if is_random:
            if name == "graph" and (message := _drawn_again(found, derived.inputs[0])):
                return failed(trial, name, derived.case, f"captured in a CUDA graph{what}: {message}")
            continue
        for call, outcome in zip(calls, found, strict=True):
            has_others = "second" in call
            if has_others and (other.error is not None or malformed(other.value, alone.value)):
                # Other contents may be refused for what they are.
                continue
            if message := _unlike(derived, other if has_others else alone, outcome, has_others):
                return failed(trial, name, derived.case, f"{words.format(call)}{what}: {message}")
        for number, (one, after) in enumerate(zip(alone.operands, together.operands, strict=True)):
            if one.shape == after.shape and _is_exact(derived) and (place := different(one, after)):
                return failed(trial, name, derived.case, f"{where}: operand {number} differs {place}")
    return Finding(name, PASSED)


def _outcome(together: Outcome, value: Sequence[torch.Tensor], alone: Outcome) -> Outcome:
    """Return the outcome of one of the calls that a context made."""
    results = tuple(value) if isinstance(alone.value, tuple) else value[0]
    return dataclasses.replace(together, value=results, told=None, places=None)


def _is_exact(trial: Trial) -> bool:
    return "deterministic" in trial.implementation.claims(trial.case.op) and trial.expected[0].instead is None


def _unlike(trial: Trial, alone: Outcome, outcome: Outcome, has_others: bool) -> str:
    """Say how a call differs from the same call alone; of who does not claim to be deterministic, if it is wrong, too;
    empty: not at all."""
    if trial.expected[0].instead is not None:
        return ""
    message = difference(alone, outcome, "the call alone and this one")
    if message and not _is_exact(trial):
        # What is right for other contents is not known.
        return "" if has_others else wrong(trial, outcome) and message
    return message


def _drawn_again(replays: Sequence[Outcome], input: torch.Tensor) -> str:
    """Say that the last replay drew what the first one did; empty: it did not, or may have by chance.

    ``input``: what both masked. A zero or NaN in it is the same whether it is kept or not.
    """
    shows = input.isfinite() & (input != 0)
    for last, first in zip(replays[0].tensors(), replays[1].tensors(), strict=True):
        kept = int((first[shows] != 0).sum())
        if min(kept, int(shows.sum()) - kept) >= _MANY and not different(first, last):
            return "each replay drew the same random numbers"
    return ""
