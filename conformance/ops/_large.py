"""Large calls of ops whose operands broadcast: a modest call, its dims grown past the limits of kernels and grids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from hypothesis import strategies as st

from conformance import cases
from conformance.cases import Argument, Case, DType, Ints
from conformance.ops import _sizes
from conformance.spec import parameters, registry
from strategies import dtypes as dtype_names
from strategies import layouts, models, shapes, tensors
from strategies.shapes import Shape
from strategies.specs import CONTIGUOUS, TensorSpec

Cases = Callable[[Sequence[str]], st.SearchStrategy[Case]]
WIDE = 4
"""Bytes of an element; of wider ones a call has fewer."""


def grown(
    cases_of: Cases, *, rows: bool = False, widths: tuple[int, ...] = (*models.WIDTHS, *models.VOCABULARIES)
) -> Callable[[int], Cases]:
    """The op's calls with large operands. What broadcasts still does, and what is normalized are the same dims.

    ``rows``: elements of a row depend on each other. ``widths``: the lengths of rows that models have."""
    return lambda elements: lambda dtypes: _grown(cases_of(tuple(dtypes)), elements, rows, widths)


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
    batch = draw(st.sampled_from((1, 1, 2, 3))) if rank > 2 else 1
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
