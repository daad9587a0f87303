"""``rotary_position_embedding(input, sin_table, cos_table, interleaved=True, inplace=False)``.

torch has no such function. What it would be is composed of torch's operators here; values are judged by the formula
y0 = x0 cos - x1 sin, y1 = x0 sin + x1 cos (Su et al., arXiv:2104.09864) in float64, and for float64 in double-double.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, float_formats, oracle
from conformance.cases import Argument, Case, operands, seed
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_positions as gradients
from conformance.ops import _models, _rotary_tables, _sizes
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec, Parts
from strategies import dtypes as dtype_names
from strategies import models, shapes, tensors
from strategies.specs import Layout, TensorSpec

DTYPES = dtype_names.FLOATING


@torch.no_grad()
def composed(
    input: torch.Tensor,
    sin_table: torch.Tensor,
    cos_table: torch.Tensor,
    interleaved: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """The function, of torch's operators: shape, dtype, strides and exceptions are right by definition.

    :param input: (B, T, H, D), D even.
    :param sin_table: (T', D / 2), T' >= T; ``cos_table`` likewise.
    :param interleaved: Whether pairs are (x[2 i], x[2 i + 1]), else (x[i], x[i + D / 2]).
    :raises TypeError: An argument is no tensor.
    :raises NotImplementedError: A tensor is not floating-point.
    :raises RuntimeError: Shapes do not fit, or several elements at one address are to be written.
    """
    operands = (input, sin_table, cos_table)
    if not all(isinstance(tensor, torch.Tensor) for tensor in operands):
        raise TypeError("input, sin_table and cos_table must be tensors")
    if not all(tensor.is_floating_point() for tensor in operands):
        raise NotImplementedError("input, sin_table and cos_table must be floating-point")
    if input.ndim != 4 or input.shape[3] % 2:
        raise RuntimeError(f"input must be (B, T, H, D), D even, not {tuple(input.shape)}")
    length, half = input.shape[1], input.shape[3] // 2
    if any(table.ndim != 2 or table.shape[0] < length or table.shape[1] != half for table in operands[1:]):
        raise RuntimeError(f"tables must be (T', {half}) with T' >= {length}")
    if inplace and any(size > 1 and stride == 0 for size, stride in zip(input.shape, input.stride(), strict=True)):
        raise RuntimeError("more than one element of input refers to a single memory location")
    compute = float_formats.compute_dtype(input.dtype)
    x0, x1 = (part.to(compute) for part in pairs(input, interleaved))
    sin, cos = (table[:length, None].to(compute) for table in operands[1:])
    output = input if inplace else torch.empty_like(input)
    y0, y1 = x0 * cos - x1 * sin, x0 * sin + x1 * cos
    for part, value in zip(pairs(output, interleaved), (y0, y1), strict=True):
        part.copy_(value)
    return output


def pairs(tensor: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second elements of all pairs, as views."""
    half = tensor.shape[3] // 2
    if interleaved:
        return tensor[..., 0::2], tensor[..., 1::2]
    return tensor[..., :half], tensor[..., half:]


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0, scenes: bool = False) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    dtype = draw(dtype_names.dtypes(names))
    table_dtype = draw(dtype_names.dtypes(names))
    inplace = draw(st.sampled_from((None, None, False, True)))
    layouts = {"layouts": elementwise.WRITABLE} if inplace else {}
    if elements:
        # Interpreted, each product that is added to float64 costs as much as sixteen of the others.
        affordable = elements // 16 if dtype == "float64" else elements
        batch, length, heads, half = draw(shapes.large(4, min(affordable, _sizes.WHOLE) // 2))
        if draw(st.booleans()):
            heads, half = draw(st.one_of(st.sampled_from(_sizes.PROMPT_HEADS), _model_heads()))
            batch = draw(st.sampled_from(_sizes.SEQUENCES))
            length = draw(st.integers(33, max(33, affordable // (8 * batch * heads * half))))
    elif scenes:
        batch, length, heads, half = draw(_prompt(dtype == "float64"))
    elif dtype != "float64" and draw(st.integers(0, 5)) == 5:
        heads, half = draw(_model_heads())
        batch, length = draw(st.integers(1, 2)), draw(st.integers(1, max(1, _sizes.ELEMENTS // (4 * heads * half))))
    else:
        batch, length, heads, half = draw(shapes.shapes(4, 4, budget=_sizes.ELEMENTS // 2))
    rows = length + min(draw(st.sampled_from((0, 0, 1, 5, 70, 300))), _sizes.ELEMENTS // max(half, 1))
    input = draw(tensors.tensors((batch, length, heads, 2 * half), dtype, **layouts))
    # What sines and cosines may be, and now and then anything.
    values = draw(st.sampled_from(("uniform", "uniform", "uniform", None)))
    tables = [draw(tensors.tensors((rows, half), table_dtype, values=values)) for _ in range(2)]
    interleaved = draw(st.sampled_from((None, True, False, False)))
    tables = draw(_rotary_tables.unlike(tables, length, names))
    return elementwise.case("rotary_position_embedding", (input, *tables), interleaved=interleaved, inplace=inplace)


@st.composite
def _prompt(draw: st.DrawFn, float64: bool) -> tuple[int, int, int, int]:
    """(B, T, H, D / 2) of a long prompt on one of many GPUs, each of which has a head or two."""
    if float64:
        return 1, draw(st.integers(65, 130)), 1, draw(st.sampled_from((32, 40, 64)))
    return 1, draw(st.integers(1025, 1100)), draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((32, 40, 64)))


def _model_heads() -> st.SearchStrategy[tuple[int, int]]:
    """Query heads of a model, and pairs of a head."""
    return models.heads().map(lambda found: (found[0] * found[1], found[2] // 2))


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in DTYPES]))
    table = (5, 4)
    shape: tuple[int, ...] = (2, 5, 3, 8)
    kind = draw(st.sampled_from(("odd", "dims", "table", "integer", "type", "expanded")))
    kwargs: dict[str, Argument] = {"interleaved": draw(st.booleans()), "inplace": kind == "expanded"}
    which = draw(st.integers(0, 2))

    def case(*specs: Argument) -> Case:
        return Case(op="rotary_position_embedding", args=specs, kwargs=kwargs)

    match kind:
        case "odd":
            shape = draw(st.sampled_from(((2, 5, 3, 7), (2, 5, 3, 9), (2, 5, 3, 1))))
            table = (5, shape[3] // 2)
        case "dims":
            shape = draw(st.sampled_from(((5, 3, 8), (8,), (1, 2, 5, 3, 8), ())))
        case "table":
            wrong = draw(st.sampled_from(((4, 4), (5, 8), (5, 3), (5, 1), (5,), (1, 5, 4), (5, 4, 1))))
            found = [draw(tensors.tensors(shape, dtype)), TensorSpec(table, dtype), TensorSpec(table, dtype)]
            found[1 + which % 2] = draw(tensors.tensors(wrong, dtype))
            return case(*found)
        case "integer":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            return case(*(TensorSpec(s, whole if n == which else dtype) for n, s in enumerate((shape, table, table))))
        case "type":
            operands: list[Argument] = [TensorSpec(s, dtype) for s in (shape, table, table)]
            operands[which] = draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES)))
            return case(*operands)
        case "expanded":
            layout = Layout(expanded=(draw(st.integers(0, 3)),))
            return case(TensorSpec(shape, dtype, layout=layout), TensorSpec(table, dtype), TensorSpec(table, dtype))
    return case(draw(tensors.tensors(shape, dtype)), TensorSpec(table, dtype), TensorSpec(table, dtype))


def batch(case: Case) -> Batch | None:
    """Sequences or heads."""
    input = case.args[0]
    assert isinstance(input, TensorSpec)
    if len(input.shape) != 4:
        return None
    chosen = elementwise.chosen(seed(case), [dim for dim in (0, 2) if input.shape[dim] > 1])
    return None if chosen is None else Batch(input.shape[chosen], (chosen, *[None] * (len(operands(case)) - 1)), chosen)


def parts(call: Call) -> Parts:
    """Sequences, tokens and heads. A table has a row for each token, and maybe more."""
    input = (0, 1, 2, None)
    table = (1, None)
    axes = dict(zip((0, 1, 2, "input", "sin_table", "cos_table"), (input, table, table) * 2, strict=True))
    return Parts({key: axes[key] for key in (*range(len(call.args)), *call.kwargs) if key in axes})


def expected(call: Call) -> Expected:
    input, sin_table, cos_table, interleaved = _arguments(*call.args, **call.kwargs)
    dtype, length = input.dtype, input.shape[1]
    x0, x1 = (oracle.operand(part, dtype) for part in pairs(input, interleaved))
    sin, cos = (oracle.operand(table[:length, None], torch.float64) for table in (sin_table, cos_table))
    with np.errstate(all="ignore"):
        found = [_sum(x0, cos, -x1, sin, dtype), _sum(x0, sin, x1, cos, dtype)]
        for one in found:
            one[3][...] &= oracle.in_range(sin, dtype) & oracle.in_range(cos, dtype)
    value, low, bound, judged = (_joined(list(parts), interleaved) for parts in zip(*found, strict=True))
    low = low if dtype == torch.float64 else None
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def _arguments(
    input: torch.Tensor,
    sin_table: torch.Tensor,
    cos_table: torch.Tensor,
    interleaved: bool = True,
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    return input, sin_table, cos_table, interleaved


def _sum(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, ...]:
    """a b + c d: its value and the rest, the bound, and where it is judged."""
    if dtype == torch.float64:
        (first, first_low), (second, second_low) = oracle.multiply(a, b), oracle.multiply(c, d)
    else:
        first, second = a * b, c * d
        first_low = second_low = np.zeros(())
    high, low = oracle.two_sum(first, second)
    value, low = oracle.two_sum(high, np.where(np.isfinite(high), low + (first_low + second_low), 0.0))
    # A table of float64 may be rounded first.
    rounded = _rounded(a, b, dtype) + _rounded(c, d, dtype)
    judged = np.ones(value.shape, bool)
    for term, factors in ((first, (a, b)), (second, (c, d))):
        infinite = ~(np.isfinite(factors[0]) & np.isfinite(factors[1]))
        judged &= oracle.in_range(term, dtype) & (np.isfinite(term) | infinite)
        # Rounded to 0 it makes NaN of an infinity.
        judged &= ~(infinite & (factors[1] != 0) & (_as_computed(factors[1], dtype) == 0))
    return value, low, bounds.rope(first, second, dtype) + rounded, judged


def _rounded(factor: np.ndarray, table: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """How far a product with a table is off whose elements were rounded to what is computed with."""
    product = np.abs(factor) * np.abs(_as_computed(table, dtype) - table)
    return np.where(np.isfinite(product), product, 0.0)


def _as_computed(table: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(table).to(float_formats.compute_dtype(dtype)).double().numpy()


def _joined(parts: list[np.ndarray], interleaved: bool) -> np.ndarray:
    """The first and second elements of all pairs in their places."""
    joined = np.stack(parts, axis=-1 if interleaved else -2)
    return joined.reshape(*parts[0].shape[:-1], 2 * parts[0].shape[-1])


def benchmark(batch: int, length: int, heads: int, size: int, dtype: str = "bfloat16") -> Benchmark:
    """Tables of float32. Per pair four products and two sums."""
    count, table = batch * length * heads * size, TensorSpec((length, size // 2), "float32")
    args = (TensorSpec((batch, length, heads, size), dtype), table, table)
    moved = 2 * count * dtype_names.format_of(dtype).bits // 8 + 2 * length * size // 2 * 4
    return Benchmark(Case(op="rotary_position_embedding", args=args), bytes=moved, flops=3 * count)


SPEC = OpSpec(
    name="rotary_position_embedding",
    reference=composed,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, elements),
    scenes=lambda dtypes: cases(dtypes, scenes=True),
    refused=refused,
    dtypes=DTYPES,
    inplace=True,
    batch=batch,
    parts=parts,
    expected=expected,
    gradients=gradients.rotation,
    trained=(0,),
    # Queries of a prompt, of one token of each of 16 sequences, and of one token, in a model with 32 heads of 128.
    benchmarks=(benchmark(4, 2048, 32, 128), benchmark(16, 1, 32, 128), benchmark(1, 1, 32, 128)),
    sampled=_models.rotary("rotary_position_embedding", 1.5),
)
