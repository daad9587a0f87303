"""Check that other ways to write a call give the same result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from conformance import call_contexts, cases, forms, meta_calls
from conformance import spec as specs
from conformance.cases import Argument, Case, Same
from conformance.checks.call_record import FAILED, PASSED, Finding, Trial
from conformance.checks.derived_calls import Variants, with_operands
from conformance.checks.forms import first
from conformance.checks.invariance import entangled
from strategies.dtypes import HALF, is_floating
from strategies.shapes import KEPT
from strategies.specs import CONTIGUOUS, Layout, TensorSpec
from strategies.values import LISTED, NAMED, STORED

Change = Callable[[TensorSpec], TensorSpec]


def call_forms(trial: Trial) -> Finding:
    """Check that the call in another form that torch takes gives the right result: optional arguments by position or by
    name, or given as their defaults, NumPy scalars, strings as enums, parameters and lazily negated tensors as
    operands, another default dtype."""
    variants = _variants(trial)
    # A trial that is not thorough tries one of each: another way to write it, other operands, other surroundings.
    kinds: tuple[Variants, ...] = ({}, {}, {})
    for form, case in variants.items():
        kinds[1 if form in call_contexts.OPERANDS else 2 if form in call_contexts.SURROUNDINGS else 0][form] = case
    found = [first(trial, "call_forms", some) for some in kinds]
    return max(found, key=lambda one: (one.status == FAILED, one.status != PASSED))


def layouts(trial: Trial) -> Finding:
    """Check that operands in other layouts give the right result: one element off the start of vectors, column-major
    with a longer leading dim, without a unit stride, one batch for all, windows that overlap, by elements or by rows,
    or of a signal in each batch, parts of longer sequences, images and videos with channels last, or parts of these, or
    beside what has some of their dims, six to thirteen dims, rows far apart, dims of one element with a stride of 1,
    strides of elements beyond 8 and 16 bits, of rows beyond 16, offsets beyond 20."""
    return first(trial, "layouts", _laid_out(trial.case))


def plain_operands(trial: Trial) -> Finding:
    """Check that the call with plain operands gives the right result: contiguous, with ordinary numbers, and in half of
    the cases with at most one of the flags and without masks and factors that may be left out; or with one number that
    half types do not hold, or that is rare (beyond 32 bits, NaN, infinite, subnormal); or as parts of one tensor, where
    they fit beside each other. Kernels have their shortest way for these, and hardly any drawn call has nothing
    else."""
    plain, seed = {"with plain operands": _plain(trial.case)}, cases.seed(trial.case)
    far = {f"with plain operands and {what}": case for what, case in _with_rare_numbers(_plain(trial.case)).items()}
    chosen = far if far and seed // 13 % 2 else plain
    return first(trial, "plain_operands", chosen | _beside(_plain(trial.case), seed))


def has_no_plain_operands(trial: Trial) -> bool:
    """Tell whether an operand that is only read could be plainer, or an argument be left out."""
    return not entangled(trial.case) and _plain(trial.case) != trial.case


def _beside(case: Case, seed: int) -> Variants:
    """Return the call with operands that are parts of one tensor, if they fit beside each other."""
    form = (call_contexts.COLUMNS, call_contexts.ROWS)[seed // 19 % 2]
    if case.form or form not in forms.possible(case):
        return {}
    return {f"with plain operands, as {form}": replace(case, form=form)}


_PLAIN = ("normal", "shifted", "normal_large")


def _plain(case: Case) -> Case:
    """Return the call with plain operands; the same where it has no others."""
    seed = cases.seed(case)
    values = _PLAIN[seed // 3 % len(_PLAIN)]

    def change(spec: TensorSpec) -> TensorSpec:
        plain = replace(spec, layout=CONTIGUOUS)
        if not is_floating(spec.dtype) or spec.values.startswith((LISTED, STORED)):
            return plain
        return replace(plain, values=spec.values if spec.values in (*NAMED, *_PLAIN) else values, specials=())

    return replace(with_operands(_alone(case) if seed // 7 % 2 else case, change), digests=())


def _alone(case: Case) -> Case:
    """Return the call without the arguments that may be left out, but for one flag, and for whole numbers: an index may
    be one that a whole number leaves out."""
    required, seed = specs.parameters(case.op, required=True), cases.seed(case)
    flags = [name for name, value in case.kwargs.items() if value is True]
    kept = {*required, *flags[seed // 11 % (len(flags) + 1) :][:1]}
    kwargs = {name: value for name, value in case.kwargs.items() if name in kept or _is_whole(value)}
    return replace(case, kwargs=kwargs)


def _is_whole(value: Argument) -> bool:
    """Tell whether an argument is a whole number, or a tensor of these."""
    if isinstance(value, TensorSpec):
        return value.dtype != "bool" and not is_floating(value.dtype)
    return type(value) is int


def has_layouts(trial: Trial) -> bool:
    """Tell whether an operand that is only read can lie otherwise."""
    return bool(_laid_out(trial.case))


def _laid_out(case: Case) -> Variants:
    if entangled(case) or any(isinstance(x, Same) for x in case.kwargs.values()):
        return {}
    found = {}
    for what, change in _LAYOUTS.items():
        changed = with_operands(case, change)
        # An operand of many dims beside a matrix of two makes another call.
        ranks = {len(spec.shape) for spec in cases.operands(changed) if len(spec.shape) > 1}
        shapes = zip(cases.operands(case), cases.operands(changed), strict=True)
        if changed != case and (len(ranks) == 1 or all(one.shape == other.shape for one, other in shapes)):
            found[what] = replace(changed, digests=())
    beside = {what: _beside_first(case, *how) for what, how in _BESIDE.items()}
    return found | {what: one for what, one in beside.items() if one is not None}


_CHANNELS_LAST, _TURNED = Layout(order=(0, 2, 3, 1)), Layout(order=(1, 0))
_KINDS = "a row", "a bias", "a scale of each", "a mask of each", "a mask"
_BESIDE: dict[str, tuple[tuple[int, ...], Layout, Layout]] = {
    f"images, channels last, and {what}": (kept, _CHANNELS_LAST, CONTIGUOUS)
    for what, kept in zip(_KINDS, KEPT[4], strict=True)
}
_BESIDE |= {
    "heads, and a matrix that lies turned": ((2, 3), CONTIGUOUS, _TURNED),
    "images, channels last, and a matrix that lies turned": ((2, 3), _CHANNELS_LAST, _TURNED),
}
"""The dims of a first operand of four that the others have, how it lies, and how they do."""


def _beside_first(case: Case, kept: tuple[int, ...], first: Layout, others: Layout) -> Case | None:
    """Return the call of a first operand of four dims and of others with the dims ``kept`` of it; mostly all sizes are
    equal, and always beside one dim, so that they alone do not say which is meant. None: there is no such call."""
    operands = cases.operands(case)
    if (
        len(operands) < 2
        or max(math.prod(spec.shape) for spec in operands) <= FEW
        or specs.registry()[case.op].writes(case)
    ):
        return None
    sizes = (2, 3, 4, 5) if len(kept) > 1 and cases.seed(case) % 3 == 0 else (3, 3, 3, 3)
    shape = tuple(size if dim in kept else 1 for dim, size in enumerate(sizes))
    shapes = iter(((sizes, first), *[(shape[kept[0] :], others)] * (len(operands) - 1)))

    def change(spec: TensorSpec) -> TensorSpec:
        size, layout = next(shapes)
        return replace(spec, shape=size, layout=layout)

    changed = replace(with_operands(case, change), digests=())
    kind = case.op, tuple(spec.dtype for spec in operands), len(case.args), *sorted(case.kwargs)
    if kind not in _broadcasting:
        result = meta_calls.result(changed)
        _broadcasting[kind] = result is not None and tuple(result.shape) == sizes
    return changed if _broadcasting[kind] else None


_broadcasting: dict[tuple[Any, ...], bool] = {}
"""Says whether an operator broadcasts, by its name, the dtypes of its operands and what arguments it is given."""


def _with_layout(make: Callable[[int], Layout | None]) -> Change:
    def change(spec: TensorSpec) -> TensorSpec:
        layout = make(len(spec.shape)) if math.prod(spec.shape) > 1 else None
        return spec if layout is None else replace(spec, layout=layout)

    return change


def _column_major(rank: int) -> Layout | None:
    if rank < 2:
        return None
    return Layout(order=(*range(rank - 2), rank - 1, rank - 2), padding=(*(0,) * (rank - 2), 3, 0))


def _wide_stride(step: int, most: int) -> Change:
    """Return a change of the last dim's stride to ``step`` elements, for tensors of at most ``most``."""

    def change(spec: TensorSpec) -> TensorSpec:
        if not spec.shape or not 1 < math.prod(spec.shape) <= most:
            return spec
        return replace(spec, layout=Layout(steps=(*(1 for _ in spec.shape[1:]), step)))

    return change


