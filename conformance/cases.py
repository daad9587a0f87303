"""A case is data: an op and its arguments, JSON in and out, with a stable id.

Reading is strict, since case files travel between people: whatever is not a legal case of a known op is refused with
a ``CaseError`` that says what is wrong, before any tensor is made. Nothing is unpickled, nothing is executed.
"""

from __future__ import annotations

import hashlib
import math
import stat
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

import strategies.tensors
from conformance.names import unknown_name
from strategies import layouts
from strategies.specs import TensorSpec

T = TypeVar("T")

SCHEMA = 1
MAX_ELEMENTS = 2**27
"""Elements that one case may hold, unless the user raises it."""
MAX_BYTES = 2**20
"""Size of a case file, unless the user raises it; a case without tensor data is a few hundred bytes."""
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
        """Tell a view of the operand from the operand itself."""
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
    """A case of an op that there is not, or no more."""


class Unreadable(CaseError):
    """A file that cannot be read, or is too large."""


class TooLarge(CaseError):
    """A case that needs more elements than the user allows."""


class _Header(msgspec.Struct):
    """What is read first, so that a file of another schema is called that and not "unknown field"."""

    schema: int


def canonical(case: Case) -> Case:
    """The same case in the one form that JSON can hold: floats that are not finite as ``NonFinite``, kwargs by name."""

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
    """``<op>-<first 10 hex digits of the SHA-256 of the canonical JSON>``, without digests, note and permanence."""
    plain = msgspec.to_builtins(canonical(case))
    del plain["digests"], plain["note"], plain["permanent"]
    if not case.form:
        del plain["form"]
    digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()
    return f"{case.op}-{digest[:10]}"


def seed(case: Case) -> int:
    """What torch's generators are seeded with before each call of the case: the digits of its id."""
    return int(case_id(case).rpartition("-")[2], 16)


def encode(case: Case) -> bytes:
    """The case as JSON for people: indented, keys in a fixed order, one newline at the end."""
    plain = msgspec.to_builtins(canonical(case))
    # What is not said need not be known to whom reads it.
    for name in ("permanent", "form"):
        if not plain[name]:
            del plain[name]
    return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"


def in_one_line(case: Case) -> str:
    """The JSON of a case, to be shown."""
    return msgspec.json.format(encode(case), indent=-1).decode()


def decode(data: bytes | str, *, max_elements: int = MAX_ELEMENTS) -> Case:
    """The case in ``data``.

    Raises CaseError: not JSON, not a case, another schema, an unknown op, dtype or recipe, more than
    ``max_elements`` elements in operands or result.
    """
    case = parsed(data, Case, "a case")
    validate(case, max_elements=max_elements)
    return case


def parsed(data: bytes | str, kind: type[T], what: str) -> T:
    """JSON of schema ``SCHEMA`` as a struct of class ``kind``. Raises CaseError; ``what``: what it should be."""
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.schema != SCHEMA:
            raise CaseError(f"its schema is {header.schema}, and this harness reads schema {SCHEMA} only")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaseError(f"not {what}: {error}") from None


def read(path: Path | str, *, max_elements: int = MAX_ELEMENTS, max_bytes: int = MAX_BYTES) -> Case:
    """The case in a file. Raises CaseError, naming the file, also where it cannot be read or is too large."""
    try:
        return decode(content(path, max_bytes=max_bytes), max_elements=max_elements)
    except Unreadable:
        raise
    except CaseError as error:
        raise type(error)(f"{path}: {error}") from None


