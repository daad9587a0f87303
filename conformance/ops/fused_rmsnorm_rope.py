"""``fused_rmsnorm_rope(x, weight, cos, sin, eps=1e-6, *, interleaved=False, head_dim=None)``.

torch has no such function. What it would be is composed of torch's operators here; values are judged by the formula in
float64 (for float64 by mpmath): n = x / sqrt(mean(x^2) + eps) * weight over a row (Zhang and Sennrich,
arXiv:1910.07467), then of each head y0 = n0 cos - n1 sin, y1 = n0 sin + n1 cos (Su et al., arXiv:2104.09864).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, float_formats, oracle
from conformance.cases import Argument, Case, operands
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_positions as gradients
from conformance.ops import _norms as norms
from conformance.ops import _rotary_tables, _sizes
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import shapes, tensors, values
from strategies.specs import TensorSpec

DTYPES = dtype_names.FLOATING


# --- the function, of torch's operators ----------------------------------------------------------------------------


def composed(
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    head_dim: int | None = None,
) -> torch.Tensor:
    """The function in the dtype that is computed in: shape, dtype, strides and exceptions are right by definition.

    :param x: (B, T, hidden).
    :param weight: (hidden,).
    :param cos: (T', head_dim), each number twice, or (T', head_dim / 2); T' >= T. ``sin`` likewise.
    :param interleaved: Whether pairs are (n[2 i], n[2 i + 1]), else (n[i], n[i + head_dim / 2]).
    :param head_dim: None: the width of the tables.
    :raises TypeError: An argument has the wrong type.
    :raises NotImplementedError: A tensor is not floating-point.
    :raises RuntimeError: Shapes do not fit.
    """
    if not all(isinstance(tensor, torch.Tensor) for tensor in (x, weight, cos, sin)):
        raise TypeError("x, weight, cos and sin must be tensors")
    if not all(tensor.is_floating_point() for tensor in (x, weight, cos, sin)):
        raise NotImplementedError("x, weight, cos and sin must be floating-point")
    if x.ndim != 3 or weight.shape != x.shape[2:]:
        raise RuntimeError(f"x must be (B, T, hidden) and weight (hidden,), not {x.shape} and {weight.shape}")
    if cos.ndim != 2 or cos.shape != sin.shape or cos.shape[0] < x.shape[1]:
        raise RuntimeError(f"cos and sin must be (T', head_dim or half of it) with T' >= {x.shape[1]}")
    size = cos.shape[1] if head_dim is None else head_dim
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"head_dim must be an int, not {size!r}")
    # A NumPy scalar of 8 bits does not hold what is computed from it.
    size = int(size)
    if size < 2 or size % 2 or x.shape[2] % size or cos.shape[1] not in (size, size // 2):
        raise RuntimeError(f"head_dim {size} does not fit rows of {x.shape[2]} and tables of {cos.shape[1]} columns")
    if not isinstance(eps, int | float | np.generic):
        raise TypeError(f"eps must be a number, not {eps!r}")
    compute = float_formats.compute_dtype(x.dtype)
    wide = x.to(compute)
    normalized = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(compute)
    return rotated(normalized, cos.to(compute), sin.to(compute), interleaved, size).to(x.dtype).contiguous()


def in_dtype(
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    head_dim: int | None = None,
) -> torch.Tensor:
    """What models have instead, which is what is timed: torch's norm, then the rotation in the dtype of ``x``."""
    normalized = torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    size = cos.shape[1] if head_dim is None else head_dim
    return rotated(normalized, cos.to(x.dtype), sin.to(x.dtype), interleaved, size)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, head_dim: int) -> torch.Tensor:
    """Rows with each of their heads rotated, in the dtype of all three."""
    heads = x.unflatten(2, (x.shape[2] // head_dim, head_dim))
    cos, sin = (once(table, interleaved, head_dim)[: x.shape[1], None] for table in (cos, sin))
    x0, x1 = pairs(heads, interleaved)
    found = torch.stack((x0 * cos - x1 * sin, x0 * sin + x1 * cos), -1 if interleaved else -2)
    return found.reshape(x.shape)


def pairs(heads: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second elements of all pairs of heads (..., head_dim), as views."""
    if interleaved:
        return heads[..., 0::2], heads[..., 1::2]
    half = heads.shape[-1] // 2
    return heads[..., :half], heads[..., half:]


def once(table: torch.Tensor, interleaved: bool, head_dim: int) -> torch.Tensor:
    """The table by pairs, (T', head_dim / 2), of one that may say each number twice."""
    return table if table.shape[1] == head_dim // 2 else pairs(table, interleaved)[0]


# --- calls -------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0, scenes: bool = False) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    dtype = draw(dtype_names.dtypes(names))
    # A weight and tables of float64 would have to be rounded first for the others.
    others = [name for name in names if dtype == "float64" or name != "float64"]
    weight_dtype, table_dtype = (draw(dtype_names.dtypes(others)) for _ in range(2))
    which = draw(st.integers(0, 9))
    prompt = plain = False
    if scenes and dtype != "float64":
        # Hidden states of several sequences.
        batch, length = draw(st.integers(2, 3)), draw(st.integers(2, 3))
        heads, half = draw(st.sampled_from(((32, 64), (64, 32), (33, 64))))
    elif elements and dtype != "float64":
        # Many tokens, or those of a prompt.
        batch, heads, half = (draw(st.integers(1, 3)) for _ in range(3))
        length = draw(shapes.near(elements // (16 * batch)))
        # Of a prompt as models have it, nothing is said that need not be.
        prompt, plain = draw(
            st.sampled_from(((False, False), (True, False), (False, False), (True, True), (True, True)))
        )
        if prompt:
            batch, (heads, half) = draw(st.sampled_from(_sizes.SEQUENCES)), draw(st.sampled_from(_sizes.PROMPT_HEADS))
            length = draw(st.integers(8, max(40, elements // (2 * batch * heads * half))))
    elif which == 8 and dtype != "float64":
        # Rows as models have them: heads of a power of two.
        batch, length = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        heads, half = draw(st.sampled_from(_sizes.MODEL_HEADS))
    elif which == 9:
        # Rows longer than a tile.
        batch, length, heads, half = 1, draw(st.integers(1, 2)), *draw(st.sampled_from(_sizes.LONG_HEADS))
        if dtype == "float64":
            length, heads = 1, heads // 2
    else:
        budget = _sizes.FLOAT64_ELEMENTS if dtype == "float64" else _sizes.ELEMENTS
        batch, length, heads, half = draw(shapes.shapes(4, 4, budget=budget // 2))
        half = max(half, 1)
    interleaved = None if plain else draw(st.sampled_from((None, False, True, True)))
    full = plain or draw(st.booleans())
    more = min(draw(st.sampled_from((0, 0, 1, 5, 70, 300))), _sizes.ELEMENTS // half)
    shape = (length + more, 2 * half if full else half)
    # What sines and cosines may be, or anything. A table that says each number twice has no specials,
    # which would be planted once.
    options: dict[str, Any] = {"values": draw(st.sampled_from(("uniform", None)))}
    if full:
        options = {"values": values.TABLES[bool(interleaved)], "specials": ()}
    rows: dict[str, Any] = {"values": ("normal", "uneven", "uneven", "uniform"), "specials": ()} if prompt else {}
    x = draw(tensors.tensors((batch, length, heads * 2 * half), dtype, **rows))
    weight = draw(tensors.tensors((heads * 2 * half,), weight_dtype))
    tables = [draw(tensors.tensors(shape, table_dtype, **options)) for _ in range(2)]
    eps = draw(st.sampled_from((None, None, None, *norms.EPSILONS)))
    head_dim = None if plain or (full and draw(st.booleans())) else 2 * half
    tables = tables if plain else draw(_rotary_tables.unlike(tables, None, others))
    return elementwise.case(
        "fused_rmsnorm_rope", (x, weight, *tables), eps=eps, interleaved=interleaved, head_dim=head_dim
    )


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in DTYPES]))
    operands: list[Argument] = [TensorSpec(shape, dtype) for shape in ((2, 5, 24), (24,), (5, 8), (5, 8))]
    kwargs: dict[str, Argument] = {"interleaved": draw(st.booleans())}
    which = draw(st.integers(0, 3))
    kinds = ("dims", "weight", "table", "tables", "head_dim", "half table", "head_dim type", "integer", "type", "eps")
    match draw(st.sampled_from(kinds)):
        case "dims":
            operands[0] = draw(tensors.tensors(draw(st.sampled_from(((5, 24), (24,), (), (1, 2, 5, 24)))), dtype))
        case "weight":
            operands[1] = draw(tensors.tensors(draw(st.sampled_from(((8,), (1,), (), (1, 24), (25,)))), dtype))
        case "table":
            wrong = draw(st.sampled_from(((4, 8), (5, 4), (5, 1), (5,), (1, 5, 8), (5, 1, 8), (6, 8))))
            operands[2 + which % 2] = draw(tensors.tensors(wrong, dtype))
        case "tables":
            wrong = draw(st.sampled_from(((4, 8), (5, 9), (5, 3), (5, 1), (5, 10), (5, 16), (5, 48), (5, 0))))
            operands[2:] = [draw(tensors.tensors(wrong, dtype)) for _ in range(2)]
        case "head_dim":
            kwargs["head_dim"] = draw(st.sampled_from((0, -8, 1, 3, 4, 6, 12, 24, 7)))
        case "half table":
            operands[2:] = [TensorSpec((5, 3), dtype) for _ in range(2)]
            kwargs["head_dim"] = draw(st.sampled_from((None, 8, 12, 3)))
        case "head_dim type":
            kwargs["head_dim"] = draw(st.sampled_from((8.0, "8", (8,), True)))
        case "integer":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            shape = ((2, 5, 24), (24,), (5, 8), (5, 8))[which]
            operands[which] = TensorSpec(shape, whole)
        case "type":
            operands[which] = draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES)))
        case "eps":
            kwargs["eps"] = draw(st.sampled_from(("x", (1,))))
    return Case(op="fused_rmsnorm_rope", args=tuple(operands), kwargs=kwargs)


def batch(case: Case) -> Batch | None:
    """Sequences."""
    x = case.args[0]
    assert isinstance(x, TensorSpec)
    if x.shape[0] < 2:
        return None
    return Batch(x.shape[0], (0, *[None] * (len(operands(case)) - 1)), 0)


# --- oracle ------------------------------------------------------------------------------------------------------


def expected(call: Call) -> Expected:
    x, weight, cos, sin, eps, interleaved, head_dim = _arguments(*call.args, **call.kwargs)
    if not x.numel():
        return expectations.exactly(call, x)
    dtype, compute = x.dtype, float_formats.compute_dtype(x.dtype)
    rows = norms.rows(x, x.shape[2:])
    w = norms.parameter(weight, 1.0, rows.shape[1])
    # By element: its partner in the pair, and the sign that the sine has for it.
    order = torch.arange(rows.shape[1]).view(-1, head_dim)
    first, second = (part.numpy() for part in pairs(order, interleaved))
    partner, sign = np.empty(rows.shape[1], np.int64), np.empty(rows.shape[1])
    partner[first], partner[second] = second, first
    sign[first], sign[second] = -1.0, 1.0
    c, s = (_by_element(table, x.shape, interleaved, head_dim) for table in (cos, sin))
    low = None
    with np.errstate(all="ignore"):
        squares = (rows**2).sum(axis=1, keepdims=True)
        scale = squares / rows.shape[1] + eps
        whole = norms.in_range(np.abs(rows).sum(axis=1, keepdims=True), squares, scale, dtype)
        scaled = rows / np.sqrt(scale)
        normalized = scaled * w
        own, other = normalized * c, normalized[:, partner] * s * sign
        value = own + other
        kept = _in_range(normalized, rows, w, dtype)
        judged = whole & kept & kept[:, partner]
        judged &= _in_range(own, normalized, c, dtype) & _in_range(other, normalized[:, partner], s, dtype)
        # What underflows, and only that, is a zero whose product with an infinity is NaN.
        form = float_formats.FORMATS[compute]
        faint = (np.abs(normalized) <= form.subnormal * (1 + np.abs(w))) & (rows != 0) & (w != 0)
        lost = np.isinf(w) & (scaled != 0) & (np.abs(scaled) < torch.finfo(compute).tiny)
        judged &= ~(np.isinf(c) & faint | lost) & ~(np.isinf(s) & faint[:, partner] | lost[:, partner])
        if dtype == torch.float64:
            affine = (w, w[partner], c, s)
            precise = _precise(mpmath.mpf(eps), partner, sign)
            value, low = norms.exactly(precise, value, whole[:, 0], rows, *affine)
            low = low.reshape(x.shape)
        bound = bounds.fused_rmsnorm_rope(own, other, (w, w[partner]), (c, s), compute)
    value, bound, judged = (np.broadcast_to(a, rows.shape).reshape(x.shape) for a in (value, bound, judged))
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def _arguments(
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    head_dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float, bool, int]:
    # eps is a number of the dtype in which is computed.
    eps = oracle.operand(float(eps), x.dtype).item()
    return x, weight, cos, sin, eps, interleaved, cos.shape[1] if head_dim is None else head_dim


def _by_element(table: torch.Tensor, shape: torch.Size, interleaved: bool, head_dim: int) -> np.ndarray:
    """What of a table belongs to each element, (rows, hidden)."""
    by_pair = oracle.operand(once(table, interleaved, head_dim)[: shape[1]], torch.float64)
    by_head = np.repeat(by_pair, 2, axis=1) if interleaved else np.tile(by_pair, 2)
    return np.tile(by_head, (shape[0], shape[2] // head_dim))


def _in_range(value: np.ndarray, first: np.ndarray, second: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Where a product of these is no overflow, of the compute dtype nor of float64, also when it is off by all that the
    norm and the rotation may be; nor is the second factor, which may be of another dtype."""
    finite = np.isfinite(first) & np.isfinite(second)
    reach = value * (1 + (bounds.NORM + bounds.ROPE) * float_formats.FORMATS[float_formats.compute_dtype(dtype)].unit)
    return oracle.in_range(reach, dtype) & oracle.in_range(second, dtype) & ~(np.isinf(reach) & finite)


def _precise(eps: mpmath.mpf, partner: np.ndarray, sign: np.ndarray) -> Any:
    def row(
        x: list[mpmath.mpf], w: list[mpmath.mpf], others: list[mpmath.mpf], c: list[mpmath.mpf], s: list[mpmath.mpf]
    ) -> list[mpmath.mpf]:
        mean = mpmath.fsum(x, squared=True) / len(x) + eps
        if not mean:
            return [mpmath.nan] * len(x)
        root = mpmath.sqrt(mean)
        terms = zip(x, w, others, c, s, partner.tolist(), sign.tolist(), strict=True)
        return [(a * w0 * c0 + x[place] * w1 * s0 * int(turn)) / root for a, w0, w1, c0, s0, place, turn in terms]

    return row


# --- benchmarks --------------------------------------------------------------------------------------------------


def benchmark(batch: int, length: int, hidden: int, interleaved: bool = False, dtype: str = "bfloat16") -> Benchmark:
    """Heads of 128, tables of the full width unless ``interleaved``, of which a half has to be read. Per element: its
    square and their sum, the scale and the weight, two products and a sum."""
    table = TensorSpec((length, 64 if interleaved else 128), dtype)
    args = (TensorSpec((batch, length, hidden), dtype), TensorSpec((hidden,), dtype), table, table)
    size, count = dtype_names.format_of(dtype).bits // 8, batch * length * hidden
    kwargs: dict[str, Argument] = {"interleaved": True, "head_dim": 128} if interleaved else {}
    moved = size * (2 * count + hidden + 2 * length * 64)
    return Benchmark(Case(op="fused_rmsnorm_rope", args=args, kwargs=kwargs), bytes=moved, flops=7 * count)


SPEC = OpSpec(
    name="fused_rmsnorm_rope",
    reference=composed,
    cases=cases,
    # Interpreted, each element costs as much as sixteen of the others.
    large=lambda elements: lambda dtypes: cases(dtypes, min(elements // 16, _sizes.WHOLE)),
    scenes=lambda dtypes: cases(dtypes, scenes=True),
    refused=refused,
    dtypes=DTYPES,
    batch=batch,
    expected=expected,
    gradients=gradients.norm_and_rotation,
    trained=(0, 1),
    # One and four prompts of 4096 tokens in models of 7 and of 70 billion parameters; a token of each of 16 sequences.
    benchmarks=(
        *(benchmark(count, 4096, hidden) for hidden in (4096, 8192) for count in (1, 4)),
        benchmark(4, 4096, 4096, interleaved=True),
        benchmark(16, 1, 4096),
        benchmark(1, 1, 4096),
    ),
    peer=in_dtype,
)
