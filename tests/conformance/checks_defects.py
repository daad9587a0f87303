"""Planted defects, one or more for each check beyond ``values`` and ``metadata``: ``--implementation
checks_defects:NAME``. They are torch with something broken on top, and reach memory as kernels do, by address."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from conformance.implementations import CLAIMS


@dataclasses.dataclass(frozen=True)
class Defect:
    """Which check alone has to catch it, drawing cases of ``op`` and one of ``dtypes``."""

    op: str
    dtypes: tuple[str, ...]
    check: str


DEFECTS: dict[str, Defect] = {}


def defect(dtypes: str, check: str, **attributes: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an implementation of ``<op>_<what is wrong>``, which claims what it breaks, and enter it in ``DEFECTS``."""

    def enter(function: Callable[..., Any]) -> SimpleNamespace:
        op = function.__name__.partition("_")[0]
        DEFECTS[function.__name__] = Defect(op, tuple(dtypes.split()), check)
        claims = {"*": {"deterministic", check} & set(CLAIMS)}
        return SimpleNamespace(**{op: function}, conformance_claims=claims, **attributes)

    return enter


# --- guard_bands -------------------------------------------------------------------------------------------------


def store(tensor: torch.Tensor, element: int, count: int = 1) -> None:
    """Zero elements, counted from the first one, wherever that is."""
    ctypes.memset(tensor.data_ptr() + element * tensor.itemsize, 0, count * tensor.itemsize)


def into(result: torch.Tensor) -> torch.Tensor:
    """The result in memory that the call allocates itself, as a kernel's is."""
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype).copy_(result)


@defect("float32 int32", "guard_bands")
def relu_past_the_result(input, inplace=False):
    result = torch.nn.functional.relu(input, inplace)
    if not inplace and result.numel() > 3:
        result = into(result)
        store(result, result.numel())
    return result


@defect("float16", "guard_bands")
def relu_before_the_result(input, inplace=False):
    result = torch.nn.functional.relu(input, inplace)
    if not inplace and result.numel() > 3:
        result = into(result)
        store(result, -2, 2)
    return result


