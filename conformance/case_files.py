"""Read cases strictly, since case files travel between people.

Whatever is not a legal case of a known op is refused with a ``CaseError`` that says what is wrong, before any tensor is
made. Nothing is unpickled, nothing is executed.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch

from conformance import forms
from conformance import spec as specs
from conformance.cases import (
    DTYPES,
    MAX_BYTES,
    MAX_DIMS,
    MAX_ELEMENTS,
    VARIANTS,
    Case,
    CaseError,
    DType,
    NonFinite,
    TooLarge,
    UnknownOp,
    Unreadable,
    Variant,
    arguments,
    bind,
    content,
    misplaced,
    operands,
    parsed,
)
from conformance.names import unknown_name
from conformance.spec import Call
from strategies import layouts, stored, tensors
from strategies.specs import TensorSpec
from strategies.values import STORED


def decode(data: bytes | str, *, max_elements: int = MAX_ELEMENTS) -> Case:
    """Return the case in ``data``.

    Raises CaseError: not JSON, not a case, another schema, an unknown op, dtype or recipe, more than
    ``max_elements`` elements in operands or result.
    """
    case = parsed(data, Case, "a case")
    validate(case, max_elements=max_elements)
    return case


def read(path: Path | str, *, max_elements: int = MAX_ELEMENTS, max_bytes: int = MAX_BYTES) -> Case:
    """Return the case in a file.

    Raises CaseError, naming the file, also where it cannot be read or is too large, or where elements of its operands
    are in files (``strategies.stored``) that are not beside it."""
    try:
        case = decode(content(path, max_bytes=max_bytes), max_elements=max_elements)
        find_data(case, Path(path))
        return case
    except Unreadable:
        raise
    except CaseError as error:
        raise type(error)(f"{path}: {error}") from None


def stored_digests(case: Case) -> list[str]:
    """Return the digests of the elements that files hold, and not the case."""
    return [spec.values.removeprefix(STORED) for spec in operands(case) if spec.values.startswith(STORED)]


def find_data(case: Case, path: Path) -> None:
    """Have the elements of a case that was read from ``path`` found beside it. Raises Unreadable, naming the file."""
    if not stored_digests(case):
        return
    stored.look_in(path.parent)
    try:
        for spec in operands(case):
            tensors.check_file(spec)
    except stored.StoredError as error:
        raise Unreadable(f"{path}: {error}") from None


def validate(case: Case, *, max_elements: int = MAX_ELEMENTS) -> None:
    """Raise CaseError unless the case is one of a known op whose tensors can be made within ``max_elements``."""
    spec = specs.registry().get(case.op)
    if spec is None:
        raise UnknownOp(unknown_name("op", case.op, sorted(specs.registry())))
    if case.form and case.form not in forms.FORMS:
        raise CaseError(unknown_name("form", case.form, forms.FORMS))
    for name in case.kwargs:
        if not name.isidentifier():
            raise CaseError(f"keyword argument {name!r} is not a name")
    seen = total = 0
    for argument in arguments(case):
        match argument:
            case TensorSpec():
                total += _elements(argument, seen, max_elements)
                seen += 1
            case Variant(name) if name not in VARIANTS:
                raise CaseError(unknown_name("causal variant", name, VARIANTS))
            case NonFinite(text) if text not in ("nan", "inf", "-inf"):
                raise CaseError(f"a non-finite float is nan, inf or -inf, not {text!r}")
            case DType(name) if name not in DTYPES:
                raise CaseError(unknown_name("dtype", name, sorted(DTYPES)))
    if said := misplaced(case):
        raise CaseError(said)
    _limit(total, "its operands", max_elements)
    if case.digests and len(case.digests) != seen:
        raise CaseError(f"it has {len(case.digests)} digests for {seen} operands")
    # No result has more elements than broadcasting or a product of all operands can give, so torch is asked only beyond
    # that: meta tensors make it import its compiler, which takes a second.
    if math.prod(max(size, 1) for operand in operands(case) for size in operand.shape) > max_elements:
        _limit(result_elements(case) or 0, "its result", max_elements)


def _elements(spec: TensorSpec, operand: int, limit: int) -> int:
    """Return the number of elements that the tensor needs, in its storage or logically, whichever is more. A TensorSpec
    checks its fields when it is made; this limits its cost."""
    if len(spec.shape) > MAX_DIMS:
        raise CaseError(f"operand {operand} has {len(spec.shape)} dims; at most {MAX_DIMS} are read")
    for size in (*spec.shape, *(number for special in spec.specials for number in (abs(special.index), special.run))):
        _limit(size, f"a dim or a special value of operand {operand}", limit)
    return max(layouts.storage_size(spec.layout, spec.shape), math.prod(spec.shape))


def on_meta(case: Case) -> Call | None:
    """Return torch's call with meta tensors, which have no elements; None where torch refuses it, or such tensors."""
    try:
        tensors = [torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta") for spec in operands(case)]
    except RuntimeError:
        # They would have more than 2^63 bytes.
        return None
    args, kwargs = bind(case, tensors)
    try:
        with warnings.catch_warnings(action="ignore"):
            return Call(args, kwargs, specs.registry()[case.op].reference(*args, **kwargs))
    # Any error of torch: a case may be an illegal call, and judging it is not this function's work.
    except Exception:  # noqa: BLE001
        return None


def results(call: Call) -> tuple[Any, ...]:
    """Return the results of a call, one or several."""
    return call.result if isinstance(call.result, tuple) else (call.result,)


def result_elements(case: Case) -> int | None:
    """Return the number of elements of torch's result, asked with meta tensors; None where torch refuses the call."""
    call = on_meta(case)
    return None if call is None else sum(result.numel() for result in results(call))


def _limit(elements: int, what: str, limit: int) -> None:
    if elements > limit:
        raise TooLarge(f"{what} would hold {elements} elements; the limit is {limit} (--max-elements raises it)")
