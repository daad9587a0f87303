"""What a kernel must not do to memory: Triton kernels run by the interpreter, one flag of a right one set wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

# First: without a GPU it makes Triton interpret kernels on CPU tensors.
import ntops.torch  # noqa: F401  isort: skip
import triton
import triton.language as tl
from triton.language.extra import libdevice

from conformance.selftest import correct
from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant

BLOCK = 64


@triton.jit
def elementwise(
    out,
    x,
    y,
    n,
    BLOCK: tl.constexpr,
    OP: tl.constexpr,
    LOADED: tl.constexpr,
    STORED: tl.constexpr,
    SHIFT: tl.constexpr,
    TO_INPUT: tl.constexpr,
    COLLIDE: tl.constexpr,
    TWICE: tl.constexpr,
):
    """``LOADED`` and ``STORED`` elements beyond n are, or are not, read and written."""
    program = tl.program_id(0)
    i = program * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i + SHIFT, mask=i < n + LOADED, other=0)
    if OP == "add":
        result = a + tl.load(y + i, mask=i < n, other=0)
    elif OP == "relu":
        result = tl.where(a <= 0, 0, a)
    elif OP == "abs":
        result = tl.abs(a)
    else:
        # tl.exp is tens of ulps off where results are large.
        result = libdevice.exp(a)
    if TO_INPUT:
        tl.store(x + i, result, mask=i < n)
    if COLLIDE:
        tl.store(out + tl.arange(0, BLOCK), program + tl.zeros([BLOCK], tl.int32), mask=tl.arange(0, BLOCK) < n)
    tl.store(out + i, result, mask=i < n + STORED)
    if TWICE:
        tl.store(out + i * 0, result, mask=i < 2)


@triton.jit
def row_sums(out, x, columns, stride, BLOCK: tl.constexpr, LOADED: tl.constexpr, STORED: tl.constexpr):
    """softmax of rows of at most BLOCK elements, ``stride`` apart."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * stride + i, mask=i < columns + LOADED, other=float("-inf"))
    a = tl.where(i < columns, a, float("-inf"))
    power = libdevice.exp(a - tl.max(a, 0))
    tl.store(out + row * columns + i, power / tl.sum(power, 0), mask=i < columns + STORED)


@triton.jit
def tiles(out, a, b, M, N, K, BLOCK: tl.constexpr, INNER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A product of dense matrices in square tiles; each flag widens one mask."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0)
        right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K + INNER) & (n < N), other=0)
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(out + m * N + n, total, mask=(m < M + ROWS) & (n < N + COLUMNS))


def _single(*tensors: Any) -> bool:
    """Whether a kernel takes them: memory of float32 that is what they mean."""
    return all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.numel() for x in tensors) and not any(
        x.is_neg() for x in tensors
    )


def _elementwise(op: str, read_scratch: bool = False, **flags: Any) -> Callable[..., Any]:
    flags = {"LOADED": 0, "STORED": 0, "SHIFT": 0, "TO_INPUT": False, "COLLIDE": False, "TWICE": False} | flags

    def wrong(right: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
        other = args[0] if op == "add" and args else input
        plain = not of.written(args, kwargs) and kwargs.get("alpha", 1) == 1
        fits = plain and _single(input, other) and not any(x for x in args if not isinstance(x, torch.Tensor))
        if not fits or other.shape != input.shape:
            return right(input, *args, **kwargs)
        out = right(input, *args, **kwargs)
        if not out.is_contiguous():
            return out
        made = torch.empty(input.shape, dtype=torch.float32)
        source = torch.empty(input.shape, dtype=torch.float32) if read_scratch else input.contiguous()
        grid = (triton.cdiv(made.numel(), BLOCK),)
        elementwise[grid](made, source, other.contiguous(), made.numel(), BLOCK=BLOCK, OP=op, **flags)
        return made

    return wrong


def _softmax(**flags: Any) -> Callable[..., Any]:
    flags = {"LOADED": 0, "STORED": 0} | flags
    more = flags.pop("stride", 0)

    def wrong(right: Callable[..., Any], input: Any, dim: Any, dtype: Any = None) -> Any:
        result = right(input, dim, dtype)
        if not _single(input, result) or not input.ndim or dim not in (-1, input.ndim - 1):
            return result
        columns = input.shape[-1]
        made = torch.empty(input.shape, dtype=torch.float32)
        grid = (input.numel() // columns,)
        block = triton.next_power_of_2(columns)
        row_sums[grid](made, input.contiguous(), columns, columns + more, BLOCK=block, **flags)
        return made

    return wrong


def _mm(**flags: Any) -> Callable[..., Any]:
    flags = {"INNER": 0, "ROWS": 0, "COLUMNS": 0} | flags

    def wrong(right: Callable[..., Any], input: Any, mat2: Any, *, out: Any = None) -> Any:
        result = right(input, mat2, out=out)
        if not _single(input, mat2) or out is not None:
            return result
        (m, k), n = input.shape, mat2.shape[1]
        made = torch.empty(m, n, dtype=torch.float32)
        grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
        tiles[grid](made, input.contiguous(), mat2.contiguous(), m, n, k, BLOCK=32, **flags)
        return made

    return wrong


RIGHT: dict[str, Callable[..., Any]] = {
    **{op: partial(_elementwise(op), correct.right(op)) for op in ("relu", "add", "abs", "exp")},
    "softmax": partial(_softmax(), correct.right("softmax")),
    "mm": partial(_mm(), correct.right("mm")),
}
"""The kernels with every flag right, by op."""

_ELEMENTWISE: dict[str, tuple[dict[str, Any], str]] = {
    "reads_beyond": ({"LOADED": BLOCK}, "the last block is read without a mask"),
    "reads_one_beyond": ({"LOADED": 1}, "the mask of what is read is one too wide"),
    "writes_beyond": ({"STORED": BLOCK}, "the last block is written without a mask"),
    "reads_before": ({"SHIFT": -1}, "every element is read one too early"),
    "leaves_last": ({"STORED": -1}, "the last element is not written"),
    "writes_input": ({"TO_INPUT": True}, "stores to its input"),
    "programs_collide": ({"COLLIDE": True}, "programs store different values to the same addresses"),
    "lanes_collide": ({"TWICE": True}, "two lanes store to one address"),
    "reads_unwritten": ({"read_scratch": True}, "reads memory that nothing has written"),
}
for _op in ("relu", "add", "abs", "exp"):
    for _name, (_flags, _about) in _ELEMENTWISE.items():
        plant(_op, _name, "memory", "memory", _elementwise(_op, **_flags), _about)
plant("softmax", "reads_beyond", "memory", "memory", _softmax(LOADED=9), "columns are read past the end of a row")
plant("softmax", "writes_beyond", "memory", "memory", _softmax(STORED=9), "columns are written past the end of a row")
plant("softmax", "row_stride", "memory", "memory", _softmax(stride=1), "rows are taken for one element longer")
plant("mm", "reads_beyond_inner", "memory", "memory", _mm(INNER=32), "K has no mask")
plant("mm", "writes_rows_beyond", "memory", "memory", _mm(ROWS=32), "rows have no mask")
plant("mm", "writes_columns_beyond", "memory", "memory", _mm(COLUMNS=32), "columns have no mask")
plant("mm", "leaves_column", "memory", "memory", _mm(COLUMNS=-1), "the last column is not written")
