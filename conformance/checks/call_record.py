"""The record of one call, which the checks look at, and the finding that a check returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from conformance import call_contexts, cases, forms, result_samples, runtime
from conformance.calls import Foreign, NotProvided, Outcome
from conformance.cases import Case
from conformance.guards import bits, unwritten
from conformance.implementations import Implementation
from conformance.result_samples import Sample
from conformance.spec import Call, Expected, OpSpec, Parts

PASSED, FAILED, DEVIATION, UNCLAIMED = "passed", "failed", "deviation", "unclaimed"
REPEATS = (1, 0, 0, 1, 1, 0, 1, 0)
"""The order in which the first (0) and the second (1) of two calls that differ are made again. Only if each gives the
same every time, the difference is put down to the contents of memory, and not to chance or alternation."""


class Finding(msgspec.Struct, frozen=True):
    """The finding of one check.

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
    """The share of torch's result, by the same measure."""
    ulps: float | None = None
    """The largest error in units in the last place, where values were judged; infinite ones as above."""
    torch_ulps: float | None = None
    index: tuple[int, ...] | None = None
    """The worst element, where values were judged and are wrong."""
    case: Case | None = None
    """The call that went wrong, where it is another one that follows from the case."""


def _no_call(**_: Any) -> Outcome:
    raise AssertionError("torch's function is not called again here")


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
    """The exception that torch raises, on CUDA or by the ``semantics`` of the CPU, where it refuses the call."""
    ours: Outcome
    attempt: Callable[..., Outcome]
    """Makes the same call once more: ``runner.Prepared.guarded`` of the function, with its keywords."""
    bare: Callable[..., Outcome]
    """Makes the same call in ordinary memory, unwatched: ``runner.Prepared.invoke``, with its keywords."""
    derive: Callable[[Case], Trial]
    """Returns a trial of another call of the op."""
    excuse: Callable[[Case, str], str | None]
    """Returns the name of the deviation of torch itself that explains a failed check of a case, or None."""
    thorough: bool = True
    """Whether every form of the call is tried, and not one."""
    may_end: bool = False
    """Tells whether a call may end the process in which it is made: on the CPU, in a process apart from this one,
    in which no interpreter of kernels copies operands back."""
    theirs: Callable[..., Outcome] = _no_call
    """Makes the same call of torch's own function, or of another ``function``, as ``bare`` does; ``on_cpu``: there."""

    @property
    def configurations(self) -> tuple[str, ...]:
        """The names of the kernel's configurations that the call could have had, where the implementation says."""
        return self.ours.configurations

    def configured(self, number: int, *calls: Mapping[str, Any]) -> list[Outcome]:
        """Return the outcomes of ``attempt`` with each of these keywords, all in the configuration of the number."""
        return [self.attempt(configuration=number, **keywords) for keywords in calls]

    @property
    def left_out(self) -> bool:
        """Whether the implementation leaves the call out by declaration."""
        error = self.ours.error
        if isinstance(error, NotProvided):
            return True
        if self.case.form in forms.MAY_BE_REFUSED and isinstance(error, TypeError):
            return True
        if not isinstance(error, NotImplementedError) or self.refusal is not None:
            return False
        return self.case.form in (call_contexts.NEGATED, *call_contexts.RECORDED) or self.spec.left_out(self.call)

    def excused(self, finding: Finding, case: Case, check: str) -> Finding:
        """Return the finding; a known failure of torch itself becomes a deviation."""
        name = self.excuse(case, check) if finding.status == FAILED else None
        return msgspec.structs.replace(finding, status=DEVIATION, message=name) if name else finding

    @functools.cached_property
    def elements(self) -> int:
        """The elements of all operands, or of all of torch's results where these are more."""
        results = self.reference.tensors() if self.reference.error is None else ()
        return max(cases.elements(self.case), sum(one.numel() for one in results))

    @functools.cached_property
    def tells(self) -> bool:
        """Tell whether the elements of torch's result differ; where it has one, those of the first operand."""
        found = [one for one in self.reference.tensors() if one.numel()]
        found += self.inputs[:1] if all(one.numel() == 1 for one in found) else []
        return any(_differ(one) for one in found)

    @functools.cached_property
    def parts(self) -> Parts | None:
        """The parts of a single result; None for several."""
        return self.spec.parts(self.call) if isinstance(self.call.result, torch.Tensor) else None

    @functools.cached_property
    def sample(self) -> Sample | None:
        """The part of a large result that is judged."""
        return None if self.parts is None else result_samples.chosen(self.parts, self.call, cases.seed(self.case))

    @functools.cached_property
    def expected(self) -> tuple[Expected, ...]:
        """The oracle's answers: one for each result, or one for the sample."""
        call = self.call if self.sample is None else self.sample.call
        expected = forms.expected(self.spec, self.case, call)
        return expected if isinstance(expected, tuple) else (expected,)

    @functools.cached_property
    def second(self) -> Outcome:
        """The same call once more, with other poison in new memory and around operands."""
        return self.attempt(fill=1, around=1)

    @functools.cached_property
    def unsteady(self) -> Outcome | None:
        """The first of some more calls that gives something else than the same call before; None: each gives the same.

        Asked only where the first two differ."""
        calls = (self.ours, self.second)
        again = ((which, self.attempt(fill=which, around=which)) for which in REPEATS)
        return next((outcome for which, outcome in again if difference(calls[which], outcome)), None)

    @functools.cached_property
    def change(self) -> tuple[str, str]:
        """The check that fails where the second call differs from the first, and a message; both empty: they do not
        differ."""
        message = difference(self.ours, self.second)
        if not message:
            return "", ""
        if missing := self._unwritten():
            return "fully_written", missing
        if self.unsteady is not None:
            return "deterministic", message
        if difference(self.ours, self.attempt(fill=0, around=1)):
            return "guard_bands", f"the result depends on what lies outside of an operand: {message}"
        return "fully_written", f"the result depends on what was in memory that the call did not fill: {message}"

    def _unwritten(self) -> str:
        if not self.ours.fresh or self.second.error is not None or malformed(self.second.value, self.ours.value):
            return ""
        for place, (first, second) in enumerate(zip(self.ours.tensors(), self.second.tensors(), strict=True)):
            if (first.shape, first.dtype) == (second.shape, second.dtype):
                missing = unwritten(first, second).nonzero()
                if len(missing):
                    which = f"result {place}: " if isinstance(self.ours.value, tuple) else ""
                    index = [int(i) for i in missing[0]]
                    return f"{which}{len(missing)} of {first.numel()} elements were never written, the first is {index}"
        return ""


