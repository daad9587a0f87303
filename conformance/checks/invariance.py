"""Checks that change how a call is made, but not what it means: layouts and batch size, the kernel's configuration, and
a user's settings.

The first two are claims of the implementation: a broken claim is a failure, an unclaimed property is only measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from conformance import cases
from conformance.cases import Case, Same, View
from conformance.checks.call_record import FAILED, PASSED, Finding, Trial, describe, difference
from conformance.checks.repeated import differing
from conformance.checks.result import Part, failing, inputs_unchanged, wrong
from conformance.implementations import FIXED
from strategies import shapes

SHARE = 3
"""One case in so many is tried in another configuration, which compiles a kernel that no other call needs."""
SHARE_SET = 6
"""One case in so many is tried under a setting."""


def layout_invariant(trial: Trial) -> Finding:
    """Check that contiguous copies of all operands give the same bits."""
    inputs = [tensor.clone(memory_format=torch.contiguous_format) for tensor in trial.inputs]
    return _invariant(trial, "layout_invariant", inputs, "the call and that of contiguous copies")


def laid_out(trial: Trial) -> bool:
    """Tell whether contiguous copies say something: an operand is not contiguous, and none is a view of another."""
    odd = any(not tensor.is_contiguous() or tensor.storage_offset() for tensor in trial.inputs)
    return odd and not entangled(trial.case)


def batch_invariant(trial: Trial) -> Finding:
    """Check that a slice of the batch that is computed alone has the same bits as within the batch."""
    batch = trial.spec.batch(trial.case)
    assert batch is not None
    start, length = _slice(cases.seed(trial.case), batch.size)
    inputs = [
        tensor if dim is None else tensor.narrow(dim, start, length)
        for tensor, dim in zip(trial.inputs, batch.operands, strict=True)
    ]
    what = f"[{start}, {start + length}) of dim {batch.result} within the batch and alone"
    return _invariant(trial, "batch_invariant", inputs, what, (batch.result, start, length))


def in_batches(trial: Trial) -> bool:
    """Tell whether the case has a batch dim of which a part can be computed alone."""
    batch = trial.spec.batch(trial.case)
    return batch is not None and batch.size > 1 and not entangled(trial.case)


def config_invariant(trial: Trial) -> Finding:
    """Check that the kernel's other configurations give results within the bound."""
    number = _configuration(trial)
    (again,) = trial.configured(number, {})
    message, where = wrong(trial, again), f"in the configuration {trial.configurations[number]}: "
    return Finding("config_invariant", FAILED if message else PASSED, message and where + message)


def has_configurations(trial: Trial) -> bool:
    """Tell whether this case is one to try another configuration of the kernel. Under the interpreter a case with a
    long dim is not: in tiles made for another shape, 32,769 rows of one column take 20 s."""
    if len(trial.configurations) < 2 or cases.seed(trial.case) // 17 % SHARE:
        return False
    longest = max((size for spec in cases.operands(trial.case) for size in spec.shape), default=0)
    return not trial.implementation.kernels or longest <= shapes.MAX_SIZE


def settings(trial: Trial) -> Finding:
    """Check that under a setting results are within the bound; or that the call is refused: an error names the setting,
    and operands are as they were."""
    names = trial.implementation.settings(trial.case.op)
    number = cases.seed(trial.case) // 29 % len(names)
    name = names[number].partition("=")[0]
    again = trial.attempt(setting=number)
    if again.error is None:
        message = wrong(trial, again)
    elif name not in str(again.error):
        message = f"raised {describe(again.error)}, which does not say that it is for {name}"
    elif not (message := again.trespass) and again.operands:
        # A refused call writes nothing.
        spec = dataclasses.replace(trial.spec, writes=lambda case: ())
        finding = inputs_unchanged(dataclasses.replace(trial, ours=again, spec=spec))
        message = f"refused, but {finding.message}" if finding.status == FAILED else ""
    return Finding("settings", FAILED if message else PASSED, message and f"with {names[number]}: {message}")


def has_settings(trial: Trial) -> bool:
    """Tell whether this case is called under one of the settings of the implementation; never where it has none."""
    return cases.seed(trial.case) // 23 % SHARE_SET == 0 and bool(trial.implementation.settings(trial.case.op))


def _configuration(trial: Trial) -> int:
    """Return the number of one of the call's configurations."""
    return cases.seed(trial.case) // 19 % len(trial.configurations)


def _invariant(
    trial: Trial,
    claim: str,
    inputs: Sequence[torch.Tensor],
    what: str,
    part: Part | None = None,
) -> Finding:
    """Compare a part of the call, or all of it, bit for bit with the call with other operands. A claim for a fixed
    configuration is judged with both calls in one."""
    whole = trial.ours
    if claim + FIXED in trial.implementation.claims(trial.case.op) and trial.configurations:
        number = _configuration(trial)
        whole, again = trial.configured(number, {}, {"inputs": inputs})
        what += f", in the configuration {trial.configurations[number]},"
        if found := failing(trial, whole):
            message = f"{what} differ: the first is wrong: {found.message}"
            return trial.excused(Finding(claim, FAILED, message), trial.case, found.check)
    else:
        again = trial.attempt(inputs=inputs)
    message = difference(whole if part is None else whole.part(*part), again, what)
    return differing(trial, claim, message, again, inputs=inputs, part=part) if message else Finding(claim, PASSED)


def _slice(seed: int, size: int) -> tuple[int, int]:
    """Return where a slice begins and how long it is: one element, all but one, or half."""
    length = (1, size - 1, size // 2)[seed % 3]
    return seed // 3 % (size - length + 1), length


def entangled(case: Case) -> bool:
    """Tell whether an argument is a part of another operand's memory."""
    arguments = (*case.args, *case.kwargs.values())
    return any(isinstance(x, View) or (isinstance(x, Same) and x.is_view) for x in arguments)
