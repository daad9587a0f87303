"""Planted defects: implementations of one op each, right but for one mistake that real libraries have made.

Each is an object with the op as its attribute, so that ``--implementation defects:NAME`` judges it (this folder being
on the path). They are torch with something broken on top, so they run fast.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

BLOCK = 16


@dataclasses.dataclass(frozen=True)
class Defect:
    """Where a defect has to be caught: drawing cases of one of ``dtypes`` (calls that torch refuses, if ``refused``),
    by the check named; and an implementation that does the same call right."""

    op: str
    dtypes: tuple[str, ...]
    check: str
    refused: bool
    right: str


DEFECTS: dict[str, Defect] = {}


def defect(
    dtypes: str, check: str = "values", refused: bool = False, right: str = "torch"
) -> Callable[[Callable[..., Any]], Any]:
    """Make an implementation of ``<op>_<what is wrong>`` and enter it in ``DEFECTS``."""

    def enter(function: Callable[..., Any]) -> SimpleNamespace:
        op = function.__name__.partition("_")[0]
        DEFECTS[function.__name__] = Defect(op, tuple(dtypes.split()), check, refused, right)
        return SimpleNamespace(**{op: function})

    return enter


def without_tail(result: torch.Tensor) -> torch.Tensor:
    """What lies past the last full block was never written."""
    if result.numel() > BLOCK and result.numel() % BLOCK:
        flat = result.reshape(-1).clone()
        flat[flat.numel() // BLOCK * BLOCK :] = 0
        return result.copy_(flat.view(result.shape))
    return result


def as_if_contiguous(tensor: Any) -> Any:
    """The elements that a kernel reads which ignores strides."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_contiguous():
        return tensor
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    places = (torch.arange(tensor.numel()) + tensor.storage_offset()) % max(storage.numel(), 1)
    return storage[places].view(tensor.shape)


def inner_broadcast_lost(tensor: Any, other: Any) -> Any:
    """An inner dim of size 1 is taken for a scalar."""
    if isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor) and tensor.ndim > 1:
        wide = other.ndim and other.shape[-1] > 1
        if wide and tensor.shape[-1] == 1 and tensor.numel() > 1:
            return tensor.reshape(-1)[0].expand(tensor.shape)
    return tensor


def refusing_with(kind: type[BaseException], function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses what torch refuses, with another exception."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise kind(str(error)) from None

    return call


# --- add ---------------------------------------------------------------------------------------------------------


@defect("float32")
def add_tail(input, other, *, alpha=1, out=None):
    return without_tail(torch.add(input, other, alpha=alpha, out=out))


@defect("float32")
def add_strides(input, other, *, alpha=1, out=None):
    result = torch.add(input, other, alpha=alpha, out=out)
    wrong = torch.add(as_if_contiguous(input), as_if_contiguous(other), alpha=alpha)
    return result.copy_(wrong) if wrong.shape == result.shape else result


@defect("float32 int32 int64")
def add_broadcast(input, other, *, alpha=1, out=None):
    result = torch.add(input, other, alpha=alpha, out=out)
    if out is not None:
        return result
    return result.copy_(torch.add(inner_broadcast_lost(input, other), inner_broadcast_lost(other, input), alpha=alpha))


@defect("float32")
def add_nan(input, other, *, alpha=1, out=None):
    result = torch.add(input, other, alpha=alpha, out=out)
    return result.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf) if result.is_floating_point() else result


def half_add(input, other, alpha, out, product):
    """torch.add of half types in float32, as on CUDA (torch's CPU rounds alpha, scalars and products to half), with
    ``product`` to round alpha * other."""
    result = torch.add(input, other, alpha=alpha, out=out)
    if out is not None or result.dtype not in (torch.float16, torch.bfloat16):
        return result
    wide = [one.float() if isinstance(one, torch.Tensor) else one for one in (input, other)]
    return result.copy_(wide[0] + product(torch.as_tensor(wide[1]) * alpha, result.dtype))


@defect("float16 bfloat16", right="defects:add_right")
def add_half_product(input, other, *, alpha=1, out=None):
    """alpha * other is rounded to the storage dtype."""
    return half_add(input, other, alpha, out, lambda product, dtype: product.to(dtype).float())


add_right = SimpleNamespace(
    add=lambda input, other, *, alpha=1, out=None: half_add(input, other, alpha, out, lambda product, _: product)
)


@defect("float16 bfloat16 float32 float64", "metadata")
def add_promotion(input, other, *, alpha=1, out=None):
    """A 0-d tensor takes part in promotion like any other."""
    result = torch.add(input, other, alpha=alpha, out=out)
    tensors = [one for one in (input, other) if isinstance(one, torch.Tensor)]
    return (
        result if out is not None or len(tensors) < 2 else result.to(torch.promote_types(*(t.dtype for t in tensors)))
    )


