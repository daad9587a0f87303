"""Planted defects of attention: attention in blocks of keys, as kernels compute it, with a switch for each mistake."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from conformance.ops import _attention
from conformance.ops._attention import HALF, Arguments, Part
from conformance.ops.scaled_dot_product_attention import OP
from conformance.selftest import correct
from conformance.selftest.attention_defects import OTHERS, VALUES
from conformance.selftest.defect_registry import Function, plant

BLOCK = 16


def attention(wrong: str, right: Function, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The call, wrong in the way that is named; "" is right."""
    call = Arguments(*args, **kwargs)
    if wrong in REFUSALS:
        call = _refused(wrong, call)
    _attention.check(call)
    if _attention.left_out(call):
        return right(*args, **kwargs)
    result = torch.empty(*call.query.shape[:-1], call.value.shape[-1], dtype=call.query.dtype)
    for part in _parts(wrong, call):
        result[part.batch].copy_(_attend(wrong, call, part))
    if wrong == "query_scaled_in_place" and call.scale not in (None, 1):
        call.query[..., :1].mul_(call.scale)
    if wrong == "value_dim_128":
        result[..., 128:] = 0
    if wrong == "float32_result":
        return result.float() if result.dtype in HALF else result
    if wrong == "dim_of_queries":
        return torch.nn.functional.pad(result, (0, call.query.shape[-1] - result.shape[-1]))
    return result


def right() -> Function:
    """Attention in blocks without a mistake; calls that others may leave out are torch's."""
    return partial(attention, "", correct.right(OP))


# --- what is refused ---------------------------------------------------------------------------------------------

REFUSALS = ("cache_written_first", *OTHERS["errors", "refusals"])


def _refused(wrong: str, call: Arguments) -> Arguments:
    """The call, changed so that it is not refused; or it is refused in the wrong way."""
    changed = dict(vars(call))
    slot = call.present_key_slot
    if wrong == "refused_as_value_error":
        try:
            _attention.check(call)
        except RuntimeError as error:
            raise ValueError(str(error)) from None
    elif wrong == "cache_written_first" and isinstance(slot, torch.Tensor) and slot.is_floating_point():
        for target, source in ((slot, call.present_key), (call.present_value_slot, call.present_value)):
            if isinstance(target, torch.Tensor) and target.shape == source.shape and 0 not in target.stride():
                target.copy_(source)
    elif wrong == "capacity_clamped" and type(slot) is int and isinstance(call.present_key, torch.Tensor):
        last = call.present_key.shape[-2] - call.key.shape[-2]
        changed["present_key_slot"] = min(max(slot, 0), max(last, 0))
    elif wrong == "mask_with_causal" and call.attn_mask is not None:
        changed["is_causal"] = False
    elif wrong == "dropout_ignored" and isinstance(call.dropout_p, numbers.Real):
        changed["dropout_p"] = 0.0
    elif wrong == "heads_unequal":
        changed["enable_gqa"] = True
    return Arguments(**changed)


# --- the cache ---------------------------------------------------------------------------------------------------


def _parts(wrong: str, call: Arguments) -> Iterator[Part]:
    if not wrong.startswith("cache") or call.present_key is None:
        yield from _attention.parts(call)
    elif call.positions:
        yield from _positions(wrong, call)
    else:
        key, value = call.key, call.value
        if wrong == "cache_read_before":
            key, value = key.clone(), value.clone()
        slots = (call.present_key_slot, call.present_value_slot)
        for number, (slot, new) in enumerate(zip(slots, (call.present_key, call.present_value), strict=True)):
            _write(wrong, number, slot, new, call.present_value)
        offset = _attention._offset(call, call.query.shape[-2], key.shape[-2])
        yield _attention._part(call, slice(None), key, value, offset)


