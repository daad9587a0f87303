"""Rows with special numbers, which few random calls have where it tells: masks of -inf, and one number alone in any
tile of a row, or along any dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from hypothesis import strategies as st

from conformance.cases import Case
from conformance.ops._scenes import is_float64
from conformance.spec import Cases, registry
from strategies.dtypes import is_floating
from strategies.specs import CONTIGUOUS, Special, TensorSpec

_BATCH = st.integers(1, 3)
MASKED = 256, 1024, 8192
"""Elements at the start of a row that a mask leaves out: all of a kernel's first tile, or of several."""
_TILES = 2, 5, 24, 24, 31
ALONE = "nan", "inf", "-inf", "max", "min"
"""Values of one element of a row, or of all of a row or a column of a matrix."""
_COLUMNS, _OF_FLOAT64, _SIZE = st.integers(4200, 9000), st.integers(100, 400), st.integers(3, 7)
"""Columns that are several tiles, and sizes of matrices."""
_KEPT = st.integers(0, 2)
_SHORT_MASK = 1024
"""Of several rows no more elements are masked: each row is costly."""


def masked_rows(cases_of: Cases) -> Cases:
    """Calls of an op over the last dim, of rows whose first elements are all -inf, or those behind the first ones that
    a window never drops, or of rows of many tiles that rise or fall all the way, or of which one element is sure."""

    return _of_floats(cases_of, _masked)


def _of_floats(
    cases_of: Cases, rows: Callable[[st.SearchStrategy[Case]], st.SearchStrategy[Case]], left_out: str = ""
) -> Cases:
    """Return the strategies of ``rows`` of an op's calls of floating-point dtypes but for one."""

    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        floats = tuple(name for name in dtypes if is_floating(name) and name != left_out)
        return rows(cases_of(floats)) if floats else st.nothing()

    return draws


@st.composite
def _masked(draw: st.DrawFn, calls: st.SearchStrategy[Case]) -> Case:
    case = draw(calls.filter(lambda one: isinstance(one.args[0], TensorSpec)))
    input = case.args[0]
    assert isinstance(input, TensorSpec)
    kwargs = {name: value for name, value in case.kwargs.items() if name != "out"}
    if not is_float64(case) and draw(st.booleans()):
        shape = draw(_BATCH), draw(st.sampled_from(_TILES)) * 1024 + draw(st.integers(0, 300))
        values = ("steep", "sure")[input.seed % 2]
        args = (TensorSpec(shape, input.dtype, values, input.seed), -1, *case.args[2:])
        return registry()[case.op].defined(msgspec.structs.replace(case, args=args, kwargs=kwargs))
    left_out = draw(st.sampled_from(MASKED))
    rows = draw(_BATCH) if left_out <= _SHORT_MASK else 1
    columns = left_out + draw(st.integers(1, 300))
    if is_float64(case):
        rows, columns = 1, MASKED[0] + draw(st.integers(1, 100))
        left_out = MASKED[0]
    which = draw(st.integers(0, rows - 1))
    # A window never drops the first tokens.
    sinks = (0, 0, 4, 600)[input.seed % 4] if not is_float64(case) else 0
    columns += sinks
    mask = Special(which * columns + sinks, "-inf", left_out)
    values = input.values if input.values in ("normal", "uniform", "positive") else "normal"
    spec = TensorSpec((rows, columns), input.dtype, values, input.seed, CONTIGUOUS, (mask,))
    args = (spec, -1, *case.args[2:])
    return registry()[case.op].defined(msgspec.structs.replace(case, args=args, kwargs=kwargs))


def filtered_rows(cases_of: Cases) -> Cases:
    """Calls of an op over the last dim, of rows of several tiles of which a filter leaves so many of the first as it
    happens: more than fit in one tile, and fewer than half."""

    return _of_floats(cases_of, _filtered, "float64")


@st.composite
def _filtered(draw: st.DrawFn, calls: st.SearchStrategy[Case]) -> Case:
    case = draw(calls.filter(lambda one: isinstance(one.args[0], TensorSpec)))
    input = case.args[0]
    assert isinstance(input, TensorSpec)
    kwargs = {name: value for name, value in case.kwargs.items() if name != "out"}
    shape = draw(_BATCH) + 1, draw(st.sampled_from(_TILES)) * 1024 + draw(st.integers(0, 300))
    args = (TensorSpec(shape, input.dtype, "prefix", input.seed), -1, *case.args[2:])
    return registry()[case.op].defined(msgspec.structs.replace(case, args=args, kwargs=kwargs))


def marked_rows(cases_of: Cases, *, several: bool = False) -> Cases:
    """Calls of an op over the last dim, of rows of several tiles, in each of which another special number stands alone;
    or, if it takes ``several`` dims, over two of three, of matrices of which one element, row or column is such."""

    return _of_floats(cases_of, lambda calls: _marked(calls, several))


@st.composite
def _marked(draw: st.DrawFn, calls: st.SearchStrategy[Case], several: bool) -> Case:
    case = draw(calls.filter(lambda one: isinstance(one.args[0], TensorSpec)))
    input = case.args[0]
    assert isinstance(input, TensorSpec)
    kwargs = {name: value for name, value in case.kwargs.items() if name not in ("out", "dtype")}
    dim: int | tuple[int, ...] = -1
    if several and draw(st.booleans()):
        rows, columns, kept = draw(_SIZE), draw(_SIZE), draw(_KEPT)
        dim = tuple(axis for axis in range(3) if axis != kept)
        dim = dim[::-1] if draw(st.booleans()) else dim
        matrices = [(value, which) for value in ALONE for which in ("element", "row", "column")]
        shape = (*(rows, columns)[:kept], len(matrices), *(rows, columns)[kept:])
        row, column = draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))
        specials = []
        for number, (value, which) in enumerate(matrices):
            chosen = [(row, place) for place in range(columns)] if which == "row" else [(row, column)]
            if which == "column":
                chosen = [(place, column) for place in range(rows)]
            for place in chosen:
                a, b, c = (*place[:kept], number, *place[kept:])
                specials.append(Special((a * shape[1] + b) * shape[2] + c, value))
    else:
        # Of two rows for each one has it in the middle.
        shape = 2 * len(ALONE), draw(_OF_FLOAT64 if is_float64(case) else _COLUMNS)
        places = [place for _ in ALONE for place in (shape[1] // 2, draw(st.integers(0, shape[1] - 1)))]
        specials = [Special(row * shape[1] + place, ALONE[row // 2]) for row, place in enumerate(places)]
    spec = TensorSpec(shape, input.dtype, "normal", input.seed, CONTIGUOUS, tuple(specials))
    args = (spec, dim, *case.args[2:])
    return registry()[case.op].defined(msgspec.structs.replace(case, args=args, kwargs=kwargs))
