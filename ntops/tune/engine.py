"""Measuring the configurations of kernels: against one of them, in turn, as the benchmarks do; each kept at once."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ntops import timing
from ntops.host import choice, store
from ntops.tune.progress import shown
from ntops.tune.result import Measured, Result

INTERPRETER = "interpreter"
"""What stands for the GPU model under the interpreter. Nothing reads what is measured there, but to continue."""
GROUP = 4
"""Configurations that are timed together, and with the reference. An interruption loses one group at most."""
SECONDS = 0.02
ROUNDS = (10, 60)
Options = Mapping[str, Any]
Inputs = Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]


class WrongResult(Exception):
    """A configuration computed something else than it should have. ``args``: its place in the group, and what."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A kernel and a problem: what is to be measured.

    :param kernel: The kernel's name.
    :param kind: What else than sizes must be equal for a configuration to count, as JSON has it.
    :param sizes: By name; what is measured counts for its size class.
    :param candidates: The configurations; the first is the reference.
    :param inputs: Makes several sets of arguments.
    :param function: The function with a configuration, which takes these arguments and returns tensors.
    :param check: ``check(result, args, kwargs)`` raises an AssertionError if the result is wrong.
    :param pruned: How many configurations were left out before.
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
        """Where its configurations are looked for."""
        return store.identity(self.kernel, self.kind), store.size_class(self.sizes)


def device_name(index: int = 0) -> str:
    """The GPU model, or ``interpreter``."""
    return choice.gpu(index) or INTERPRETER


def run(
    works: Sequence[Work],
    *,
    device: str,
    deadline: float = math.inf,
    again: bool = False,
    timer: Callable[..., Any] = timing.interleaved,
    usable: Callable[[Work, Options], str | None] = lambda work, options: "",
) -> list[Result]:
    """Measure what has not been measured yet, and return what is known of each work: nothing of those without any.

    All works get their first configurations before any gets more, so that a short budget serves them all.

    :param device: From :func:`device_name`.
    :param deadline: Of ``time.monotonic()``; nothing is begun after it.
    :param again: Whether to measure what was measured before.
    :param timer: What times functions in turn, with the parameters of :func:`ntops.timing.interleaved`.
    :param usable: Says of a configuration why it does not work, or with an empty string that it does; ``None``: leave
        it for another time.
    """
    known = {} if again else _known(device)
    todo = missing(works, device, again=again)

    with shown(f"{device}: measuring", sum(map(len, todo))) as step:
        for work, group in _groups(works, todo):
            if time.monotonic() > deadline:
                break

            for record in _measure(work, group, timer, usable):
                known[work.place, _text(record.options)] = record
                store.append(device, record)

            for one in group:
                step(f"{work.kernel} {'x'.join(map(str, work.sizes.values()))} {'x'.join(map(str, one.values()))}")

    choice.forget()
    return [found for work in works if (found := result(work, device, known)) is not None]


def table(
    works: Sequence[Work],
    *,
    device: str,
    deadline: float = math.inf,
    timer: Callable[..., Any] = timing.interleaved,
) -> list[store.Record]:
    """What to ship: the best configuration of each work that was measured.

    The fastest of many may have been lucky. One that is not the first candidate, the rule's choice, is timed once more
    with it, and counts as it comes out then; those for which there is no time are left out. So is what was timed by the
    host's clock, where events did not see all the work.
    """
    confirmed: set[Any] = set()

    while True:
        known = store.grouped(store.read(device))
        certain, doubtful = [], []

        for work in works:
            best = store.fastest([one for one in known.get(work.place, ()) if one.clock == "events"])
            rule = work.candidates[0]

            if best is None:
                continue

            if _text(best.options) == _text(rule) or (work.place, _text(best.options)) in confirmed:
                certain.append(best)
            else:
                doubtful.append(dataclasses.replace(work, candidates=[rule, best.options]))

        if not doubtful or time.monotonic() > deadline:
            return certain

        # One by one, so that what is timed is known when the time is over.
        for work in doubtful:
            if time.monotonic() <= deadline:
                run([work], device=device, again=True, timer=timer)
                confirmed.add((work.place, _text(work.candidates[1])))


def missing(works: Sequence[Work], device: str, *, again: bool = False) -> list[list[Options]]:
    """The candidates of each work that have not been measured; all of them, ``again``."""
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
    places = store.grouped(store.read(device))
    return {(place, _text(record.options)): record for place, records in places.items() for record in records}


def _measure(work: Work, group: Sequence[Options], timer: Any, usable: Any) -> list[store.Record]:
    """The records of a group of configurations, timed with the reference."""
    records, working = [], []
    reference = work.candidates[0]
    inputs = work.inputs()

    def record(options: Options, **fields: Any) -> store.Record:
        is_reference = _text(options) == _text(reference)
        return store.Record(
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
        # The reference comes first where it is not in the group itself.
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
    """Why a configuration cannot run; empty if it can. What a kernel leaves broken on the device is raised later."""
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
    """New contents for tensors of floats; integers, which may be places in others, and 8-bit floats stay."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dtype.itemsize > 1:
            value.normal_()


def result(work: Work, device: str, known: Mapping[Any, store.Record]) -> Result | None:
    """What is known of a work, or ``None``."""
    records = [known[key] for one in work.candidates if (key := (work.place, _text(one))) in known]
    best = store.fastest(records)

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