@defect("int32", "errors", refused=True)
def add_exception(input, other, *, alpha=1, out=None):
    return refusing_with(LookupError, torch.add)(input, other, alpha=alpha, out=out)


@defect("float32", "inputs_unchanged")
def add_scratch(input, other, *, alpha=1, out=None):
    """Works in the memory of its first operand."""
    result = torch.add(input, other, alpha=alpha, out=out)
    if out is None and isinstance(input, torch.Tensor) and input.shape == result.shape and input.is_contiguous():
        input.copy_(result)
    return result


# --- div ---------------------------------------------------------------------------------------------------------


@defect("float32")
def div_tail(input, other, *, rounding_mode=None, out=None):
    return without_tail(torch.div(input, other, rounding_mode=rounding_mode, out=out))


@defect("float32")
def div_floor_truncates(input, other, *, rounding_mode=None, out=None):
    return torch.div(input, other, rounding_mode="trunc" if rounding_mode == "floor" else rounding_mode, out=out)


@defect("int64")
def div_through_float(input, other, *, rounding_mode=None, out=None):
    """Integer division by way of float32."""
    result = torch.div(input, other, rounding_mode=rounding_mode, out=out)
    if out is None and rounding_mode and result.dtype == torch.int64:
        wide = [one.to(torch.float32) if isinstance(one, torch.Tensor) else float(one) for one in (input, other)]
        return result.copy_(torch.div(*wide, rounding_mode=rounding_mode))
    return result


@defect("int32", "metadata")
def div_promotion(input, other, *, rounding_mode=None, out=None):
    """The quotient of integers is an integer."""
    result = torch.div(input, other, rounding_mode=rounding_mode, out=out)
    tensors = [one for one in (input, other) if isinstance(one, torch.Tensor)]
    whole = all(one.dtype == torch.int32 for one in tensors) and result.is_floating_point() and out is None
    return result.to(torch.int32) if whole else result


@defect("float32", "errors", refused=True)
def div_any_mode(input, other, *, rounding_mode=None, out=None):
    """An unknown rounding mode is taken for none."""
    known = rounding_mode in (None, "floor", "trunc")
    return torch.div(input, other, rounding_mode=rounding_mode if known else None, out=out)


@defect("float64")
def div_through_single(input, other, *, rounding_mode=None, out=None):
    """float64 passes through float32."""
    result = torch.div(input, other, rounding_mode=rounding_mode, out=out)
    return result.copy_(result.float()) if result.dtype == torch.float64 else result


# --- relu --------------------------------------------------------------------------------------------------------


@defect("float32")
def relu_nan(input, inplace=False):
    """max(x, 0) of a machine whose maximum drops NaN."""
    result = torch.nn.functional.relu(input, inplace)
    return result.nan_to_num_(nan=0.0, posinf=math.inf) if result.is_floating_point() else result


@defect("float16")
def relu_tail(input, inplace=False):
    return without_tail(torch.nn.functional.relu(input, inplace))


@defect("float32")
def relu_strides(input, inplace=False):
    wrong = torch.relu(as_if_contiguous(input))
    result = torch.nn.functional.relu(input, inplace)
    return result if inplace else result.copy_(wrong)


@defect("float32", "metadata")
def relu_inplace_copies(input, inplace=False):
    return torch.relu(input)


@defect("float32", "metadata")
def relu_returns_input(input, inplace=False):
    """What is not negative anywhere is handed back as it came."""
    return input if not (input < 0).any() and not inplace else torch.nn.functional.relu(input, inplace)


@defect("float32", "errors", refused=True)
def relu_takes_bool(input, inplace=False):
    return input.clone() if getattr(input, "dtype", None) == torch.bool else torch.nn.functional.relu(input, inplace)


# --- eq ----------------------------------------------------------------------------------------------------------


@defect("float32 float16 bfloat16 float64")
def eq_nan(input, other, *, out=None):
    """NaN equals NaN."""
    result = torch.eq(input, other, out=out)
    both = [torch.isnan(torch.as_tensor(one)) for one in (input, other)]
    return result.logical_or_(both[0] & both[1]) if out is None else result


@defect("float32", "metadata")
def eq_promotion(input, other, *, out=None):
    """Returns the numbers 0 and 1."""
    result = torch.eq(input, other, out=out)
    return result if out is not None else result.to(torch.uint8)


@defect("float32")
def eq_through_half(input, other, *, out=None):
    """Compares at half precision."""
    if isinstance(input, torch.Tensor) and input.dtype == torch.float32 and out is None:
        return torch.eq(input.half(), other.half() if isinstance(other, torch.Tensor) else other)
    return torch.eq(input, other, out=out)


@defect("int32")
def eq_tail(input, other, *, out=None):
    return without_tail(torch.eq(input, other, out=out))


@defect("uint8", "errors")
def eq_careful(input, other, *, out=None):
    """Refuses scalars that the dtype does not hold; torch wraps them."""
    if isinstance(input, torch.Tensor) and input.dtype == torch.uint8 and isinstance(other, int) and other < 0:
        raise OverflowError(f"{other} does not fit in uint8")
    return torch.eq(input, other, out=out)


