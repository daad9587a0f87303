"""What comparisons share: two operands in, bool out, torch on the CPU itself as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import features
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _rounded, _scenes
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors, values
from strategies.specs import Special, TensorSpec


@st.composite
def alike(draw: st.DrawFn, dtypes: Sequence[str]) -> elementwise.Operands:
    """Two tensors many of whose elements are equal, or would be at a lower precision: of few values, of numbers that
    lie close together, zeros of both signs, or the same tensor."""
    few = ("integers", "one_hot", "constant", "zeros", "large_mean")
    if (whole := [name for name in dtypes if name in ("int64", "int32", "bool")]) and draw(st.booleans()):
        return draw(close(whole, "float64" in dtypes))
    if _rounded.pairs(tuple(dtypes)) and not draw(st.integers(0, 3)):
        return draw(_rounded.operands(tuple(dtypes)))
    first, second = draw(elementwise.tensor_pairs(dtypes))
    if not isinstance(first, TensorSpec) or not isinstance(second, TensorSpec):
        return first, second
    recipes = [draw(tensors.tensors((), spec.dtype, values=few)).values for spec in (first, second)]
    if all(spec.dtype in dtype_names.FLOATING for spec in (first, second)) and not draw(st.integers(0, 5)):
        # Zeros of both signs, the negative ones on either side.
        negative = (Special(0, "-0", draw(st.sampled_from((1, 2, 1 << 16)))),)
        if draw(st.booleans()):
            return replace(first, values="zeros", specials=()), replace(second, values="zeros", specials=negative)
        return replace(first, values="zeros", specials=negative), replace(second, values="zeros", specials=())
    return replace(first, values=recipes[0]), replace(second, values=recipes[1])


@st.composite
def close(draw: st.DrawFn, dtypes: Sequence[str], wide: bool) -> elementwise.Operands:
    """Two tensors of integers that differ by little, or not at all, and have more bits than some float; or of bools of
    any byte. ``wide``: beside int64 the second one is of float64, which holds them."""
    dtype = draw(dtype_names.dtypes(dtypes))
    if dtype == "bool":
        shape = (draw(elementwise.shapes.sizes(9, 300)),)
        logical = tensors.tensors(shape, dtype, values="bytes")
        return draw(logical), draw(logical)
    most = dtype_names.format_of(dtype).bits - 1
    length = draw(st.sampled_from([bits for bits in (25, 30, 31, 33, 40, 54) if bits <= most]))
    number = draw(st.sampled_from((1, -1))) * (2 ** (length - 1) + draw(st.integers(1, 2 ** (length - 2))))
    shape = (draw(elementwise.shapes.sizes(9, 300)),)

    def near(dtype: str, *offsets: int) -> TensorSpec:
        spec = draw(tensors.tensors(shape, dtype, values="zeros", specials=()))
        return replace(spec, values=f"{values.LISTED}{','.join(str(number + more) for more in offsets)}")

    other = "float64" if wide and dtype == "int64" and length < 54 else dtype
    if other == "float64" and draw(st.integers(0, 2)) == 2:
        # One of no dims decides the dtype too, where its category is the higher one.
        return near(dtype, 0, 1, -1, 2, 0, 7), TensorSpec((), other, f"{values.LISTED}{number}")
    return near(dtype, 0, 1, -1, 2, 0, 7), near(other, 0, 0, 1, 2, 1)


@st.composite
def beside(draw: st.DrawFn, dtypes: Sequence[str]) -> elementwise.Operands:
    """A tensor and a Python number that is one of its elements once it is rounded to the dtype in which torch compares,
    and not before: a fraction beside whole numbers, or one of 2^24 and 2^53 beside what follows it."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name != "bool"] or dtypes))
    form = dtype_names.format_of(dtype)
    sign, step = (draw(st.sampled_from((1, -1))) for _ in range(2))
    if form.kind == "float" and form.bits < 64:
        whole = sign * draw(st.integers(1, 7))
        number, around = whole * (1 + step * 2.0 ** -(form.mantissa + 3)), (whole, -whole, whole + 1, 0)
    else:
        edge = 2 ** draw(st.sampled_from([bits for bits in (24, 53) if bits < form.bits - 1] or [form.bits - 2]))
        sign = 1 if form.kind == "uint" else sign
        # float64 holds every whole number below 2^53.
        beyond = (-1, -2, -3) if form.kind == "float" else (0, 1, -1, 2, 3)
        number, around = sign * (edge + beyond[0]), tuple(sign * (edge + more) for more in beyond)
        # Beside a float torch takes integers to float32, where those next to each other are equal.
        number = draw(st.sampled_from((float(number), number, number + sign)))
    shape = (draw(elementwise.shapes.sizes(len(around), 300)),)
    spec = draw(tensors.tensors(shape, dtype, values="normal" if dtype == "bool" else "zeros", specials=()))
    listed = f"{values.LISTED}{','.join(map(str, around))}"
    return (spec if dtype == "bool" else replace(spec, values=listed)), number


