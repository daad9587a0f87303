"""Calls in the judged process: requests over a socket, answers as data, and a function that makes such calls."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from conformance import runtime
from conformance.calls import Foreign, Lost, NotProvided, Outcome, Reached, described, reached, valid
from conformance.guards import memory_of
from conformance.stopwatch import Stopwatch

GONE = "the GPU's context is lost, and the process with it"


class Placed(msgspec.Struct, frozen=True):
    """A tensor in a storage that was sent."""

    dtype: str
    shape: list[int]
    strides: list[int]
    offset: int
    storage: int
    device: str = ""
    """Empty: the device of the call."""
    place: int = 0
    shared: bool = False
    """Tells whether the storage is an operand's."""
    traits: list[str] = []

    def over(self, storages: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the tensor. ``storages``: as bytes, on its device. Raises ValueError where it does not fit, and what
        torch raises."""
        dtype = getattr(torch, self.dtype)
        storage = storages[self.storage].untyped_storage()
        extent = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) + 1
        if min(self.shape, default=1) > 0 and (self.offset + extent) * dtype.itemsize > storage.nbytes():
            raise ValueError("a tensor that does not fit into its memory")
        empty = torch.empty(0, dtype=dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.strides)


class One(msgspec.Struct, frozen=True):
    """A result: the number of an operand, a tensor, or the kind of an object that is no such tensor."""

    operand: int | None = None
    tensor: Placed | None = None
    foreign: str | None = None


class Class(msgspec.Struct, frozen=True):
    """A class of an exception."""

    module: str
    name: str


class Raised(msgspec.Struct, frozen=True):
    """An exception: its class with the bases, in the order of resolution, and its text."""

    classes: list[Class]
    text: str

    def error(self) -> BaseException:
        """Return an exception of the same built-in class, with the same name and text."""
        found = (getattr(builtins, one.name, None) for one in self.classes if one.module == "builtins")
        bases = (one for one in found if isinstance(one, type) and issubclass(one, BaseException))
        base = next((one for one in bases if not issubclass(one, BaseExceptionGroup)), Exception)
        names = {one.name for one in self.classes}
        if "NotProvided" in names and issubclass(base, NotImplementedError):
            return NotProvided(self.text)
        name = self.classes[0].name if self.classes else base.__name__
        text = self.text
        members = {"__str__": lambda self: text, "__init__": lambda self: None, "__module__": "judged"}
        kind = type(name, (base,), members)
        return kind.__new__(kind)


class Answer(msgspec.Struct, frozen=True):
    """The outcome of a call in the judged process."""

    operands: list[Placed]
    value: dict[str, list[One]] | None
    error: Raised | None
    fresh: bool
    trespass: str
    fault: str
    state: list[str]
    moved: list[bool]
    replaced: list[bool]
    configurations: list[str]
    reached: str = ""


class Kept(msgspec.Struct, frozen=True):
    """A result, operand or gradient of a call of a sequence that the user has kept: which one, and where its elements
    are, or the exception that was raised in its place."""

    call: int
    what: str
    index: int
    tensor: dict[str, Any] = {}
    raised: str = ""


class About(msgspec.Struct, frozen=True):
    """The judged process's description of the implementation that it has imported."""

    provides: frozenset[str] = frozenset()
    declared: dict[str, Any] = {}
    """Its ``conformance_claims`` and similar declarations."""
    kernels: str = ""
    """As ``implementations.Implementation.kernels``."""
    changed: list[str] = []
    """As ``implementations.Implementation.changed``."""
    problem: str = ""
    """Why it could not be imported; else empty."""


class Judged:
    """The judged process, over the socket ``descriptor``. ``stopwatch``: runs while it is asked something."""

    def __init__(self, descriptor: int, stopwatch: Stopwatch | None = None) -> None:
        self._asked = stopwatch.running if stopwatch is not None else contextlib.nullcontext
        self._link = socket.socket(fileno=descriptor)
        self._stream = self._link.makefile("rb")
        self._sent: list[bytearray] = []
        """The memory of the operands of the last call, which neither end need send again."""

    def load(self, implementation: str, device: torch.device, ops: Sequence[str]) -> About:
        """Import the implementation there. Raises Lost."""
        header, _ = self._ask({"implementation": implementation, "device": str(device), "ops": list(ops)})
        return valid(header, About)

    def settings(self, op: str) -> Sequence[str]:
        """Return the names of the settings that a user of the implementation may have. Raises Lost."""
        names = self._ask({"ask": "settings", "op": op})[0].get("names")
        if isinstance(names, dict):
            raise RuntimeError(names.get("failed"))
        return valid(names, list[str])

    def numbers(self, op: str) -> Sequence[float]:
        """Return the numbers in the code of the op, as of ``code_numbers.of``. Raises Lost."""
        return valid(self._ask({"ask": "numbers", "op": op})[0].get("numbers"), list[int | float])

    def rows(self, op: str) -> Sequence[Sequence[int]]:
        """Return the numbers that stand together in the code of the op, as of ``code_numbers.rows``. Raises Lost."""
        return valid(self._ask({"ask": "numbers", "op": op})[0].get("rows"), list[list[int]])

    def new_paths(self, call: Mapping[str, Any], inputs: Sequence[torch.Tensor]) -> Reached:
        """Make a call that ``described`` gives, as of ``runtime.new_paths``. Raises Lost."""
        header, _ = self._ask(*_request("paths", call, inputs))
        if lost := header.get("lost"):
            raise Lost(f"{GONE}: {lost}")
        return reached(header.get("paths"), header.get("compared"))

    def forget_paths(self) -> None:
        """Take all places of the code for new again. Raises Lost."""
        self._ask({"ask": "forget paths"})

    def forget(self) -> None:
        """Let go of the results of the calls made so far. Raises Lost."""
        self._ask({"ask": "forget"})

    def follow(self, sizes: Sequence[int]) -> None:
        """Begin a sequence of calls. ``sizes``: bytes of the largest operand of each number. Raises Lost."""
        self._ask({"ask": "follow", "memory": list(sizes)})

    def kept(self) -> list[tuple[int, str, int, torch.Tensor | str]]:
        """Return what ``sequence_staging.Stage.kept`` returns for that sequence, texts for exceptions. Raises Lost."""
        header, blobs = self._ask({"ask": "kept"})
        if lost := header.get("lost"):
            raise Lost(f"{GONE}: {lost}")
        told, left = valid(header.get("kept"), list[Kept]), iter(blobs)
        try:
            return [
                (one.call, one.what, one.index, one.raised or runtime.tensor_of(next(left), one.tensor)) for one in told
            ]
        except (AttributeError, KeyError, RuntimeError, StopIteration, TypeError, ValueError) as error:
            raise Lost(f"it broke the protocol: {error}") from None

    def lost(self) -> str:
        """Return the error that its GPU's context is stuck with; empty where it can go on. Raises Lost."""
        return str(self._ask({"ask": "lost"})[0].get("lost", ""))

    def call(self, call: Mapping[str, Any], inputs: Sequence[torch.Tensor], device: torch.device) -> Outcome:
        """Make a call there that ``described`` gives. Raises Lost."""
        header, blobs = self._ask(*_request("call", call, inputs))
        if lost := header.get("lost"):
            raise Lost(f"{GONE}: {lost}")
        answer = valid(header, Answer)
        try:
            return _outcome(answer, blobs, device)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise Lost(f"it broke the protocol: {error}") from None

    def _ask(
        self, header: Mapping[str, Any], memory: Sequence[Any] | None = None
    ) -> tuple[dict[str, Any], list[bytearray]]:
        """Send a request and return the answer; ``memory``: the operands' memory, for a call."""
        known = self._sent
        if memory is not None:
            pairs = itertools.zip_longest(memory, known[: len(memory)], fillvalue=bytearray())
            self._sent = [one if runtime.held(one, blob) else bytearray(blob) for blob, one in pairs]
        try:
            with self._asked():
                runtime.send(self._link, header, self._sent if memory is not None else (), known)
                return runtime.receive(self._stream, known=self._sent)
        except (EOFError, ConnectionError):
            raise Lost("") from None
        except (MemoryError, ValueError) as error:
            raise Lost(f"it broke the protocol: {error}") from None


def _request(ask: str, call: Mapping[str, Any], inputs: Sequence[torch.Tensor]) -> tuple[dict[str, Any], list[Any]]:
    """Return the header of a request with a call, and the operands' memory."""
    operands = [runtime.describe_tensor(tensor) for tensor in inputs]
    return {"ask": ask, **call, "operands": operands}, [memory_of(tensor).numpy().data for tensor in inputs]


def _outcome(answer: Answer, blobs: Sequence[bytearray], device: torch.device) -> Outcome:
    storages: dict[str, list[torch.Tensor]] = {}

    def on(name: str) -> list[torch.Tensor]:
        where = str(torch.device(name) if name else device)
        if where not in storages:
            storages[where] = [
                torch.frombuffer(blob, dtype=torch.uint8).to(where)
                if blob
                else torch.empty(0, dtype=torch.uint8, device=where)
                for blob in blobs
            ]
        return storages[where]

    operands = tuple(placed.over(on("")) for placed in answer.operands)
    places: list[int] = []
    told: list[tuple[str, ...]] = []

    def result(one: One) -> Any:
        told.append(() if one.tensor is None else tuple(one.tensor.traits))
        if one.operand is not None:
            places.append(operands[one.operand].untyped_storage().data_ptr())
            return operands[one.operand]
        if one.tensor is not None:
            tensor = one.tensor.over(on("" if one.tensor.shared else one.tensor.device))
            # The address in the other process; a result in an operand has the address of that operand here.
            places.append(tensor.untyped_storage().data_ptr() if one.tensor.shared else -one.tensor.place)
            return tensor
        return None if one.foreign == "None" else Foreign(one.foreign or "?")

    value = None
    if answer.value is not None:
        ((kind, ones),) = answer.value.items()
        found = [result(one) for one in ones]
        value = found[0] if kind == "one" else found if kind == "list" else tuple(found)
    return Outcome(
        operands,
        value,
        answer.error.error() if answer.error is not None else None,
        answer.fresh,
        answer.trespass,
        tuple(answer.moved),
        answer.fault,
        tuple(answer.state),
        tuple(answer.configurations),
        tuple(places),
        tuple(answer.replaced),
        tuple(told),
        answer.reached,
    )


class Remote:
    """A function of the implementation, in the judged process."""

    def __init__(self, judged: Judged, op: str) -> None:
        self.judged, self.op = judged, op

    def made(self, call: Mapping[str, Any], inputs: Sequence[torch.Tensor], device: torch.device) -> Outcome:
        """Make a call that ``described`` gives. Raises Lost."""
        # The op may have another name than the function.
        return self.judged.call({**call, "op": self.op}, inputs, device)

    def followed(
        self, call: Mapping[str, Any], inputs: Sequence[torch.Tensor], device: torch.device, stage: Any
    ) -> Outcome:
        """Make a call of a sequence, as ``made`` does; the judged process holds the sequence."""
        return self.made(call, inputs, device)

    def numbers(self) -> Sequence[float]:
        """Return the numbers in its code. Raises Lost."""
        return self.judged.numbers(self.op)

    def rows(self) -> Sequence[Sequence[int]]:
        """Return the numbers that stand together in its code. Raises Lost."""
        return self.judged.rows(self.op)

    def new_paths(self, call: Mapping[str, Any], inputs: Sequence[torch.Tensor], device: torch.device) -> Reached:
        """Make a call, and return what it came to in the code. Raises Lost."""
        return self.judged.new_paths({**call, "op": self.op}, inputs)

    def forget_paths(self) -> None:
        """Take all places of the code for new again. Raises Lost."""
        self.judged.forget_paths()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it with tensors of this process, which hold afterwards what it has written. Raises what it raises."""
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        bases: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            size = storage.nbytes() // tensor.itemsize
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (size,), (1,))
            bases.setdefault(storage._cdata, whole)
        operands = [*bases.values()]
        call = described(self.op, args, kwargs, operands)
        outcome = self.judged.call(call, [operand.cpu() for operand in operands], device)
        if outcome.error is not None:
            raise outcome.error
        for ours, theirs in zip(operands, outcome.operands, strict=True):
            if not torch.equal(memory_of(ours), memory_of(theirs)):
                memory_of(ours).copy_(memory_of(theirs))
        found = tuple(self._ours(one, outcome.operands, operands, tensors) for one in outcome.tensors())
        return found if isinstance(outcome.value, tuple) else found[0]

    @staticmethod
    def _ours(
        result: Any, theirs: Sequence[torch.Tensor], ours: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> Any:
        """Return a result; where it lies in an operand, a view of that operand here, or the very tensor that was
        given."""
        if not isinstance(result, torch.Tensor):
            return result
        pointer = result.untyped_storage().data_ptr()
        place = next((n for n, one in enumerate(theirs) if one.untyped_storage().data_ptr() == pointer), None)
        if place is None or not pointer:
            return result
        view = ours[place].as_strided(result.shape, result.stride(), result.storage_offset())
        where = view.data_ptr(), view.shape, view.stride()
        return next((one for one in given if (one.data_ptr(), one.shape, one.stride()) == where), view)
