"""The checks: each looks at one trial, which is one call made, and gives one finding with one message."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from conformance.cases import Case
from conformance.compare import Comparison, compare, kept
from conformance.distribution import faults
from conformance.implementations import Implementation
from conformance.spec import Call, Expected, OpSpec

PASSED, FAILED, DEVIATION, UNCLAIMED = "passed", "failed", "deviation", "unclaimed"


class Finding(msgspec.Struct, frozen=True):
    """What one check found.

    ``status``: "passed"; "failed"; "deviation", a failure of torch itself that is known by the name that the message
    gives; "unclaimed", a property that does not hold and was not claimed.
    """

    check: str
    status: str
    message: str = ""
    share: float | None = None
    """The largest share of the bound used, where values were judged; where it is infinite (something is wrong where
    nothing is allowed) the largest float64, since JSON has no infinity."""
    torch_share: float | None = None
    """torch's own, by the same measure."""
    index: tuple[int, ...] | None = None
    """The worst element, where values were judged and are wrong."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one call did: a value or an exception, and its operands as they are afterwards."""

    operands: tuple[torch.Tensor, ...]
    value: Any = None
    error: BaseException | None = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The results as tensors; only for an outcome that is well formed."""
        return self.value if isinstance(self.value, tuple) else (self.value,)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One call of one implementation, and all that a check may want to know about it."""

    case: Case
    spec: OpSpec
    implementation: Implementation
    inputs: tuple[torch.Tensor, ...]
    """The operands as they were given, on the CPU, each in its own storage."""
    call: Call
    reference: Outcome
    """torch's answer on the judged device."""
    refusal: type[BaseException] | None
    """The exception that torch on CUDA raises, where it refuses the call."""
    ours: Outcome
    again: Callable[[], Outcome]
    """Makes the same call once more, torch's generator seeded as for the first."""
    following: Callable[[], Outcome]
    """Makes the same call once more, torch's generator as it is."""
    memory_fault: str = ""
    """What the interpreter saw a kernel do to memory that it must not."""

    @functools.cached_property
    def expected(self) -> tuple[Expected, ...]:
        """The oracle's answer, one for each result."""
        expected = self.spec.expected(self.call)
        return expected if isinstance(expected, tuple) else (expected,)


def memory(trial: Trial) -> Finding:
    """No access outside an argument, no element unwritten, read before it is written or written twice, no store to an
    input: what the interpreter saw while it ran the call. On a GPU, and without Triton, it sees nothing."""
    return Finding("memory", FAILED if trial.memory_fault else PASSED, trial.memory_fault)


def errors(trial: Trial) -> Finding:
    """What torch refuses is refused with the same built-in exception class, and what it takes is taken."""
    error, refusal = trial.ours.error, trial.refusal
    if error is None and refusal is None:
        return Finding("errors", PASSED)
    if refusal is None:
        return Finding("errors", FAILED, f"torch takes this call; raised {_describe(error)}")
    theirs = trial.reference.error
    theirs = _describe(theirs) if theirs is not None else f"{refusal.__name__} (on CUDA; the CPU takes the call)"
    if error is None:
        return Finding("errors", FAILED, f"took a call that torch refuses with {theirs}")
    if builtin_class(type(error)) is not builtin_class(refusal):
        return Finding("errors", FAILED, f"raised {_describe(error)}\n  torch raises {theirs}")
    return Finding("errors", PASSED)


def metadata(trial: Trial) -> Finding:
    """Shape, dtype, device and strides of the results are torch's; so is whether a result is one of the operands."""
    wrong = malformed(trial.ours.value, trial.reference.value)
    if wrong:
        return Finding("metadata", FAILED, wrong)
    problems = []
    for place, (ours, theirs) in enumerate(zip(trial.ours.tensors(), trial.reference.tensors(), strict=True)):
        which = f"result {place}: " if isinstance(trial.ours.value, tuple) else ""
        for name, get in _METADATA.items():
            if get(ours) != get(theirs):
                problems.append(f"{which}{name} {get(ours)}, torch's is {get(theirs)}")
        problems += [f"{which}{problem}" for problem in _identity(trial, ours, theirs)]
    return Finding("metadata", FAILED if problems else PASSED, "\n  ".join(problems))


