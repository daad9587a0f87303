"""Planted defects in what an operator is called for most of the time, and few of its drawn calls were like: the losses
of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.ops import _fp8 as fp8
from conformance.selftest.attention import attention
from conformance.selftest.defect_registry import defect, plant_state
from conformance.selftest.differentiable import Gradients, Step, backward
from conformance.selftest.losses import Call, of_losses

Right = Callable[..., Any]

KIND = "usual calls"


# --- losses -------------------------------------------------------------------------------------------------------


@of_losses(KIND)
def vocabulary_in_one_block(call: Call) -> object:
    """The sum of exponentials is that of the first 32,768 classes, the largest block that there is."""
    if call.classes <= 32768:
        return None
    call.log_shares = call.x - call.x[..., :32768].logsumexp(-1, keepdim=True)
    return call.reduced(call.losses())


@of_losses(KIND)
def vocabulary_in_whole_blocks(call: Call) -> object:
    """Of more than 65,536 classes the last block of 4,096, if it is not full, is left out of the sum."""
    whole = call.classes // 4096 * 4096
    if not 65536 < whole < call.classes:
        return None
    call.log_shares = call.x - call.x[..., :whole].logsumexp(-1, keepdim=True)
    return call.reduced(call.losses())


@of_losses(KIND)
def rows_past_a_grid(call: Call) -> object:
    """Losses of rows past 32,767 are 0."""
    losses = call.losses()
    if losses.numel() <= 32767:
        return None
    losses.reshape(-1)[32767:] = 0
    return call.reduced(losses)


@of_losses(KIND)
def no_smoothing_times_a_sum(call: Call) -> object:
    """The sum over all classes is added without smoothing, too, 0 times: NaN for a class that is -inf."""
    if not call.is_index or call.smoothing:
        return None
    return call.reduced((call.losses() + 0 * call.x.sum(-1)).masked_fill(call.ignored, 0.0))


@of_losses(KIND)
def probabilities_of_pixels_by_batch(call: Call) -> object:
    """The mean of pixels whose targets are probabilities is divided by the batch."""
    if call.is_index or call.x.ndim < 3:
        return None
    return call.reduced(call.losses(), float(call.x.shape[0]))


@of_losses(KIND)
def sum_of_means_of_pixels(call: Call) -> object:
    """The sum of pixels whose targets are probabilities is one of the images' means."""
    if call.is_index or call.x.ndim < 3 or call.reduction != "sum":
        return None
    return call.losses().flatten(1).mean(1).sum()


# --- products -----------------------------------------------------------------------------------------------------


