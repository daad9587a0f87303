"""Calls that models make all the time, and few random ones are like: a legal call, staged with the shapes and layouts
of activations, of many short rows, of statistics of channels, or of a column beside a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
from hypothesis import strategies as st

from conformance import cases, meta_calls
from conformance.cases import Argument, Case, DType, Same
from conformance.ops import _images, _sizes
from conformance.spec import Cases, parameters, registry
from strategies import layouts, models, tensors
from strategies.dtypes import is_floating, to_torch
from strategies.shapes import Shape
from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec

_BATCH, _SEVERAL, _SHORT_ROWS = st.integers(1, 3), st.integers(2, 4), st.integers(513, 700)
_FLAG, _SELDOM = st.booleans(), st.sampled_from((False, False, False, True))
_MANY_DIMS = st.tuples(*(st.integers(1, 4) for _ in range(6)))
"""As many dims as kernels take strides, or more."""
_SPREAD = (0, 1, 3, 4, 6, 7)
"""The places of these among eight."""
OUTER = (64, 128), (1025, 1500)
"""Rows and columns of a column beside a row: more results than 16 bits count, of more columns than a block has."""
STATISTICS = (*((4, (0, 2, 3)),) * 3, (3, (0, 2)), (4, (-2, -1)), (4, (2, 3)), (3, 1), (3, (0, 1)))
"""Dims of so many that models reduce: all but the channels, pixels, tokens, or all but the features."""


def of_elements(cases_of: Cases) -> Cases:
    """Calls of an elementwise op with activations, and beside them what models have there."""
    return lambda dtypes: _of_elements(cases_of(tuple(dtypes)))


def broadcast(op: str, dtypes: Sequence[str], shapes_of_both: st.SearchStrategy[tuple[Shape, ...]]) -> Cases:
    """Calls of a binary op of one of ``dtypes`` that say nothing that need not be, as those that models differentiate,
    with an operand that broadcasts: sums over many terms are its gradient.

    :param shapes_of_both: The shapes of the operands.
    """

    @st.composite
    def drawn(draw: st.DrawFn, names: Sequence[str]) -> Case:
        dtype = draw(st.sampled_from([name for name in names if name in dtypes]))
        given = draw(shapes_of_both)
        return Case(op=op, args=tuple(draw(tensors.tensors(shape, dtype, values="normal")) for shape in given))

    return lambda names: drawn(tuple(names)) if set(names) & set(dtypes) else st.nothing()


_ALL_SPECIALS = ("0", "-0", "1", "-1", "inf", "-inf", "nan", "tiny", "-tiny", "max", "min", "0.5", "-3")


def special_pairs(op: str, dtypes: Sequence[str], **options: Sequence[Argument]) -> Cases:
    """Calls of a binary op in which each special number of the first operand meets each of the second, by broadcasting:
    of chance, signs of zeros and infinities hardly ever meet where an option decides what comes of them.

    :param options: What to pass by name, one of each.
    """

    def draws(names: Sequence[str]) -> st.SearchStrategy[Case]:
        chosen = [name for name in names if name in dtypes]
        if not chosen:
            return st.nothing()
        count = len(_ALL_SPECIALS)
        specials = tuple(Special(index, value) for index, value in enumerate(_ALL_SPECIALS))

        def call(dtype: str, first: bool, given: dict[str, Argument]) -> Case:
            both = ((count, 1), (1, count)) if first else ((1, count), (count, 1))
            return Case(op=op, args=tuple(TensorSpec(shape, dtype, specials=specials) for shape in both), kwargs=given)

        given = st.fixed_dictionaries({name: st.sampled_from(tuple(values)) for name, values in options.items()})
        return st.builds(call, st.sampled_from(chosen), st.booleans(), given)

    return draws


UNHELD = (0.1, 2**24 + 1, -0.7, -(2**25) - 1, 1 / 3, 2**24 + 3, 1e39, 1e-46)
"""Numbers that float32 does not hold: torch rounds them to it before it computes, the last two to inf and 0."""

ROUNDING = "float32", "float64", "int32", "int64"
"""The dtypes beside which they are rounded to float32, and float64, which holds them."""


def with_numbers(
    op: str,
    dtypes: Sequence[str],
    numbers: Sequence[float] = UNHELD,
    names: Sequence[str] = ("",),
    **options: Sequence[Argument],
) -> Cases:
    """Calls of a tensor and a Python number. Among the elements are special numbers, and what the number is rounded to.

    :param names: What the number may be passed as; empty: it is the second argument.
    :param options: What to pass by name, one of each.
    """

    @st.composite
    def drawn(draw: st.DrawFn, chosen: Sequence[str]) -> Case:
        dtype, number = draw(st.sampled_from(chosen)), draw(st.sampled_from(tuple(numbers)))
        spec = draw(tensors.tensors((), dtype) if draw(_SELDOM) else tensors.tensors((40,), dtype, specials=()))
        if is_floating(dtype):
            planted = (repr(float(number)), repr(-float(number)), *_ALL_SPECIALS)[: None if spec.shape else 1]
            spec = msgspec.structs.replace(spec, specials=tuple(Special(n, one) for n, one in enumerate(planted)))
        name = draw(st.sampled_from(tuple(names)))
        given = {option: draw(st.sampled_from(values)) for option, values in options.items()}
        args = (spec,) if name else (spec, number)
        return registry()[op].defined(Case(op=op, args=args, kwargs=given | ({name: number} if name else {})))

    def draws(names: Sequence[str]) -> st.SearchStrategy[Case]:
        chosen = tuple(name for name in names if name in dtypes)
        return drawn(chosen) if chosen else st.nothing()

    return draws


def _given(case: Case) -> list[TensorSpec]:
    """The operands that are read and have dims."""
    out = case.kwargs.get("out")
    return [spec for spec in cases.operands(case) if spec is not out and spec.shape]


def _is_tied(case: Case) -> bool:
    return any(isinstance(one, Same) for one in (*case.args, *case.kwargs.values()))


def _has_several(case: Case) -> bool:
    return len(_given(case)) > 1 and not _is_tied(case)


@st.composite
def _of_elements(draw: st.DrawFn, calls: st.SearchStrategy[Case]) -> Case:
    case = draw(calls)
    if len(parameters(case.op)) > 1 and not _has_several(case) and draw(_FLAG):
        # Of numbers and 0-d tensors nothing stands beside the activations.
        case = draw(calls.filter(_has_several))
    given, out = _given(case), case.kwargs.get("out")
    if not given:
        return case
    float64 = is_float64(case)
    budget = _sizes.FLOAT64_ELEMENTS if float64 else _sizes.ELEMENTS
    writable = isinstance(out, Same) or case.kwargs.get("inplace") is True
    staged = draw(models.activations(budget, len(given), writable=writable))
    place = staged[0][0]
    if _has_several(case):
        match draw(st.sampled_from(("any", "any", "images", "reversed", "channels", "outer", "windows", "number"))):
            case "number":
                # A loss, a scale or a threshold without dims, whose dtype counts by its category alone.
                staged = [staged[0], *[((), None)] * (len(given) - 1)]
                if draw(_FLAG):
                    staged.reverse()
            case "images":
                staged = draw(_images.beside(len(given)))
                place = staged[0][0]
            case "windows" if not float64:
                # With a number for each of some dims.
                place = draw(_MANY_DIMS)
                ones = [draw(st.integers(1, 62)) for _ in given[1:]]
                some = [tuple(1 if one >> dim & 1 else size for dim, size in enumerate(place)) for one in ones]
                place, *some = _more_dims(place, *some)
                staged = [(place, None), *((shape, None) for shape in some)]
            case "outer" if not float64:
                rows, columns = (draw(st.integers(*limits)) for limits in OUTER)
                place = rows, columns
                staged = [((rows, 1), None), ((1, columns), None), *[((), None)] * (len(given) - 2)]
            case "channels" if isinstance(out, TensorSpec | None):
                # A bias of channels that come before the pixels, in a call that has gradients.
                place = place[0], *place[-2:]
                staged = [(place, None), *[((1, place[1], 1), CONTIGUOUS)] * (len(given) - 1)]
                case = msgspec.structs.replace(case, kwargs={k: v for k, v in case.kwargs.items() if v is not out})
            case "reversed":
                staged.reverse()
    plan = dict(zip(map(id, given), staged, strict=True))
    is_outer = len(place) == 2

    def argument(old: Argument) -> Argument:
        if not isinstance(old, TensorSpec) or (old is not out and id(old) not in plan):
            return old
        if old is out:
            # One of another size is resized.
            return old if 0 in old.shape else _resized(draw, old, place, None, layouts.WRITABLE)
        shape, layout = plan[id(old)]
        spec = _resized(draw, old, shape, layout)
        # Of equal numbers no place of a row shows.
        return msgspec.structs.replace(spec, values="normal", specials=()) if is_outer else spec

    return _in_arena(_changed(case, lambda name, old: argument(old)))


def _more_dims(*shapes: Shape) -> tuple[Shape, ...]:
    """Shapes of six dims that broadcast, or of eight: without a draw, which would change what else is drawn."""
    if sum(shapes[0]) % 2:
        return shapes
    return tuple((*shape[:2], 2, *shape[2:4], 3, *shape[4:]) for shape in shapes)


def _in_arena(case: Case) -> Case:
    """For one case in five the call with an ``out`` that lies before its first operand in one storage, as that of an
    engine that plans all memory; else the case. By its seed: a draw would change what else is drawn."""
    first, out = case.args[0], case.kwargs.get("out")
    turn, gap = cases.seed(case) % 5, cases.seed(case) // 5 % 4
    if turn or out not in (None, Same(0)) or not isinstance(first, TensorSpec) or not first.shape:
        return case
    if first.layout.expanded or layouts.overlaps(first.layout) or case.kwargs.get("inplace") or _is_tied_but(case, out):
        return case
    room = layouts.storage_size(first.layout, first.shape) - first.layout.offset + gap
    behind = msgspec.structs.replace(first, layout=msgspec.structs.replace(first.layout, offset=room))
    kwargs = case.kwargs | {"out": Same(0, shift=-room)}
    found = msgspec.structs.replace(case, args=(behind, *case.args[1:]), kwargs=kwargs)
    return found if _is_taken(found, first) else case


def _is_tied_but(case: Case, out: Argument) -> bool:
    return any(isinstance(one, Same) and one is not out for one in (*case.args, *case.kwargs.values()))


def _is_taken(case: Case, first: TensorSpec) -> bool:
    """Tell whether the result is as the first operand is, and torch takes an ``out``."""
    kwargs = {name: value for name, value in case.kwargs.items() if name != "out"}
    result = meta_calls.result(msgspec.structs.replace(case, kwargs=kwargs))
    if result is None:
        return False
    is_alike = (tuple(result.shape), result.dtype) == (first.shape, to_torch(first.dtype))
    return is_alike and bool(registry()[case.op].outs)


def of_rows(cases_of: Cases, *, several: bool = False) -> Cases:
    """Calls of an op over a dim, or, if it takes ``several``, over dims: of activations, of many short rows, of
    statistics."""
    return lambda dtypes: _of_rows(cases_of(tuple(dtypes)), several)


@st.composite
def _of_rows(draw: st.DrawFn, calls: st.SearchStrategy[Case], several: bool) -> Case:
    case = draw(calls)
    layout, dim = None, -1
    float64 = is_float64(case)
    budget = _sizes.FLOAT64_ELEMENTS if float64 else _sizes.ELEMENTS
    # A result of another shape has another ``out``.
    kwargs = {name: value for name, value in case.kwargs.items() if name != "out"}
    input = case.args[0]
    assert isinstance(input, TensorSpec)
    kind = draw(st.sampled_from(("activations", "short", "statistics", "statistics", *(("windows",) * several))))
    if kind == "windows":
        shape = draw(_MANY_DIMS)
        dim = tuple(sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=4))))
        layout = Layout(order=tuple(draw(st.permutations(range(6)))))
        if len(many := _more_dims(shape)[0]) == 8:
            shape, dim = many, tuple(_SPREAD[one] for one in dim)
            layout = Layout(order=(2, *(_SPREAD[one] for one in layout.order), 5))
    elif kind == "activations" or (float64 and kind != "statistics"):
        ((shape, layout),) = draw(models.activations(budget))
    elif kind == "short":
        shape = draw(_short())
    else:
        rank, dim = draw(st.sampled_from(STATISTICS if several else ((3, 1), (4, 1))))
        few = [draw(_SEVERAL) for _ in range(rank - 2)]
        most = math.isqrt(budget // math.prod(few))
        shape = (*few, *(draw(st.integers(max(most // 2, 1), most)) for _ in range(2)))
    args = (_resized(draw, input, shape, layout), dim, *case.args[2:])
    return registry()[case.op].defined(msgspec.structs.replace(case, args=args, kwargs=kwargs))


def plain_rows(cases_of: Cases) -> Cases:
    """Calls of an op over the last dim of hidden states, the plainest there are: of numbers that all count, in the
    dtype that they have."""
    return lambda dtypes: _plain_rows(cases_of(tuple(dtypes)))


@st.composite
def _plain_rows(draw: st.DrawFn, calls: st.SearchStrategy[Case]) -> Case:
    case = draw(calls)
    # A result of another shape has another ``out``.
    kwargs = {name: value for name, value in case.kwargs.items() if name != "out"}
    input = case.args[0]
    assert isinstance(input, TensorSpec)
    values = input.values
    if is_floating(input.dtype):
        kwargs.pop("dtype", None)
        values = draw(st.sampled_from(("normal", "normal", values)))
    budget = _sizes.FLOAT64_ELEMENTS if is_float64(case) else _sizes.ELEMENTS
    columns = draw(models.widths(models.HIDDEN, budget // 4))
    shape = draw(st.integers(1, max(budget // columns, 1))), columns
    input = msgspec.structs.replace(input, specials=(), values=values)
    args = (_resized(draw, input, shape, None), -1, *case.args[2:])
    return registry()[case.op].defined(msgspec.structs.replace(case, args=args, kwargs=kwargs))


def of_norms(cases_of: Cases) -> Cases:
    """Calls of a norm: of activations, of many short rows, or of all elements of each of a few images."""
    return lambda dtypes: _of_norms(cases_of(tuple(dtypes)))


@st.composite
def _of_norms(draw: st.DrawFn, calls: st.SearchStrategy[Case]) -> Case:
    case = draw(calls)
    layout, dims = None, 1
    float64 = is_float64(case)
    kind = draw(st.sampled_from(("activations", "short", "whole", "windows")))
    if kind == "windows":
        shape = draw(_MANY_DIMS)
        layout, dims = Layout(order=tuple(draw(st.permutations(range(6))))), draw(st.sampled_from((1, 1, 2)))
    elif kind == "short" and not float64:
        shape = draw(_short())
    elif kind == "whole" and not float64:
        # More elements than a tile has.
        columns = draw(st.integers(65, 128))
        shape, dims = (draw(_BATCH), draw(st.integers(4097 // columns + 1, 8192 // columns)), columns), 2
    else:
        ((shape, layout),) = draw(models.activations(_sizes.FLOAT64_ELEMENTS if float64 else _sizes.ELEMENTS))

    def argument(name: str, old: Argument) -> Argument:
        if name == "normalized_shape":
            return shape[-dims:]
        if isinstance(old, TensorSpec):
            return _resized(draw, old, *((shape, layout) if old is case.args[0] else (shape[-dims:], None)))
        return old

    return _changed(case, argument)


@st.composite
def _short(draw: st.DrawFn) -> Shape:
    """Many short rows, of adapters, experts or heads: interpreted, each costs as much as a tile."""
    rows, columns = draw(_SHORT_ROWS), draw(models.widths(models.SHORT, 64))
    batch = draw(st.sampled_from((0, 0, 1, 2)))
    return (rows, columns) if not batch else (batch, rows // batch, columns)


def is_float64(case: Case) -> bool:
    """Tell whether the oracle evaluates the call in extended precision."""
    dtypes = [spec.dtype for spec in cases.operands(case)]
    dtypes += [one.name for one in case.kwargs.values() if isinstance(one, DType)]
    return "float64" in dtypes


def _resized(
    draw: st.DrawFn, spec: TensorSpec, shape: Shape, layout: Layout | None, classes: Sequence[str] = layouts.CLASSES
) -> TensorSpec:
    """The spec with another shape and layout, or one of these ``classes``, and of its special values what kind they
    are."""
    if layout is None:
        layout = layouts.draw_layout(draw, shape, classes) if shape else CONTIGUOUS
    specials = draw(tensors.planted(shape, spec.dtype, {special.value for special in spec.specials}))
    return TensorSpec(shape, spec.dtype, spec.values, spec.seed, layout, specials)


def _changed(case: Case, change: Callable[[str, Argument], Argument]) -> Case:
    """The case with each argument changed, as its op defines it."""
    names = (*parameters(case.op), *("",) * len(case.args))
    args = tuple(change(name, old) for name, old in zip(names, case.args, strict=False))
    kwargs = {name: change(name, old) for name, old in case.kwargs.items()}
    return registry()[case.op].defined(msgspec.structs.replace(case, args=args, kwargs=kwargs))
