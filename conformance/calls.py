"""Calls as data: the request and the outcome; and a caller in this process. That in the judged process is in
``remote_calls``."""

from __future__ import annotations

import dataclasses
import enum
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from conformance import call_contexts, runtime, sequence_staging


class Lost(Exception):
    """The judged process ended or cannot go on. The message says why, where it said so itself; else it is empty."""


class NotProvided(NotImplementedError):
    """Raised by an adapter for a call that its library cannot make; it is counted as not provided."""


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Stands for a result that is not a tensor with memory of its own. ``kind`` says what it is."""

    kind: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Holds what one call did: a value or an exception, and its operands as they are afterwards."""

    operands: tuple[torch.Tensor, ...]
    value: Any = None
    error: BaseException | None = None
    fresh: bool = False
    """Tells whether the call allocated memory that torch does not fill."""
    trespass: str = ""
    """Names what was written to a margin; empty: nothing."""
    moved: tuple[bool, ...] = ()
    """For each operand, whether its version counter moved."""
    fault: str = ""
    """Says which forbidden access to memory the interpreter saw; empty: none."""
    state: tuple[str, ...] = ()
    """Names what the call changed of its surroundings, where these were compared."""
    configurations: tuple[str, ...] = ()
    """The names of the configurations that the kernel could have had, where they were asked for."""
    places: tuple[int, ...] | None = None
    """For each result, a number that identifies its memory in the process where it was made."""
    replaced: tuple[bool, ...] = ()
    """For each operand, whether its storage is another one than before."""
    told: tuple[tuple[str, ...], ...] | None = None
    """For each result its traits in the process where it was made."""
    reached: str = ""
    """The last stage of a differentiated call: "forward" or "backward"; empty for other calls."""

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the results as tensors; only for a well-formed outcome."""
        return self.value if isinstance(self.value, tuple) else (self.value,)

    def part(self, dim: int, start: int, length: int) -> Outcome:
        """Return the same outcome with a part of each result."""
        parts = tuple(result.narrow(dim, start, length) for result in self.tensors())
        return dataclasses.replace(self, value=parts if isinstance(self.value, tuple) else parts[0])

    def traits(self) -> tuple[tuple[str, ...], ...]:
        """Return the traits of each result, as of ``call_contexts.traits``."""
        return tuple(tuple(call_contexts.traits(one)) for one in self.tensors()) if self.told is None else self.told

    def memory(self) -> tuple[int, ...]:
        """Return for each result a number that identifies its memory among the results of this case."""
        if self.places is not None:
            return self.places
        return tuple(result.untyped_storage().data_ptr() for result in self.tensors())


# --- arguments ---------------------------------------------------------------------------------------------------


def encode(value: Any, operands: Sequence[torch.Tensor]) -> Any:
    """Return an argument as ``runtime.decode`` takes it. A tensor is one of the operands, a view of one, or a
    number."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, operands)
    if isinstance(value, str):
        return {"enum": str.__str__(value)}
    if type(value).__name__ == "CausalVariant":
        return {"causal_variant": value.name}
    if isinstance(value, enum.IntEnum):
        return {"int_enum": int(value)}
    if isinstance(value, np.generic):
        return {"numpy": [type(value).__name__, value.item()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(item, operands) for item in value]}
    raise TypeError(f"an argument of type {type(value).__name__} cannot be sent to the judged process")


def _encode_tensor(tensor: torch.Tensor, operands: Sequence[torch.Tensor]) -> Any:
    storage = tensor.untyped_storage()
    for number, operand in enumerate(operands):
        if operand is tensor:
            return {"operand": number}
    for number, operand in enumerate(operands):
        if operand.untyped_storage()._cdata == storage._cdata and operand.dtype == tensor.dtype:
            offset = tensor.storage_offset() - operand.storage_offset()
            place = {"shape": list(tensor.shape), "strides": list(tensor.stride()), "offset": offset}
            return {"view": {"operand": number, **place}}
    if not tensor.ndim:
        return {"number": [str(tensor.dtype).removeprefix("torch."), tensor.item()]}
    raise TypeError("a tensor that is no view of an operand cannot be sent to the judged process")


