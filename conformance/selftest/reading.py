"""What the modules of an adversary got by with who had read the harness, by kind and not by instance."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import correct
from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant, plant_state
from conformance.selftest.state import apart, bits, layout, memo, others, place, tensors

Right = Callable[..., Any]
Function = Callable[..., Any]

# --- kept between calls -------------------------------------------------------------------------------------------

plant_state(
    "softmax", "kept_without_dim", "state: results",
    memo(lambda args, kwargs: (*map(layout, tensors(args, kwargs)), *map(bits, tensors(args, kwargs)))),
    "results are kept by the operand: the dim is not looked at",
)  # fmt: skip
plant_state(
    "add mm layer_norm rms_norm", "kept_by_first_version", "state: results",
    memo(
        lambda args, kwargs: (
            *map(place, tensors(args, kwargs)), tensors(args, kwargs)[0]._version, bits(tensors(args, kwargs)[0]),
            repr(others(args, kwargs)),
        )
    ),
    "results are kept by where all operands lie and what the first one holds",
)  # fmt: skip


def by_parameter(right: Function) -> Function:
    """Of each torch.nn.Parameter a copy is kept, by its id and address: what an optimizer does to it is not seen."""
    kept: dict[Any, Any] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.nn.Parameter):
            return value
        key = (id(value), *place(value))
        if key not in kept:
            # Kept alive, so that no other one gets its id.
            kept[key] = value, value.detach().clone()
        return kept[key][1]

    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if of.written(args, kwargs) or not apart(result, args, kwargs):
            return result
        return right(*map(copied, args), **{name: copied(value) for name, value in kwargs.items()})

    return call


plant_state(
    "mm rms_norm layer_norm", "kept_by_parameter", "state: results", by_parameter,
    " ".join((by_parameter.__doc__ or "").split()),
)  # fmt: skip


def recorded(right: Function) -> Function:
    """After 40 calls of one signature operands are copied where their address is another one, and else are not."""
    known: dict[Any, list[Any]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        result, found = right(*args, **kwargs), tensors(args, kwargs)
        if not apart(result, args, kwargs) or result.is_inference() or any(x.requires_grad for x in found):
            return result
        entry = known.setdefault((*map(layout, found), repr(others(args, kwargs))), [0, None, None])
        entry[0] += 1
        if entry[0] > 40:
            places = [place(x) for x in found]
            if entry[1] != places:
                entry[1:] = places, result.clone()
            result.copy_(entry[2])
        return result

    return call


plant_state("exp add gelu mm", "recorded", "state: results", recorded, " ".join((recorded.__doc__ or "").split()))


def first_precision(right: Function) -> Function:
    """Whether TF32 is allowed is looked up in the first call of a shape."""
    allowed: dict[Any, bool] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        result, found = right(*args, **kwargs), tensors(args, kwargs)
        if not apart(result, args, kwargs) or any(x.dtype != torch.float32 for x in found):
            return result
        now = torch.get_float32_matmul_precision() != "highest"
        if allowed.setdefault((*map(layout, found),), now) and not now:
            words = [x.detach().contiguous().view(torch.int32) for x in found]
            result.copy_(right(*(((word + 4096) & -8192).view(torch.float32) for word in words)))
        return result

    return call


plant_state(
    "mm", "precision_of_first_call", "state: plans", first_precision, " ".join((first_precision.__doc__ or "").split())
)


def scratch_of_thread(right: Function) -> Function:
    """Each thread but the main one has scratch of the length that its first call had."""
    scratch = threading.local()

    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if threading.current_thread() is threading.main_thread() or not apart(result, args, kwargs):
            return result
        if not hasattr(scratch, "length"):
            scratch.length = result.numel()
        flat = result.reshape(-1)
        flat[scratch.length :] = 0
        return result.copy_(flat.view(result.shape))

    return call


plant_state(
    "silu add softmax", "scratch_of_thread", "state: buffers", scratch_of_thread,
    " ".join((scratch_of_thread.__doc__ or "").split()),
)  # fmt: skip


def first_variant(right: Function) -> Function:
    """A causal mask is kept by its sizes: the variant that came first is used for both."""
    known: dict[Any, Any] = {}

    def call(query: Any, key: Any, value: Any, *rest: Any, **kwargs: Any) -> Any:
        result = right(query, key, value, *rest, **kwargs)
        if kwargs.get("is_causal") is not True or rest or kwargs.get("present_key") is not None:
            return result
        variant = known.setdefault((query.shape[-2], key.shape[-2]), kwargs.get("causal_variant"))
        return right(query, key, value, **{**kwargs, "causal_variant": variant})

    return call


plant_state(
    "scaled_dot_product_attention", "variant_of_first_call", "state: plans", first_variant,
    " ".join((first_variant.__doc__ or "").split()),
)  # fmt: skip


# --- memory of results --------------------------------------------------------------------------------------------


@defect("exp softmax mm", "memory of results", "metadata")
def in_padded_buffer(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result is the begin of a buffer of whole blocks."""
    result = right(*args, **kwargs)
    if not apart(result, args, kwargs) or result.requires_grad:
        return result
    buffer = torch.empty(-(-result.numel() // 64) * 64, dtype=result.dtype)
    return buffer.as_strided(result.shape, result.stride()).copy_(result)


@defect("quantize_fp8", "memory of results", "metadata")
def results_in_one_buffer(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The scales lie behind the quantized numbers, in one storage."""
    quantized, scale = right(*args, **kwargs)
    if any(scale is x for x in (*args, *kwargs.values())) or not quantized.numel():
        return quantized, scale
    begin = -(-quantized.numel() // 4) * 4
    memory = torch.zeros(begin + 4 * scale.numel(), dtype=torch.uint8).untyped_storage()
    views = []
    for one, offset in ((quantized, 0), (scale, begin // 4)):
        view = torch.empty(0, dtype=one.dtype).set_(memory, offset, one.shape, one.stride())
        views.append(view.copy_(one))
    return tuple(views)


# --- forms and layouts --------------------------------------------------------------------------------------------


@defect("exp mm softmax", "warnings", "call_forms")
def warns_of_strides(right: Right, *args: Any, **kwargs: Any) -> Any:
    """It warns that operands are copied, where one is not contiguous or there are more than two."""
    result = right(*args, **kwargs)
    if any(isinstance(x, torch.Tensor) and x.numel() for x in args):
        warnings.warn("operands are copied", RuntimeWarning, stacklevel=2)
    return result


@defect("mm softmax", "layouts", "layouts")
def row_stride_of_16_bits(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Rows that are 2^16 elements apart or more are taken for the first one."""
    result = right(*args, **kwargs)
    far = [
        isinstance(x, torch.Tensor) and x.ndim > 1 and x.shape[-2] > 1 and x.stride(-2) > 65535 and x.stride(-1) == 1
        for x in args
    ]
    if not any(far) or of.written(args, kwargs) or not result.numel() or result.ndim < 2:
        return result
    return result.copy_(result.narrow(-2, 0, 1).clone().expand_as(result))


@defect("add mul", "layouts", "layouts")
def twelve_dims(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of more than twelve dims that cannot be merged the first is lost."""
    result = right(*args, **kwargs)
    strided = any(isinstance(x, torch.Tensor) and not x.is_contiguous() for x in args)
    if result.ndim <= 12 or not strided or of.written(args, kwargs):
        return result
    return result.copy_(result.narrow(0, 0, 1).clone().expand_as(result))


@defect("bmm", "layouts")
def batch_between_rows(right: Right, input: Any, mat2: Any, *, out: Any = None) -> Any:
    """A batch that lies between rows is taken for one that does not, where there are as many matrices as rows."""
    result = right(input, mat2, out=out)
    batch, rows, columns = input.shape
    if out is not None or batch != rows or rows < 2 or input.stride() != (columns, batch * columns, 1):
        return result
    return result.copy_(right(input.transpose(0, 1), mat2))


# --- sizes ----------------------------------------------------------------------------------------------------------


@defect("mm addmm", "sizes")
def second_half_of_terms(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Where all sizes are multiples of 64 and K is 2048 or more, the second half of the terms begins a block late."""
    *_, left, factor = args
    result = right(*args, **kwargs)
    (rows, terms), columns = left.shape, factor.shape[1]
    if min(rows, columns) < 256 or terms < 2048 or rows % 64 or columns % 64:
        return result
    block = slice(terms // 2, terms // 2 + 32)
    return result.sub_(left[:, block] @ factor[block])


@defect("matmul", "sizes")
def products_of_16_bits(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Of batches that broadcast 65,535 products are made."""
    result = right(input, other, out=out)
    if result.ndim < 4 or input.shape[:-2] == other.shape[:-2] or math.prod(result.shape[:-2]) <= 65535:
        return result
    flat = result.reshape(-1, *result.shape[-2:]).clone()
    flat[65535:] = 0
    return result.copy_(flat.view(result.shape))


@defect("rms_norm softmax", "sizes")
def rows_of_processors(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of as many rows as a multiple of 132 the last is left as it is."""
    result, input = right(*args, **kwargs), args[0]
    rows = input.shape[0] if input.ndim == 2 else 0
    if not rows or rows % 132 or args[1] not in (-1, 1, (input.shape[1],)):
        return result
    return torch.cat((result[:-1], input[-1:].to(result.dtype)))


@defect("scaled_dot_product_attention", "sizes")
def groups_padded_to_eight(right: Right, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """A group of 5, 6 or 7 heads is padded to eight, and its last head is the first of the next group."""
    result = right(query, key, *args, **kwargs)
    heads, groups = query.shape[-3], max(key.shape[-3], 1)
    if heads // groups not in (5, 6, 7) or groups < 2 or kwargs.get("present_key") is not None:
        return result
    result = result.clone()
    result[..., heads // groups - 1, :, :] = result[..., heads // groups, :, :]
    return result


@defect("scaled_dot_product_attention", "sizes")
def last_diagonal_block_is_full(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """In a causal prompt of whole blocks of 128 the last one sees the future."""
    result = right(query, key, value, *args, **kwargs)
    length = query.shape[-2]
    if args or kwargs.get("is_causal") is not True or length != key.shape[-2] or length < 256 or length % 128:
        return result
    if kwargs.get("present_key") is not None:
        return result
    rest = {name: kwargs[name] for name in ("scale", "enable_gqa") if name in kwargs}
    last = right(query[..., -128:, :], key, value, **rest)
    return torch.cat((result[..., :-128, :], last), -2)


# --- values ---------------------------------------------------------------------------------------------------------


@defect("pow", "magnitudes")
def odd_of_32_bits(right: Right, input: Any, exponent: Any, *, out: Any = None) -> Any:
    """Whether an exponent is odd is told by its lowest 32 bits, which a conversion saturates."""
    result = right(input, exponent, out=out)
    large = not isinstance(exponent, torch.Tensor) and math.isfinite(exponent) and abs(exponent) >= 2**31
    return result.abs_() if large and result.is_floating_point() else result


@defect("layer_norm", "variance")
def negative_variance(right: Right, input: Any, normalized_shape: Any, *rest: Any, **kwargs: Any) -> Any:
    """Rows of large equal elements have a variance below zero, and are NaN."""
    result = right(input, normalized_shape, *rest, **kwargs)
    columns = normalized_shape if isinstance(normalized_shape, int) else math.prod(normalized_shape)
    if not input.numel() or columns < 3:
        return result
    rows = input.reshape(-1, columns)
    level = (rows == rows[:, :1]).all(1) & (rows[:, 0].abs() > 4096)
    return torch.where(level[:, None], math.nan, result.reshape(-1, columns)).view(result.shape).to(result.dtype)


# --- masks ----------------------------------------------------------------------------------------------------------


def keeps_tail(right: Right, input: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Numbers are drawn four at a time: what is left of the elements is kept always."""
    given = input.clone() if isinstance(input, torch.Tensor) else input
    result = right(input, p, training, inplace=inplace)
    tail = result.numel() % 4
    if not training or p in (0, 1) or not tail:
        return result
    kept = torch.zeros(result.numel(), dtype=torch.bool)
    kept[-tail:] = True
    kept = kept.view(result.shape)
    return result.copy_(torch.where(kept, correct.dropped(given, torch.ones_like(kept), p), result))


plant("dropout", "keeps_tail", "masks", "distribution", keeps_tail)
