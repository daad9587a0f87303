"""Four Triton kernels of study notes, each right or with one mistake that its usual test passes: docs/four-kernels.md.

``MISTAKE`` is a constant of the kernel. What a kernel does not take (other dtypes, strides, ``out=``) is done as torch
does it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

# First: without a GPU it makes Triton interpret kernels on CPU tensors.
import ntops.torch  # noqa: F401  isort: skip
import triton
import triton.language as tl

from conformance.selftest import attention, correct
from conformance.selftest.defect_registry import plant

Right = Callable[..., Any]
EPS = 1e-5


@triton.jit
def add_kernel(x, y, output, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    total = tl.load(x + place, inside) + tl.load(y + place, inside)
    tl.store(output + place, total, inside)


def add(right: Right, mistake: bool, input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """The grid has whole blocks only: the elements after the last one are never written."""
    if (
        out is not None
        or type(alpha) is not int
        or alpha != 1
        or not _is_plain(input, other)
        or input.shape != other.shape
    ):
        return right(input, other, alpha=alpha, out=out)
    output, n, block = torch.empty_like(input), input.numel(), 256
    programs = n // block if mistake else triton.cdiv(n, block)
    if programs:
        add_kernel[(programs,)](input, other, output, n, **_constants(BLOCK=block))
    return output


@triton.jit
def layer_norm_kernel(x, weight, bias, output, columns, eps, BLOCK: tl.constexpr, MISTAKE: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    inside = lane < columns
    values = tl.load(x + row * columns + lane, inside, other=0.0)
    centered = values - tl.sum(values, 0) / columns
    if not MISTAKE:
        centered = tl.where(inside, centered, 0.0)
    variance = tl.sum(centered * centered, 0) / columns
    normed = centered / tl.sqrt_rn(variance + eps)
    scaled = normed * tl.load(weight + lane, inside) + tl.load(bias + lane, inside)
    tl.store(output + row * columns + lane, scaled, inside)


def layer_norm(
    right: Right,
    mistake: bool,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-5,
) -> Any:
    """Lanes past the end of a row hold 0, and 0 minus the mean is in the variance."""
    given = [one for one in (weight, bias) if one is not None]
    of_rows = _is_plain(input, *given) and input.ndim > 0 and input.shape[-1:] == tuple(normalized_shape)
    if not of_rows or type(eps) is not float:
        return right(input, normalized_shape, weight, bias, eps)
    output, columns = torch.empty_like(input), input.shape[-1]
    weight = torch.ones(columns, device=input.device) if weight is None else weight
    bias = torch.zeros(columns, device=input.device) if bias is None else bias
    block = triton.next_power_of_2(columns)
    layer_norm_kernel[(input.numel() // columns,)](
        input, weight, bias, output, columns, eps, **_constants(BLOCK=block, MISTAKE=mistake)
    )
    return output


@triton.jit
def mm_kernel(a, b, c, M, N, K, BLOCK: tl.constexpr, MISTAKE: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for step in range(K // BLOCK if MISTAKE else tl.cdiv(K, BLOCK)):
        k = step * BLOCK + tl.arange(0, BLOCK)
        left = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + m * N + n, total, mask=(m < M) & (n < N))


def mm(right: Right, mistake: bool, input: Any, mat2: Any, *, out: Any = None) -> Any:
    """The loop over K ends with the last whole block: what is left of K is not in the sums."""
    fits = _is_plain(input, mat2) and input.ndim == mat2.ndim == 2 and input.shape[1] == mat2.shape[0]
    if out is not None or not fits:
        return right(input, mat2, out=out)
    (rows, terms), columns = input.shape, mat2.shape[1]
    output, block = torch.empty(rows, columns, dtype=input.dtype, device=input.device), 32
    grid = (triton.cdiv(rows, block), triton.cdiv(columns, block))
    mm_kernel[grid](input, mat2, output, rows, columns, terms, **_constants(BLOCK=block, MISTAKE=mistake))
    return output


@triton.jit
def attention_kernel(
    query, key, value, output, scale, L, S, E, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr, MISTAKE: tl.constexpr
):
    head = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, BLOCK_E)
    places = (head * L + rows[:, None]) * E + dims[None, :]
    taken = (rows[:, None] < L) & (dims[None, :] < E)
    queries = tl.load(query + places, taken, other=0.0)
    maximum = tl.full([BLOCK], float("-inf"), tl.float32)
    normalizer = tl.zeros([BLOCK], tl.float32)
    accumulator = tl.zeros([BLOCK, BLOCK_E], tl.float32)
    for first in range(0, S, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        there = (columns[:, None] < S) & (dims[None, :] < E)
        keys = tl.load(key + (head * S + columns[:, None]) * E + dims[None, :], there, other=0.0)
        values = tl.load(value + (head * S + columns[:, None]) * E + dims[None, :], there, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(columns[None, :] < S, scores, float("-inf"))
        if MISTAKE:
            largest = tl.maximum(maximum, tl.max(scores, 1))
        else:
            largest = tl.maximum(maximum, tl.max(scores, 1) * 1.4426950408889634)
        weights = tl.exp2(scores * 1.4426950408889634 - largest[:, None])
        shrunk = tl.exp2(maximum - largest)
        normalizer = normalizer * shrunk + tl.sum(weights, 1)
        accumulator = tl.dot(weights, values, accumulator * shrunk[:, None], input_precision="ieee")
        maximum = largest
    tl.store(output + places, accumulator / normalizer[:, None], taken)


def scaled_dot_product_attention(
    right: Right, mistake: bool, query: Any, key: Any, value: Any, *args: Any, **how: Any
) -> Any:
    """Scores are powers of two times log2(e), the running maximum is not: it cancels, until a power overflows."""
    plain = not args and not how and _is_plain(query, key, value) and query.ndim == 4 and key.shape == value.shape
    # Infinite scores are the right function's, which has no infinity minus infinity.
    if not plain or query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3] or not _finite(query, key):
        return attention.attention("", right, query, key, value, *args, **how)
    output, (batch, heads, rows, dim) = torch.empty_like(query), query.shape
    grid, block_e = (triton.cdiv(rows, 32), batch * heads), max(triton.next_power_of_2(dim), 16)
    sizes = rows, key.shape[2], dim
    constants = _constants(BLOCK=32, BLOCK_E=block_e, MISTAKE=mistake)
    attention_kernel[grid](query, key, value, output, dim**-0.5, *sizes, **constants)
    return output


def _constants(**constants: Any) -> dict[str, Any]:
    """A kernel's constants, which are annotated as no number is."""
    return constants


def _is_plain(*tensors: Any) -> bool:
    """Tell whether a kernel takes them: contiguous, of float32, not empty."""
    return all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.numel() for x in tensors) and not any(
        x.is_neg() or x.requires_grad or not x.is_contiguous() for x in tensors
    )


def _finite(*tensors: torch.Tensor) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)


FUNCTIONS = {
    "add": add,
    "layer_norm": layer_norm,
    "mm": mm,
    "scaled_dot_product_attention": scaled_dot_product_attention,
}
RIGHT: dict[str, Callable[..., Any]] = {
    op: partial(function, correct.right(op), False) for op, function in FUNCTIONS.items()
}
"""The kernels without a mistake, by op."""


def _wrong(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda right, *args, **kwargs: function(right, True, *args, **kwargs)


for _op, _name, _check in (
    ("add", "whole_blocks_only", "fully_written"),
    ("layer_norm", "padding_in_the_variance", "plain_operands"),
    ("mm", "whole_blocks_of_terms", "values"),
    ("scaled_dot_product_attention", "maximum_without_log2e", "values"),
):
    _about = " ".join((FUNCTIONS[_op].__doc__ or "").split())
    plant(_op, _name, "kernels of study notes", _check, _wrong(FUNCTIONS[_op]), _about)
