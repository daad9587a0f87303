"""List where torch disagrees with the oracle: attention."""

from __future__ import annotations

import math

import torch

from conformance.cases import Case
from conformance.deviations.table import Deviation, number, specs, tensor
from strategies import dtypes as dtype_names
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import materialize


def _scored(case: Case) -> list[torch.Tensor]:
    """Return the query and all keys."""
    named = (case.kwargs.get("present_key"), case.kwargs.get("present_key_slot"))
    given = (*case.args[:2], *named)
    return [materialize(x) for x in given if isinstance(x, TensorSpec) and dtype_names.is_floating(x.dtype)]


def _nan_scores(case: Case) -> bool:
    return any(bool(x.isnan().any()) for x in _scored(case))


def _infinite_half_scores(case: Case) -> bool:
    if specs(case)[0].dtype not in dtype_names.HALF:
        return False
    mask = case.kwargs.get("attn_mask")
    added = [materialize(mask)] if isinstance(mask, TensorSpec) and mask.dtype != "bool" else []
    return any(bool(x.any()) for x in (*(x.isinf() for x in _scored(case)), *(x == math.inf for x in added)))


def _infinite_values(case: Case) -> bool:
    tensors = (argument for argument in (*case.args, *case.kwargs.values()) if isinstance(argument, TensorSpec))
    floating = (spec for spec in tensors if dtype_names.is_floating(spec.dtype))
    return specs(case)[0].dtype == "float32" and any(bool(materialize(spec).isinf().any()) for spec in floating)


def _query_like_channels_last(case: Case) -> bool:
    """Tell whether the query has such strides. Of 960 layouts of small queries, with and without an expanded dim, torch
    2.13 was wrong in these 32 and in no other."""
    query = materialize(specs(case)[0])
    return query.ndim == 4 and query.stride(-1) == 1 != torch.empty_like(query).stride(-1)


def _largest_mask(case: Case) -> bool:
    mask = case.kwargs.get("attn_mask")
    if not isinstance(mask, TensorSpec) or mask.dtype != "float32" or specs(case)[0].dtype != "float32":
        return False
    size = materialize(mask).abs()
    return bool(((size * math.log2(math.e)).isinf() & size.isfinite()).any())


def _masked_rows_of_groups(case: Case) -> bool:
    mask = case.kwargs.get("attn_mask")
    if not isinstance(mask, TensorSpec) or case.kwargs.get("enable_gqa") is not True:
        return False
    added = materialize(mask)
    return bool((~added if mask.dtype == "bool" else added == -math.inf).all(-1).any())


def _float32_mask_of_half(case: Case) -> bool:
    mask = case.kwargs.get("attn_mask")
    return isinstance(mask, TensorSpec) and mask.dtype == "float32" and specs(case)[0].dtype in dtype_names.HALF


def _scale_not_positive(case: Case) -> bool:
    causal = case.kwargs.get("is_causal") is True
    return (number(case.kwargs.get("scale", 1)) or 0) <= 0 and (causal or specs(case)[0].dtype in dtype_names.HALF)


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "NaN scores in CPU attention",
        "torch's CPU takes the largest score of a row without looking at NaN, and a row of which it finds none for one "
        "without keys, which is 0",
        ops=("scaled_dot_product_attention",),
        checks=("values", "gradients"),
        devices=("cpu",),
        applies=_nan_scores,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                tensor("float32", 1, 1, 3, 8, specials=(Special(8, "nan"),)),
                tensor("float32", 1, 1, 5, 8),
                tensor("float32", 1, 1, 5, 8),
            ),
        ),
    ),
    Deviation(
        "infinite scores of half types in CPU attention",
        "for half types torch's CPU has an exponential that makes 0 of the NaN of inf - inf, where it has a vector to "
        "fill, and a row in which all are 0",
        ops=("scaled_dot_product_attention",),
        checks=("values", "gradients"),
        devices=("cpu",),
        applies=_infinite_half_scores,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(tensor("float16", 1, 1, length, 8) for length in (3, 64, 64)),
            kwargs={"attn_mask": tensor("float16", 3, 64, specials=(Special(0, "inf"),))},
        ),
    ),
    Deviation(
        "queries with strides of channels last in CPU attention",
        "torch's CPU gives wrong numbers, and not the same ones twice, where the last dim of the query is dense and "
        "that of its empty_like is not: heads are then taken for the channels of an image",
        ops=("scaled_dot_product_attention",),
        checks=("values", "deterministic", "guard_bands", "fully_written", "gradients"),
        devices=("cpu",),
        applies=_query_like_channels_last,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                tensor("float64", 1, 3, 1, 19, layout=Layout(order=(3, 1, 0, 2), expanded=(1,))),
                *(tensor("float64", 1, 3, 8, 19) for _ in range(2)),
            ),
        ),
    ),
    Deviation(
        "a scale that is not positive in flash attention",
        "torch multiplies the -inf of keys that a query does not see, on CUDA also that it begins with, by the scale",
        ops=("scaled_dot_product_attention",),
        checks=("values", "gradients"),
        devices=("cpu", "cuda"),
        applies=_scale_not_positive,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(tensor("float16", 1, 1, length, 8) for length in (3, 5, 5)),
            kwargs={"is_causal": True, "scale": 0.0},
        ),
    ),
    Deviation(
        "infinities in float32 attention",
        "torch's CUDA makes a float32 product of three in TF32, in which the rest of an infinity is NaN",
        ops=("scaled_dot_product_attention",),
        checks=("values", "gradients"),
        devices=("cuda",),
        applies=_infinite_values,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                *(tensor("float32", 1, 1, length, 8) for length in (3, 5)),
                tensor("float32", 1, 1, 5, 8, specials=(Special(0, "inf"),)),
            ),
        ),
    ),
    Deviation(
        "masks of the largest numbers in float32 attention",
        "torch's CUDA multiplies a mask by log2(e), which takes them out of range",
        ops=("scaled_dot_product_attention",),
        checks=("values", "gradients"),
        devices=("cuda",),
        applies=_largest_mask,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(tensor("float32", 1, 1, length, 8) for length in (3, 5, 5)),
            kwargs={"attn_mask": tensor("float32", 3, 5, specials=(Special(14, "max"),))},
        ),
    ),
    Deviation(
        "float32 masks in attention of half types",
        "cuDNN, which torch chooses for some of them, reads the words of the mask as numbers of the query's dtype",
        ops=("scaled_dot_product_attention",),
        checks=("values", "gradients"),
        devices=("cuda",),
        applies=_float32_mask_of_half,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(tensor("float16", 1, 1, length, 32) for length in (27, 24, 24)),
            kwargs={"attn_mask": tensor("float32", 27, 24)},
        ),
    ),
    Deviation(
        "rows without keys in attention of groups of heads",
        "where heads share keys, torch's CUDA gives rows that see no key other numbers than 0",
        ops=("scaled_dot_product_attention",),
        checks=("values", "gradients"),
        devices=("cuda",),
        applies=_masked_rows_of_groups,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                tensor("bfloat16", 2, 4, 3, 16),
                tensor("bfloat16", 2, 2, 20, 16),
                tensor("bfloat16", 2, 2, 20, 16),
            ),
            kwargs={"attn_mask": tensor("bool", 2, 1, 1, 20, values="zeros"), "enable_gqa": True},
        ),
    ),
)