@defect("float32", "guard_bands")
def relu_past_the_input(input, inplace=False):
    result = torch.nn.functional.relu(input, inplace)
    if not inplace and input.is_contiguous() and input.numel():
        store(input, input.untyped_storage().nbytes() // input.itemsize - 8192 - input.storage_offset())
    return result


@defect("float32", "guard_bands")
def add_past_out(input, other, *, alpha=1, out=None):
    """A tail block that is stored whole into out."""
    result = torch.add(input, other, alpha=alpha, out=out)
    if out is not None and out.is_contiguous() and out.numel() > 3:
        rest = -out.numel() % 16
        end = (out.storage_offset() + out.numel() + rest) * out.itemsize
        # Not past the storage, where torch has moved it: that would end this process.
        store(out, out.numel(), rest if end <= out.untyped_storage().nbytes() else 0)
    return result


@defect("float32", "guard_bands")
def relu_reads_past_the_input(input, inplace=False):
    """A sum over a block that is not masked, and does not matter but where it is NaN."""
    result = torch.nn.functional.relu(input, inplace)
    if not inplace and input.is_contiguous() and input.numel() > 3:
        beyond = (ctypes.c_char * 4).from_address(input.data_ptr() + input.numel() * 4)
        result.view(-1)[-1] += torch.frombuffer(bytearray(beyond), dtype=torch.float32)[0] * 0
    return result


# --- fully_written -----------------------------------------------------------------------------------------------


def all_but_the_last(result: torch.Tensor) -> torch.Tensor:
    found = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
    ctypes.memmove(found.data_ptr(), result.data_ptr(), max(result.numel() - 1, 0) * result.itemsize)
    return found


@defect("float32 bfloat16 int8", "fully_written")
def relu_unwritten_tail(input, inplace=False):
    result = torch.nn.functional.relu(input, inplace)
    return result if inplace or result.numel() < 4 else all_but_the_last(result)


@defect("float32", "fully_written")
def eq_unwritten_tail(input, other, *, out=None):
    """Of bools, where any memory holds a legal value."""
    result = torch.eq(input, other, out=out)
    return all_but_the_last(result) if out is None and result.numel() > 3 else result


@defect("float32", "fully_written")
def add_unwritten_out(input, other, *, alpha=1, out=None):
    """The last element of an out that had to be resized."""
    result = torch.add(input, other, alpha=alpha)
    if out is None or out.dtype != result.dtype or out.numel() or result.numel() < 4:
        return torch.add(input, other, alpha=alpha, out=out)
    out.resize_(result.shape).as_strided_(result.shape, result.stride())
    ctypes.memmove(out.data_ptr(), result.data_ptr(), (result.numel() - 1) * result.itemsize)
    return out


@defect("float32", "fully_written")
def softmax_reads_scratch(input, dim, dtype=None):
    """Sums into memory that it did not zero."""
    result = torch.nn.functional.softmax(input, dim, dtype=dtype)
    if result.numel() > 3 and result.dtype == torch.float32:
        scratch = torch.empty(1)
        result.view(-1)[0] += scratch[0].nan_to_num(nan=0.0) * 0 + torch.isnan(scratch[0]) * 2.0**-20
    return result


# --- layout_invariant, batch_invariant ---------------------------------------------------------------------------


@defect("float32", "layout_invariant")
def softmax_sums_by_layout(input, dim, dtype=None):
    """The last bit depends on whether the rows are contiguous."""
    result = torch.nn.functional.softmax(input, dim, dtype=dtype)
    if result.dtype == torch.float32 and not input.is_contiguous():
        # Of a subnormal number the last bit is more than the bound.
        smaller = torch.nextafter(result, torch.zeros_like(result))
        result.data.copy_(smaller.where(result > 1e-30, result))
    return result


@defect("float32", "batch_invariant")
def softmax_splits_small_batches(input, dim, dtype=None):
    """The last bit depends on the number of rows."""
    result = torch.nn.functional.softmax(input, dim, dtype=dtype)
    if result.ndim > 1 and result.numel() <= 4 * result.shape[dim]:
        # Of a subnormal number the last bit is more than the bound.
        smaller = torch.nextafter(result, torch.zeros_like(result))
        result.data.copy_(smaller.where(result > 1e-30, result))
    return result


# --- config_invariant --------------------------------------------------------------------------------------------

_BLOCKS: list[int | None] = []


@contextlib.contextmanager
def blocks(op, number=None):
    """Block sizes, of which calls themselves take the first alone."""
    _BLOCKS.append(number)
    try:
        yield ["blocks of 1024", "blocks of 4", "blocks of 8"]
    finally:
        _BLOCKS.pop()


@defect("float32", "config_invariant", conformance_configurations=blocks)
def relu_whole_blocks(input, inplace=False):
    """In smaller blocks than the call itself takes, what is past the last whole one is left at zero."""
    result = torch.nn.functional.relu(input, inplace)
    size = {1: 4, 2: 8}.get(_BLOCKS[-1] if _BLOCKS else None)
    if size is not None and not inplace and result.is_contiguous():
        result.view(-1)[result.numel() // size * size :] = 0
    return result


# --- settings ----------------------------------------------------------------------------------------------------

_SET: list[int | None] = []


@contextlib.contextmanager
def warps(op, number=None):
    """Two settings."""
    _SET.append(number)
    try:
        yield ["num_warps=1", "num_warps=16"]
    finally:
        _SET.pop()


@defect("float32", "settings", conformance_settings=warps)
def relu_half_the_warps(input, inplace=False):
    """With a single warp every second element is left at zero."""
    result = torch.nn.functional.relu(input, inplace)
    if _SET[-1:] == [0] and not inplace and result.is_contiguous():
        result.view(-1)[1::2] = 0
    return result


@defect("float32", "settings", conformance_settings=warps)
def relu_fails_with_many_warps(input, inplace=False):
    """An error that says nothing."""
    if _SET[-1:] == [1]:
        raise RuntimeError("invalid argument")
    return torch.nn.functional.relu(input, inplace)


# --- inplace, out_argument ---------------------------------------------------------------------------------------


@defect("float32", "inplace")
def silu_inplace_by_another_formula(input, inplace=False):
    """More ulps than are allowed, in place only."""
    result = torch.nn.functional.silu(input, inplace)
    if inplace:
        result.copy_(torch.where((result > 1) & (result < 1000), result * (1 + 2.0**-19), result))
    return result


@defect("float32", "out_argument")
def sub_out_ignores_strides(input, other, *, alpha=1, out=None):
    """Writes an out of the right size as if it were contiguous."""
    result = torch.sub(input, other, alpha=alpha, out=out)
    if isinstance(out, torch.Tensor) and out.ndim == 2 and out.stride() == (1, 2 * out.shape[0]):
        out.copy_(out.flip(0))
    return result


@defect("float32", "out_argument")
def exp_out_overlaps(input, *, out=None):
    """Takes an out that is a part of the input."""
    if isinstance(out, torch.Tensor) and out.shape == input.shape and out.dtype == input.dtype:
        return out.copy_(torch.exp(input.clone()))
    return torch.exp(input, out=out)


# --- keywords ----------------------------------------------------------------------------------------------------


@defect("float32", "keywords")
def neg_of_x(x, *, out=None):
    """The parameter has another name."""
    return torch.neg(x, out=out)


@defect("float32", "keywords")
def sub_turned_around(*args, input=None, other=None, alpha=1, out=None):
    """By name, the operands are each other."""
    first, second = args or (other, input)
    return torch.sub(first, second, alpha=alpha, out=out)


# --- aliasing, special_values ------------------------------------------------------------------------------------


@defect("float32", "aliasing")
def mul_assumes_apart(input, other, *, out=None):
    """Squares instead of multiplying where both operands begin in one storage, wherever they are in it."""
    result = torch.mul(input, other, out=out)
    tensors = [x for x in (input, other) if isinstance(x, torch.Tensor)]
    storages = {x.untyped_storage()._cdata for x in tensors}
    if len(tensors) == 2 and len(storages) == 1 and input.storage_offset() != other.storage_offset():
        result.copy_(input * input)
    return result


_BUFFERS: dict[tuple[int, ...], torch.Tensor] = {}


@defect("float32", "aliasing")
def cos_into_one_buffer(input, *, out=None):
    """Returns the same memory for every call of a shape."""
    result = torch.cos(input, out=out)
    if out is not None or result.dtype != torch.float32 or not result.numel():
        return result
    buffer = _BUFFERS.setdefault((*result.shape, *result.stride()), torch.cos(input))
    return buffer.copy_(result)


@defect("float32", "special_values")
def softmax_nan_disturbs(input, dim, dtype=None):
    """A NaN anywhere changes the last bit everywhere."""
    result = torch.nn.functional.softmax(input, dim, dtype=dtype)
    if result.ndim > 1 and bool(input.isnan().any()):
        result.copy_(torch.nextafter(result, torch.zeros_like(result)))
    return result
