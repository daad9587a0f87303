"""Search for sequences that fail, replay them from files, and shrink them to the few calls that it takes.

Each attempt of the shrinking has a fresh process: what an earlier one left there must not decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from conformance import (
    cases,
    code_counts,
    corpus,
    failure_causes,
    messages,
    runner,
    sequence_draws,
    sequence_judge,
    sequences,
)
from conformance import spec as specs
from conformance.cases import Case
from conformance.failure_causes import Failed
from conformance.profiles import PROFILES
from conformance.runner import TIMEOUT, Verdict
from conformance.search_state import FATAL, Report
from conformance.sequences import CallSequence, Settings, Step
from conformance.session import Run

SHARE = 20
"""One sequence is drawn for so many cases of one dtype."""
COUNTED, COUNTED_OF_DEAR = 48, 8
"""So many calls are made a few times each to see what the code counts; so many on a GPU or of interpreted kernels."""
COUNTED_ELEMENTS = 1 << 12
"""The most elements that they have."""
ATTEMPTS = 60
"""The most fresh processes that the shrinking of one sequence may take."""
FEW = 12
"""The most that it may take where calls end the process."""


def search(run: Run, op: str) -> Report:
    """Draw sequences of calls of an op; shrink and save the first that fails."""
    report, played = Report(), list[CallSequence]()
    if run.implementation.function(op) is None:
        report.skipped = f"not provided by {run.implementation.name}: {op}"
        return report
    dtypes = [dtype for dtype in specs.registry()[op].dtypes if dtype in run.dtypes]
    drawn = sequence_draws.drawn(op, dtypes, -(-run.settings.max_examples // SHARE), run.seed, run.numbers(op))
    for sequence in itertools.chain(drawn, _counted(run, op, played)):
        # What is counted begins anew.
        verdict = play(run, sequence, fresh=len(sequence.steps) == 1)
        if verdict.failure:
            report.failed.append(_reported(run, report, played, sequence, verdict))
            break
        report.tally.add(sequence.steps[0].case, verdict, alone=False)
        played.append(sequence)
    return report


def _counted(run: Run, op: str, played: Sequence[CallSequence]) -> Iterator[CallSequence]:
    """Yield calls of earlier sequences, as often as the code counts them. ``played``: by then it has those."""
    if run.settings.max_examples < PROFILES["ci"].max_examples:
        return
    each = (step.case for sequence in played for step in sequence.steps)
    known = {_kind(case): case for case in each if case.op == op and 0 < cases.elements(case) <= COUNTED_ELEMENTS}
    starts = [*known.values()][: COUNTED_OF_DEAR if run.is_dear else COUNTED]
    if run.child is not None:
        counted = run.child.count(starts)
    else:
        counted = code_counts.counted(starts, run.implementation, run.device)
    for case, times in counted:
        yield CallSequence(steps=(Step(case, times=times),))


def _kind(case: Case) -> tuple[object, ...]:
    """Return what most counters of calls go by."""
    operands = cases.operands(case)
    return (
        case.form,
        tuple(spec.dtype for spec in operands),
        max((spec.shape for spec in operands), key=len, default=()),
    )


def replay(run: Run, sequence: CallSequence, path: Path) -> Report:
    """Judge a sequence that was read from a file, in a fresh process."""
    report, verdict = Report(), play(run, sequence, fresh=True)
    report.tally.add(sequence.steps[0].case, verdict, alone=False)
    if verdict.failure:
        report.failed.append(_saved(run, sequence, verdict, "", path))
    elif verdict.status == runner.NOT_PROVIDED:
        report.skipped = f"not provided by {run.implementation.name}: {', '.join(sequence.ops)}"
    elif verdict.status == runner.OUT_OF_MEMORY:
        report.skipped = f"not judged: torch itself ran out of memory for this sequence of {sequence.ops[0]}"
    return report


def play(run: Run, sequence: CallSequence, *, fresh: bool = False) -> Verdict:
    """Judge one sequence. ``fresh``: in a process that has judged nothing else, where there are others."""
    if run.child is None:
        return sequence_judge.judge(sequence, run.implementation, run.device)
    if fresh:
        run.child.close()
    return run.child.play(sequence)


class Shrinking:
    """The smallest sequence that still fails, found in a limited number of attempts."""

    def __init__(self, run: Run, sequence: CallSequence, verdict: Verdict) -> None:
        self.run, self.best, self.verdict = run, sequence, verdict
        self.tried: set[str] = set()
        self.attempts = ATTEMPTS

    def fails(self, steps: Iterable[Step]) -> bool:
        """Tell whether these steps fail in a fresh process; then they are the best so far."""
        found = tuple(steps)
        if not found or sum(step.times for step in found) > sequences.MAX_CALLS or len(self.tried) >= self.attempts:
            return False
        sequence = CallSequence(steps=found)
        if (identity := sequences.sequence_id(sequence)) in self.tried:
            return False
        self.tried.add(identity)
        verdict = play(self.run, sequence, fresh=True)
        if not verdict.failure:
            return False
        self.best, self.verdict = sequence, verdict
        return True

    def shrink(self, before: Iterable[CallSequence]) -> str:
        """Shrink the sequence; return a note about it. ``before``: the sequences that its process had judged."""
        if self.verdict.failure and self.verdict.failure.check in FATAL:
            if self._alone() or self.verdict.failure.check == TIMEOUT:
                return ""
            self.attempts = FEW
        history = (step for sequence in (*before, self.best) for step in sequence.steps)
        if not self.fails(self.best.steps) and not self.fails(history):
            return "in a fresh process it passes: what was judged before it may be the cause"
        self._cut()
        self._without()
        self._simpler()
        return ""

    def _alone(self) -> bool:
        """Tell whether one of the calls ends or hangs its process by itself; then it is the best."""
        for step in self.best.steps:
            verdict = self.run.judge(step.case, thorough=False)
            if verdict.failure and verdict.failure.check in FATAL:
                self.best, self.verdict = CallSequence(steps=(Step(step.case),)), verdict
                return True
        return False

    def _cut(self) -> None:
        """Try the step that failed alone, and then with all before it."""
        failure = self.verdict.failure
        if failure and failure.index:
            last = failure.index[0]
            steps = self.best.steps
            if not self.fails(steps[last : last + 1]):
                self.fails(steps[: last + 1])

    def _without(self) -> None:
        """Leave out steps: half of them, a quarter, and so on to single ones."""
        size = len(self.best.steps) // 2
        while size:
            start = 0
            while start < len(self.best.steps):
                steps = self.best.steps
                if not self.fails((*steps[:start], *steps[start + size :])):
                    start += size
            size //= 2

    def _simpler(self) -> None:
        """Simplify each step."""
        for number in range(len(self.best.steps)):
            for simpler in _simpler(self.best.steps[number]):
                steps = self.best.steps
                changed = msgspec.structs.replace(steps[number], **simpler)
                if changed != steps[number]:
                    self.fails((*steps[:number], changed, *steps[number + 1 :]))
            # Fewer repetitions, as long as it fails.
            while (step := self.best.steps[number]).times > 2:
                fewer = msgspec.structs.replace(step, times=step.times - 1)
                if not self.fails((*self.best.steps[:number], fewer, *self.best.steps[number + 1 :])):
                    break


def _simpler(step: Step) -> Iterator[dict[str, object]]:
    yield {"settings": Settings()}
    yield {"times": 1}
    yield {"times": math.ceil(step.times / 2)}
    yield {"memory": "new"}
    if step.gradients:
        yield {"gradients": ""}
    else:
        yield {"result": "dropped"}


def _reported(run: Run, report: Report, played: list[CallSequence], sequence: CallSequence, verdict: Verdict) -> Failed:
    shrinking = Shrinking(run, sequence, verdict)
    note = shrinking.shrink(played)
    sequence, verdict = shrinking.best, shrinking.verdict
    report.tally.add(sequence.steps[0].case, verdict, alone=False)
    (first, *others), case = sequence.steps, sequence.steps[0].case
    if not others and first == Step(case, result=first.result):
        # One call alone is a case.
        alone = verdict if verdict.failure and verdict.failure.check in FATAL else run.judge(case)
        if alone.failure:
            return run.save(case, alone)
    return _saved(run, sequence, verdict, note)


def _saved(run: Run, sequence: CallSequence, verdict: Verdict, note: str, replayed: Path | None = None) -> Failed:
    """Save a sequence, unless it was replayed from a file, and return the message about it."""
    check = verdict.failure.check if verdict.failure else "nothing"
    about = f"{check} failed for {run.implementation.name} on {run.device}"
    where = "" if run.child is None else run.child.about.device_name
    path = replayed or corpus.keep_sequence(sequence, about, run.save_to)
    message = messages.sequence_failure(sequence, verdict, run.implementation.name, run.device, path, note, where)
    failing = verdict.failure.case if verdict.failure else None
    return failure_causes.of(failing or sequence.steps[0].case, verdict, message)
