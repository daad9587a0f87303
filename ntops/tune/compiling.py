"""Compile kernels before they are timed, in several processes, which leave them in Triton's cache on disk.

A kernel that makes the compiler fail, crash or hang, or that breaks the GPU's context, does so in a process of its own.
"""

import dataclasses
import json
import math
import multiprocessing
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection as connections
from typing import Any

import torch

from ntops.tune.engine import Options, Work
from ntops.tune.operators import Task
from ntops.tune.progress import shown

DIED = "the process that compiled it died"


@dataclasses.dataclass(frozen=True)
class _Job:
    """Calls that share one kernel, which is the same for most sizes, and for any number of splits."""

    name: str
    calls: tuple[tuple[int, str], ...]
    """For each call, the number of its task, and its options."""


class Compiled:
    """The result of compiling kernels; :meth:`usable` is for ``engine.run``."""

    def __init__(self, works: Sequence[Work], errors: Mapping[tuple[int, str], str | None]) -> None:
        self._numbers = {id(work): number for number, work in enumerate(works)}
        self._errors = errors

    def usable(self, work: Work, options: Options) -> str | None:
        return self._errors.get((self._numbers[id(work)], _text(options)))


def compile_all(
    tasks: Sequence[Task],
    works: Sequence[Work],
    wanted: Sequence[Sequence[Options]],
    *,
    processes: int,
    deadline: float = math.inf,
) -> Compiled:
    """Compile kernels, the most promising first.

    :param tasks: The tasks of the works, in their order.
    :param wanted: The candidates of each work to compile.
    :param processes: The number of processes that compile at a time.
    :param deadline: A time of ``time.monotonic()`` after which nothing more is compiled.
    """
    ranks: dict[str, int] = {}
    calls: dict[str, list[tuple[int, str]]] = {}

    for number, (task, candidates) in enumerate(zip(tasks, wanted, strict=True)):
        for rank, options in enumerate(candidates):
            name = f"{task.op} {_text({key: value for key, value in options.items() if key != 'splits'})}"
            ranks[name] = min(rank, ranks.get(name, rank))
            calls.setdefault(name, []).append((number, _text(options)))

    jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    for name in sorted(ranks, key=ranks.__getitem__):
        jobs.put(_Job(name, tuple(calls[name])))

    errors: dict[tuple[int, str], str | None] = {}

    with shown("compiling", len(ranks)) as step:
        threads = [
            threading.Thread(target=_feed, args=(jobs, tuple(tasks), deadline, errors, step))
            for _ in range(min(processes, len(ranks)))
        ]

        for thread in threads:
            thread.start()

        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            while not jobs.empty():
                jobs.get_nowait()

            raise

    return Compiled(works, errors)


def _text(options):
    return json.dumps(dict(options), sort_keys=True)


def _feed(jobs, tasks, deadline, errors, step):
    """Give jobs to one process, and to a new one if it dies, until no job is left or the deadline passes."""
    process: Any = None
    connection: Any = None

    while time.monotonic() < deadline:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            break

        if process is None:
            process, connection = _started()

        found = {}

        try:
            connection.send([(tasks[number], options) for number, options in job.calls])
            left = None if deadline == math.inf else max(deadline - time.monotonic(), 0)
            ready = connections.wait([connection, process.sentinel], left)

            if not ready:
                break

            if connection not in ready:
                raise EOFError

            found = dict(zip(job.calls, connection.recv(), strict=True))
        except (EOFError, OSError):
            process.join()
            process = None
            found = dict.fromkeys(job.calls, DIED)

        errors.update(found)
        step(job.name)

    if process is not None:
        process.kill()
        process.join()


def _started():
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=_serve, args=(other,), daemon=True)
    process.start()
    other.close()

    return process, connection


def _serve(connection: Any) -> None:
    """Run incoming calls, and answer each with the reason why it failed, or with an empty string."""
    torch.set_num_threads(1)
    is_broken = False

    while not is_broken:
        answers = []

        for task, options in connection.recv():
            answers.append(answers[-1] if is_broken else _run(task, json.loads(options)))

            try:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
            except RuntimeError as error:
                # Nothing works in this process from now on.
                answers[-1] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200]
                is_broken = True

        connection.send(answers)


def _run(task, options):
    """Return why the operator does not run with the options, an empty string if it does; ``None`` if that is
    unknown."""
    try:
        args, kwargs = task.inputs(torch.empty)
        kernel, problem = task.asked(args, kwargs)
        task.forced(kernel, problem.OPTIONS(**options))(*args, **kwargs)
        return ""
    except torch.OutOfMemoryError:
        # Out of GPU memory, which other processes use, too.
        return None
    except Exception as error:  # noqa: BLE001  (compilers and drivers raise what they like)
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]
