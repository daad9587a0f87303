"""Limit the elements of calls that are differentiated, by what their oracles evaluate."""

from __future__ import annotations

import torch

from conformance import cases
from conformance.checks.call_record import Trial
from strategies import dtypes

LONG = 1 << 10
"""The size above which a dim is long."""
MOST = 1 << 18
"""The most elements of operands and results together in calls that are differentiated."""
MOST_OF_ROWS = 1 << 21
"""The same where kernels are not interpreted, and at most one dim is ``LONG``. Backward passes number rows in 16 bits,
or put them in a dim of a grid that has as many."""
MOST_OF_STEP = 1 << 25
"""The same where a case makes all checks: of a training step's size there are few (``huge_calls``)."""
MOST_OF_PAIRS = 1 << 24
"""The most elements that the oracle evaluates of such a call with several long dims, as attention's scores."""


def most_elements(trial: Trial) -> int:
    """Return of how many elements a call is differentiated at most."""
    floating = [spec for spec in cases.operands(trial.case) if dtypes.is_floating(spec.dtype)]
    counts = [sum(size > LONG for size in spec.shape) for spec in floating]
    # Where several are long the oracle may evaluate each element of one with each of another, as attention's does.
    each = sum(counts) > 1 and (trial.parts is None or trial.parts.terms > LONG)
    # Float64 is judged in more than its precision, which is slow.
    if trial.implementation.kernels or any(spec.dtype == "float64" for spec in floating):
        return MOST
    if trial.thorough and (not each or _evaluated(trial, max(counts)) <= MOST_OF_PAIRS):
        return MOST_OF_STEP
    return MOST if max(counts) > 1 or each else MOST_OF_ROWS


def _evaluated(trial: Trial, long: int) -> int:
    """Return how many elements the oracle evaluates of a call with several long dims, as attention's scores. Where no
    spec says so, they are those of one operand with several of them; of two each with each is too much.

    :param long: The most long dims of an operand.
    """
    result = trial.reference.value
    if trial.parts is None or not isinstance(result, torch.Tensor):
        return 0 if long > 1 else MOST_OF_PAIRS + 1
    return result.numel() // max(result.shape[-1] if result.ndim else 1, 1) * trial.parts.terms
