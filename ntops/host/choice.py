"""Which configuration a call runs with: one that is forced, the nearest one measured on this GPU, or the family's rule.

A family of kernels says in a ``Problem`` what its configuration depends on, and beside it the rule, the space that is
worth measuring, and what a configuration takes of a multiprocessor. ``ntops.tune`` measures; of calls, those alone that
a user wants measured (``max_num_configs``).
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
from ntops.host import configuration, launch, measuring, repetition, store

REGISTERS = 255
"""What a thread can have at most, and ``REGISTER_FILE`` all threads of a program, on NVIDIA's GPUs; AMD's have more."""
REGISTER_FILE = 65536
_forced: dict[str, Any] = {}
_asking: list[bool] = []


@dataclasses.dataclass(frozen=True)
class Device:
    """What rules and spaces ask of a GPU."""

    shared_memory: int
    """What a program can have, in bytes."""
    multiprocessors: int
    hopper: bool = True
    """Whether it is an H100 or H200, of which the rules' figures are."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a configuration takes, estimated without compiling it."""

    shared_memory: int
    """Of a program, in bytes."""
    registers: int
    """Of a thread."""
    threads: int
    """Of a program."""

    def fit(self, device: Device) -> bool:
        """Whether the device has that much, without spilling registers to memory."""
        registers = min(REGISTERS, REGISTER_FILE // self.threads)
        return self.shared_memory <= device.shared_memory and self.registers <= registers


class Problem:
    """What the configuration of a call depends on: a frozen dataclass of sizes, ``torch.dtype``, bools and ints."""

    __match_args__: ClassVar[tuple[str, ...]]
    """The names of the fields: what a dataclass adds."""
    OPTIONS: ClassVar[type]
    """The frozen dataclass of configurations, of positive ints."""
    SIZES: ClassVar[tuple[str, ...]]
    """The fields that need not be equal: what was measured serves sizes near to it."""

    def rule(self, device: Device) -> Any:
        """The library's choice where nothing was measured: a pure function."""
        raise NotImplementedError

    def space(self, device: Device) -> Sequence[Any]:
        """The configurations worth measuring, the most promising first; some may not fit."""
        raise NotImplementedError

    def allows(self, options: Any) -> bool:
        """Whether the kernel is right with them for these sizes."""
        return True

    def resembles(self, other: "Problem", options: Any) -> bool:
        """Whether the kernel takes these sizes as it does those of ``other``, for which they were measured."""
        return True

    def resources(self, options: Any) -> Resources:
        """What they take."""
        raise NotImplementedError

    def candidates(self, device: Device) -> list[Any]:
        """The rule's choice, then what of the space is allowed and fits, each once."""
        found = [self.rule(device), *self.space(device)]
        usable = [one for one in found[1:] if self.allows(one) and self.resources(one).fit(device)]

        return list(dict.fromkeys([found[0], *usable]))

    def kind(self) -> dict[str, Any]:
        """The fields that must be equal, as JSON has them."""
        fields = {name: getattr(self, name) for name in self.__match_args__}
        return {name: _plain(value) for name, value in fields.items() if name not in self.SIZES}

    def sizes(self) -> dict[str, int]:
        """The fields that are sizes."""
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
    """The configuration of a call.

    :param kernel: The name of the module of ``ntops.kernels``.
    :param problem: What is to be computed.
    :param index: Of the device.
    :param run: What measures the call's configurations where the user asks for it; see :func:`measuring.fastest`.
    :param output: What the call writes, with ``run``.
    """
    if _asking:
        raise _Asked(kernel, problem)

    if kernel in _forced:
        return _forced[kernel]

    # Asked first, whatever was measured: it notes which configurations there are. A fixed one is one of the rule's.
    rule = problem.rule(device(index))
    if configuration.is_fixed():
        return rule

    chosen = _measured(kernel, problem, index, rule)

    if run is None or output is None:
        return chosen

    return measuring.fastest((kernel, problem), chosen, lambda: problem.candidates(device(index)), run, output)


# What was measured is looked for once for each geometry, though it changes only where something is measured.
@functools.lru_cache(4096)
def _measured(kernel, problem, index, rule):
    """What was faster than the rule's choice, or that."""
    name = gpu(index)

    for sizes, options in nearest(kernel, problem, name) if name else ():
        other = dataclasses.replace(problem, **sizes)
        replaced = other.rule(device(index))

        if options == replaced:
            return rule

        # Where the rule chooses otherwise, nothing is known of what is faster than its choice.
        alike = rule == replaced and problem.resembles(other, options)

        if alike and problem.allows(options) and problem.resources(options).fit(device(index)):
            return options

    return rule


def nearest(kernel: str, problem: Problem, name: str) -> Iterator[tuple[dict[str, int], Any]]:
    """The configurations measured on a GPU of that name for sizes whose classes are within a factor of two, the nearest
    first, each with its sizes."""
    wanted = store.size_class(problem.sizes())
    found = []

    for sizes, record in store.best(name).get(store.identity(kernel, problem.kind()), {}).items():
        steps = [abs(math.log2(one / other)) for one, other in zip(sizes, wanted, strict=True)]

        if max(steps) <= 1:
            found.append((sum(steps), sizes, record))

    for _, _, record in sorted(found, key=lambda one: one[:2]):
        names = set(inspect.signature(problem.OPTIONS).parameters)

        if record.options.keys() == names and all(_is_plausible(*one) for one in record.options.items()):
            yield record.sizes, problem.OPTIONS(**record.options)


def _is_plausible(name, value):
    """Whether a kernel can have such an option, whoever wrote it: block sizes and warps are powers of two."""
    is_power = name.startswith("block") or name == "num_warps"
    return type(value) is int and value > 0 and (not is_power or value & (value - 1) == 0)


class _Asked(BaseException):
    """Carries out of a call what it is about to choose for: a kernel and a problem."""


def asked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, Problem] | None:
    """The kernel and the problem for which a call chooses, ``None`` if it chooses nothing. What comes first in a call
    is done, its launch is not. For one thread at a time."""
    _asking.append(True)
    # A call that is repeated chooses nothing.
    repetition.forget()

    try:
        function(*args, **kwargs)
        return None
    except _Asked as found:
        return found.args
    finally:
        _asking.pop()


@contextlib.contextmanager
def forced(kernel: str, options: Any) -> Generator[None]:
    """Have every call of a kernel run with these options; for tests and measurements, and for one thread at a time."""
    before = _forced.get(kernel)
    _forced[kernel] = options
    repetition.forget()

    try:
        yield
    finally:
        del _forced[kernel]

        if before is not None:
            _forced[kernel] = before

        repetition.forget()


def forget() -> None:
    """Choose anew: something was measured."""
    store.best.cache_clear()
    _measured.cache_clear()
    repetition.forget()


@functools.cache
def device(index: int) -> Device:
    """The device of this index, or what stands for one under the interpreter."""
    return Device(launch.shared_memory(index), launch.multiprocessors(index), launch.is_hopper())


@functools.cache
def gpu(index: int) -> str | None:
    """The model of the GPU of this index; ``None`` where there is none: interpreted, or compiled for another machine.
    There the rules alone count."""
    return torch.cuda.get_device_name(index) if torch.cuda.is_available() and not INTERPRETED else None