@st.composite
def _thresholds(draw: st.DrawFn, narrow: str, wide: str) -> elementwise.Operands:
    """A tensor, and a number of a wider dtype without dims, which torch rounds to one of the elements."""
    form = dtype_names.format_of(narrow)
    whole = 2**form.mantissa * draw(st.sampled_from((2, 4, 8)))
    # The tensor's dtype holds every fourth number here, or more.
    number, listed = whole + 1, f"{values.LISTED}{whole},{-whole},0,{whole},{2 * whole}"
    shape = (draw(elementwise.shapes.sizes(5, 300)),)
    spec = replace(draw(tensors.tensors(shape, narrow, values="zeros", specials=())), values=listed)
    return spec, TensorSpec((), wide, f"{values.LISTED}{number}")


@st.composite
def _wholes(draw: st.DrawFn, whole: str, half: str) -> elementwise.Operands:
    """Whole numbers, and one of a half type without dims, in which torch compares: it rounds some of them to that."""
    number = 2 ** (dtype_names.format_of(half).mantissa + 1) * draw(st.sampled_from((1, 2, 4)))
    shape = (draw(elementwise.shapes.sizes(5, 300)),)
    spec = draw(tensors.tensors(shape, whole, values="zeros", specials=()))
    listed = ",".join(str(number + more) for more in (0, 1, -1, 3, 8))
    return replace(spec, values=f"{values.LISTED}{listed}"), TensorSpec((), half, f"{values.LISTED}{number}")


def beside_halves(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls of ``_wholes``."""

    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        halves = [name for name in dtypes if name in dtype_names.HALF]
        whole = [name for name in dtypes if name in ("int16", "int32", "int64")]
        if not halves or not whole:
            return st.nothing()
        return _wholes(whole[0], halves[0]).map(lambda operands: Case(op=op, args=operands))

    return draws


def thresholds(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls of ``_thresholds``."""

    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        halves = [name for name in dtypes if name in dtype_names.HALF][:1]
        narrow, wide = [*halves, "float32"], ["float32", "float64"]
        pairs = [(one, other) for one in narrow for other in wide if one != other and {one, other} <= {*dtypes}]
        found = [_thresholds(*pair) for pair in pairs]
        return st.one_of(found).map(lambda operands: Case(op=op, args=operands)) if found else st.nothing()

    return draws


def cases(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        # float64 holds the bits of int64 that float32 does not.
        wide = {"int64", "float64"} <= {*dtypes}
        kinds = (
            close(["int64"], True) if wide else elementwise.tensor_pairs(dtypes),
            alike(dtypes),
            beside(dtypes),
            elementwise.with_scalar(dtypes, wrapping=True, first=False),
        )
        operands = draw(st.one_of(*kinds))
        shape, _ = elementwise.result_of(operands)
        return elementwise.case(op, operands, out=draw(elementwise.outs(shape, torch.bool, operands, dtypes)))

    return draws


def refused(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        small = tensors.tensors((3,), dtypes)
        wrong = st.sampled_from(elementwise.WRONG_TYPES)
        return st.one_of(
            elementwise.unbroadcastable(dtypes).map(lambda pair: elementwise.case(op, pair)),
            elementwise.refused_outs(op, dtypes, torch.bool),
            st.builds(lambda x, other: Case(op=op, args=(x, other)), small, wrong),
            small.map(lambda x: Case(op=op, args=(2, x))),
        )

    return draws


def spec(name: str) -> OpSpec:
    """The OpSpec of a comparison: everything follows from torch's function."""
    function = getattr(torch, name)

    def expected(call: Call) -> Expected:
        return expectations.exactly(call, function(*call.args))

    return OpSpec(
        name=name,
        reference=function,
        cases=cases(name),
        large=_large.grown(cases(name)),
        scenes=_scenes.of_elements(cases(name)),
        apart=(
            thresholds(name),
            beside_halves(name),
            _scenes.with_numbers(name, _scenes.ROUNDING),
        ),
        refused=refused(name),
        dtypes=dtype_names.ALL,
        outs=OUTS,
        batch=elementwise.batch,
        parts=elementwise.parts,
        features=features.elementwise,
        expected=expected,
        benchmarks=elementwise.benchmarks(name, 2, result="bool"),
    )
