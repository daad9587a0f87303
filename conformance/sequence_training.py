"""Draw the steps of a sequence that are differentiated: as those of a model, whose layers differ in their sizes and
operators, and keep something for a backward pass that comes after all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from conformance import case_files, cases
from conformance.case_changes import is_listed, with_sizes
from conformance.cases import Case
from conformance.checks import gradient_kinds
from conformance.checks.gradients import has_gradients
from conformance.sequence_variations import VARIATIONS, in_batch, vary
from conformance.sequences import Gradients, Memory, Step
from conformance.spec import registry

LAYERS = 4
"""The calls of one shape, with contents of their own, that are differentiated in the order of the calls."""
PARTS = 2
"""The numbers of the code, the largest ones, of which a batch has two parts and one more element."""
Known = tuple[tuple[str, int, Gradients, Memory], ...]
FIRST: Known = (
    ("same", 0, "in reverse", "new"),
    # What is kept for one size, or in memory for the largest so far.
    *(("resized", number, ("in reverse", "in order")[number % 2], "new") for number in range(6)),
)
"""Variations of the first call, when they are differentiated, and where their operands lie."""
THEN: Known = (
    # What is kept for weights that are those of the step before, beside a batch of another size, and of others.
    *(("larger", number, "at once", "same") for number in (3, 1, 0, 2)),
    *(("contents", number, "at once", "same") for number in range(2)),
    # As a model is evaluated between steps.
    ("contents", 0, "", "new"),
    *(("regrouped", number, "in reverse", "new") for number in range(2)),
    *(("contents", number, "in order", "new") for number in range(3)),
)
"""Likewise, those after larger batches whose weights stay as they are, too."""


def is_trained(case: Case) -> bool:
    """Tell whether a call has gradients."""
    call = case_files.on_meta(case)
    return call is not None and has_gradients(case, call, call.result)


def steps(
    found: Sequence[Case], others: Sequence[Case], dtypes: Sequence[str], numbers: Sequence[int]
) -> Iterator[Step]:
    """Yield calls of the op of ``found`` that are differentiated, and between them calls of ``others``, of the same
    sizes as far as they can have them. Of ``found`` the first usual one that has gradients is varied. They are of
    float32 where ``dtypes`` has it: what is kept is seldom of one dtype, and torch's own gradients of narrower ones
    are off now and then. ``numbers``: those of the implementation's code, of which a batch may have several parts."""
    dtype = "float32" if "float32" in dtypes else None

    def ordinary(case: Case) -> Case:
        return vary(lambda one, _: gradient_kinds.ordinary(one, dtype), case, 0)

    able = [one for one in map(ordinary, found) if is_trained(one)]
    if not able:
        return
    first = max(able, key=is_usual)
    between = [one for one in (_like(ordinary(other), first) for other in others) if is_trained(one)]
    beyond = [vary(_batch_beyond, first, number) for number in sorted(numbers)[-PARTS:]]

    def varied(known: Known) -> Iterator[Step]:
        for name, number, when, memory in known:
            case = vary(VARIATIONS[name], first, number)
            yield Step(case, memory, gradients=when if is_trained(case) else "")
            # What is made again on the same tensors follows at once.
            if memory == "new" and between:
                yield Step(between.pop(), gradients="in reverse")

    yield from varied(FIRST)
    yield from (Step(case, "same", gradients="at once") for case in beyond if case != first)
    yield from varied(THEN)
    yield Step(first, gradients="in order", times=LAYERS)


def _batch_beyond(case: Case, number: int) -> Case:
    """Return the case with a batch of two parts of so many, and one more."""
    return case if registry()[case.op].batch(case) is None else in_batch(case, 2 * number + 1)


def is_usual(case: Case) -> bool:
    """Tell whether all operands have dims, and of several elements each, and not all of one size."""
    shapes = [spec.shape for spec in cases.operands(case)]
    return all(shape and min(shape) > 1 for shape in shapes) and len({size for shape in shapes for size in shape}) > 1


def _like(case: Case, first: Case) -> Case:
    """Return a call of another operator with the sizes of the largest operand of ``first`` in the place of those of its
    own, from the last one on; the call itself where it cannot have them, or has indices, which belong to its sizes."""
    if any(map(is_listed, cases.operands(case))):
        return case
    theirs, ours = (max((spec.shape for spec in cases.operands(one)), key=math.prod)[::-1] for one in (case, first))
    # Of a size that several dims have the last dim counts.
    wanted = dict(reversed([*zip(theirs, ours, strict=False)]))
    return vary(lambda one, _: with_sizes(one, wanted), case, 0)
