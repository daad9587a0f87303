"""List where torch disagrees with the oracle, in one table.

It excuses torch itself where it is the implementation judged, and, by the semantics of torch's CPU, a library whose
answer is torch's; no bound is widened for it. Which calls torch's CPU takes or refuses otherwise than CUDA is in
``conformance.cuda_refusals`` and ``conformance.cpu_cuda_differences``. The sign of a zero from relu (+0 on CUDA, -0 on
the CPU) needs no entry: it is not judged.
"""

from __future__ import annotations

import msgspec
import torch

from conformance import cases, cpu_cuda_differences, cuda_refusals
from conformance.cases import Argument, Case, View
from conformance.deviations import attention, contexts, elementwise, gradients, products, rows
from conformance.deviations.table import Deviation
from conformance.spec import Call
from strategies.specs import CONTIGUOUS

__all__ = ["DEVIATIONS", "Deviation", "named_deviation"]

DEVIATIONS: tuple[Deviation, ...] = (
    *elementwise.DEVIATIONS,
    *rows.DEVIATIONS,
    *products.DEVIATIONS,
    *attention.DEVIATIONS,
    *gradients.DEVIATIONS,
    *contexts.DEVIATIONS,
)


def named_deviation(case: Case, check: str, device: torch.device | str) -> str | None:
    """Return the name of the deviation of torch itself that explains a failure of ``check`` for ``case`` on ``device``;
    None where torch has no excuse. For torch as the implementation only. On the CPU torch takes what CUDA refuses, and
    refuses what CUDA takes."""
    kind = torch.device(device).type
    if kind == "cpu" and check in ("errors", "metadata"):
        args, kwargs, _ = cases.materialize(case)
        call = Call(args, kwargs, None)
        found = cpu_cuda_differences.find(case.op, call)
        if found and found.check == check:
            return found.name
        if check == "errors":
            refusal = cuda_refusals.find(case.op, call)
            return refusal.name if refusal else None
    case = _apart(case)
    for deviation in DEVIATIONS:
        among = not deviation.ops or case.op in deviation.ops
        asked = among and check in deviation.checks and kind in deviation.devices
        if asked and deviation.applies(case) and deviation.present():
            return deviation.name
    return None


def _apart(case: Case) -> Case:
    """Return the case with a contiguous tensor of the same shape for each argument by position that is a ``View``:
    deviations ask for the dtypes and shapes of arguments."""
    if not any(isinstance(one, View) for one in case.args):
        return case
    specs = cases.operands(case)

    def own(argument: Argument) -> Argument:
        if not isinstance(argument, View):
            return argument
        spec = specs[argument.operand]
        shape = (*spec.shape[: argument.dim], argument.length, *spec.shape[argument.dim + 1 :])
        return msgspec.structs.replace(spec, shape=shape, layout=CONTIGUOUS)

    return msgspec.structs.replace(case, args=tuple(map(own, case.args)), digests=())