def _windows(spec: TensorSpec) -> TensorSpec:
    """Let each row begin within the one before: in its middle, after a quarter, or one element after its start or
    before its end."""
    if len(spec.shape) < 2 or math.prod(spec.shape[:-1]) < 2 or spec.shape[-1] < 2:
        return spec
    columns = spec.shape[-1]
    pitch = max((1, columns // 2, columns // 4, columns - 1)[spec.seed % 4], 1)
    return replace(spec, layout=Layout(padding=(*(0 for _ in spec.shape[1:]), pitch - spec.shape[-1])))


def _in_more_dims(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """Return the spec in this shape where it has fewer dims, and more than a few elements."""
    fewer = 0 < len(spec.shape) < len(shape) and math.prod(spec.shape) > FEW
    return replace(spec, shape=shape, layout=CONTIGUOUS) if fewer else spec


def _windows_of_rows(spec: TensorSpec) -> TensorSpec:
    """Let each matrix begin within the one before, at one of its rows."""
    spec = _in_more_dims(spec, (3, 6, 8))
    if len(spec.shape) < 3 or math.prod(spec.shape[:-2]) < 2 or spec.shape[-2] < 2:
        return spec
    rows = spec.shape[-2]
    return replace(spec, layout=Layout(padding=(*(0 for _ in spec.shape[2:]), max(1, rows // 2) - rows, 0)))


def _windows_of_signals(spec: TensorSpec) -> TensorSpec:
    """Let rows be windows of a signal for each matrix, which goes on behind the last one."""
    spec = _in_more_dims(spec, (3, 6, 8))
    if len(spec.shape) < 3 or spec.shape[-2] < 2 or spec.shape[-1] < 2:
        return spec
    columns = spec.shape[-1]
    return replace(spec, layout=Layout(padding=(*(0 for _ in spec.shape[2:]), 3, max(1, columns // 2) - columns)))


def _sequences(spec: TensorSpec) -> TensorSpec:
    """Lay out parts of longer sequences, whose rows are dense."""
    rank = len(spec.shape)
    longer = Layout(padding=(0, 3, *(0 for _ in spec.shape[2:])))
    return replace(spec, layout=longer) if rank > 2 and math.prod(spec.shape) > 1 else spec


def _images(spec: TensorSpec) -> TensorSpec:
    """Lay out images with channels last, of which rows are cut off."""
    spec = _in_more_dims(spec, (2, 3, 6, 8))
    if len(spec.shape) != 4 or math.prod(spec.shape) < 2:
        return spec
    return replace(spec, layout=Layout(order=(0, 2, 3, 1), padding=(0, 0, spec.seed % 2 * 3, 0)))


def _videos(spec: TensorSpec) -> TensorSpec:
    """Lay out videos with channels last, of which frames are cut off."""
    spec = _in_more_dims(spec, (2, 3, 3, 4, 2))
    if len(spec.shape) != 5 or math.prod(spec.shape) < 2:
        return spec
    return replace(spec, layout=Layout(order=(0, 2, 3, 4, 1), padding=(0, 0, spec.seed % 2 * 2, 0, 0)))


def _many_dims(rank: int) -> Change:
    shape = tuple(1 if dim == rank - 6 else 2 for dim in range(rank))

    def change(spec: TensorSpec) -> TensorSpec:
        # Two layouts by the seed, none of which can be seen as one of fewer dims.
        order = (*range(rank - 1, -1, -2), *range(rank - 2, -1, -2)) if spec.seed % 2 else ()
        layout = Layout(order=order, padding=tuple(0 if size == 1 else 1 for size in shape))
        # A small case stays small: what fails for a few elements is shown with as many.
        fits = len(spec.shape) not in (0, rank) and math.prod(spec.shape) > FEW
        return replace(spec, shape=shape, layout=layout) if fits else spec

    return change


def _far_apart(spec: TensorSpec) -> TensorSpec:
    """Lay out the rows of a tensor as part of a far wider one, a vector as a column of a matrix: the stride is a
    multiple of 16."""
    rank = len(spec.shape)
    if not rank or not 1 < math.prod(spec.shape) <= FAR:
        return spec
    if rank == 1:
        return replace(spec, layout=Layout(steps=(16 * (1 + spec.seed % 4),)))
    columns = spec.shape[-1]
    padding = -columns % 16 + 16 * max(columns // 2, 1)
    return replace(spec, layout=Layout(padding=(*(0 for _ in spec.shape[1:]), padding)))


def _rows_far_apart(spec: TensorSpec) -> TensorSpec:
    """Lay out a few rows as the first columns of a very wide matrix."""
    if len(spec.shape) < 2 or not 1 < math.prod(spec.shape[:-1]) <= 8 or not spec.shape[-1]:
        return spec
    return replace(spec, layout=Layout(padding=(*(0 for _ in spec.shape[1:]), max(65552 - spec.shape[-1], 0))))


def _ones(spec: TensorSpec) -> TensorSpec:
    """Reverse the order of dims where one has a single element: its stride is then not that of the last dim. A row has
    strides of 1 alone then."""
    if 1 not in spec.shape or math.prod(spec.shape) < 2:
        return spec
    return replace(spec, layout=Layout(order=tuple(reversed(range(len(spec.shape))))))


FEW, FAR = 16, 1 << 14
RANKS = (6, 7, 9, 13)
_LAYOUTS: dict[str, Change] = {
    "misaligned by one element": _with_layout(lambda rank: Layout(offset=1)),
    "column-major with a longer leading dim": _with_layout(_column_major),
    "no unit stride": _with_layout(lambda rank: Layout(steps=(*(1,) * (rank - 1), 2)) if rank else None),
    "one batch for all": _with_layout(lambda rank: Layout(expanded=(0,)) if rank > 2 else None),
    "windows that overlap": _windows,
    "windows of rows": _windows_of_rows,
    "windows of signals": _windows_of_signals,
    "parts of longer sequences": _sequences,
    "images, channels last": _images,
    "videos, channels last": _videos,
    **{f"{rank} dims": _many_dims(rank) for rank in RANKS},
    "far apart": _far_apart,
    "dims of one turned": _ones,
    "a stride beyond 8 bits": _wide_stride(300, 1 << 11),
    "a stride beyond 16 bits": _wide_stride(65537, 8),
    "rows beyond 16 bits apart": _rows_far_apart,
    "an offset beyond 20 bits": _with_layout(lambda rank: Layout(offset=(1 << 20) + 8)),
}


def has_forms(trial: Trial) -> bool:
    """Tell whether the call has another form, and is in none."""
    return bool(_variants(trial))


def _variants(trial: Trial) -> Variants:
    if trial.case.form:
        return {}
    written = {form: replace(trial.case, form=form, digests=()) for form in forms.possible(trial.case)}
    return written | _with_numbers(trial) | _of_numpy_beside_0d(trial.case)


def _of_numpy_beside_0d(case: Case) -> Variants:
    """Return the call of 0-d operands with NumPy scalars: who makes tensors of these gives them a dtype, which counts
    beside such operands alone."""
    read = [spec for spec in cases.operands(case) if spec.shape]
    if entangled(case) or specs.registry()[case.op].writes(case) or not read or forms.NUMPY not in forms.possible(case):
        return {}
    changed = with_operands(case, lambda spec: replace(spec, shape=(), layout=CONTIGUOUS, specials=()))
    return {f"{forms.NUMPY}, beside 0-d operands": replace(changed, form=forms.NUMPY, digests=())}


FAR_NUMBERS = (65536.0, 2.0**-20, -131072.0, 2.0**20, 2.0**-30)
"""Numbers of float32 that half types do not hold, or only as subnormals: the factors by which losses are scaled."""
RARE_NUMBERS = (
    *((1 << 31) + (1 << 10), -(1 << 33) - (1 << 12), 1 << 62),
    *(float("nan"), float("inf"), float("-inf"), 2.0**-140, -(2.0**-140), 130.5, -260.25, 0.0),
)
"""Ints beyond 32 bits that float32 holds; NaN and infinities; subnormals; numbers with a whole part of more than 7 bits
and a fraction; and 0."""


def _with_rare_numbers(case: Case) -> Variants:
    """Return the calls with a number that is beyond the half type of the operands, or a rare one, for each that is a
    float."""
    seed, dtypes = cases.seed(case), {spec.dtype for spec in cases.operands(case)}
    chosen: dict[str, Argument] = {}
    if dtypes & {*HALF}:
        chosen["a number beyond the dtype"] = FAR_NUMBERS[seed // 19 % len(FAR_NUMBERS)]
    if any(map(is_floating, dtypes)):
        number = RARE_NUMBERS[seed // 29 % len(RARE_NUMBERS)]
        chosen[f"{number}"] = number
    found = {}
    for what, number in chosen.items():
        for place, argument in enumerate(case.args):
            if type(argument) is float:
                changed = replace(case, args=(*case.args[:place], number, *case.args[place + 1 :]), digests=())
                found[f"{what} for argument {place}"] = changed
        for name, argument in case.kwargs.items():
            if type(argument) is float:
                found[f"{what} for {name}"] = replace(case, kwargs={**case.kwargs, name: number}, digests=())
    return found


def _with_numbers(trial: Trial) -> Variants:
    """Return the calls with a number for a tuple of it, where implementations may take one though torch refuses it."""
    args = trial.case.args
    found = {}
    for place, argument in enumerate(args):
        if isinstance(argument, tuple) and len(argument) == 1:
            changed = replace(trial.case, args=(*args[:place], argument[0], *args[place + 1 :]), digests=())
            if trial.spec.widened(changed) is not None:
                found[f"a number for argument {place}"] = changed
    return found
