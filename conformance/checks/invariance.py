"""Checks that change how a call is made, but not what it means: layouts and batch size, and the kernel's configuration.

Each is a claim of the implementation: claimed and broken is a failure, unclaimed it is measured.
"""

from __future__ import annotations

import torch

from conformance import cases
from conformance.cases import Case, Same, View
from conformance.checks.again import broken
from conformance.checks.trial import PASSED, Finding, Trial, difference


def layout_invariant(trial: Trial) -> Finding:
    """Contiguous copies of all operands give the same bits."""
    again = trial.attempt(inputs=[tensor.clone(memory_format=torch.contiguous_format) for tensor in trial.inputs])
    message = difference(trial.ours, again, "the call and that of contiguous copies")
    return Finding("layout_invariant", broken(trial, "layout_invariant") if message else PASSED, message)


def laid_out(trial: Trial) -> bool:
    """Whether contiguous copies say something: an operand is not contiguous, and none is a view of another."""
    odd = any(not tensor.is_contiguous() or tensor.storage_offset() for tensor in trial.inputs)
    return odd and not entangled(trial.case)


def batch_invariant(trial: Trial) -> Finding:
    """A slice of the batch that is computed alone has the same bits as within the batch."""
    batch = trial.spec.batch(trial.case)
    assert batch is not None
    start, length = _slice(cases.seed(trial.case), batch.size)
    inputs = [
        tensor if dim is None else tensor.narrow(dim, start, length)
        for tensor, dim in zip(trial.inputs, batch.operands, strict=True)
    ]
    alone = trial.attempt(inputs=inputs)
    what = f"[{start}, {start + length}) of dim {batch.result} within the batch and alone"
    message = difference(trial.ours.part(batch.result, start, length), alone, what)
    return Finding("batch_invariant", broken(trial, "batch_invariant") if message else PASSED, message)


def in_batches(trial: Trial) -> bool:
    """Whether the case has a batch dim of which a part can be computed alone."""
    batch = trial.spec.batch(trial.case)
    return batch is not None and batch.size > 1 and not entangled(trial.case)


def _slice(seed: int, size: int) -> tuple[int, int]:
    """Where a slice begins and how long it is: one element, all but one, or half."""
    length = (1, size - 1, size // 2)[seed % 3]
    return seed // 3 % (size - length + 1), length


def entangled(case: Case) -> bool:
    """Whether an argument is a part of another operand's memory."""
    arguments = (*case.args, *case.kwargs.values())
    return any(isinstance(x, View) or (isinstance(x, Same) and x.shift) for x in arguments)