def _positions(wrong: str, call: Arguments) -> Iterator[Part]:
    rows, slots = call.key.shape[-2], _attention._slots(call)
    each = isinstance(call.present_key_slot, torch.Tensor)
    for sequence, first in enumerate(slots):
        batch = slice(sequence, sequence + 1) if each else slice(None)
        start = slots[0] if wrong == "cache_first_slot" else first
        if wrong == "cache_slot_off_by_one":
            start = min(start + 1, call.present_key.shape[-2] - rows)
        read = []
        for number, (cache, new) in enumerate(((call.present_key, call.key), (call.present_value, call.value))):
            cache, new = cache[batch], new[batch]
            end = min(first + rows, cache.shape[-2])
            end = slots[0] + rows if wrong == "cache_first_length" else end
            end = max(slots) + rows if wrong == "cache_longest" else end
            before = cache.clone()
            _write(wrong, number, cache.narrow(-2, start, rows), new, call.value[batch])
            if wrong == "cache_one_row_more":
                cache.narrow(-2, start + rows, min(1, cache.shape[-2] - start - rows)).zero_()
            source = before if wrong == "cache_read_before" else cache
            if wrong == "cache_not_written":
                source = torch.cat([cache.narrow(-2, 0, first), new], -2)
            if wrong == "cache_row_after":
                end = min(end + 1, cache.shape[-2])
            begin = {"cache_row_before": min(1, first), "cache_new_only": first}.get(wrong, 0)
            read.append(source[..., begin:end, :])
        part = _attention._part(call, batch, *read, _attention._offset(call, call.query.shape[-2], read[0].shape[-2]))
        if part.mask is not None and wrong.startswith("cache_mask") and part.mask.shape[-1] > 1:
            part = Part(batch, part.query, part.key, part.value, part.mask.roll(first, -1), part.offset)
        if part.mask is not None and part.mask.shape[-1] not in (1, part.key.shape[-2]):
            mask = torch.nn.functional.pad(part.mask, (0, part.key.shape[-2] - part.mask.shape[-1]))
            part = Part(batch, part.query, part.key, part.value, mask, part.offset)
        yield part


def _write(wrong: str, number: int, slot: torch.Tensor, new: torch.Tensor, values: torch.Tensor) -> None:
    if wrong == "cache_not_written" or (wrong == "cache_value_left" and number == 1):
        return
    if wrong == "cache_values_in_keys" and number == 0 and values.shape == new.shape:
        new = values
    slot = slot.contiguous() if wrong == "cache_view_copied" else slot
    slot.copy_(new)


# --- attention ---------------------------------------------------------------------------------------------------


def _attend(wrong: str, call: Arguments, part: Part) -> torch.Tensor:
    dtype = part.query.dtype
    compute = torch.float64 if dtype == torch.float64 and wrong != "float64_inside_float32" else torch.float32
    q, k, v = (x.to(compute) for x in (part.query, part.key, part.value))
    if wrong == "query_strides":
        q = _as_if_contiguous(part.query).to(compute)
    if wrong == "key_strides":
        k = _as_if_contiguous(part.key).to(compute)
    if wrong == "value_strides_of_keys" and part.key.shape == part.value.shape:
        v = _with_strides(part.value, part.key.stride()).to(compute)
    if wrong == "tf32_inside" and dtype == torch.float32:
        q, k, v = ((x.contiguous().view(torch.int32) & -8192).view(torch.float32) for x in (q, k, v))
    k, v = (x[..., _heads(wrong, q, x), :, :] for x in (k, v))
    dim = q.shape[-1]
    kept = {"dim_64": 64, "dim_power": 1 << (dim.bit_length() - 1)}.get(wrong, dim)
    scale = _scale(wrong, call.scale, dim, v.shape[-1])
    if wrong == "products_half" and dtype in HALF:
        q, factor = (q * scale).to(dtype).to(compute), 1.0
    else:
        factor = scale
    if wrong == "value_dim_of_keys":
        v = torch.where(torch.arange(v.shape[-1]) < dim, v, torch.zeros(()))
    score = q[..., :kept] @ k[..., :kept].transpose(-1, -2) * factor
    if wrong == "scale_twice":
        score = score * scale
    score = _masked(wrong, call, part, score, scale)
    if wrong == "scores_half" and dtype in HALF:
        score = score.to(dtype).to(compute)
    return _softmax_product(wrong, dtype, score, v)