def content(path: Path | str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a file that may hold a case. Raises Unreadable, naming the file."""
    path = Path(path)
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
    """The tensors of the case, in the order in which operands are numbered."""
    return tuple(argument for argument in _arguments(case) if isinstance(argument, TensorSpec))


def size(case: Case) -> tuple[int, int]:
    """Elements of operands, then length: the smaller of two failing cases is the one to show."""
    return sum(math.prod(spec.shape) for spec in operands(case)), len(encode(case))


def dtype_of(case: Case) -> str:
    """The dtype under which a case is counted: that of its first tensor; "none" where it has no tensor."""
    return next((spec.dtype for spec in operands(case)), "none")


def materialize(
    case: Case, device: torch.device | str = "cpu"
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[torch.Tensor, ...]]:
    """``(args, kwargs, tensors)``: the call's arguments, and its operands in order."""
    tensors = tuple(
        strategies.tensors.materialize(spec, operand, device) for operand, spec in enumerate(operands(case))
    )
    return *bind(case, tensors), tensors


def bind(case: Case, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``(args, kwargs)`` of the case with these tensors as its operands."""
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
    """Operands that the call is given to write: ``out``, and the first one where ``inplace`` is true."""
    numbers = set()
    if case.kwargs.get("inplace") is True:
        numbers.add(0)
    match case.kwargs.get("out"):
        case TensorSpec():
            before = [case.kwargs[name] for name in sorted(case.kwargs) if name < "out"]
            numbers.add(sum(isinstance(argument, TensorSpec) for argument in (*case.args, *before)))
        case Same(operand):
            numbers.add(operand)
    return frozenset(numbers)


def validate(case: Case, *, max_elements: int = MAX_ELEMENTS) -> None:
    """Raises CaseError unless the case is one of a known op whose tensors can be made within ``max_elements``."""
    # Imported here: they need Case.
    from conformance import forms
    from conformance import spec as specs

    spec = specs.registry().get(case.op)
    if spec is None:
        raise UnknownOp(unknown_name("op", case.op, sorted(specs.registry())))
    if case.form and case.form not in forms.FORMS:
        raise CaseError(unknown_name("form", case.form, forms.FORMS))
    for name in case.kwargs:
        if not name.isidentifier():
            raise CaseError(f"keyword argument {name!r} is not a name")
    seen = total = 0
    for argument in _arguments(case):
        match argument:
            case TensorSpec():
                total += _elements(argument, seen, max_elements)
                seen += 1
            case Same(operand) if not 0 <= operand < seen:
                raise CaseError(f"an argument is the same tensor as operand {operand}, but {seen} come before it")
            case Same(operand, turned=True) if len(operands(case)[operand].shape) < 2:
                raise CaseError(f"an argument is operand {operand} with its last two dims swapped, which has fewer")
            case Same(operand, shift) if not -operands(case)[operand].layout.offset <= shift <= 0:
                raise CaseError(f"an argument is operand {operand} shifted by {shift}, out of its storage")
            case View(operand) if not 0 <= operand < seen:
                raise CaseError(f"an argument is a view of operand {operand}, but {seen} come before it")
            case View(operand) if not within(argument, operands(case)[operand].shape):
                raise CaseError(f"an argument is a view that operand {operand} does not hold: {argument}")
            case Variant(name) if name not in VARIANTS:
                raise CaseError(unknown_name("causal variant", name, VARIANTS))
            case NonFinite(text) if text not in ("nan", "inf", "-inf"):
                raise CaseError(f"a non-finite float is nan, inf or -inf, not {text!r}")
            case DType(name) if name not in DTYPES:
                raise CaseError(unknown_name("dtype", name, sorted(DTYPES)))
    _limit(total, "its operands", max_elements)
    if case.digests and len(case.digests) != seen:
        raise CaseError(f"it has {len(case.digests)} digests for {seen} operands")
    # No result has more elements than broadcasting or a product of all operands can give. Asking torch, by way of meta
    # tensors, has it import its compiler, which takes a second.
    if math.prod(max(size, 1) for operand in operands(case) for size in operand.shape) > max_elements:
        _limit(_result_elements(case, spec.reference), "its result", max_elements)


DTYPES: Mapping[str, torch.dtype] = {
    name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}


VARIANTS = ("UPPER_LEFT", "LOWER_RIGHT")


def _causal_variant(name: str) -> Any:
    # Imported where it is needed: it takes a second, and few ops have it.
    from torch.nn.attention.bias import CausalVariant

    return CausalVariant[name]


def _arguments(case: Case) -> list[Argument]:
    return [*case.args, *(case.kwargs[name] for name in sorted(case.kwargs))]


def _shifted(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    if not shift or tensor.is_meta:
        return tensor
    return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() + shift)


def within(view: View, shape: tuple[int, ...]) -> bool:
    return (
        0 <= view.dim < len(shape) and min(view.start, view.length) >= 0 and view.start + view.length <= shape[view.dim]
    )


def _elements(spec: TensorSpec, operand: int, limit: int) -> int:
    """Elements that the tensor needs, in its storage or logically, whichever is more. What a TensorSpec may say is
    checked by itself when it is made; here is what it may cost."""
    if len(spec.shape) > MAX_DIMS:
        raise CaseError(f"operand {operand} has {len(spec.shape)} dims; at most {MAX_DIMS} are read")
    for size in (*spec.shape, *(number for special in spec.specials for number in (abs(special.index), special.run))):
        _limit(size, f"a dim or a special value of operand {operand}", limit)
    return max(layouts.storage_size(spec.layout, spec.shape), math.prod(spec.shape))


def _result_elements(case: Case, reference: Any) -> int:
    """Elements of what torch would return, asked with meta tensors; 0 where torch refuses the call."""
    tensors = [torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta") for spec in operands(case)]
    args, kwargs = bind(case, tensors)
    try:
        with warnings.catch_warnings(action="ignore"):
            result = reference(*args, **kwargs)
    # Whatever torch says of an illegal call: a case may well be one, and judging it is not this function's work.
    except Exception:  # noqa: BLE001
        return 0
    return sum(value.numel() for value in (result if isinstance(result, tuple) else (result,)))


def _limit(elements: int, what: str, limit: int) -> None:
    if elements > limit:
        raise TooLarge(f"{what} would hold {elements} elements; the limit is {limit} (--max-elements raises it)")
