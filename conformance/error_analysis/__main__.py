"""``python -m conformance.error_analysis``: derived bounds against those of the OpSpecs, operator by operator."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from conformance import authoring, bound_power, cases, deviations, drawing, environment, float_formats, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.compare import compare
from conformance.error_analysis import NoRule
from conformance.error_analysis.functions import least
from conformance.names import unknown_name
from conformance.profiles import PROFILES, rounds
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names

MEDIAN_MOST, WORST_MOST = 4.0, 20.0
"""The largest ratios of the derived bound to the other one: of the median, and of 999 of 1000 elements."""


class Row(NamedTuple):
    """The comparison of one op and dtype. Ratios are of all that is allowed an element, half an ulp among it."""

    op: str
    dtype: str
    elements: int = 0
    median: float = 0.0
    worst: float = 0.0
    """The ratio that 999 of 1000 elements do not exceed."""
    largest: float = 0.0
    judged: float = 0.0
    """The share that the derived bound judges of the elements that the OpSpec judges."""
    torch: float = 0.0
    """The largest share of the derived bound that torch uses, where torch is within the OpSpec's."""
    zeros: float | None = None
    """As ``bound_power.Power.zeros``, by derived bounds."""
    note: str = ""


def rows(ops: Sequence[str], examples: int, seed: int) -> Iterator[Row]:
    """Yield a row for each op and floating-point dtype."""
    for op in ops:
        spec = specs.registry()[op]
        for dtype in spec.dtypes:
            if dtype in dtype_names.FLOATING:
                yield row(spec, dtype, examples, seed)


def row(spec: OpSpec, dtype: str, examples: int, seed: int) -> Row:
    """Compare the bounds on the legal cases of a search."""
    ratios: list[np.ndarray] = []
    judged, kept, share, exact = 0, 0, 0.0, False
    try:
        for case in _drawn(spec.name, dtype, examples, seed):
            for hand, derived, theirs in _answers(spec, case):
                mask = _finite(hand)
                judged += int(mask.sum())
                if hand.bound is None or derived.bound is None:
                    exact = True
                    kept += int((mask & _judged(derived)).sum())
                    continue
                mask &= _judged(derived)
                kept += int(mask.sum())
                ours, others = (_allowed(one, theirs.dtype)[mask.numpy()] for one in (derived, hand))
                some = np.isfinite(ours) & np.isfinite(others) & (others > 0)
                # One step of the smallest numbers is not twice as good as two.
                ours, others = (np.maximum(one[some], least(theirs.dtype)) for one in (ours, others))
                ratios.append(ours / others)
                if compare(theirs, hand).passed and not deviations.named_deviation(case, "values", "cpu"):
                    both = derived.judged if hand.judged is None else _judged(derived) & hand.judged
                    share = max(share, compare(theirs, dataclasses.replace(derived, judged=both)).share)
        found = np.concatenate(ratios) if ratios else np.ones(0)
        if not found.size:
            return Row(spec.name, dtype, judged, note="exact" if exact else "nothing to compare")
        case = bound_power.normal(spec.name, dtype)
        of_zeros = None if case is None else bound_power.judged(case, dtype, authoring.derived(spec.reference))
    except NoRule as error:
        return Row(spec.name, dtype, note=str(error).partition(": ")[2].partition(" (")[0])
    middle, most = np.quantile(found, (0.5, 0.999))
    numbers = (float(middle), float(most), float(found.max()), kept / max(judged, 1), share)
    return Row(spec.name, dtype, found.size, *numbers, None if of_zeros is None else of_zeros.zeros)


def _drawn(op: str, dtype: str, examples: int, seed: int) -> Iterator[Case]:
    settings = PROFILES["smoke"]

    for one in rounds(op, dtype, False, (dtype,), settings, seed):
        if one.kind == "legal" and one.start < examples:
            yield from drawing.drawn(one.draws, one.seed, min(one.examples, examples))


