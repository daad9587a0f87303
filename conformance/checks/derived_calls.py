"""Calls that follow from a case: with another ``out``, operands that share memory, special values in an operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import msgspec
import torch
from msgspec.structs import replace

from conformance import call_contexts, cases
from conformance import spec as specs
from conformance.case_changes import of_one_tensor
from conformance.cases import Argument, Case, Same, View
from conformance.checks.invariance import entangled
from conformance.spec import Batch
from strategies import dtypes as dtype_names
from strategies import values as value_names
from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec

Variants = dict[str, Case]
"""Calls that follow from a case, by what is special about each."""

TURNED = 1 << 16
"""The most elements of the result of a tensor and its transpose: a column and its row give the square of their
number."""
EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""The sizes at which blocks of kernels end."""


def outs(case: Case, result: object, kinds: Iterable[str]) -> Variants:
    """Return calls with each of these kinds of ``out``; ``result``: what the call gives."""
    if "out" in case.kwargs or not isinstance(result, torch.Tensor) or entangled(case):
        return {}
    shape, dtype = tuple(result.shape), dtype_names.from_torch(result.dtype)
    found: dict[str, Argument] = {}
    other_calls: Variants = {}
    for kind in kinds:
        match kind:
            case "right":
                found["out= of the right size"] = TensorSpec(shape, dtype)
            case "empty":
                found["an empty out="] = TensorSpec((0,), dtype)
                room = Layout(padding=(math.prod(shape) + 7,))
                found["an empty out= with room"] = TensorSpec((0,), dtype, layout=room)
            case "wrong size":
                found["out= of another size"] = TensorSpec((3,) if shape != (3,) else (2, 5), dtype)
            case "dtype":
                others = [name for name in dtype_names.ALL if name != dtype]
                other = others[cases.seed(case) % len(others)]
                found[f"out= of {other}"] = TensorSpec(shape, other)
                castable = [name for name in others if torch.can_cast(result.dtype, dtype_names.to_torch(name))]
                if shape and castable:
                    other, stepped = castable[cases.seed(case) // 7 % len(castable)], cases.seed(case) // 11 % 2 == 1
                    layout = _strided(shape, stepped or len(shape) == 1)
                    found[f"out= of {other}, with strides"] = TensorSpec(shape, other, layout=layout)
            case "rounded":
                others = [name for name in dtype_names.FLOATING if name not in (dtype, "float64")]
                other = others[cases.seed(case) // 13 % len(others)]
                found[_TIES + other] = TensorSpec(shape, other)
            case "strided" if shape:
                found["out= with strides"] = TensorSpec(shape, dtype, layout=_strided(shape, True))
                if len(shape) > 1:
                    columns = with_arguments(case, out=_column_major(TensorSpec(shape, dtype)))
                    other_calls["out= and operands column-major"] = with_operands(columns, _column_major)
            case "turned":
                other_calls |= dict(_turned_out(case, shape, dtype))
            case "input" | "overlap":
                found |= dict(_operands_as_out(case, shape, dtype, kind))
                other_calls |= dict(_parts_with_out(case, shape, dtype, kind))
    variants = {what: with_arguments(case, out=out) for what, out in found.items()}
    for what, changed in variants.items():
        if what.startswith("out= of a part"):
            variants[what] = _shifted(changed)
        if what.startswith(_TIES):
            floats = [n for n, spec in enumerate(cases.operands(case)) if dtype_names.is_floating(spec.dtype)]
            for number in floats:
                variants[what] = with_operand(variants[what], number, _of_few_bits)
    return variants | other_calls


def _strided(shape: tuple[int, ...], stepped: bool) -> Layout:
    """Return a layout of reversed dims; ``stepped``: of every second element of the last one."""
    return Layout(tuple(reversed(range(len(shape)))), (*(1 for _ in shape[1:]), 1 + stepped))


_TIES = "ties in an out= of "


def _of_few_bits(spec: TensorSpec) -> TensorSpec:
    return replace(spec, values="ties", specials=())


def _operands_as_out(case: Case, shape: tuple[int, ...], dtype: str, kind: str) -> Iterator[tuple[str, Argument]]:
    for number, spec in enumerate(cases.operands(case)):
        if (spec.shape, spec.dtype) == (shape, dtype) and not spec.layout.expanded:
            if kind == "input":
                yield f"operand {number} for out=", Same(number)
                if shape:
                    yield f"another view of operand {number} for out=", View(number, 0, 0, shape[0])
            elif max(shape, default=1) > 1:
                yield f"out= of a part of operand {number}", Same(number, shift=-1)


def _turned_out(case: Case, shape: tuple[int, ...], dtype: str) -> Iterator[tuple[str, Case]]:
    """Yield calls with an operand as ``out``, its last two dims swapped; all operands are square, so that it has the
    right size."""
    specs, size = cases.operands(case), min(shape[-2:], default=0)
    if len(shape) < 2 or size < 2 or any(spec.shape != shape for spec in specs):
        return
    square = case
    for number in range(len(specs)):
        square = with_operand(square, number, lambda spec: _of_shape(spec, (*shape[:-2], size, size)))
    for number, spec in enumerate(specs):
        if spec.dtype == dtype:
            yield f"operand {number} turned for out=", with_arguments(square, out=Same(number, turned=True))


def _parts_with_out(case: Case, shape: tuple[int, ...], dtype: str, kind: str) -> Iterator[tuple[str, Case]]:
    """Yield calls with an ``out`` whose rows lie between those of an operand, which is no overlap; and with an operand
    for ``out`` of which another one is a row, which is one."""
    if len(shape) < 2 or min(shape) < 2:
        return
    width = shape[-1]
    beside = Layout(padding=(*(0 for _ in shape[1:]), width), offset=width)
    specs = cases.operands(case)
    for number, spec in enumerate(specs):
        if (spec.shape, spec.dtype) != (shape, dtype):
            continue
        if kind == "input":
            changed = with_arguments(case, out=Same(number, shift=-width))
            yield (
                f"out= between the rows of operand {number}",
                with_operand(changed, number, lambda spec: replace(spec, layout=beside)),
            )
        elif number == 0 and len(specs) == 2 and case.args[:2] == specs:
            row = View(0, 0, shape[0] - 1, 1)
            changed = with_arguments(case, out=Same(0))
            whole = with_operand(changed, 0, lambda spec: replace(spec, layout=CONTIGUOUS))
            yield "out= of which operand 1 is a row", replace(whole, args=(whole.args[0], row, *whole.args[2:]))


def _column_major(spec: TensorSpec) -> TensorSpec:
    if len(spec.shape) < 2:
        return spec
    rest = range(len(spec.shape) - 2)
    return replace(spec, layout=Layout(order=(*rest, len(spec.shape) - 1, len(spec.shape) - 2)))


def _of_shape(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    return replace(spec, shape=shape, layout=CONTIGUOUS)


def _shifted(case: Case) -> Case:
    """Return the case with the operand of which ``out`` is a part made contiguous, so that torch can tell."""
    out = case.kwargs["out"]
    assert isinstance(out, Same)
    return with_operand(case, out.operand, lambda spec: replace(spec, layout=Layout(offset=1)))


def aliases(case: Case, apart: bool, broadcasts: bool) -> Variants:
    """Return calls with two inputs of one dtype that are one tensor, or views of one: turned, or (``apart``) one
    element apart, or (where it ``broadcasts``) a row of it or, of two, a column; and with all of more inputs one
    tensor."""
    if any(isinstance(x, Same | View) for x in (*case.args, *case.kwargs.values())):
        return {}
    specs = [spec for spec in case.args if isinstance(spec, TensorSpec)]
    found: Variants = {}
    for number, spec in enumerate(specs):
        for first in range(number):
            earlier = specs[first]
            if earlier.dtype != spec.dtype:
                continue
            place = next(place for place, argument in enumerate(case.args) if argument is spec)
            args = list(case.args)
            names = f"operands {first} and {number}"
            if len(earlier.shape) > 1 and spec.shape and _square(earlier.shape) <= TURNED:
                args[place] = Same(first, turned=True)
                turned = replace(case, args=tuple(args), digests=())
                found[f"{names} one tensor, the second turned"] = turned
                # Where operands broadcast, one that is not square only fits itself turned as a column does its row.
                column = (*earlier.shape[:-2], max(earlier.shape[-2:]), 1)
                if apart and earlier.shape[-1] != earlier.shape[-2]:
                    found[f"{names} a column and its row"] = with_operand(
                        turned, first, lambda spec, column=column: _of_shape(spec, column)
                    )
            columns = earlier.shape[-1] if len(earlier.shape) > 1 and len(case.args) == len(specs) == 2 else 1
            if broadcasts and columns > 1 and "out" not in case.kwargs:
                args[place] = View(first, len(earlier.shape) - 1, (0, columns - 1)[cases.seed(case) // 19 % 2], 1)
                found[f"operand {number} a column of operand {first}"] = replace(case, args=tuple(args), digests=())
            if broadcasts and earlier.shape and earlier.shape[0] > 1 and "out" not in case.kwargs:
                args[place] = View(first, 0, 0, 1)
                row = replace(case, args=tuple(args), digests=())
                if cases.seed(case) // 17 % 2:
                    row = with_operand(row, first, _column_major)
                found[f"operand {number} the first row of operand {first}"] = row
            if earlier.shape != spec.shape:
                continue
            args[place] = Same(first)
            found[f"{names} the same tensor"] = replace(case, args=tuple(args), digests=())
            if apart:
                args[place] = Same(first, shift=-1)
                moved = replace(case, args=tuple(args), digests=())
                found[f"{names} one element apart"] = with_operand(
                    moved, first, lambda spec: replace(spec, layout=Layout(offset=1))
                )
    one = of_one_tensor(case)
    if one is not None and sum(math.prod(spec.shape) for spec in cases.operands(one)) <= TURNED:
        found["all operands one tensor"] = one
    return found


def _square(shape: tuple[int, ...]) -> int:
    """Return the number of elements of the largest result of a tensor of this shape and the same, turned."""
    return math.prod(shape[:-2]) * max(shape[-2:]) ** 2


def planted(case: Case, batch: Batch | None) -> tuple[Case, int | None] | None:
    """Return the case with special values in one operand, and the part of the batch that holds them, where there is
    one."""
    seed, out = cases.seed(case), case.kwargs.get("out")
    if entangled(case):
        return None
    fitting = [
        (number, spec)
        for number, spec in enumerate(cases.operands(case))
        if spec is not out and 0 not in spec.shape and dtype_names.is_floating(spec.dtype)
    ]
    if not fitting:
        return None
    number, spec = fitting[seed % len(fitting)]
    places = torch.arange(int(torch.Size(spec.shape).numel())).view(spec.shape)
    part = None
    dim = batch.operands[number] if batch is not None else None
    if batch is not None and dim is not None and dim not in spec.layout.expanded:
        part = seed // 5 % batch.size
        places = places.narrow(dim, part, 1)
    flat = places.flatten()
    edges = [edge + side for edge in EDGES for side in (-1, 0) if edge + side < len(flat)]
    chosen = dict.fromkeys((0, len(flat) - 1, *(edges[seed // 3 % len(edges) :][:1] if edges else ())))
    names = list(value_names.specials_of(spec.dtype))
    if "inf" in names:
        names += [value_names.SIGNALLING, value_names.SIGNED_NAN, value_names.FULL_NAN]
    if seed // 9 % 8 == 0:
        # The largest number of a row is a zero, of either sign: the first one counts.
        zero = Special(int(flat[0]), "-0")
        return with_operand(case, number, lambda spec: replace(spec, values=_ZEROS, specials=(zero,))), None
    specials = tuple(Special(int(flat[place]), names[(seed + n) % len(names)]) for n, place in enumerate(chosen))
    return with_operand(case, number, lambda spec: replace(spec, specials=(*spec.specials, *specials))), part


_ZEROS = value_names.LISTED + "-3,-1,0,-2,-5,0,-4"


def with_operands(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with other specs of the operands that it only reads."""
    writes, numbers = specs.registry()[case.op].writes(case), range(len(cases.operands(case)))
    for number in (number for number in numbers if number not in writes):
        case = with_operand(case, number, change)
    return case


def with_arguments(case: Case, **kwargs: Argument) -> Case:
    """Return the case with other keyword arguments."""
    # torch may resize an ``out``, and warns of it; the operand of which it is a view stays as it is.
    fixed = (call_contexts.STRICT, call_contexts.VIEWS, call_contexts.ENTIRE)
    form = "" if "out" in kwargs and case.form in fixed else case.form
    return replace(case, kwargs={**case.kwargs, **kwargs}, form=form, digests=())


def with_operand(case: Case, number: int, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with another spec of an operand."""
    remaining = iter(range(len(cases.operands(case))))

    def one(argument: Argument) -> Argument:
        return change(argument) if isinstance(argument, TensorSpec) and next(remaining) == number else argument

    args = tuple(map(one, case.args))
    return msgspec.structs.replace(
        case, args=args, kwargs={name: one(case.kwargs[name]) for name in sorted(case.kwargs)}, digests=()
    )
