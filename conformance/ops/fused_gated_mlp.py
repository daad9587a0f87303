"""``fused_gated_mlp(x, gate_weight, up_weight, activation="silu")``: act(x @ gate_weight.T) * (x @ up_weight.T).

torch has no such function. What it would be is composed of torch's operators here; values are judged by that formula
(N. Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202), its products in float64 or double-double, with silu,
gelu, or gelu's approximation by tanh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st
from torch.nn import functional

from conformance import bounds, float_formats, oracle, product_bounds
from conformance.cases import Argument, Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_products as gradients
from conformance.ops import _products as products
from conformance.ops import _sizes, _words, gelu
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import shapes, tensors
from strategies.specs import TensorSpec

Function = Callable[[torch.Tensor], torch.Tensor]


def _by_erf(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def _by_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


# torch's own gelu of infinity is NaN on the CPU.
ACTIVATIONS: dict[str, Function] = {"silu": functional.silu, "gelu": _by_erf, "gelu_tanh": _by_tanh}
OF_TORCH: dict[str, Function] = ACTIVATIONS | {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


# --- the function, of torch's operators ----------------------------------------------------------------------------


def composed(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, activation: str = "silu"
) -> torch.Tensor:
    """The function in the dtype that is computed in: shape, dtype, strides and exceptions are right by definition.

    :param x: (..., hidden).
    :param gate_weight: (intermediate, hidden); ``up_weight`` likewise.
    :param activation: One of ``ACTIVATIONS``.
    :raises TypeError: An argument has the wrong type.
    :raises ValueError: Another activation.
    :raises NotImplementedError: The dtype is not floating-point.
    :raises RuntimeError: Shapes or dtypes do not fit.
    """
    operands = (x, gate_weight, up_weight)
    if not all(isinstance(tensor, torch.Tensor) for tensor in operands):
        raise TypeError("x, gate_weight and up_weight must be tensors")
    if len({tensor.dtype for tensor in operands}) > 1:
        raise RuntimeError("x, gate_weight and up_weight must have one dtype")
    if gate_weight.ndim != 2 or up_weight.ndim != 2:
        raise RuntimeError("gate_weight and up_weight must be (intermediate, hidden)")
    if not isinstance(activation, str):
        raise TypeError(f"activation must be a str, not {activation!r}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}")
    if not x.is_floating_point():
        raise NotImplementedError("x, gate_weight and up_weight must be floating-point")
    if x.ndim == 0 or gate_weight.shape != up_weight.shape or gate_weight.shape[1] != x.shape[-1]:
        raise RuntimeError(f"weights must be (intermediate, {x.shape[-1:]}) of one shape")
    compute = float_formats.compute_dtype(x.dtype)
    wide, gate, up = (tensor.to(compute) for tensor in operands)
    return (ACTIVATIONS[activation](functional.linear(wide, gate)) * functional.linear(wide, up)).to(x.dtype)


def in_dtype(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, activation: str = "silu"
) -> torch.Tensor:
    """What models have instead, which is what is timed: half types are rounded to between any two operators."""
    return OF_TORCH[activation](functional.linear(x, gate_weight)) * functional.linear(x, up_weight)


# --- calls -------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    if elements and dtype != "float64":
        m, k, n = draw(products.large_sizes(elements))
    else:
        m, k, n = draw(products.sizes(dtype == "float64", modest=True))
    if dtype == "float64":
        # Each element of the result is evaluated by mpmath.
        m, n = min(m, _sizes.PRODUCT_BLOCKS_FLOAT64[0]), min(n, _sizes.PRODUCT_BLOCKS_FLOAT64[0])
    leading = {"vector": (), "matrix": (m,), "one more": (1, m), "several": (2, -(-m // 2)), "many": (2, 1, -(-m // 2))}
    shape = leading[draw(st.sampled_from(("matrix", "matrix", "matrix", "several", "many", "one more", "vector")))]
    # At the scale that keeps products near 1, or of any values.
    weight = draw(st.sampled_from(("normal_small", "uniform", None, None)))
    operands = (
        draw(tensors.tensors((*shape, k), dtype)),
        *(draw(tensors.tensors((n, k), dtype, values=weight)) for _ in range(2)),
    )
    activation = draw(st.sampled_from((None, *ACTIVATIONS)))
    return elementwise.case("fused_gated_mlp", operands, activation=activation)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    names = [name for name in dtypes if name in products.DTYPES]
    dtype = draw(dtype_names.dtypes(names))
    m, k, n = (draw(shapes.sizes(2, 20)) for _ in range(3))
    operands: list[Argument] = [draw(tensors.tensors(shape, dtype)) for shape in ((m, k), (n, k), (n, k))]
    kwargs: dict[str, Argument] = {}
    which = draw(st.integers(0, 2))
    kinds = ["inner", "weights", "dims", "0-d", "type", "activation", "activation type", "integer"]
    match draw(st.sampled_from(kinds + ["mixed"] * (len(names) > 1))):
        case "inner":
            operands[0] = draw(tensors.tensors((m, k + draw(st.integers(1, 3))), dtype))
        case "weights":
            wrong = draw(st.sampled_from(((n + 1, k), (1, k), (n, 1), (k, n + k), (0, k))))
            operands[1 + which % 2] = draw(tensors.tensors(wrong, dtype))
        case "dims":
            wrong = draw(st.sampled_from(((k,), (1, n, k), ())))
            operands[1 + which % 2] = draw(tensors.tensors(wrong, dtype))
        case "0-d":
            operands[0] = draw(tensors.tensors((), dtype))
        case "type":
            operands[which] = draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES)))
        case "activation":
            kwargs["activation"] = draw(_words.wrong((*ACTIVATIONS,), ("relu", "SiLU", "gelu_none", "tanh", "none")))
        case "activation type":
            kwargs["activation"] = draw(st.sampled_from((None, 1, True, (1, 2))))
        case "integer":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            operands = [TensorSpec(shape, whole) for shape in ((m, k), (n, k), (n, k))]
        case "mixed":
            other = draw(dtype_names.dtypes([name for name in names if name != dtype]))
            operands[which] = TensorSpec(((m, k), (n, k), (n, k))[which], other)
    return Case(op="fused_gated_mlp", args=tuple(operands), kwargs=kwargs)


def batch(case: Case) -> Batch | None:
    """Rows, or what is outside of them."""
    shapes = [argument.shape for argument in case.args[:3] if isinstance(argument, TensorSpec)]
    # Not where two operands are one tensor.
    return Batch(shapes[0][0], (0, None, None), 0) if len(shapes) == 3 and len(shapes[0]) > 1 else None


# --- oracle ------------------------------------------------------------------------------------------------------


def _silu(x: np.ndarray) -> np.ndarray:
    """In float64; NaN at -inf, as on CUDA."""
    return x / (1 + np.exp(-x))


def _precise_silu(x: mpmath.mpf) -> mpmath.mpf:
    return x / (1 + mpmath.exp(-x))


FORMULAS = {
    "silu": (_silu, _precise_silu),
    "gelu": gelu.FORMULAS["none"],
    "gelu_tanh": gelu.FORMULAS["tanh"],
}


def expected(call: Call) -> Expected:
    x, gate_weight, up_weight, activation = _arguments(*call.args, **call.kwargs)
    dtype, terms = x.dtype, x.shape[-1]
    shape = (*x.shape[:-1], gate_weight.shape[0])
    if not math.prod(shape):
        return expectations.exactly(call, torch.empty(shape, dtype=dtype))
    rows = oracle.operand(x, dtype).reshape(math.prod(shape[:-1]), terms)
    gate, up = (products.product(rows, oracle.operand(w.mT, dtype), dtype) for w in (gate_weight, up_weight))
    formula, precise = FORMULAS[activation]
    with np.errstate(all="ignore"):
        errors = [
            product_bounds.product(one.value, one.magnitude, one.spread, terms, dtype, one.equal) for one in (gate, up)
        ]
        activated = formula(gate.value)
        off = bounds.activated(formula, activation, gate.value, activated, errors[0], dtype)
        value, low = activated * up.value, None
        if dtype == torch.float64:
            value, low = _refined(value, precise, gate, up)
            low = low.reshape(shape)
        bound = bounds.fused_gated_mlp(value, activated, up.value, off, errors[1], dtype)
        judged = gate.judged & up.judged
        # Where a factor may be 0 or of either sign, its product with an infinity may be anything.
        judged &= ~(np.isinf(activated) & (np.abs(up.value) <= errors[1]))
        judged &= ~(np.isinf(up.value) & (np.abs(activated) <= off))
        # A product beyond float64 is judged only where it overflows for the least that the factors may be, too.
        least = np.maximum(np.abs(activated) - off, 0) * np.maximum(np.abs(up.value) - errors[1], 0)
        judged &= ~(np.isinf(value) & np.isfinite(activated) & np.isfinite(up.value) & np.isfinite(least))
    value, bound, judged = (array.reshape(shape) for array in (value, bound, judged))
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def _arguments(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, activation: str = "silu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str]:
    return x, gate_weight, up_weight, activation


def _refined(
    value: np.ndarray, precise: Callable[[mpmath.mpf], mpmath.mpf], gate: products.Product, up: products.Product
) -> oracle.Double:
    """The value of float64 operands, by mpmath wherever it and both products are finite and not 0."""
    assert gate.low is not None
    assert up.low is not None
    high, low = value.copy(), np.zeros(value.shape)
    plain = np.isfinite(value) & np.isfinite(gate.value) & np.isfinite(up.value) & (gate.value != 0) & (up.value != 0)
    if plain.any():

        def element(*rows: list[mpmath.mpf]) -> list[mpmath.mpf]:
            return [precise(g + g_low) * (u + u_low) for g, g_low, u, u_low in zip(*rows, strict=True)]

        factors = (gate.value, gate.low, up.value, up.low)
        high[plain], low[plain] = oracle.by_mpmath(element, *(factor[plain] for factor in factors))
    return high, low


# --- benchmarks --------------------------------------------------------------------------------------------------


def benchmark(tokens: int, hidden: int, intermediate: int, dtype: str = "bfloat16") -> Benchmark:
    weight = (intermediate, hidden)
    shapes = ((tokens, hidden), weight, weight)
    return products.benchmark("fused_gated_mlp", (tokens, intermediate), 2 * hidden, *shapes, dtype=dtype)


SPEC = OpSpec(
    name="fused_gated_mlp",
    reference=composed,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, min(elements, _sizes.WHOLE)),
    refused=refused,
    dtypes=products.DTYPES,
    batch=batch,
    mixes=False,
    expected=expected,
    gradients=partial(gradients.gated_mlp, FORMULAS),
    # A prompt, and a token of each of 1 and of 16 sequences, in models of 7, 8 and 70 billion parameters; and a small
    # call, whose time is the host's.
    benchmarks=(
        *(
            benchmark(tokens, hidden, intermediate)
            for hidden, intermediate in ((4096, 11008), (4096, 14336), (8192, 28672))
            for tokens in (1, 16, 4096)
        ),
        benchmark(1, 64, 128),
    ),
    peer=in_dtype,
)
