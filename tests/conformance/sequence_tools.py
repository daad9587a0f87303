"""Sequences of few calls, for tests of how they are drawn and judged."""

from __future__ import annotations

import torch

from conformance import sequences
from conformance.cases import Case
from conformance.sequences import CallSequence, Step
from strategies.specs import Layout, TensorSpec

CPU = torch.device("cpu")
X = TensorSpec((4, 8), "float32")
EXP = Case(op="exp", args=(X,))


def of(*steps: Step) -> CallSequence:
    return CallSequence(steps=steps)


def other(case: Case, seed: int) -> Case:
    return sequences.reseeded(case, seed)


HALF = Case(op="exp", args=(TensorSpec((4, 8), "float16"),))
TURNED = Case(op="exp", args=(TensorSpec((4, 8), "float32", layout=Layout(order=(1, 0))),))