def values(trial: Trial) -> Finding:
    """Every element is within the bound of the oracle."""
    wrong = malformed(trial.ours.value, trial.reference.value)
    if wrong:
        return Finding("values", FAILED, wrong)
    message, index, shares, torch_shares = "", None, [], []
    for place, (ours, theirs, expected) in enumerate(
        zip(trial.ours.tensors(), trial.reference.tensors(), trial.expected, strict=True)
    ):
        comparison, torchs = compare(ours, expected), compare(theirs, expected)
        if ours.dtype != theirs.dtype:
            comparison = Comparison(False, math.inf, reason=f"dtype {ours.dtype} instead of {theirs.dtype}")
        shares.append(comparison.share)
        torch_shares.append(torchs.share)
        if not comparison.passed and not message:
            message = (f"result {place}: " if place else "") + _worst(comparison, theirs)
            index = comparison.index
    share, torch_share = (min(max(found), sys.float_info.max) for found in (shares, torch_shares))
    return Finding("values", FAILED if message else PASSED, message, share, torch_share, index)


def inputs_unchanged(trial: Trial) -> Finding:
    """Bit for bit, nothing changed but what the call is given to write: in no operand, nor beside it in its storage."""
    given = trial.spec.writes(trial.case)
    for number, (before, after) in enumerate(zip(trial.inputs, trial.ours.operands, strict=True)):
        was, now = _bytes(before), _bytes(after)
        if number in given:
            # Refused or resized: torch may have moved the storage, and what lies outside is nobody's.
            if was.numel() != now.numel():
                continue
            was, now = was.clone(), now.clone()
            for storage in (was, now):
                _elements(storage, before).zero_()
        elif (before.shape, before.stride()) != (after.shape, after.stride()) or was.numel() != now.numel():
            message = f"operand {number} became a tensor of shape {list(after.shape)}, strides {after.stride()}"
            return Finding("inputs_unchanged", FAILED, message)
        if not torch.equal(was, now):
            element = int((was != now).nonzero()[0]) // before.itemsize
            what = "which the call was given to write, outside its view" if number in given else "an input"
            message = f"operand {number} ({what}) was changed at element {element} of its storage"
            return Finding("inputs_unchanged", FAILED, message)
    return Finding("inputs_unchanged", PASSED)


def deterministic(trial: Trial) -> Finding:
    """The same call twice gives the same bits; a failure only where the implementation claims it."""
    broken = FAILED if "deterministic" in trial.implementation.claims(trial.case.op) else UNCLAIMED
    second = trial.again()
    if second.error is not None:
        return Finding("deterministic", broken, f"the second of two equal calls raised {_describe(second.error)}")
    if malformed(second.value, trial.ours.value):
        return Finding("deterministic", broken, "the second of two equal calls returned something else")
    for ours, again in zip(trial.ours.tensors(), second.tensors(), strict=True):
        if (ours.shape, ours.dtype) != (again.shape, again.dtype):
            message = f"the second of two equal calls returned shape {list(again.shape)}, dtype {again.dtype}"
            return Finding("deterministic", broken, message)
        differs = (bits(ours) != bits(again)).any(1).nonzero()
        if len(differs):
            index = tuple(int(i) for i in torch.unravel_index(differs[0, 0], ours.shape))
            message = (
                f"two equal calls differ at {list(index)}: {ours[index].item()} and then {again[index].item()}"
                f" ({len(differs)} elements differ)"
            )
            return Finding("deterministic", broken, message)
    return Finding("deterministic", PASSED)


def distribution(trial: Trial) -> Finding:
    """What a random op keeps: as many elements as it should, independently of their neighbours in any dim and of the
    call before, and scaled exactly."""
    expected = trial.expected[0]
    if expected.instead is None:
        return Finding("distribution", PASSED)
    masks = []
    # Of calls that follow each other: a generator that does not move on repeats itself. Seeded anew, so that what
    # other checks have drawn does not matter.
    for outcome in (trial.again(), trial.following()):
        if outcome.error is not None:
            return Finding("distribution", FAILED, f"a repeated call raised {_describe(outcome.error)}")
        if wrong := malformed(outcome.value, trial.reference.value):
            return Finding("distribution", FAILED, f"a repeated call {wrong}")
        comparison = compare(outcome.value, expected)
        if not comparison.passed:
            message = f"neither dropped nor scaled exactly: {_worst(comparison, trial.reference.value)}"
            return Finding("distribution", FAILED, message, index=comparison.index)
        mask, seen = kept(outcome.value, expected)
        masks.append(mask)
    found = list(faults(masks, seen, expected.chance))
    return Finding("distribution", FAILED if found else PASSED, "\n  ".join(found[:5]))


