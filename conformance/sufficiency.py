"""Whether a run judged enough for a verdict: what was not judged is never passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conformance.implementations import Implementation
from conformance.metrics import Record

REFUSED_MOST = 0.05
"""Of the calls of an op that are drawn as legal ones, the share that torch may refuse. torch 2.13 refuses none."""
LEFT_OUT_MOST = 0.5
"""Of the calls of an op, the share that an implementation may leave out without a declaration."""


def complaints(
    records: Iterable[Record], implementation: Implementation, asked: Sequence[str] = (), others: int = 0
) -> list[str]:
    """Say why a run is no verdict, a line for each reason; none where it is one.

    ``records``: one for each op. ``asked``: the ops that were named. ``others``: tests of ops as a whole,
    which were made.
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
        if refused is not None and refused.count > max(1, REFUSED_MOST * record.legal):
            found.append(
                f"{op}: torch refuses {refused.count} of {record.legal} calls that were drawn as legal ones; "
                f"at most {REFUSED_MOST:.0%} may be. What {name} does to torch may be the cause"
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
