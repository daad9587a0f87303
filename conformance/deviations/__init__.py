"""List where torch disagrees with the oracle, in one table.

It excuses torch itself where it is the implementation judged, and nobody else; no bound is widened for it. Which calls
torch's CPU takes or refuses otherwise than CUDA is in ``conformance.refusals`` and ``conformance.stand_ins``. The sign
of a zero from relu (+0 on CUDA, -0 on the CPU) needs no entry: it is not judged.
"""

from __future__ import annotations

import torch

from conformance import cases, refusals, stand_ins
from conformance.cases import Case
from conformance.deviations import attention, elementwise, products, rows
from conformance.deviations.table import Deviation
from conformance.spec import Call

__all__ = ["DEVIATIONS", "Deviation", "named_deviation"]

DEVIATIONS: tuple[Deviation, ...] = (
    *elementwise.DEVIATIONS,
    *rows.DEVIATIONS,
    *products.DEVIATIONS,
    *attention.DEVIATIONS,
)


def named_deviation(case: Case, check: str, device: torch.device | str) -> str | None:
    """The name of the deviation of torch itself that a failure of ``check`` for ``case`` on ``device`` can be; None
    where torch has no excuse. For torch as the implementation only. On the CPU torch takes what CUDA refuses, and
    refuses what CUDA takes."""
    kind = torch.device(device).type
    if kind == "cpu" and check in ("errors", "metadata"):
        args, kwargs, _ = cases.materialize(case)
        call = Call(args, kwargs, None)
        found = stand_ins.find(case.op, call)
        if found and found.check == check:
            return found.name
        if check == "errors":
            refusal = refusals.find(case.op, call)
            return refusal.name if refusal else None
    for deviation in DEVIATIONS:
        asked = case.op in deviation.ops and check in deviation.checks and kind in deviation.devices
        if asked and deviation.applies(case) and deviation.present():
            return deviation.name
    return None