def difference(first: Outcome, second: Outcome, what: str = "two equal calls") -> str:
    """Say how the results of two calls differ in shape, dtype or bits; empty: not at all, or both raised."""
    if first.error is not None:
        return "" if second.error is not None else f"{what} differ: the first raised {describe(first.error)}"
    if second.error is not None:
        return f"{what} differ: the second raised {describe(second.error)}"
    if wrong := malformed(second.value, first.value):
        return f"{what} differ: the second {wrong}"
    for ours, again in zip(first.tensors(), second.tensors(), strict=True):
        if (ours.shape, ours.dtype) != (again.shape, again.dtype):
            return f"{what} differ: the second returned shape {list(again.shape)}, dtype {again.dtype}"
        if place := different(ours, again):
            return f"{what} differ {place}"
    return ""


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def different(first: torch.Tensor, second: torch.Tensor) -> str:
    """Say where two tensors of one shape and dtype differ in bits, any NaN being as good as another; empty: nowhere."""
    word = _WORDS.get(first.itemsize, torch.uint8)
    differs = (bits(first).view(word) != bits(second).view(word)).any(1)
    if not differs.any():
        return ""
    if first.dtype.is_floating_point:
        # Through float32, since not all dtypes have isnan.
        nan = (tensor.detach().cpu().float().isnan().reshape(-1) for tensor in (first, second))
        differs &= ~(next(nan) & next(nan))
    places = differs.nonzero()
    if not len(places):
        return ""
    index = tuple(int(i) for i in np.unravel_index(int(places[0, 0]), first.shape))
    return f"at {list(index)}: {first[index].item()} and then {second[index].item()} ({len(places)} elements differ)"


def malformed(ours: Any, theirs: Any) -> str:
    """Say what is wrong with a result that is not a tensor, or not as many tensors as torch's; empty where it is
    right."""
    if isinstance(theirs, tuple):
        if not isinstance(ours, tuple):
            return f"returned {_kind(ours)} instead of a tuple of {len(theirs)} tensors"
        if len(ours) != len(theirs):
            return f"returned {len(ours)} results instead of {len(theirs)}"
    elif isinstance(ours, tuple | list):
        return f"returned {len(ours)} results in a {type(ours).__name__} instead of one tensor"
    results = ours if isinstance(ours, tuple) else (ours,)
    return next((f"returned {_kind(r)} instead of a tensor" for r in results if not isinstance(r, torch.Tensor)), "")


def _differ(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has elements of different bytes."""
    # Not ``contiguous``: of one element it leaves any stride.
    rows = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1, 1).view(torch.uint8)
    return bool((rows != rows[:1]).any())


def builtin_class(kind: type[BaseException]) -> type[BaseException]:
    """Return the built-in exception class that an ``except`` clause written against torch would name. Only that is
    compared, so that a library may raise subclasses of its own. NotImplementedError is not RuntimeError here."""
    builtin = (base for base in kind.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))
    return next(builtin)


def refuses_as(error: BaseException | None, refusal: type[BaseException]) -> bool:
    """Tell whether an exception is of the class that torch raises."""
    return error is not None and builtin_class(type(error)) is builtin_class(refusal)


def describe(error: BaseException | None) -> str:
    """Return an exception as one line of text; of a long one both ends, since compilers say last what is wrong."""
    text = " ".join(runtime.said(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else f'{text[:100]} ... {text[-200:]}'}"


def _kind(value: Any) -> str:
    if isinstance(value, Foreign):
        return value.kind
    return "None" if value is None else f"an object of type {type(value).__name__}"