def described(
    op: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    operands: Sequence[torch.Tensor],
    **how: Any,
) -> dict[str, Any]:
    """Return a call as ``runtime.perform`` takes it. ``how``: where it differs from a plain call."""
    plain = {"form": "", "written": (), "guard": None, "seed": None, "watch": False, "observe": False}
    return {
        "op": op,
        "args": [encode(value, operands) for value in args],
        "kwargs": {name: encode(value, operands) for name, value in kwargs.items()},
        **plain,
        "configuration": None,
        "setting": None,
        "state": False,
        "other": False,
        "before": None,
        "gradients": None,
        "context": None,
        **how,
    }


# --- who makes calls ---------------------------------------------------------------------------------------------


class Local:
    """A function in this process. ``offers``: the object that has its configurations and settings."""

    def __init__(self, function: Callable[..., Any], offers: object = None) -> None:
        self._function, self._offers = function, offers

    def made(
        self,
        call: Mapping[str, Any],
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        stage: sequence_staging.Stage | None = None,
    ) -> Outcome:
        """Make a call that ``described`` gives. Whatever it raises but KeyboardInterrupt is its outcome."""
        passed = (KeyboardInterrupt,)
        # torch warns of every ``out`` that it resizes, and here that is wanted.
        with warnings.catch_warnings():
            # With a message, so that this filter differs from one by which a call ignores all warnings.
            warnings.filterwarnings("ignore", message=".*")
            made = runtime.perform(self._function, inputs, call, device, self._offers, passed, stage)
        how = (made.fresh, made.trespass, made.moved, made.fault, tuple(made.state), tuple(made.configurations))
        return Outcome(made.operands, made.value, made.error, *how, replaced=made.replaced, reached=made.reached)

    def followed(
        self, call: Mapping[str, Any], inputs: Sequence[torch.Tensor], device: torch.device, stage: Any
    ) -> Outcome:
        """Make a call of the sequence that ``stage`` holds, as ``made`` does."""
        return self.made(call, inputs, device, stage)

    def numbers(self) -> Sequence[float]:
        """Return the numbers in its code, as of ``code_numbers.of``."""
        return runtime.code_numbers.of(self._function)

    def rows(self) -> Sequence[Sequence[int]]:
        """Return the numbers that stand together in its code, as of ``code_numbers.rows``."""
        return runtime.code_numbers.rows(self._function)

    def new_paths(self, call: Mapping[str, Any], inputs: Sequence[torch.Tensor], device: torch.device) -> Reached:
        """Make a call, and return what it came to in the code."""
        return reached(*runtime.new_paths(self._function, inputs, call, device, (KeyboardInterrupt,)))

    def forget_paths(self) -> None:
        """Take all places of the code for new again."""
        runtime.code_paths.forget()


class Reached(NamedTuple):
    """Holds the new places of the code that a call came to, and the comparisons that it made."""

    places: int
    """The number of places to which no earlier call came."""
    compared: Sequence[Compared]


class Compared(NamedTuple):
    """An outcome of a comparison, as of ``code_comparisons``."""

    place: int
    answer: bool
    left: float | None
    right: float | None
    """The numbers that came nearest to the other answer, if it was numbers."""


def reached(places: Any, compared: Any) -> Reached:
    """Return what ``runtime.new_paths`` gives. Raises Lost."""
    return Reached(valid(places, int), valid(compared, list[Compared]))


def valid(data: Any, kind: Any) -> Any:
    """Return data of the judged process as this kind. Raises Lost."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise Lost(f"it broke the protocol: {error}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out."""
    # torch reports the CPU's memory with a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def on_cpu(value: Any) -> Any:
    """Return copies of the tensors of a result, on the CPU."""
    if isinstance(value, tuple):
        return tuple(map(on_cpu, value))
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
