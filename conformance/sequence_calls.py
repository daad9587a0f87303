"""Make the calls of a sequence, here or in the judged process, and record operands and results after each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from conformance import calls, cases, forms, gradient_calls, runtime, sequence_gradients, sequence_staging
from conformance.calls import Outcome
from conformance.checks.call_record import different
from conformance.guards import memory_of
from conformance.implementations import Implementation
from conformance.remote_calls import Judged
from conformance.runner import Prepared
from conformance.sequences import Step

Kept = tuple[int, str, int]
"""The number of a call, "result" or "operand", and which of them."""


class Calls:
    """The calls of one sequence, all of them known beforehand, so that memory is reserved for the largest operands."""

    def __init__(self, implementation: Implementation, device: torch.device, known: Iterable[Prepared]) -> None:
        self._implementation, self._device, self._made = implementation, device, 0
        sizes: dict[int, int] = {}
        for prepared in known:
            for number, tensor in enumerate(prepared.inputs):
                sizes[number] = max(sizes.get(number, 0), len(memory_of(tensor)))
        ordered = [sizes[number] for number in sorted(sizes)]
        judged = implementation.judged
        self._stage: sequence_staging.Stage | Judged = (
            sequence_staging.Stage(device, ordered, gradient_calls.of_factors) if judged is None else judged
        )
        if judged is not None:
            judged.follow(ordered)
        self._then: dict[Kept, torch.Tensor] = {}
        self._now: list[tuple[int, str, int, Any]] = []

    def make(self, number: int, prepared: Prepared, step: Step) -> Outcome:
        """Make the next call: bare, without guards."""
        case, inputs = prepared.case, prepared.inputs
        settings = msgspec.to_builtins(step.settings)
        wanted = sequence_gradients.wanted(prepared) if step.gradients else []
        # torch may resize an ``out``.
        resized = sorted(cases.written(case)) if "out" in case.kwargs else []
        how = {"call": number, "memory": step.memory, "result": step.result, "resized": resized, "settings": settings}
        how |= {"gradients": step.gradients, "wanted": wanted}
        args, kwargs = forms.bind(case, inputs)
        described = {"form": case.form, "written": sorted(prepared.spec.writes(case)), "seed": cases.seed(case)}
        call = calls.described(case.op, args, kwargs, inputs, **described, follow=how)
        outcome = self._implementation.maker(case.op).followed(call, inputs, self._device, self._stage)
        # Copied, since the tensors of this process may change later.
        for index, operand in enumerate(outcome.operands):
            self._then[number, "operand", index] = memory_of(operand).cpu().clone()
        if outcome.error is None:
            for index, result in enumerate(outcome.tensors() if isinstance(outcome.value, tuple) else (outcome.value,)):
                # One of meta has no elements.
                if isinstance(result, torch.Tensor) and not result.is_meta:
                    self._then[number, "result", index] = result.detach().cpu().clone()
        return outcome

    def finish(self) -> None:
        """Make the backward passes that are left, and look at what was kept; no call follows."""
        self._now = self._stage.kept()

    def result(self, number: int) -> torch.Tensor | None:
        """Return what a call has returned first; None: no tensor."""
        return self._then.get((number, "result", 0))

    def gradients(self, number: int) -> list[torch.Tensor | str]:
        """Return the gradients of a call; where its backward pass raised, the exception as a text."""
        found = [one for call, what, _, one in self._now if (call, what) == (number, sequence_staging.GRADIENT)]
        return [runtime.named(one) if isinstance(one, Exception) else one for one in found]

    def changed(self) -> tuple[int, str] | None:
        """Return the first call of which a kept result or operand has changed, and how; None: there is none."""
        for call, what, index, now in self._now:
            then = self._then.get((call, what, index))
            if then is None:
                continue
            if (now.shape, now.dtype) != (then.shape, then.dtype):
                return call, f"{what} became shape {list(now.shape)}, dtype {now.dtype}"
            if place := different(then, now):
                return call, f"{what} changed {place}"
        return None
