"""Run the suite's sequences on many implementations of one op at once, drawn and prepared once for all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from conformance import profiles, sequence_draws, sequence_judge
from conformance import spec as specs
from conformance.cases import Case
from conformance.selftest.controls import controls
from conformance.selftest.defect_registry import Defect
from conformance.selftest.search import CPU, Control, Result, result, right
from conformance.sequence_search import SHARE

EXAMPLES = -(-profiles.PROFILES["ci"].max_examples // SHARE)


def study(
    op: str,
    defects: Sequence[Defect],
    tallies: Sequence[Control] = (),
    *,
    examples: int = EXAMPLES,
    controlled: int = 0,
    seed: int = 0,
    note: Callable[[str, Case, int], object] = lambda name, case, examples: None,
) -> list[Result]:
    """Judge every defect of an op on the sequences of the suite until one fails, each time with nothing kept, and count
    what the controls of ``tallies`` do in so many calls.

    A sequence in which the right implementation fails is no catch.
    """
    alive, results, count = {defect.name: defect for defect in defects}, [], 0
    known = {control.name: control for control in controls(op)} if tallies else {}
    with warnings.catch_warnings(action="ignore"):
        calls = 0
        for sequence in sequence_draws.drawn(op, specs.registry()[op].dtypes, examples, seed):
            if not alive and calls >= controlled:
                break
            count += 1
            case = sequence.steps[0].case
            made = sequence_judge.prepare(sequence, CPU)
            for tally in tallies if calls < controlled else ():
                note(tally.name, case, count)
                verdict = sequence_judge.judge_prepared(sequence, made, known[tally.name])
                tally.sequences += 1
                if verdict.failure:
                    tally.alarms += 1
                    tally.case = tally.case or verdict.failure.case
                    tally.message = tally.message or f"{verdict.failure.check}: {verdict.failure.message}"
            calls += len(made)
            if not alive:
                continue
            note(right(op).name, case, count)
            if sequence_judge.judge_prepared(sequence, made, right(op)).failure:
                continue
            for defect in list(alive.values()):
                note(defect.name, case, count)
                failure = sequence_judge.judge_prepared(sequence, made, defect.anew().implementation).failure
                if failure:
                    del alive[defect.name]
                    results.append(result(defect, count, set(), failure.case or case, failure.check))
    return results + [result(defect, count, set()) for defect in alive.values()]
