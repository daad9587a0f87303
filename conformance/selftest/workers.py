"""Ops studied in processes of their own, any of which may die of what it judges."""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import msgspec

from conformance.cases import Case
from conformance.runner import CRASH
from conformance.selftest import defect_registry, search, sequence_runs
from conformance.selftest.search import Control, Result
from conformance.sequence_judge import SEQUENCE

Found = tuple[list[Result], list[Control]]


class Running(msgspec.Struct, frozen=True):
    """What a process is judging."""

    name: str
    """Of a defect or a control."""
    case: Case
    examples: int
    """Which case of the op it is."""


class Note:
    """A file that says what this process is judging, for those whom it leaves behind."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def __call__(self, name: str, case: Case, examples: int) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, msgspec.json.encode(Running(name, case, examples)), 0)

    def close(self) -> None:
        os.close(self._file)


def study(chosen: Mapping[str, Sequence[str]], controlled: int, seed: int, processes: int) -> Iterator[Found]:
    """``search.study_op`` of the defects of these names, by op, as each is done.

    What kills its process is caught if it is a defect, and a false alarm if it is a control; the others of its op are
    then judged in a fresh process.
    """
    # A pool for each process, since one that died breaks its pool with all that is in it.
    free: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()

    def fresh() -> ProcessPoolExecutor:
        # Spawned: torch's threads do not survive a fork.
        return ProcessPoolExecutor(1, get_context("spawn"))

    def one(op: str, names: Sequence[str], file: Path) -> Found:
        results: list[Result] = []
        tallies: list[Control] = []
        while True:
            pool = free.get()
            try:
                without = {one.name for one in (*results, *tallies)}
                rest = [name for name in names if name not in without]
                found = pool.submit(_study, op, rest, controlled, seed, file, without).result()
                return [*results, *found[0]], [*tallies, *found[1]]
            except BrokenProcessPool:
                pool = fresh()
                running = msgspec.json.decode(file.read_bytes() or b"null", type=Running | None)
                if running is None:
                    raise RuntimeError(f"the process that studies {op} died before it judged anything") from None
                if running.name in names:
                    defect = defect_registry.bank()[running.name]
                    results.append(search.result(defect, running.examples, set(), running.case, CRASH))
                elif running.name in without or running.name == search.right(op).name:
                    raise RuntimeError(f"the process that studies {op} died while it judged {running.name}") from None
                else:
                    message = f"{CRASH}: the process that judged it died"
                    tallies.append(
                        Control(running.name, op, running.examples, alarms=1, case=running.case, message=message)
                    )
            finally:
                free.put(pool)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as threads:
        for _ in range(processes):
            free.put(fresh())
        try:
            tasks = [threads.submit(one, op, names, Path(folder, op)) for op, names in chosen.items()]
            for task in as_completed(tasks):
                yield task.result()
        finally:
            threads.shutdown(cancel_futures=True)
            while not free.empty():
                free.get().shutdown()


def _study(op: str, names: Sequence[str], controlled: int, seed: int, file: Path, without: set[str]) -> Found:
    note = Note(file)
    try:
        alone = [name for name in names if defect_registry.bank()[name].check != SEQUENCE]
        results, tallies = search.study_op(op, alone, controlled, seed, note, without)
        lasting = [defect_registry.bank()[name] for name in names if name not in alone]
        return [
            *results,
            *sequence_runs.study(op, lasting, tallies, controlled=controlled, seed=seed, note=note),
        ], tallies
    finally:
        note.close()
