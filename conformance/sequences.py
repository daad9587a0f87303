"""A sequence is data: calls that one process makes one after the other, JSON in and out, with a stable id.

It shows what a library keeps from one call to the next. Each call is a case, with what a case does not say: where its
operands lie, what becomes of its result, and what the user has set. Files are read as strictly as cases.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from conformance import case_files, cases
from conformance.cases import MAX_BYTES, MAX_ELEMENTS, SCHEMA, Case, CaseError
from strategies.specs import TensorSpec

MAX_CALLS = 1024
"""The most calls that one sequence may make."""

Memory = Literal["new", "address", "freed", "same", "behind", "arena"]
"""The memory of the operands of a call: memory that no earlier call had; that of an earlier call, with new tensors, or
with new tensors that are made when those of the call before are gone; the very tensors of the call before, changed in
place; the same, changed without torch's knowledge, as a kernel does; new memory, in which they lie one behind
another, as merged weights do."""

Result = Literal["kept", "view", "dropped", "overwritten"]
"""The fate of a result: it is kept, and looked at again at the end; a view of it is kept; it is freed; the user writes
into it."""


Gradients = Literal["", "at once", "in order", "in reverse"]
"""When a call is differentiated: never, right after it, or after the last call of the sequence: first those "in order",
and then the others in the reverse order, as a network's layers are."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The user's settings while a call is made."""

    precision: Literal["highest", "high", "medium"] = "highest"
    """torch.set_float32_matmul_precision."""
    default_dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    default_device: Literal["cpu", "meta"] = "cpu"
    """torch.set_default_device."""
    threads: int = 0
    """torch.set_num_threads; 0: it is not set."""
    deterministic: bool = False
    """torch.use_deterministic_algorithms."""
    mode: Literal["grad", "no_grad", "inference", "parameters"] = "grad"
    """"parameters": without gradients, and operands that are only read are torch.nn.Parameter."""
    thread: bool = False
    """Whether the call is made in another thread, the same one for all such calls of a sequence."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One call of a sequence, or ``times`` such calls, the operands of each filled from the next seed."""

    case: Case
    memory: Memory = "new"
    result: Result = "kept"
    settings: Settings = Settings()
    times: int = 1
    gradients: Gradients = ""

    def __post_init__(self) -> None:
        able = ("new", "same") if self.gradients == "at once" else ("new",)
        is_held = self.result in ("kept", "view")
        if self.gradients and (self.memory not in able or not is_held or self.settings.mode != "grad"):
            raise ValueError(
                f"gradients {self.gradients!r} need the mode 'grad', a result that is kept, and memory that is "
                f"{' or '.join(map(repr, able))}"
            )
        if not 1 <= self.times <= MAX_CALLS:
            raise ValueError(f"times must be from 1 to {MAX_CALLS}, got {self.times}")

    def calls(self) -> list[Case]:
        """Return the calls that it makes."""
        return [reseeded(self.case, number) for number in range(self.times)]


class CallSequence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calls of one process. ``note`` says why it is kept and takes no part in the id."""

    schema: int = SCHEMA
    steps: tuple[Step, ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a sequence has at least one step")
        if self.count > MAX_CALLS:
            raise ValueError(f"a sequence makes at most {MAX_CALLS} calls, not {self.count}")

    @property
    def count(self) -> int:
        """The number of calls that it makes."""
        return sum(step.times for step in self.steps)

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators that it calls, each once."""
        return tuple(dict.fromkeys(step.case.op for step in self.steps))


class _Header(msgspec.Struct):
    """The fields that are read first: only sequences have steps."""

    steps: msgspec.Raw
    schema: int


def is_sequence(data: bytes | str) -> bool:
    """Tell whether ``data`` is meant as a sequence, well formed or not, and not as a case."""
    try:
        msgspec.json.decode(data, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def canonical(sequence: CallSequence) -> CallSequence:
    """Return the same sequence in the one form that JSON can hold."""
    steps = tuple(msgspec.structs.replace(step, case=cases.canonical(step.case)) for step in sequence.steps)
    return msgspec.structs.replace(sequence, steps=steps)


def sequence_id(sequence: CallSequence) -> str:
    """Return ``<op>-sequence-<first 10 hex digits of the SHA-256 of what it does>``, of the first operator."""
    plain = [
        {**msgspec.to_builtins(msgspec.structs.replace(step)), "case": cases.case_id(step.case)}
        for step in canonical(sequence).steps
    ]
    digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()
    return f"{sequence.ops[0]}-sequence-{digest[:10]}"


def encode(sequence: CallSequence) -> bytes:
    """Return the sequence as JSON for people: indented, one newline at the end."""
    return msgspec.json.format(msgspec.json.encode(canonical(sequence)), indent=2) + b"\n"


def decode(data: bytes | str, *, max_elements: int = MAX_ELEMENTS) -> CallSequence:
    """Return the sequence in ``data``. Raises CaseError: not JSON, not a sequence, or one of its calls is not a
    case."""
    sequence = cases.parsed(data, CallSequence, "a sequence")
    for number, step in enumerate(sequence.steps):
        if step.case.schema != SCHEMA:
            raise CaseError(f"step {number}: its schema is {step.case.schema}, not {SCHEMA}")
        try:
            case_files.validate(step.case, max_elements=max_elements)
        except CaseError as error:
            raise type(error)(f"step {number}: {error}") from None
    return sequence


def read(path: Path | str, *, max_elements: int = MAX_ELEMENTS, max_bytes: int = MAX_BYTES) -> Case | CallSequence:
    """Return the case or the sequence in a file. Raises CaseError, naming the file, also where it cannot be read."""
    data = cases.content(path, max_bytes=max_bytes)
    try:
        found = (decode if is_sequence(data) else case_files.decode)(data, max_elements=max_elements)
    except CaseError as error:
        raise type(error)(f"{path}: {error}") from None
    for case in calls(found):
        case_files.find_data(case, Path(path))
    return found


def reseeded(case: Case, by: int) -> Case:
    """Return the case with other contents in its operands."""
    if not by:
        return case

    def other(argument: cases.Argument) -> cases.Argument:
        if not isinstance(argument, TensorSpec):
            return argument
        return msgspec.structs.replace(argument, seed=(argument.seed + by) % 2**64)

    kwargs = {name: other(argument) for name, argument in case.kwargs.items()}
    return msgspec.structs.replace(case, args=tuple(map(other, case.args)), kwargs=kwargs, digests=())


def calls(found: Case | CallSequence) -> list[Case]:
    """Return the cases in the contents of a file, repeated ones once."""
    return [found] if isinstance(found, Case) else [step.case for step in found.steps]


def identity(found: Case | CallSequence) -> str:
    """Return the id of the contents of a file."""
    return cases.case_id(found) if isinstance(found, Case) else sequence_id(found)
