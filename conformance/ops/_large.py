"""Large calls of ops whose operands broadcast: a modest call, its dims grown past the limits of kernels and grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from hypothesis import strategies as st

from conformance import cases
from conformance.cases import Argument, Case, DType, Ints
from conformance.ops import _sizes
from conformance.spec import Cases, parameters, registry
from strategies import dtypes as dtype_names
from strategies import layouts, models, shapes, tensors
from strategies.shapes import Shape
from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec
from strategies.values import LISTED

WIDE = 4
"""Bytes of an element; of wider ones a call has fewer."""


def grown(
    cases_of: Cases, *, rows: bool = False, widths: tuple[int, ...] = (*models.WIDTHS, *models.VOCABULARIES)
) -> Callable[[int], Cases]:
    """The op's calls with large operands. What broadcasts still does, and what is normalized are the same dims.

    ``rows``: elements of a row depend on each other. ``widths``: the lengths of rows that models have."""
    return lambda elements: lambda dtypes: _grown(cases_of(tuple(dtypes)), elements, rows, widths)


FAR = 1 << 22
"""Elements from one row to the next where the last tokens of long sequences are taken, or a few rows of a large one."""
COUNTED = 1 << 24
"""Elements beyond which float32 does not count them one by one, and two stages of blocks may not add them up."""
_STAGES = 6
"""One large call of rows in so many is staged in each of the ways below."""
_OUTLIERS = "1000", "-30000", "300"


def reduced(cases_of: Cases) -> Callable[[int], Cases]:
    """The large calls of a reduction; where calls are cheap, some of rows far apart, and some of more elements than
    ``COUNTED``."""
    large = grown(cases_of, rows=True)
    return lambda elements: lambda dtypes: large(elements)(dtypes).map(partial(_staged, elements, (_counted, _far)))


def normalized(cases_of: Cases, widths: tuple[int, ...]) -> Callable[[int], Cases]:
    """The large calls of a norm or a softmax; where calls are cheap, some of rows far apart, and some of rows with an
    outlier, as the activations of some channels are."""
    large = grown(cases_of, rows=True, widths=widths)
    return lambda elements: (
        lambda dtypes: large(elements)(dtypes).map(partial(_staged, elements, (_far, _with_outliers, _with_outliers)))
    )


def _staged(elements: int, stages: Sequence[Callable[[Case, TensorSpec, int], Case]], case: Case) -> Case:
    """The case, or one staged by one of ``stages``. By its seed: a draw would change what else is drawn."""
    turn, input = cases.seed(case), case.args[0]
    dtypes = [spec.dtype for spec in cases.operands(case)]
    dtypes += [one.name for one in case.kwargs.values() if isinstance(one, DType)]
    wide = any(dtype_names.format_of(dtype).bits > 8 * WIDE for dtype in dtypes)
    if elements < COUNTED or wide or turn % _STAGES >= len(stages) or not isinstance(input, TensorSpec):
        return case
    # A result of another shape has another ``out``.
    kwargs = {name: value for name, value in case.kwargs.items() if name != "out"}
    staged = stages[turn % _STAGES](msgspec.structs.replace(case, kwargs=kwargs), input, turn // _STAGES)
    return registry()[case.op].defined(staged)


def _counted(case: Case, input: TensorSpec, turn: int) -> Case:
    """A reduction of all of more elements than ``COUNTED``, the last of which alone is large; of integers, the others
    are of one sign, and their sum has more bits than 32."""
    size, form = COUNTED + 2 + turn % 30 * 2, dtype_names.format_of(input.dtype)
    values, last = "zeros", "max"
    if form.kind == "float":
        last = "60000"
    elif form.kind != "bool":
        values = f"{LISTED}{-form.sign_bit if form.kind == 'int' else 2**form.bits - 2}"
    spec = TensorSpec((size,), input.dtype, values, specials=(Special(size - 1, last),))
    return msgspec.structs.replace(case, args=(spec, 0, *case.args[2:]))


def _far(case: Case, input: TensorSpec, turn: int) -> Case:
    """Two or three rows that lie ``FAR`` elements apart, or a little further."""
    shape = input.shape
    if len(shape) < 2 or not 0 < math.prod(shape[1:]) < FAR:
        return case
    apart = FAR // math.prod(shape[2:]) + turn % 3
    layout = Layout(padding=(0, apart - shape[1], *[0] * (len(shape) - 2)))
    spec = TensorSpec((2 + turn % 2, *shape[1:]), input.dtype, input.values, input.seed, layout)
    return msgspec.structs.replace(case, args=(spec, *case.args[1:]))


def _with_outliers(case: Case, input: TensorSpec, turn: int) -> Case:
    """The first rows with one element far from the others, in turn in the middle, at the end and at a third; of
    integers, the largest or the least."""
    columns = input.shape[-1] if input.shape else 0
    if columns < 3:
        return case
    places = (columns // 2, columns - 1, columns // 3)
    rows, value = min(math.prod(input.shape) // columns, 4), _OUTLIERS[turn // 3 % len(_OUTLIERS)]
    if dtype_names.format_of(input.dtype).kind != "float":
        value = "min" if value.startswith("-") else "max"
    specials = tuple(Special(row * columns + places[(turn + row) % 3], value) for row in range(rows))
    spec = msgspec.structs.replace(input, values="normal", specials=specials)
    return msgspec.structs.replace(case, args=(spec, *case.args[1:]))


@st.composite
def _grown(draw: st.DrawFn, calls: st.SearchStrategy[Case], elements: int, rows: bool, widths: tuple[int, ...]) -> Case:
    case = draw(calls)
    out = case.kwargs.get("out")
    given = [spec for spec in cases.operands(case) if spec is not out]
    whole = tuple(np.broadcast_shapes(*(spec.shape for spec in given)))
    if not whole:
        return case
    dtypes = [spec.dtype for spec in cases.operands(case)]
    dtypes += [one.name for one in case.kwargs.values() if isinstance(one, DType)]
    size = max(dtype_names.format_of(dtype).bits // 8 for dtype in dtypes)
    elements = elements * WIDE // max(size, WIDE)
    if rows and "float64" in dtypes:
        elements = min(elements, _sizes.FLOAT64_ROWS)
    is_part = False
    if len(whole) > 1 and not draw(st.integers(0, 1 if rows else 2)):
        target, is_part = draw(_activations(len(whole), elements, widths)), draw(st.booleans())
    else:
        target = draw(shapes.large(len(whole), elements))
    if rows and "float64" in dtypes and draw(st.booleans()):
        # A single row: of several none is long, since few elements are evaluated.
        target = (*(1 for _ in whole[1:]), draw(shapes.near(elements)))

    def shape(old: Shape) -> Shape:
        pairs = zip(old, whole[len(whole) - len(old) :], target[len(whole) - len(old) :], strict=True)
        return tuple(new if mine == wide else 1 for mine, wide, new in pairs)

    def argument(old: Argument) -> Argument:
        match old:
            case TensorSpec() if old is out:
                return old if old.shape != whole else _resized(draw, old, target, elements)
            case TensorSpec():
                return _resized(draw, old, shape(old.shape), elements, is_part)
            case tuple(sizes) | Ints(sizes):
                return type(old)(shape(sizes))
        return old

    # A tuple is a shape, but for dims.
    names = (*parameters(case.op), *("",) * len(case.args))
    args = tuple(old if name == "dim" else argument(old) for name, old in zip(names, case.args, strict=False))
    kwargs = {name: old if name == "dim" else argument(old) for name, old in case.kwargs.items()}
    large = msgspec.structs.replace(case, args=args, kwargs=kwargs)
    return registry()[case.op].defined(large)


@st.composite
def _activations(draw: st.DrawFn, rank: int, elements: int, widths: tuple[int, ...]) -> Shape:
    """A shape of so many dims: rows of a model's length, of a step's tokens."""
    width = draw(models.widths(widths, elements))
    tokens = draw(shapes.near(max(elements // width, 1)))
    batch = draw(st.sampled_from(_sizes.SEQUENCES)) if rank > 2 else 1
    return (*(1,) * (rank - 3), *(batch,) * (rank > 2), max(tokens // batch, 1), width)


def _resized(draw: st.DrawFn, spec: TensorSpec, shape: Shape, elements: int, is_part: bool = False) -> TensorSpec:
    """The spec with another shape, and of its layout and special values what kind they are.

    ``is_part``: one of several tensors that lie side by side, as the halves of a gated layer."""
    classes = layouts.CLASSES if spec.layout.expanded else layouts.WRITABLE
    layout = layouts.draw_layout(draw, shape, classes)
    if is_part and sum(size > 1 for size in shape) > 1:
        layout = layouts.part(draw, shape, range(len(shape)))
    if layouts.storage_size(layout, shape) > (3 if is_part else 2) * elements:
        layout = CONTIGUOUS
    specials = draw(tensors.planted(shape, spec.dtype, {special.value for special in spec.specials}))
    return TensorSpec(shape, spec.dtype, spec.values, spec.seed, layout, specials)
