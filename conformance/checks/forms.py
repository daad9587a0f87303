"""Checks of calls that follow from a case: with ``out=``, in place, of operands that share memory, of special values.
torch's answer to the same call is the reference, also where it refuses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import torch
from msgspec.structs import replace

from conformance import call_contexts, cases
from conformance import spec as specs
from conformance.cases import Argument, Case, Same, View
from conformance.checks import least_tried
from conformance.checks.call_record import FAILED, PASSED, Finding, Outcome, Trial, difference, malformed
from conformance.checks.invariance import entangled
from conformance.checks.result import errors, inputs_unchanged, judged, metadata, versions
from conformance.forms import is_torchs
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


def out_argument(trial: Trial) -> Finding:
    """Check that ``out=`` of any size, dtype and strides, or of an input's memory, is taken or refused as by torch."""
    variants = _outs(trial.case, trial.reference.value, trial.spec.outs)
    plain = variants.get("out= of the right size")
    if plain is not None and _is_recorded(trial):
        forms = (call_contexts.TRAINING, call_contexts.LEAVES, call_contexts.UPDATED)
        variants |= {f"out= with operands that are {form}": replace(plain, form=form) for form in forms}
    return first(trial, "out_argument", variants)


def inplace(trial: Trial) -> Finding:
    """Check that an in-place call returns the operand, which holds the right result: if the implementation claims to be
    deterministic, the bits of the call that is not in place, but for a zero's sign (torch's own relu has the other one)
    and the kind of NaN. Where gradients are recorded torch refuses to write a leaf that requires one."""
    changed = _changed(trial.case, inplace=True)
    if _is_recorded(trial) and cases.seed(trial.case) // 31 % 2:
        form = (call_contexts.LEAVES, call_contexts.UPDATED)[cases.seed(trial.case) // 62 % 2]
        finding = _judge(trial, "inplace", f"in place, {form}", trial.derive(replace(changed, form=form)))
        if finding.status != PASSED:
            return finding
    derived = trial.derive(changed)
    finding = _judge(trial, "inplace", "in place", derived)
    claimed = "deterministic" in trial.implementation.claims(trial.case.op)
    # A random op drops by the seed, which differs from call to call.
    if (
        finding.status != PASSED
        or not claimed
        or derived.ours.error is not None
        or derived.expected[0].instead is not None
    ):
        return finding
    message = difference(*map(_unsigned_zeros, (trial.ours, derived.ours)), "a call and the same in place")
    return Finding("inplace", FAILED, message) if message else finding


def _unsigned_zeros(outcome: Outcome) -> Outcome:
    found = tuple(result + 0 for result in outcome.tensors())
    return dataclasses.replace(outcome, value=found if isinstance(outcome.value, tuple) else found[0])


def aliasing(trial: Trial) -> Finding:
    """Check that operands may share memory with each other, and that a result shares none with another call's."""
    given = [operand.untyped_storage().data_ptr() for operand in trial.ours.operands]
    results = zip(trial.ours.tensors(), trial.ours.memory(), strict=True)
    earlier = {place for result, place in results if result.numel()} - {*given}
    again = trial.second
    well = again.error is None and not malformed(again.value, trial.reference.value)
    if well and earlier.intersection(again.memory()):
        return Finding("aliasing", FAILED, "the second of two calls returned the memory that the first had returned")
    # One element before an operand lies NaN, which torch's CPU does not propagate in all of its fused operators.
    apart, shapes = bool(trial.spec.outs), [operand.shape for operand in trial.inputs]
    broadcasts = apart and trial.reference.error is None and trial.reference.tensors()[0].shape == _broadcast(shapes)
    return first(trial, "aliasing", _aliases(trial.case, apart, broadcasts))


def _broadcast(shapes: Sequence[torch.Size]) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None


def special_values(trial: Trial) -> Finding:
    """Check that NaN, infinities, zeros and limits at the first and the last element and at the edges of blocks give
    what they should, and change nothing in other parts of the batch."""
    planted = _planted(trial.case, trial.spec.batch(trial.case))
    assert planted is not None
    derived, part, batch = trial.derive(planted[0]), planted[1], trial.spec.batch(trial.case)
    finding = _judge(trial, "special_values", "with other special values", derived)
    if finding.status != PASSED or part is None or batch is None or trial.change[0] or derived.refusal is not None:
        return finding
    for start, length in ((0, part), (part + 1, batch.size - part - 1)):
        outcomes = (outcome.part(batch.result, start, length) for outcome in (trial.ours, derived.ours))
        what = f"without and with special values in [{part}] of dim {batch.result}, [{start}, {start + length})"
        if message := difference(*outcomes, what):
            return trial.excused(Finding("special_values", FAILED, message), derived.case, "values")
    return finding


def _is_recorded(trial: Trial) -> bool:
    """Tell whether gradients of the plain call are claimed to be recorded, and torch has a function that does so."""
    claimed = "gradients" in trial.implementation.claims(trial.case.op) and is_torchs(trial.case.op)
    return claimed and trial.spec.gradients is not None and not trial.case.form and not entangled(trial.case)


def has_out(trial: Trial) -> bool:
    """Tell whether the op has ``out=``, and the call does not."""
    return bool(_outs(trial.case, trial.reference.value, trial.spec.outs))


def has_inplace(trial: Trial) -> bool:
    """Tell whether the op has ``inplace=``, and the call is not in place."""
    return trial.spec.inplace and trial.case.kwargs.get("inplace") is not True


def with_out_or_in_place(trial: Trial, kinds: Iterable[str]) -> Variants:
    """Return the call in place, if there is one, and with each ``out`` of these kinds, of those in which torch's CPU
    and CUDA agree."""
    outs = _outs(trial.case, trial.reference.value, [kind for kind in trial.spec.outs if kind in kinds])
    found = {"in place": _changed(trial.case, inplace=True)} if has_inplace(trial) else {}
    return {what: case for what, case in (found | outs).items() if trial.spec.takes(case)}


def not_in_place(trial: Trial) -> bool:
    """Tell whether the result should have memory of its own."""
    return not trial.spec.writes(trial.case)


def has_numbers(trial: Trial) -> bool:
    """Tell whether there is an operand in which special values may be planted."""
    return _planted(trial.case, trial.spec.batch(trial.case)) is not None


# --- judging a call that follows from a case ---------------------------------------------------------------------


def first(trial: Trial, name: str, variants: Variants) -> Finding:
    """Return the first variant that fails; a trial that is not thorough tries one variant, in turn."""
    variants = {what: case for what, case in variants.items() if trial.spec.takes(case)}
    chosen: Iterable[tuple[str, Case]] = variants.items()
    if not trial.thorough and variants:
        what = least_tried.choose(trial.case, name, [*variants], trial.tells)
        chosen = [(what, variants[what])]
    found = (_judge(trial, name, what, trial.derive(case)) for what, case in chosen)
    kept = [finding for finding in found if finding.status != PASSED]
    return next((f for f in kept if f.status == FAILED), kept[0] if kept else Finding(name, PASSED))


def _judge(trial: Trial, name: str, what: str, derived: Trial) -> Finding:
    """Make the checks of a result on another call."""
    # Other values may be refused for what they are, a zero by which integers are divided; forms, by torch alone.
    if derived.left_out or (
        derived.refusal is not None
        and name in ("aliasing", "special_values", "call_forms", "layouts", "plain_operands")
    ):
        return Finding(name, PASSED)
    if derived.ours.trespass:
        return Finding(name, FAILED, f"{what}: {derived.ours.trespass}", case=derived.case)
    for check in _checks(derived):
        finding = check(derived)
        if finding.status == FAILED:
            message = f"{what}: {finding.check}: {finding.message}"
            found = Finding(name, FAILED, message, index=finding.index, case=derived.case)
            return trial.excused(found, derived.case, finding.check)
    return Finding(name, PASSED)


def _checks(trial: Trial) -> tuple[Callable[[Trial], Finding], ...]:
    if trial.refusal is not None:
        return errors, inputs_unchanged
    if trial.ours.error is not None:
        return (errors,)
    if malformed(trial.ours.value, trial.reference.value):
        return (metadata,)
    return metadata, lambda trial: judged(trial, trial.ours), inputs_unchanged, versions


# --- the calls ---------------------------------------------------------------------------------------------------


def _outs(case: Case, result: object, kinds: Iterable[str]) -> Variants:
    if "out" in case.kwargs or not isinstance(result, torch.Tensor) or entangled(case):
        return {}
    shape, dtype = tuple(result.shape), dtype_names.from_torch(result.dtype)
    found: dict[str, Argument] = {}
    turned: Variants = {}
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
            case "rounded":
                others = [name for name in dtype_names.FLOATING if name not in (dtype, "float64")]
                other = others[cases.seed(case) // 13 % len(others)]
                found[_TIES + other] = TensorSpec(shape, other)
            case "strided" if shape:
                order, steps = tuple(reversed(range(len(shape)))), (*(1 for _ in shape[1:]), 2)
                found["out= with strides"] = TensorSpec(shape, dtype, layout=Layout(order, steps))
                if len(shape) > 1:
                    columns = _changed(case, out=_column_major(TensorSpec(shape, dtype)))
                    turned["out= and operands column-major"] = with_operands(columns, _column_major)
            case "turned":
                turned |= dict(_turned_out(case, shape, dtype))
            case "input" | "overlap":
                found |= dict(_operands_as_out(case, shape, dtype, kind))
                turned |= dict(_parts_with_out(case, shape, dtype, kind))
    variants = {what: _changed(case, out=out) for what, out in found.items()}
    for what, changed in variants.items():
        if what.startswith("out= of a part"):
            variants[what] = _shifted(changed)
        if what.startswith(_TIES):
            floats = [n for n, spec in enumerate(cases.operands(case)) if dtype_names.is_floating(spec.dtype)]
            for number in floats:
                variants[what] = _with_operand(variants[what], number, _of_few_bits)
    return variants | turned


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
        square = _with_operand(square, number, lambda spec: _of_shape(spec, (*shape[:-2], size, size)))
    for number, spec in enumerate(specs):
        if spec.dtype == dtype:
            yield f"operand {number} turned for out=", _changed(square, out=Same(number, turned=True))


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
            changed = _changed(case, out=Same(number, shift=-width))
            yield (
                f"out= between the rows of operand {number}",
                _with_operand(changed, number, lambda spec: replace(spec, layout=beside)),
            )
        elif number == 0 and len(specs) == 2 and case.args[:2] == specs:
            row = View(0, 0, shape[0] - 1, 1)
            changed = _changed(case, out=Same(0))
            whole = _with_operand(changed, 0, lambda spec: replace(spec, layout=CONTIGUOUS))
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
    return _with_operand(case, out.operand, lambda spec: replace(spec, layout=Layout(offset=1)))


def _aliases(case: Case, apart: bool, broadcasts: bool) -> Variants:
    """Return calls with two inputs of one dtype that are one tensor, or views of one: turned, or (``apart``) one
    element apart, or (where it ``broadcasts``) a row of it."""
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
                    found[f"{names} a column and its row"] = _with_operand(
                        turned, first, lambda spec, column=column: _of_shape(spec, column)
                    )
            if broadcasts and earlier.shape and earlier.shape[0] > 1 and "out" not in case.kwargs:
                args[place] = View(first, 0, 0, 1)
                row = replace(case, args=tuple(args), digests=())
                if cases.seed(case) // 17 % 2:
                    row = _with_operand(row, first, _column_major)
                found[f"operand {number} the first row of operand {first}"] = row
            if earlier.shape != spec.shape:
                continue
            args[place] = Same(first)
            found[f"{names} the same tensor"] = replace(case, args=tuple(args), digests=())
            if apart:
                args[place] = Same(first, shift=-1)
                moved = replace(case, args=tuple(args), digests=())
                found[f"{names} one element apart"] = _with_operand(
                    moved, first, lambda spec: replace(spec, layout=Layout(offset=1))
                )
    return found


def _square(shape: tuple[int, ...]) -> int:
    """Return the number of elements of the largest result of a tensor of this shape and the same, turned."""
    return math.prod(shape[:-2]) * max(shape[-2:]) ** 2


def _planted(case: Case, batch: Batch | None) -> tuple[Case, int | None] | None:
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
        names += [value_names.SIGNALLING, value_names.SIGNED_NAN]
    if seed // 9 % 8 == 0:
        # The largest number of a row is a zero, of either sign: the first one counts.
        zero = Special(int(flat[0]), "-0")
        return _with_operand(case, number, lambda spec: replace(spec, values=_ZEROS, specials=(zero,))), None
    specials = tuple(Special(int(flat[place]), names[(seed + n) % len(names)]) for n, place in enumerate(chosen))
    return _with_operand(case, number, lambda spec: replace(spec, specials=(*spec.specials, *specials))), part


_ZEROS = value_names.LISTED + "-3,-1,0,-2,-5,0,-4"


def with_operands(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with other specs of the operands that it only reads."""
    writes, numbers = specs.registry()[case.op].writes(case), range(len(cases.operands(case)))
    for number in (number for number in numbers if number not in writes):
        case = _with_operand(case, number, change)
    return case


def _changed(case: Case, **kwargs: Argument) -> Case:
    # torch warns of an ``out`` that it resizes.
    form = "" if "out" in kwargs and case.form == call_contexts.STRICT else case.form
    return replace(case, kwargs={**case.kwargs, **kwargs}, form=form, digests=())


def _with_operand(case: Case, number: int, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with another spec of an operand."""
    remaining = iter(range(len(cases.operands(case))))

    def one(argument: Argument) -> Argument:
        return change(argument) if isinstance(argument, TensorSpec) and next(remaining) == number else argument

    args = tuple(map(one, case.args))
    return msgspec.structs.replace(
        case, args=args, kwargs={name: one(case.kwargs[name]) for name in sorted(case.kwargs)}, digests=()
    )
