"""Measure the configurations of kernels against a reference, in turn, as the benchmarks do; keep each result at
once."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ntops import timing
from ntops.launch import config_selection, tuned_tables
from ntops.tune.progress import shown
from ntops.tune.result import Measured, Result

INTERPRETER = "interpreter"
"""The name that stands for the GPU model under the interpreter. Its measurements only serve to continue a run."""
GROUP = 4
"""The number of configurations that are timed together with the reference. An interruption loses at most one group."""
SECONDS = 0.02
ROUNDS = (10, 60)
Options = Mapping[str, Any]
Inputs = Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]


class WrongResult(Exception):
    """A configuration computed a wrong result. ``args`` has its place in the group, and the error."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A kernel and a problem to be measured.

    :param kernel: The kernel's name.
    :param kind: The properties other than sizes that must be equal for a configuration to count, as JSON values.
    :param sizes: The sizes by name; a measurement counts for its size class.
    :param candidates: The configurations; the first is the reference.
    :param inputs: Returns several sets of arguments.
    :param function: Returns, for a configuration, the function that takes these arguments and returns tensors.
    :param check: ``check(result, args, kwargs)`` raises an AssertionError if the result is wrong.
    :param pruned: The number of configurations left out before.
    """

    kernel: str
    kind: Mapping[str, Any]
    sizes: Mapping[str, int]
    candidates: Sequence[Options]
    inputs: Callable[[], Inputs]
    function: Callable[[Options], Callable[..., Any]]
    check: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None] = lambda *ignored: None
    pruned: int = 0
    bytes: int = 0
    flops: int = 0

    @property
    def place(self) -> tuple[str, tuple[int, ...]]:
        """The key under which its configurations are looked up."""
        return tuned_tables.identity(self.kernel, self.kind), tuned_tables.size_class(self.sizes)


def device_name(index: int = 0) -> str:
    """Return the GPU model, or ``interpreter``."""
    return config_selection.gpu(index) or INTERPRETER


def run(
    works: Sequence[Work],
    *,
    device: str,
    deadline: float = math.inf,
    again: bool = False,
    timer: Callable[..., Any] = timing.interleaved,
    usable: Callable[[Work, Options], str | None] = lambda work, options: "",
) -> list[Result]:
    """Measure missing configurations, and return the result of each work that has measurements.

    All works get their first configurations before any gets more, so that a short budget serves them all.

    :param device: A name from :func:`device_name`.
    :param deadline: A time of ``time.monotonic()`` after which nothing is begun.
    :param again: Whether to repeat earlier measurements.
    :param timer: A function with the parameters of :func:`ntops.timing.interleaved` that times functions in turn.
    :param usable: Returns why a configuration does not work, or an empty string if it works, or ``None`` to leave it
        for another time.
    """
    known = {} if again else _known(device)
    todo = missing(works, device, again=again)

    with shown(f"{device}: measuring", sum(map(len, todo))) as step:
        for work, group in _groups(works, todo):
            if time.monotonic() > deadline:
                break

            for record in _measure(work, group, timer, usable):
                known[work.place, _text(record.options)] = record
                tuned_tables.append(device, record)

            for one in group:
                step(f"{work.kernel} {'x'.join(map(str, work.sizes.values()))} {'x'.join(map(str, one.values()))}")

    config_selection.forget()
    return [found for work in works if (found := result(work, device, known)) is not None]


def table(
    works: Sequence[Work],
    *,
    device: str,
    deadline: float = math.inf,
    timer: Callable[..., Any] = timing.interleaved,
) -> list[tuned_tables.Record]:
    """Return the table to ship: the best configuration of each measured work.

    The fastest of many may have been lucky. So a best configuration other than the first candidate, the rule's choice,
    is timed against it once more, and the new result counts; those for which no time is left are omitted. Measurements
    by the host's clock, which is used if events did not see all the work, are omitted, too.
    """
    confirmed: set[Any] = set()

    while True:
        known = tuned_tables.grouped(tuned_tables.read(device))
        certain, doubtful = [], []

        for work in works:
            best = tuned_tables.fastest([one for one in known.get(work.place, ()) if one.clock == "events"])
            rule = work.candidates[0]

            if best is None:
                continue

            if _text(best.options) == _text(rule) or (work.place, _text(best.options)) in confirmed:
                certain.append(best)
            else:
                doubtful.append(dataclasses.replace(work, candidates=[rule, best.options]))

        if not doubtful or time.monotonic() > deadline:
            return certain

        # Measure one by one, so that the results so far are known when time is up.
        for work in doubtful:
            if time.monotonic() <= deadline:
                run([work], device=device, again=True, timer=timer)
                confirmed.add((work.place, _text(work.candidates[1])))


def missing(works: Sequence[Work], device: str, *, again: bool = False) -> list[list[Options]]:
    """Return the candidates of each work that have not been measured, or all of them with ``again``."""
    known = {} if again else _known(device)
    return [[one for one in work.candidates if (work.place, _text(one)) not in known] for work in works]


def _groups(works, todo):
    for first in range(0, max(map(len, todo), default=0), GROUP):
        for work, options in zip(works, todo, strict=True):
            if group := options[first : first + GROUP]:
                yield work, group


def _text(options):
    return json.dumps(dict(options), sort_keys=True)


def _known(device):
    places = tuned_tables.grouped(tuned_tables.read(device))
    return {(place, _text(record.options)): record for place, records in places.items() for record in records}


def _measure(work: Work, group: Sequence[Options], timer: Any, usable: Any) -> list[tuned_tables.Record]:
    """Return the records of a group of configurations, timed with the reference."""
    records, working = [], []
    reference = work.candidates[0]
    inputs = work.inputs()

    def record(options: Options, **fields: Any) -> tuned_tables.Record:
        is_reference = _text(options) == _text(reference)
        return tuned_tables.Record(
            work.kernel, dict(work.kind), dict(work.sizes), dict(options), reference=is_reference, **fields
        )

    for options in group:
        error = usable(work, options)

        if error == "":
            error = _trial(work, options, inputs)

        if error:
            records.append(record(options, error=error))
        elif error is not None:
            working.append(options)

    while working:
        # The reference comes first unless it is in the group itself.
        timed = list({_text(one): one for one in (reference, *working)}.values())
        functions = {str(number): work.function(one) for number, one in enumerate(timed)}

        try:
            times = timer(functions, inputs, refresh, _checker(work), seconds=SECONDS, rounds=ROUNDS)
        except WrongResult as wrong:
            name, why = wrong.args
            options = timed[int(name)]

            if _text(options) == _text(reference):
                raise AssertionError(f"{work.kernel} {dict(work.sizes)} is wrong as it is: {why}") from None

            records.append(record(options, error=f"wrong result: {why}"))
            working.remove(options)
            continue

        base = times["0"].seconds

        for number, options in enumerate(timed):
            if options in working:
                found = times[str(number)]
                paired = len(found.seconds) == len(base)
                share = 1 / timing.ratio(found.seconds, base)[0] if paired else found.median / times["0"].median
                records.append(record(options, seconds=found.median, share=share, clock=found.clock))

        break

    return records


def _trial(work, options, inputs):
    """Return why a configuration cannot run; empty if it can. Errors that a kernel leaves on the device are raised
    later."""
    args, kwargs = inputs[0]

    try:
        work.function(options)(*args, **kwargs)
        return ""
    except Exception as error:  # noqa: BLE001  (compilers and drivers raise what they like)
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]


def _checker(work):
    def check(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            work.check(value, args, kwargs)
        except AssertionError as error:
            raise WrongResult(name, str(error).strip().partition("\n")[0]) from None

    return check


def refresh(args: Collection[Any], kwargs: Mapping[str, Any]) -> None:
    """Write new contents to float tensors. Integers, which may be indices, and 8-bit floats stay."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dtype.itemsize > 1:
            value.normal_()


def result(work: Work, device: str, known: Mapping[Any, tuned_tables.Record]) -> Result | None:
    """Return the result of a work, or ``None``."""
    records = [known[key] for one in work.candidates if (key := (work.place, _text(one))) in known]
    best = tuned_tables.fastest(records)

    if best is None:
        return None

    measured = {
        id(one): Measured(one.options, one.seconds, 0 if one.error else 1 / one.share, one.error) for one in records
    }
    ordered = sorted(measured.values(), key=lambda one: -one.speedup)
    return Result(
        kernel=work.kernel,
        sizes=work.sizes,
        device=device,
        clock=best.clock,
        best=measured[id(best)],
        measured=tuple(ordered),
        pruned=work.pruned,
        missing=len(work.candidates) - len(records),
        bytes=work.bytes,
        flops=work.flops,
    )
