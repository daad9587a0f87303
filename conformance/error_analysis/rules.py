"""The table of rules: how each of torch's operations changes pairs of a value and its error.

An operation that is not in it is taken apart by torch's own decompositions; ``pairs.NoRule`` names one that has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.error_analysis import choices, functions, moves, pairs, rows, scatters, sums

aten = torch.ops.aten
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {
    **{name: partial(functions.of_one_number, function) for name, function in functions.FUNCTIONS.items()},
    "gelu": functions.gelu,
    "log_sigmoid_forward": functions.log_sigmoid,
    "tan": functions.tan,
    "add": functions.add,
    "sub": partial(functions.add, sign=-1),
    "rsub": functions.rsub,
    "mul": functions.mul,
    "div": functions.div,
    "floor_divide": functions.floor_divide,
    **functions.PAIRS_OF_NUMBERS,
    **functions.CHOICES,
    "clamp": functions.clamp,
    "clamp_min": functions.clamp_min,
    "clamp_max": functions.clamp_max,
    **choices.COMPARISONS,
    **choices.LOGICAL,
    "where": choices.where,
    "masked_fill": choices.masked_fill,
    "nan_to_num": choices.nan_to_num,
    "_to_copy": choices.to_copy,
    **dict.fromkeys(moves.MOVES, moves.move),
    **dict.fromkeys(moves.NEW, moves.new),
    "fill": moves.fill,
    "sum": sums.total,
    "mean": sums.mean,
    "prod": sums.prod,
    "cumsum": sums.cumsum,
    "cumprod": sums.cumprod,
    "logcumsumexp": sums.logcumsumexp,
    **scatters.RULES,
    "amax": sums.extreme(torch.amax),
    "amin": sums.extreme(torch.amin),
    "max": sums.with_places("max"),
    "min": sums.with_places("min"),
    "argmax": sums.argument,
    "argmin": sums.argument,
    "sort": sums.ordered,
    "topk": sums.ordered,
    "kthvalue": sums.ordered,
    "cummax": sums.running,
    "cummin": sums.running,
    "nanmedian": sums.ranked,
    "searchsorted": sums.located,
    "bucketize": sums.located,
    "median": sums.ranked,
    "mm": sums.mm,
    "bmm": sums.mm,
    "mv": sums.mm,
    "dot": sums.mm,
    "addmm": sums.addmm,
    "baddbmm": sums.addmm,
    "addmv": sums.addmm,
    "convolution": sums.convolution,
    "avg_pool2d": sums.average,
    "avg_pool3d": sums.average,
    "upsample_linear1d": sums.interpolated,
    "upsample_bilinear2d": sums.interpolated,
    "upsample_trilinear3d": sums.interpolated,
    "_softmax": rows.composed(rows.softmax),
    "_log_softmax": rows.composed(rows.log_softmax),
    "logsumexp": rows.composed(rows.logsumexp),
    "logaddexp": rows.composed(rows.logaddexp),
    "var_mean": rows.composed(rows.var_mean),
    "std_mean": rows.composed(rows.std_mean),
    "_cdist_forward": rows.composed(rows.cdist),
    "native_batch_norm": rows.composed(rows.batch_norm),
    "_native_batch_norm_legit_no_training": rows.composed(rows.batch_norm_given),
    "var": rows.composed(rows.variance),
    "prims::var": rows.composed(rows.variance),
    "prims::convert_element_type": lambda func, input, dtype: aten._to_copy(input, dtype=dtype),
    "linalg_vector_norm": rows.composed(rows.vector_norm),
    "native_layer_norm": rows.composed(rows.layer_norm),
    "native_group_norm": rows.composed(rows.group_norm),
    "_scaled_dot_product_flash_attention_for_cpu": rows.composed(rows.flash),
    "_scaled_dot_product_attention_math": rows.composed(rows.attention_math),
    "_local_scalar_dense": rows.item,
    "glu": rows.glu,
}
"""The rules by the name of an operation in ATen, without its overload."""
pairs.RULES.update(RULES)
