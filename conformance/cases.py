"""A case is data: an op and its arguments, JSON in and out, with a stable id."""

from __future__ import annotations

import hashlib
import math
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

# Before what it makes sure of.
from conformance import own_strategies as own_strategies

# isort: split
import strategies.tensors
from strategies.specs import TensorSpec

T = TypeVar("T")

SCHEMA = 1
MAX_ELEMENTS = 2**27
"""Elements that one case may hold, unless the user raises it."""
MAX_BYTES = 2**20
"""Size of a case file, unless the user raises it; a case without tensor data is a few hundred bytes."""
MAX_LINES = 2**26
"""Size of a JSONL file of cases."""
LINES = ".jsonl"
MAX_DIMS = 32


class NonFinite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="float"):
    """A float that JSON cannot write: "nan", "inf" or "-inf"."""

    value: str


class DType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="dtype"):
    """A torch dtype by its name without "torch."."""

    name: str


class Same(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="same", omit_defaults=True):
    """The very tensor object of an earlier operand, or a view of its storage: one that begins ``-shift`` elements
    before it, or has its last two dims swapped (``turned``).

    Operands are the tensors of a case, numbered over args, then kwargs by name.
    """

    operand: int
    shift: int = 0
    """At most 0, and not beyond the start of the operand's storage (its layout's ``offset``)."""
    turned: bool = False

    @property
    def is_view(self) -> bool:
        """Tell whether it is a view of the operand, and not the operand itself."""
        return bool(self.shift) or self.turned


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="view"):
    """``[start, start + length)`` of a dim of an earlier operand: the rows of a KV cache that a call writes."""

    operand: int
    dim: int
    start: int
    length: int


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="causal_variant"):
    """A member of ``torch.nn.attention.bias.CausalVariant``, by its name."""

    name: str


class Ints(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="list"):
    """A list of ints, where a JSON array is a tuple."""

    items: tuple[int, ...]


Argument = (
    None | bool | int | float | str | tuple[int, ...] | TensorSpec | NonFinite | DType | Same | View | Variant | Ints
)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One call of one op.

    ``digests`` has one digest of each tensor operand, so that a replay that no longer has the same inputs says so;
    ``note`` says why the case is kept, and ``permanent`` that it is kept whatever others show. None takes part in the
    id.
    """

    schema: int = SCHEMA
    op: str
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument] = {}
    form: str = ""
    """One of ``conformance.forms.FORMS``, in which the call is written; empty: as ``args`` and ``kwargs`` are."""
    digests: tuple[str, ...] = ()
    note: str = ""
    permanent: bool = False


class CaseError(ValueError):
    """A case that is not well formed, or a file that does not hold one. The message is for people."""


class UnknownOp(CaseError):
    """A case of an op that does not exist, or no longer."""


class Unreadable(CaseError):
    """A file that cannot be read, or is too large."""


class TooLarge(CaseError):
    """A case that needs more elements than the user allows."""


class _Header(msgspec.Struct):
    """The fields that are read first, so that a file of another schema is reported as that and not as "unknown
    field"."""

    schema: int


def canonical(case: Case) -> Case:
    """Return the same case in the one form that JSON can hold: floats that are not finite as ``NonFinite``, kwargs by
    name."""

    def finite(argument: Argument) -> Argument:
        if isinstance(argument, float) and not math.isfinite(argument):
            return NonFinite(str(argument))
        return argument

    return msgspec.structs.replace(
        case,
        args=tuple(finite(argument) for argument in case.args),
        kwargs={name: finite(case.kwargs[name]) for name in sorted(case.kwargs)},
    )


def case_id(case: Case) -> str:
    """Return ``<op>-<first 10 hex digits of the SHA-256 of the canonical JSON>``, without digests, note and
    permanence."""
    plain = msgspec.to_builtins(canonical(case))
    del plain["digests"], plain["note"], plain["permanent"]
    if not case.form:
        del plain["form"]
    digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()
    return f"{case.op}-{digest[:10]}"


def seed(case: Case) -> int:
    """Return the seed of torch's generators before each call of the case: the digits of its id."""
    return int(case_id(case).rpartition("-")[2], 16)


def encode(case: Case) -> bytes:
    """Return the case as JSON for people: indented, keys in a fixed order, one newline at the end."""
    plain = msgspec.to_builtins(canonical(case))
    # Left out where they say nothing, so that readers need not know them.
    for name in ("permanent", "form"):
        if not plain[name]:
            del plain[name]
    return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"


def in_one_line(case: Case) -> str:
    """Return the JSON of a case on one line, to be shown."""
    return msgspec.json.format(encode(case), indent=-1).decode()


def parsed(data: bytes | str, kind: type[T], what: str) -> T:
    """Return JSON of schema ``SCHEMA`` as a struct of class ``kind``. Raises CaseError; ``what``: what it should be."""
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.schema != SCHEMA:
            raise CaseError(f"its schema is {header.schema}, and this harness reads schema {SCHEMA} only")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaseError(f"not {what}: {error}") from None


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a JSONL file of cases: the id of one, by which it is found, and its JSON."""

    id: str
    case: msgspec.Raw


def lines(path: Path | str) -> list[Line]:
    """Return the lines of a JSONL file of cases. Raises Unreadable, naming the file, also where a line is none."""
    read = []
    for number, line in enumerate(_bytes(Path(path), MAX_LINES).splitlines(), 1):
        try:
            read.append(msgspec.json.decode(line, type=Line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"{path}: line {number} is not an id and a case: {error}") from None
    return read


def content(path: Path | str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a case: of a file, or for ``FILE.jsonl#ID`` of the line with that id. Raises Unreadable,
    naming it."""
    file, separator, identity = str(path).rpartition(f"{LINES}#")
    if str(path).endswith(LINES):
        raise Unreadable(f"{path}: holds {len(lines(path))} cases; name one as {path}#ID")
    if not separator:
        return _bytes(Path(path), max_bytes)
    for line in lines(file + LINES):
        if line.id == identity:
            return bytes(line.case)
    raise Unreadable(f"{path}: the file has no case of that id")