CHECKS: dict[str, Callable[[Trial], Finding]] = {
    check.__name__: check for check in (memory, errors, metadata, values, inputs_unchanged, deterministic, distribution)
}
"""By name, in the order in which they are made: the first that fails is what a failure is called."""

REFUSED_CHECKS = ("errors", "inputs_unchanged")
"""Those that apply to a call that torch refuses."""


def malformed(ours: Any, theirs: Any) -> str:
    """What is wrong with a result that is not a tensor, or not as many tensors as torch's; empty where it is right."""
    if isinstance(theirs, tuple):
        if not isinstance(ours, tuple):
            return f"returned {_kind(ours)} instead of a tuple of {len(theirs)} tensors"
        if len(ours) != len(theirs):
            return f"returned {len(ours)} results instead of {len(theirs)}"
    elif isinstance(ours, tuple | list):
        return f"returned {len(ours)} results in a {type(ours).__name__} instead of one tensor"
    results = ours if isinstance(ours, tuple) else (ours,)
    return next((f"returned {_kind(r)} instead of a tensor" for r in results if not isinstance(r, torch.Tensor)), "")


def builtin_class(kind: type[BaseException]) -> type[BaseException]:
    """The built-in exception class that an ``except`` clause written against torch would name: what is compared, so
    that a library may raise subclasses of its own. NotImplementedError is not RuntimeError here."""
    builtin = (base for base in kind.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))
    return next(builtin)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """One integer row per element, row-major: equal exactly where the elements are the same bits."""
    flat = tensor.detach().cpu().reshape(-1, 1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _identity(trial: Trial, ours: torch.Tensor, theirs: torch.Tensor) -> list[str]:
    """``out`` and in-place calls return the very operand; others return memory of their own."""
    expected = [i for i, operand in enumerate(trial.reference.operands) if theirs is operand]
    if expected:
        same = any(ours is trial.ours.operands[i] for i in expected)
        return [] if same else [f"not the tensor that was given: torch returns operand {expected[0]} itself"]
    if _shares(theirs, trial.reference.operands) is None and (shared := _shares(ours, trial.ours.operands)) is not None:
        return [f"shares memory with operand {shared}; torch's does not"]
    return []


def _shares(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> int | None:
    place = result.untyped_storage().data_ptr()
    if not place:
        return None
    return next((i for i, operand in enumerate(operands) if operand.untyped_storage().data_ptr() == place), None)


def _significant_strides(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Strides, but None where they mean nothing: in dims of one element, and in a tensor without elements."""
    return tuple(
        stride if size > 1 and tensor.numel() else None
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


_METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda tensor: list(tensor.shape),
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: str(tensor.device),
    "strides": _significant_strides,
}


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage as bytes, on the CPU."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu()


def _elements(storage: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The view of ``storage`` (bytes) that has the place, shape and strides of ``like``."""
    return storage.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset())


def _worst(comparison: Comparison, theirs: torch.Tensor) -> str:
    if comparison.reason or comparison.index is None:
        return comparison.reason
    times = f"{comparison.share:.4g} times the bound" if math.isfinite(comparison.share) else "nothing is allowed here"
    return (
        f"{comparison.failed} of {comparison.judged} elements are wrong; the worst is {list(comparison.index)}\n"
        f"    ours    {comparison.ours!r}\n"
        f"    torch   {theirs[comparison.index].item()!r}\n"
        f"    oracle  {comparison.oracle!r}\n"
        f"    error   {comparison.error:.6g}, bound {comparison.allowed:.6g}: {times}"
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _describe(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{'...' if len(text) > 300 else ''}"