def _scale(wrong: str, given: float | None, dim: int, value_dim: int) -> float:
    if wrong == "scale_of_values":
        dim = value_dim
    if wrong == "scale_of_padding":
        dim = 1 << (dim - 1).bit_length()
    if given is None or wrong == "scale_ignored" or (wrong == "scale_zero" and not given):
        return 1 / math.sqrt(dim)
    return abs(given) if wrong == "scale_magnitude" else given


def _heads(wrong: str, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    heads, shared = torch.arange(q.shape[-3]), k.shape[-3]
    if wrong == "heads_first" or (wrong == "heads_of_3d" and q.ndim == 3):
        return heads * 0
    return heads % max(shared, 1) if wrong == "heads_modulo" else heads // max(q.shape[-3] // max(shared, 1), 1)


def _masked(wrong: str, call: Arguments, part: Part, score: torch.Tensor, scale: float) -> torch.Tensor:
    rows, columns = torch.arange(score.shape[-2])[:, None], torch.arange(score.shape[-1])
    offset, mask = part.offset, part.mask
    if wrong == "variant_makes_causal" and call.causal_variant is not None and mask is None:
        offset = 0 if call.causal_variant.name == "UPPER_LEFT" else len(columns) - len(rows)
    if offset is not None:
        lower_right = len(columns) - len(rows)
        offset += {"causal_off_by_one": -1, "causal_one_more": 1}.get(wrong, 0)
        if wrong == "causal_lower_right" or (wrong == "causal_ignored_for_one" and len(rows) == 1):
            offset = lower_right
        if wrong == "causal_variant_ignored" or (wrong == "causal_at_positions" and call.positions):
            offset = 0
        columns = columns // BLOCK * BLOCK if wrong == "causal_whole_blocks" else columns
        score = score.masked_fill(columns > rows + offset, -math.inf)
    if mask is None:
        return score
    mask = _wrong_mask(wrong, mask, part, score)
    if mask.dtype == torch.bool:
        least = -1e30 if wrong == "masked_row_mean" else -math.inf
        return score.masked_fill(mask if wrong == "mask_inverted" else ~mask, least)
    mask = mask.to(score.dtype)
    if wrong == "mask_finite_ignored":
        mask = mask.masked_fill(mask.isfinite(), 0)
    factor = {"mask_log2": math.log(2), "mask_scaled": scale}.get(wrong, 1.0)
    # Minus infinity times a scale of 0 would be NaN; what is NaN in a mask is so in the result.
    return score + torch.where(mask.isfinite(), mask * factor, mask)


def _wrong_mask(wrong: str, mask: torch.Tensor, part: Part, score: torch.Tensor) -> torch.Tensor:
    if wrong == "mask_strides":
        mask = _as_if_contiguous(mask)
    if wrong == "mask_rounded" and mask.dtype == torch.float32:
        mask = mask.to(part.query.dtype)
    if wrong == "mask_3d_by_batch" and mask.ndim == 3 and score.ndim == 4:
        mask = mask[:, None] if mask.shape[0] == score.shape[0] else mask[:1]
    if wrong == "mask_head" and mask.ndim > 2:
        mask = mask[..., :1, :, :]
    if wrong == "mask_kv_head" and mask.ndim > 2 and mask.shape[-3] > 1:
        mask = mask[..., torch.arange(mask.shape[-3]) // (mask.shape[-3] // part.key.shape[-3]), :, :]
    if wrong == "mask_batch" and mask.ndim == 4:
        mask = mask[:1]
    if wrong == "mask_query":
        mask = mask[..., :1, :]
    if wrong == "mask_like_padding" and mask.is_floating_point():
        first = mask[..., :1, :]
        mask = torch.where(mask > -math.inf, 0.0, mask) if ((first == 0) | (first == -math.inf)).all() else mask
    if wrong == "mask_key" and mask.shape[-1] == 1 and score.shape[-1] > 1:
        neutral = torch.full_like(mask, True) if mask.dtype == torch.bool else torch.zeros_like(mask)
        mask = torch.cat([mask, neutral.expand(*mask.shape[:-1], score.shape[-1] - 1)], -1)
    return mask


def _softmax_product(wrong: str, dtype: torch.dtype, score: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Block by block, the largest score so far, the sum of exponentials and that of values being carried along."""
    compute, keys = score.dtype, score.shape[-1]
    if wrong == "nan_dropped":
        score, v = score.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf), v.nan_to_num(0.0)
    if wrong == "tail_query" and score.shape[-2] > BLOCK:
        score = score.masked_fill(torch.arange(score.shape[-2])[:, None] >= score.shape[-2] // BLOCK * BLOCK, -math.inf)
    if wrong == "tail_padding" and keys % BLOCK:
        score = torch.nn.functional.pad(score, (0, BLOCK - keys % BLOCK))
        v = torch.nn.functional.pad(v, (0, 0, 0, BLOCK - keys % BLOCK))
    if wrong == "tail_last_key" and keys > BLOCK and keys % BLOCK:
        keys -= 1
    if wrong == "tail_block" and keys > BLOCK:
        keys = keys // BLOCK * BLOCK
    keys = min(keys, 128) if wrong == "tail_long" else score.shape[-1] if wrong == "tail_padding" else keys
    lowest = 0.0 if wrong in ("maximum_from_zero", "maximum_missing") else -math.inf
    top = torch.full((*score.shape[:-1], 1), lowest, dtype=compute)
    total, sums = torch.zeros_like(top), torch.zeros(*score.shape[:-1], v.shape[-1], dtype=compute)
    exp = torch.exp2 if wrong == "base_two" else torch.exp
    for first in range(0, keys, BLOCK):
        block, values = score[..., first : min(first + BLOCK, keys)], v[..., first : min(first + BLOCK, keys), :]
        new = top if wrong == "maximum_missing" else torch.maximum(top, block.amax(-1, keepdim=True))
        shift = new if wrong == "masked_row_nan" else new.masked_fill(new == -math.inf, 0)
        weight, factor = exp(block - shift), exp(top - shift)
        if wrong == "maximum_not_rescaled":
            factor = torch.ones_like(factor)
        if dtype in HALF:
            weight_type = torch.bfloat16 if wrong == "bfloat16_inside" else dtype
            rounded = weight.to(weight_type).to(compute)
        else:
            rounded = weight
        total = total * (1 if wrong == "sum_not_rescaled" else factor) + weight.sum(-1, keepdim=True)
        sums = sums * factor + _product(rounded, values)
        if wrong == "normaliser_half" and dtype in HALF:
            total = total.to(dtype).to(compute)
        if wrong == "accumulator_half" and dtype in HALF:
            sums = sums.to(dtype).to(compute)
        top = new
    empty = math.nan if wrong == "no_keys_nan" and not keys else 0.0
    result = (sums / total).masked_fill((total == 0) & (wrong != "masked_row_nan"), empty)
    if wrong == "masked_row_first" and keys:
        result = torch.where(top == -math.inf, v[..., :1, :], result)
    return result


def _product(weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values with a weight of 0 are left out, whatever they are."""
    seen = weight @ values
    if values.isfinite().all():
        return seen
    return torch.where(values.isfinite().all(-2, keepdim=True), seen, _each(weight, values))


def _each(weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    terms = weight[..., None] * values[..., None, :, :]
    return terms.masked_fill((weight == 0)[..., None], 0).sum(-2)


def _as_if_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return _with_strides(tensor, torch.empty(tensor.shape, device="meta").stride())


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor read with other strides, as far as its storage goes."""
    if not tensor.numel() or tensor.stride() == strides:
        return tensor
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    places = torch.tensor([tensor.storage_offset()])
    for size, stride in zip(tensor.shape, strides, strict=True):
        places = places[:, None] + torch.arange(size) * stride
        places = places.reshape(-1)
    return flat[places % flat.numel()].view(tensor.shape)


for _kind, _defects in VALUES.items():
    for _name, _about in _defects.items():
        plant(OP, _name, _kind, "values", partial(attention, _name), _about)
for (_check, _kind), _defects in OTHERS.items():
    for _name, _about in _defects.items():
        plant(OP, _name, _kind, _check, partial(attention, _name), _about)