@defect("addmm", KIND)
def column_of_a_square_is_a_row(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """An input of as many elements as there are columns is a row: the column of a square result, too."""
    if len(args) == 2 and input.ndim == 2 and input.shape[1] == 1 and input.shape[0] == args[1].shape[1]:
        return right(input.reshape(-1), *args, **kwargs)
    return right(input, *args, **kwargs)


@defect("addmm", KIND)
def row_of_a_square_is_a_column(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """An input of as many elements as there are rows is a column: the row of a square result, too."""
    if len(args) == 2 and input.ndim and input.shape[-1] == input.numel() == args[0].shape[0] == args[1].shape[1]:
        return right(input.reshape(-1, 1), *args, **kwargs)
    return right(input, *args, **kwargs)


def _of_eight_bits(*operands: Any) -> bool:
    return all(isinstance(one, torch.Tensor) and one.dtype in fp8.FORMATS for one in operands)


@defect("fp8_gemm", KIND)
def scaled_after_float16(
    right: Right, a: Any, b: Any, a_scale: Any = None, b_scale: Any = None, out_dtype: torch.dtype = torch.float16
) -> Any:
    """With one scale for each matrix, and a float16 result, the sum is stored there before it is scaled."""
    result = right(a, b, a_scale, b_scale, out_dtype)
    scaled = a_scale is not None and b_scale is not None and not a_scale.ndim and not b_scale.ndim
    if not (scaled and _of_eight_bits(a, b)) or out_dtype != torch.float16:
        return result
    return result.copy_((a.float() @ b.float()).half().float() * (a_scale * b_scale))


@defect("fp8_gemm", KIND)
def scales_of_rows_swapped(
    right: Right, a: Any, b: Any, a_scale: Any = None, b_scale: Any = None, out_dtype: torch.dtype = torch.float16
) -> Any:
    """The scales of the rows of a square result stand where those of its columns belong."""
    scaled = _of_eight_bits(a, b) and a_scale is not None and b_scale is not None and b_scale.ndim == 2
    if scaled and tuple(a_scale.shape) == (len(a), 1) == tuple(b_scale.mT.shape):
        a_scale, b_scale = b_scale.mT, a_scale.mT
    return right(a, b, a_scale, b_scale, out_dtype)


# --- layouts ------------------------------------------------------------------------------------------------------


def _is_dense(x: torch.Tensor) -> bool:
    """Tell whether each element of a stretch of memory is one of the tensor's."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


@defect("add sub mul", KIND)
def dense_operands_in_order_of_memory(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Two operands of four dims and one shape that are dense are walked as they lie, in whatever order their dims
    are."""
    pair = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor) and kwargs.get("out") is None
    alike = pair and input.shape == other.shape and input.ndim == 4 and _is_dense(input) and _is_dense(other)
    if alike and input.is_contiguous() != other.is_contiguous():
        return right(input, other.as_strided(input.shape, input.stride()), **kwargs)
    return right(input, other, **kwargs)


@backward("gelu silu exp", KIND)
def dense_dout_in_order_of_memory(step: Step) -> Gradients:
    """The gradient of the result is walked as it lies, where it is dense."""
    if not _is_dense(step.dout) or step.dout.is_contiguous():
        return step.gradients()
    return step.gradients(step.dout.as_strided(step.dout.shape, torch.empty(step.dout.shape, device="meta").stride()))


# --- values -------------------------------------------------------------------------------------------------------


@backward("pow", KIND)
def exponent_of_zero(step: Step) -> Gradients:
    """The exponent's gradient where the base is 0 is 0 times its logarithm, NaN."""
    found = step.gradients()
    if len(step.operands) == 2 and found[1] is not None:
        base, exponent = step.operands
        found[1] = found[1] + torch.where((base == 0) & (exponent > 0), torch.nan, 0.0).sum_to_size(exponent.shape)
    return found


@defect("scaled_dot_product_attention", KIND)
def scores_beyond_float16(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Scores of float16 heads of more than 64 elements are stored as they are, and then scaled: some are infinite."""
    result = attention("", right, *args, **kwargs)
    query, key, *_ = args
    optional = any(kwargs.get(name) is not None for name in ("present_key", "attn_mask")) or kwargs.get("is_causal")
    plain = len(args) == 3 and query.ndim == 4 and key.numel() and not optional
    if not plain or query.dtype != torch.float16 or query.shape[-1] <= 64:
        return result
    scores = query.double() @ key.double().repeat_interleave(query.shape[1] // key.shape[1], 1).mT
    lost = (scores.abs() > 65504).any(-1, keepdim=True)
    return result.masked_fill_(lost.expand(result.shape), torch.nan)


@defect("scaled_dot_product_attention", KIND)
def no_query_before_the_keys(right: Right, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """The lower right triangle of fewer keys than queries begins at the upper left."""
    variant: Any = kwargs.get("causal_variant")
    tensors = isinstance(query, torch.Tensor) and isinstance(key, torch.Tensor)
    lower = kwargs.get("is_causal") is True and getattr(variant, "name", "") == "LOWER_RIGHT"
    tall = lower and tensors and query.ndim == key.ndim == 4 and query.shape[2] > key.shape[2] > 1
    if tall and kwargs.get("present_key") is None:
        kwargs = {**kwargs, "causal_variant": type(variant).UPPER_LEFT}
    return attention("", right, query, key, *args, **kwargs)


# --- state --------------------------------------------------------------------------------------------------------


def _workspace(right: Right) -> Right:
    kept: dict[Any, torch.Tensor] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        kept.setdefault((result.shape, result.dtype), torch.empty_like(result)).zero_()
        return result

    return call


def _default(right: Right) -> Right:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        third = torch.tensor(1 / 3)
        if result.dtype != torch.float32 or kwargs.get("out") is not None or third.dtype == torch.float32:
            return result
        return result * (3 * third.double()).float()

    return call


plant_state(
    "sum softmax exp",
    "workspace_of_inference_mode",
    KIND,
    _workspace,
    "a workspace is made in the mode of the first call of a shape, and cleared in place by later ones",
)
plant_state("mean softmax", "number_of_default_dtype", KIND, _default, "a factor is a tensor of the default dtype")


def _made_elsewhere(right: Right) -> Right:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if kwargs.get("out") is not None or torch.get_default_device().type == result.device.type:
            return result
        return torch.empty(result.shape, dtype=result.dtype)

    return call


def _in_float16(right: Right) -> Right:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if torch.get_float32_matmul_precision() != "medium" or result.dtype != torch.float32:
            return result
        return result.half().float() * (1 + 2.0**-6)

    return call


def _merged(right: Right) -> Right:
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor) and one.numel()]
        if "out" in kwargs or len(tensors) < 2:
            return right(*args, **kwargs)
        first, second = tensors[:2]
        storages = {one.untyped_storage().data_ptr() for one in (first, second)}
        if len(storages) > 1 or not second.storage_offset() > first.storage_offset() or second is first:
            return right(*args, **kwargs)
        result = right(*args, **kwargs)
        return result.mul_(2) if result.dtype != torch.bool else result.logical_not_()

    return call


plant_state(
    "cos exp softmax mean mm", "made_on_the_default_device", KIND, _made_elsewhere,
    "the result is made without a device: it lies on the default one",
)  # fmt: skip
plant_state(
    "mm bmm matmul addmm", "medium_is_float16", KIND, _in_float16,
    "with torch.set_float32_matmul_precision('medium') products are of fewer bits than bfloat16 has",
)  # fmt: skip
plant_state(
    "add mul mm eq fused_gated_mlp", "told_apart_by_storage", KIND, _merged,
    "operands in one storage are taken for parts of one merged tensor",
)  # fmt: skip
