"""Decide whether a run judged enough for a verdict: what was not judged never counts as passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conformance import spec as specs
from conformance.implementations import Implementation
from conformance.metrics import Record

REFUSED_MOST = 0.05
"""The share that torch may refuse of an op's calls that are drawn as legal ones. torch 2.13 refuses none."""
REFUSED_BY_REFERENCE_MOST = 0.5
"""The same for a composed reference, which may refuse a dim without elements."""
LEFT_OUT_MOST = 0.5
"""The share of an op's calls that an implementation may leave out without a declaration."""


def complaints(
    records: Iterable[Record], implementation: Implementation, asked: Sequence[str] = (), others: int = 0
) -> list[str]:
    """Say why a run is no verdict, a line for each reason; none where it is one.

    ``records``: one for each op. ``asked``: the ops that were named. ``others``: the number of tests of whole ops that
    were made.
    """
    name, by_op = implementation.name, {record.op: record for record in records}
    found = []
    if not others and not any(map(_verdicts, by_op.values())):
        found.append(f"nothing was judged: no call of {name} has a verdict")
    for op in asked:
        if implementation.function(op) is None:
            found.append(f"{op}: asked for by --op, and not provided by {name}")
        elif op in by_op and not _verdicts(by_op[op]):
            found.append(f"{op}: asked for by --op, and no call of it has a verdict")
    for op, record in by_op.items():
        if implementation.function(op) is None:
            continue
        refused, left_out = record.legal_refused, sum(example.count for example in record.left_out.values())
        spec = specs.registry().get(op)
        most, cause = REFUSED_MOST, f"What {name} does to torch may be the cause"
        if spec is not None and not spec.refusals:
            most, cause = REFUSED_BY_REFERENCE_MOST, "The reference does not take the shapes that it is said to take"
        if refused is not None and refused.count > max(1, most * record.legal):
            found.append(
                f"{op}: torch refuses {refused.count} of {record.legal} calls that were drawn as legal ones; "
                f"at most {most:.0%} may be. {cause}"
            )
        declared = implementation.left_out.get(op, implementation.left_out.get("*"))
        if left_out > LEFT_OUT_MOST * record.cases and declared is None:
            found.append(
                f"{op}: {name} leaves out {left_out} of {record.cases} calls; more than {LEFT_OUT_MOST:.0%} has to be "
                f"declared in conformance_left_out"
            )
    return found


def _verdicts(record: Record) -> int:
    return record.passed + record.failed + record.deviated