# --- softmax -----------------------------------------------------------------------------------------------------


@defect("float32")
def softmax_overflow(input, dim, dtype=None):
    """The maximum is not subtracted."""
    torch.softmax(input, dim, dtype)
    powers = (input if dtype is None else input.to(dtype)).exp()
    return (powers / powers.sum(dim, keepdim=True)).contiguous()


@defect("float16")
def softmax_half_sum(input, dim, dtype=None):
    """The normaliser is accumulated in half precision."""
    result = torch.softmax(input, dim, dtype)
    if result.dtype != torch.float16 or not result.ndim or not result.numel():
        return result
    powers = (input.to(result.dtype) - input.to(result.dtype).amax(dim, keepdim=True)).exp()
    return (powers / powers.cumsum(dim).narrow(dim, -1 % powers.shape[dim], 1)).contiguous()


@defect("float32")
def softmax_last_dim(input, dim, dtype=None):
    torch.softmax(input, dim, dtype)
    return torch.softmax(input, -1, dtype)


@defect("float32")
def softmax_tail(input, dim, dtype=None):
    """What lies past the last full block of a row takes no part in the sum."""
    result = torch.softmax(input, dim, dtype)
    if result.ndim and result.shape[dim] > BLOCK and result.shape[dim] % BLOCK:
        kept = result.narrow(dim, 0, result.shape[dim] // BLOCK * BLOCK)
        result /= kept.sum(dim, keepdim=True)
    return result


@defect("float32")
def softmax_masked_row(input, dim, dtype=None):
    """A row that is all -inf gives zeros."""
    result = torch.softmax(input, dim, dtype)
    if not result.ndim:
        return result
    return result.masked_fill_((input == -math.inf).all(dim, keepdim=True), 0.0)


@defect("float32", "errors", refused=True)
def softmax_integers(input, dim, dtype=None):
    whole = isinstance(input, torch.Tensor) and not input.is_floating_point()
    return torch.nn.functional.softmax(input, dim, dtype=torch.float32 if whole and dtype is None else dtype)


# --- mm ----------------------------------------------------------------------------------------------------------


@defect("float32")
def mm_inner_tail(input, mat2, *, out=None):
    """What lies past the last full block of K is not summed."""
    result = torch.mm(input, mat2, out=out)
    inner = input.shape[1] // BLOCK * BLOCK
    return result.copy_(torch.mm(input[:, :inner], mat2[:inner])) if inner and out is None else result


@defect("float16")
def mm_half_sum(input, mat2, *, out=None):
    """Accumulates in the storage dtype."""
    result = torch.mm(input, mat2, out=out)
    if out is not None or not input.shape[1]:
        return result
    return result.copy_((input[:, :, None] * mat2[None]).cumsum(1)[:, -1])


@defect("float32")
def mm_strides(input, mat2, *, out=None):
    result = torch.mm(input, mat2, out=out)
    return result.copy_(torch.mm(as_if_contiguous(input), as_if_contiguous(mat2))) if out is None else result


@defect("float32 float16 bfloat16 float64")
def mm_empty_inner(input, mat2, *, out=None):
    """A sum of no terms is left unwritten."""
    result = torch.mm(input, mat2, out=out)
    return result.fill_(1) if input.shape[1] == 0 else result


@defect("float32", "errors", refused=True)
def mm_exception(input, mat2, *, out=None):
    return refusing_with(LookupError, torch.mm)(input, mat2, out=out)


# --- not defects of an op: implementations that do not give anything to judge -----------------------------------


def _constant(value: Any) -> SimpleNamespace:
    return SimpleNamespace(add=lambda input, other, *, alpha=1, out=None: value)


def _exits(input, other, *, alpha=1, out=None):
    raise SystemExit(3)


def _hangs(input, other, *, alpha=1, out=None):
    while True:
        pass


returns_none = _constant(None)
returns_number = _constant(1.5)
returns_tuple = _constant((torch.zeros(()), torch.zeros(())))
exits = SimpleNamespace(add=_exits)
hangs = SimpleNamespace(add=_hangs)
nothing = SimpleNamespace()
wrong_claims = SimpleNamespace(conformance_claims={"add": "deterministic"})


def _two_defects(input, other, *, alpha=1, out=None):
    """NaN is lost, and the memory of a longer first operand is used for the result."""
    result = add_nan.add(input, other, alpha=alpha, out=out)
    if out is None and isinstance(input, torch.Tensor) and input.numel() > 1 and input.is_contiguous():
        input.fill_(1)
    return result


two_defects = SimpleNamespace(add=_two_defects)


_calls = itertools.count()
now_and_then = SimpleNamespace(
    relu=lambda input, inplace=False: torch.nn.functional.relu(input, inplace).add_(next(_calls) % 29 == 7)
)
