"""Select a call's configuration: a forced one, the nearest one measured on this GPU, or the choice of the family's
rule.

A family of kernels declares in a ``Problem`` what its configuration depends on, and beside it the rule, the space that
is worth measuring, and the resources of a configuration. ``ntops.tune`` measures; calls measure only if the user asks
for it (``max_num_configs``).
"""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, ClassVar

import torch

from ntops._runtime import INTERPRETED
from ntops.launch import autotuning, configuration, devices, recorder, tuned_tables

REGISTERS = 255
"""The most registers of a thread; ``REGISTER_FILE`` is the most of a program. Both are of NVIDIA's GPUs; AMD's have
more."""
REGISTER_FILE = 65536
_forced: dict[str, Any] = {}
_asking: list[bool] = []


@dataclasses.dataclass(frozen=True)
class Device:
    """The properties of a GPU that rules and spaces use."""

    shared_memory: int
    """The most shared memory of a program, in bytes."""
    multiprocessors: int
    hopper: bool = True
    """Whether it is an H100 or H200, on which the rules' figures were measured."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources of a configuration, estimated without compiling it."""

    shared_memory: int
    """Shared memory of a program, in bytes."""
    registers: int
    """Registers of a thread."""
    threads: int
    """Threads of a program."""

    def fit(self, device: Device) -> bool:
        """Tell whether the device has these resources, without spilling registers to memory."""
        registers = min(REGISTERS, REGISTER_FILE // self.threads)
        return self.shared_memory <= device.shared_memory and self.registers <= registers


class Problem:
    """The properties of a call that decide its configuration: a frozen dataclass of sizes, ``torch.dtype``, bools and
    ints."""

    __match_args__: ClassVar[tuple[str, ...]]
    """The names of the fields, which ``dataclass`` sets."""
    OPTIONS: ClassVar[type]
    """The class of the configurations, a frozen dataclass of positive ints, and of bools that are optional."""
    SIZES: ClassVar[tuple[str, ...]]
    """The fields that need not be equal: a measurement serves nearby sizes."""

    def rule(self, device: Device) -> Any:
        """Return the library's choice without measurements; a pure function."""
        raise NotImplementedError

    def space(self, device: Device) -> Sequence[Any]:
        """Return the configurations worth measuring, the most promising first; some may not fit."""
        raise NotImplementedError

    def exists(self, options: Any) -> bool:
        """Tell whether there is a kernel with these options: block sizes and warps are powers of two."""
        values = dataclasses.asdict(options).items()
        powers = [value for name, value in values if name.startswith("block") or name == "num_warps"]
        return all(value & (value - 1) == 0 for value in powers)

    def allows(self, options: Any) -> bool:
        """Tell whether the kernel is right with these options for these sizes."""
        return True

    def resembles(self, other: "Problem", options: Any) -> bool:
        """Tell whether the kernel treats these sizes like those of ``other``, for which the options were measured."""
        return True

    def resources(self, options: Any) -> Resources:
        """Estimate the resources of the options."""
        raise NotImplementedError

    def candidates(self, device: Device) -> list[Any]:
        """Return the rule's choice, then the configurations of the space that are allowed and fit, each once."""
        found = [self.rule(device), *self.space(device)]
        usable = [one for one in found[1:] if self.allows(one) and self.resources(one).fit(device)]

        return list(dict.fromkeys([found[0], *usable]))

    def kind(self) -> dict[str, Any]:
        """Return the fields that must be equal, as JSON values."""
        fields = {name: getattr(self, name) for name in self.__match_args__}
        return {name: _plain(value) for name, value in fields.items() if name not in self.SIZES}

    def sizes(self) -> dict[str, int]:
        """Return the fields that are sizes."""
        return {name: getattr(self, name) for name in self.SIZES}


def _plain(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def choose(
    kernel: str,
    problem: Problem,
    index: int,
    run: Callable[..., None] | None = None,
    output: torch.Tensor | None = None,
) -> Any:
    """Choose the configuration of a call.

    :param kernel: The name of the kernel's module in ``ntops.kernels``.
    :param problem: The problem that the call computes.
    :param index: The index of the device.
    :param run: Launches the call, so that its configurations can be measured on request; see
        :func:`autotuning.fastest`.
    :param output: The tensor that the call writes; needed with ``run``.
    """
    if _asking:
        raise _Asked(kernel, problem)

    if kernel in _forced:
        return _forced[kernel]

    # Call the rule first in any case: it notes which configurations there are. A fixed configuration is one of these.
    rule = problem.rule(device(index))
    if configuration.is_fixed():
        return rule

    chosen = _measured(kernel, problem, index, rule)

    if run is None or output is None:
        return chosen

    return autotuning.fastest((kernel, problem), chosen, lambda: problem.candidates(device(index)), run, output)


# Measurements are looked up once for each geometry, though they change only when something is measured.
@functools.lru_cache(4096)
def _measured(kernel, problem, index, rule):
    """Return the measured configuration that was faster than the rule's choice, or the rule's choice."""
    name = gpu(index)

    for sizes, options in nearest(kernel, problem, name) if name else ():
        other = dataclasses.replace(problem, **sizes)
        replaced = other.rule(device(index))

        if options == replaced:
            return rule

        # If the rule now chooses otherwise, no measurement says what is faster than its choice.
        alike = rule == replaced and problem.resembles(other, options)

        if alike and problem.allows(options) and problem.resources(options).fit(device(index)):
            return options

    return rule


def nearest(kernel: str, problem: Problem, name: str) -> Iterator[tuple[dict[str, int], Any]]:
    """Return the configurations measured on this GPU model for sizes whose classes are within a factor of two, the
    nearest first, each with its sizes."""
    wanted = tuned_tables.size_class(problem.sizes())
    found = []

    for sizes, record in tuned_tables.best(name).get(tuned_tables.identity(kernel, problem.kind()), {}).items():
        steps = [abs(math.log2(one / other)) for one, other in zip(sizes, wanted, strict=True)]

        if max(steps) <= 1:
            found.append((sum(steps), sizes, record))

    for _, _, record in sorted(found, key=lambda one: one[:2]):
        parameters = inspect.signature(problem.OPTIONS).parameters
        # Options that came later are at their defaults in older tables.
        defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
        values = defaults | record.options

        # Anybody may write a table.
        if values.keys() == parameters.keys() and all(
            type(one) is type(defaults.get(name, 1)) and (one is False or one > 0) for name, one in values.items()
        ):
            options = problem.OPTIONS(**values)

            if problem.exists(options):
                yield record.sizes, options


class _Asked(BaseException):
    """Carry the kernel and the problem out of a call that is about to choose."""


def asked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, Problem] | None:
    """Return the kernel and the problem for which a call chooses, or ``None`` if it chooses nothing. The call runs up
    to its launch, which does not happen. For one thread at a time."""
    _asking.append(True)
    # A repeated call chooses nothing.
    recorder.forget()

    try:
        function(*args, **kwargs)
        return None
    except _Asked as found:
        return found.args
    finally:
        _asking.pop()


@contextlib.contextmanager
def forced(kernel: str, options: Any) -> Generator[None]:
    """Return a context in which every call of a kernel runs with these options. For tests and measurements, and for one
    thread at a time."""
    before = _forced.get(kernel)
    _forced[kernel] = options
    recorder.forget()

    try:
        yield
    finally:
        del _forced[kernel]

        if before is not None:
            _forced[kernel] = before

        recorder.forget()


def forget() -> None:
    """Choose anew from now on, since something was measured."""
    tuned_tables.best.cache_clear()
    _measured.cache_clear()
    recorder.forget()


@functools.cache
def device(index: int) -> Device:
    """Return the device of this index, or its substitute under the interpreter."""
    return Device(devices.shared_memory(index), devices.multiprocessors(index), devices.is_hopper())


@functools.cache
def gpu(index: int) -> str | None:
    """Return the model of the GPU of this index, or ``None`` without a GPU (interpreted, or compiled for another
    machine), where the rules alone count."""
    return torch.cuda.get_device_name(index) if torch.cuda.is_available() and not INTERPRETED else None
