"""Choose another call of the same operands: what a library keeps by operands alone, it mistakes there."""

from __future__ import annotations

import msgspec

from conformance import cases, sequence_variations
from conformance.cases import Case
from conformance.spec import registry

_OPTIONS = (
    *(sequence_variations.dim, sequence_variations.word, sequence_variations.from_end),
    *(sequence_variations.without, sequence_variations.causal, sequence_variations.close),
)


def other_options(case: Case, number: int) -> Case | None:
    """Return the call with another dim, word or number, or without one; None: there is none of the same operands."""
    plain = msgspec.structs.replace(case, form="")
    start = number % len(_OPTIONS)
    for change in (*_OPTIONS[start:], *_OPTIONS[:start]):
        varied = sequence_variations.vary(change, plain, number)
        same = cases.operands(varied) == cases.operands(plain)
        if same and varied != plain and not registry()[case.op].writes(varied):
            return varied
    return None