def _answers(spec: OpSpec, case: Case) -> Iterator[tuple[Expected, Expected, torch.Tensor]]:
    """Yield the answers of the OpSpec and of the analysis to a call without ``out``, and torch's own."""
    kwargs = {name: value for name, value in case.kwargs.items() if name != "out"}
    case = msgspec.structs.replace(case, kwargs=kwargs, digests=())
    try:
        prepared = runner.prepare(case, "cpu")
    except ValueError:
        # An argument was a view of ``out``.
        return
    if prepared.refusal is not None or spec.writes(case):
        return
    with np.errstate(all="ignore"):
        hand = spec.expected(prepared.call)
    derived = authoring.derived(spec.reference)(Call(*cases.materialize(case)[:2], None))
    answers = [one if isinstance(one, tuple) else (one,) for one in (hand, derived)]
    yield from zip(*answers, prepared.reference.tensors(), strict=True)


def _finite(expected: Expected) -> torch.Tensor:
    value = expected.value
    finite = value.double().isfinite()
    return finite if expected.judged is None else finite & expected.judged.broadcast_to(value.shape)


def _judged(expected: Expected) -> torch.Tensor:
    assert expected.judged is not None
    return expected.judged.broadcast_to(expected.value.shape)


def _allowed(expected: Expected, dtype: torch.dtype) -> np.ndarray:
    assert expected.bound is not None
    value = expected.value.numpy()
    return float_formats.ulp(value, dtype) / 2 + expected.bound.broadcast_to(expected.value.shape).numpy()


BEGIN, END = "<!-- python -m conformance.error_analysis -->", "<!-- end -->"
"""The marks of a page that enclose the table."""


def page(text: str, found: Sequence[Row], about: str) -> str:
    """Return the page with this table. Raises ValueError where it has no marks."""
    before, middle, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    if not middle or END not in rest:
        raise ValueError(f"no {BEGIN} and {END} in it")
    exact = sorted({one.op for one in found if one.note == "exact"})
    lines = [about, "", *table([one for one in found if one.note != "exact"])]
    lines += ["", f"Exact by both: {', '.join(f'`{op}`' for op in exact)}."] if exact else []
    return "\n".join((before + BEGIN, "", *lines, "", END)) + after


def table(found: Sequence[Row]) -> list[str]:
    """Return the rows in Markdown."""
    lines = [
        "| op | dtype | elements | median | 99.9% | worst | judged | torch's share | zeros pass |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        if one.note:
            lines.append(f"| {one.op} | {one.dtype} | {one.note} | | | | | | |")
            continue
        zeros = "" if one.zeros is None else f"{one.zeros:.2%}"
        numbers = f"{one.median:.2f} | {one.worst:.2f} | {one.largest:.2f} | {one.judged:.2%} | {one.torch:.3f}"
        lines.append(f"| {one.op} | {one.dtype} | {one.elements} | {numbers} | {zeros} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the bounds; return 1, the exit status, where a derived bound is less than torch needs, or too large."""
    parser = argparse.ArgumentParser(prog="python -m conformance.error_analysis", description=__doc__)
    parser.add_argument("--op", action="append", metavar="NAME", help="this op only; repeatable")
    parser.add_argument("--examples", type=int, default=15, metavar="N", help="calls of each dtype (default: 15)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="put the table between the marks of this page")
    options = parser.parse_args(arguments)
    for op in options.op or ():
        if op not in specs.registry():
            parser.error(unknown_name("op", op, sorted(specs.registry())))
    found: list[Row] = []
    for one in rows(options.op or sorted(specs.registry()), options.examples, options.seed):
        found.append(one)
        print(table([one])[-1], flush=True)
    bad = [
        f"{one.op} ({one.dtype}): median {one.median:.2f}, 99.9% {one.worst:.2f}, torch's share {one.torch:.3f}"
        for one in found
        if one.median > MEDIAN_MOST or one.worst > WORST_MOST or one.torch > 1
    ]
    print("\n".join(bad))
    if options.write is not None:
        flags = "".join(f" --op {op}" for op in options.op or ())
        command = f"python -m conformance.error_analysis{flags} --examples {options.examples} --seed {options.seed}"
        about = f"`{command}`, {environment.line('torch', 'cpu')}:"
        options.write.write_text(page(options.write.read_text(), found, about))
        print(f"wrote {options.write}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