def _bytes(path: Path, max_bytes: int) -> bytes:
    try:
        # A FIFO or a device may never come to an end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable(f"{path}: not a file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise Unreadable(f"{path}: larger than {max_bytes} bytes")
    return data


def operands(case: Case) -> tuple[TensorSpec, ...]:
    """Return the tensors of the case, in the order in which operands are numbered."""
    return tuple(argument for argument in arguments(case) if isinstance(argument, TensorSpec))


def elements(case: Case) -> int:
    """Return the number of elements of all operands together."""
    return sum(math.prod(spec.shape) for spec in operands(case))


def size(case: Case) -> tuple[int, int]:
    """Return the number of elements of the operands, and the length: of two failing cases the smaller is shown."""
    return elements(case), len(encode(case))


def dtype_of(case: Case) -> str:
    """Return the dtype under which a case is counted: its first tensor's; "none" where it has no tensor."""
    return next((spec.dtype for spec in operands(case)), "none")


def materialize(
    case: Case, device: torch.device | str = "cpu"
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[torch.Tensor, ...]]:
    """Return ``(args, kwargs, tensors)``: the call's arguments, and its operands in order."""
    tensors = tuple(
        strategies.tensors.materialize(spec, operand, device) for operand, spec in enumerate(operands(case))
    )
    return *bind(case, tensors), tensors


def argument(value: Any) -> Argument:
    """Return the argument of a case for a value that is no tensor. Raises TypeError where a case cannot hold it."""
    if isinstance(value, torch.dtype):
        return DType(str(value).removeprefix("torch."))
    if isinstance(value, list) and all(type(one) is int for one in value):
        return Ints(tuple(value))
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple) and all(type(one) is int for one in value):
        return tuple(value)
    raise TypeError(f"an argument of type {type(value).__name__} cannot be written into a case")


def bind(case: Case, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return ``(args, kwargs)`` of the case with these tensors as its operands."""
    remaining = iter(tensors)

    def value(argument: Argument) -> Any:
        match argument:
            case TensorSpec():
                return next(remaining)
            case Same(operand, shift, turned):
                one = _shifted(tensors[operand], shift)
                return one.transpose(-2, -1) if turned else one
            case NonFinite(text):
                return float(text)
            case View(operand, dim, start, length):
                return tensors[operand].narrow(dim, start, length)
            case DType(name):
                return getattr(torch, name)
            case Variant(name):
                return _causal_variant(name)
            case Ints(items):
                return list(items)
        return argument

    args = tuple(value(argument) for argument in case.args)
    return args, {name: value(case.kwargs[name]) for name in sorted(case.kwargs)}


def written(case: Case) -> frozenset[int]:
    """Return the operands that the call is given to write: ``out``, and the first one where ``inplace`` is true."""
    numbers = set()
    if case.kwargs.get("inplace") is True:
        numbers.add(0)
    match case.kwargs.get("out"):
        case TensorSpec():
            before = [case.kwargs[name] for name in sorted(case.kwargs) if name < "out"]
            numbers.add(sum(isinstance(argument, TensorSpec) for argument in (*case.args, *before)))
        case Same(operand) | View(operand):
            numbers.add(operand)
    return frozenset(numbers)


DTYPES: Mapping[str, torch.dtype] = {
    name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}


VARIANTS = ("UPPER_LEFT", "LOWER_RIGHT")


def _causal_variant(name: str) -> Any:
    # Imported where it is needed: it takes a second, and few ops have it.
    from torch.nn.attention.bias import CausalVariant

    return CausalVariant[name]


def arguments(case: Case) -> list[Argument]:
    """Return the arguments in the order in which operands are numbered: those by position, then those by name."""
    return [*case.args, *(case.kwargs[name] for name in sorted(case.kwargs))]


def _shifted(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    if not shift or tensor.is_meta:
        return tensor
    return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() + shift)


def misplaced(case: Case) -> str:
    """Say of an argument that refers to an operand why it cannot, or nothing where all can: that operand comes later,
    or does not hold it."""
    specs: list[TensorSpec] = []
    for argument in arguments(case):
        match argument:
            case TensorSpec():
                specs.append(argument)
            case Same(operand) if not 0 <= operand < len(specs):
                return f"an argument is the same tensor as operand {operand}, but {len(specs)} come before it"
            case Same(operand, turned=True) if len(specs[operand].shape) < 2:
                return f"an argument is operand {operand} with its last two dims swapped, which has fewer"
            case Same(operand, shift) if not -specs[operand].layout.offset <= shift <= 0:
                return f"an argument is operand {operand} shifted by {shift}, out of its storage"
            case View(operand) if not 0 <= operand < len(specs):
                return f"an argument is a view of operand {operand}, but {len(specs)} come before it"
            case View(operand) if not within(argument, specs[operand].shape):
                return f"an argument is a view that operand {operand} does not hold: {argument}"
    return ""


def within(view: View, shape: tuple[int, ...]) -> bool:
    return (
        0 <= view.dim < len(shape) and min(view.start, view.length) >= 0 and view.start + view.length <= shape[view.dim]
    )
