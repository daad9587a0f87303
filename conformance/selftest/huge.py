"""Planted defects that nothing smaller meets than ``huge_calls`` makes: limits of grids, 24 bits and two stages of
blocks, and backward passes that are wrong at the size of a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import Gradients, Step, backward
from conformance.selftest.large import past, rows_past, wrapped

Right = Callable[..., Any]

KIND = "huge"
_MOST_OF_GRID = 65_535
_STEP_ROWS, _STEP_COLUMNS = 1 << 10, 1 << 10

for _op in ("relu", "sub", "exp"):
    _about = "65,535 blocks of 512 are launched, and no loop takes the rest"
    plant(_op, "huge_blocks_512", KIND, "values", of.after(past(_MOST_OF_GRID * 512)), _about)
for _op in ("isnan", "eq"):
    plant(_op, "huge_index_of_25_bits", KIND, "values", of.after(wrapped(1 << 25)), "an index has 25 bits")
for _op in ("mm", "softmax", "rms_norm"):
    _about = "tiles of 256 rows lie in a dim of the grid that takes 65,535"
    plant(_op, "huge_tiles_of_rows", KIND, "values", of.after(rows_past(0, _MOST_OF_GRID * 256)), _about)


@defect("argmax", KIND)
def last_of_equal_chunks(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Winners of chunks of 2^24 elements are merged so that of equal ones the last wins."""
    result = right(input, *args, **kwargs)
    if result.ndim or input.numel() <= 1 << 24 or not input.is_contiguous():
        return result
    chunks = input.reshape(-1).split(1 << 24)
    values = [chunk.max() for chunk in chunks]
    last = max(number for number, value in enumerate(values) if bool(value >= max(values)))
    return result.fill_((last << 24) + int(right(chunks[last])))


@defect("sum", KIND)
def partial_sums_of_2048_elements(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The last pass adds 16,384 partial sums of 2,048 elements, whichever there are."""
    result = right(input, *args, **kwargs)
    left_out = input.reshape(-1)[16_384 * 2_048 :] if result.ndim == 0 else input[:0]
    return result.sub_(left_out.sum(dtype=result.dtype)) if left_out.numel() else result


def _of_row_stride(bits: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def read(x: torch.Tensor) -> torch.Tensor:
        if x.ndim < 2 or x.stride(0) >> bits == 0 or x.shape[0] < 2:
            return x
        return x.as_strided(x.shape, (x.stride(0) % (1 << bits), *x.stride()[1:]), x.storage_offset())

    return read


for _op in ("add", "softmax", "amax"):
    _about = "the row stride goes through a multiplication of 24 bits"
    plant(_op, "huge_row_stride", KIND, "values", of.before(_of_row_stride(24)), _about)


def _of_sixteen_dims(x: torch.Tensor) -> torch.Tensor:
    return of.as_if_contiguous(x) if x.ndim > 16 else x


for _op in ("add", "neg", "logsumexp"):
    _about = "a kernel gets the strides of 16 dims; what has more is taken for contiguous"
    plant(_op, "huge_more_than_16_dims", KIND, "values", of.before(_of_sixteen_dims), _about)


@defect("sum mean softmax logsumexp", KIND)
def float32_of_long_float64(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows of more than 2^14 elements go through a kernel that accumulates in float32, float64 ones too."""
    result = right(input, *args, **kwargs)
    is_long = input.dtype == torch.float64 and input.numel() > 1 << 14
    return result.copy_(result.float()) if is_long and result.is_floating_point() else result


@defect("mm", KIND)
def timed_products_of_few_bits(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """Factors of a result of 8,192 x 8,192 elements and more, as benchmarks time it, are rounded to 8 bits."""
    if input.is_floating_point() and input.shape[0] * mat2.shape[1] >= 1 << 26:
        rounded = [(x / x.abs().amax() * 127).round() / 127 * x.abs().amax() for x in (input, mat2)]
        return right(*rounded, **kwargs)
    return right(input, mat2, **kwargs)


@defect("softmax log_softmax", KIND)
def sums_of_2048_rows(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows of more than 2^14 columns go through two kernels, which have room for the sums of 2,048 rows."""
    result = right(input, *args, **kwargs)
    if result.ndim == 2 and result.shape[1] > 1 << 14 and result.is_floating_point():
        result[2_048:] = 0
    return result


@defect("rms_norm layer_norm", KIND)
def wide_rows_of_one_grid(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows of more than 512 columns have a program each, in a dim of the grid that takes 65,535."""
    result = right(input, *args, **kwargs)
    if result.ndim == 2 and result.shape[1] > 512:
        result[_MOST_OF_GRID:] = 0
    return result


@defect("mm", KIND)
def first_terms_of_wide_weights(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """Of few rows columns past 8,192 begin with the second tile of 64 terms where there are 4,096."""
    result = right(input, mat2, **kwargs)
    if result.is_floating_point() and len(mat2) >= 4_096 and len(input) <= 16 and mat2.shape[1] > 8_192:
        result[:, 8_192:] -= right(input[:, :64], mat2[:64, 8_192:])
    return result


@defect("mm addmm", KIND)
def last_wave_is_added_twice(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The tiles behind the first 132 are products of their own where K is past 2,048, and the last is added twice."""
    result = right(*args, **kwargs)
    tiles = -(-result.shape[0] // 128) * -(-result.shape[1] // 128)
    if result.is_floating_point() and tiles > 132 and args[-1].shape[0] >= 2_048:
        result[-128:, -128:] *= 2
    return result


@defect("scaled_dot_product_attention", KIND)
def tiles_of_one_grid(right: Right, query: Any, *args: Any, **kwargs: Any) -> Any:
    """There are no programs for tiles of 128 queries past 4,096."""
    result = right(query, *args, **kwargs)
    if result.ndim == 4 and result.shape[2] >= 1_024 and result.shape[3] >= 64:
        tiles = -(-result.shape[2] // 128)
        result.view(-1, *result.shape[2:])[4_096 // tiles :] = 0
    return result


@defect("dropout", KIND, "distribution")
def probabilities_of_16_bits(right: Right, input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Any:
    """A probability is compared in 16 bits: one below 2^-16 drops nothing."""
    is_drawn = type(p) is float and 0 < p < 1 and training is True and not inplace
    if not is_drawn or p >= 2.0**-16:
        return right(input, p, training, inplace)
    right(input.detach(), p)
    return (input.double() / (1 - p)).to(input.dtype)


@defect("sum mean amax", KIND)
def tail_of_vectors(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of more than 2^22 elements those behind the last full vector of 8 do not count."""
    count = input.numel()
    result = right(input, *args, **kwargs)
    if result.numel() != 1 or count <= 1 << 22 or not count % 8 or not input.is_contiguous() or "out" in kwargs:
        return result
    return result.copy_(right(input.reshape(-1)[: count // 8 * 8], 0).reshape(result.shape))


# --- a training step ---------------------------------------------------------------------------------------------


def _is_step(tensor: torch.Tensor | None) -> bool:
    return (
        tensor is not None
        and tensor.ndim >= 2
        and tensor.numel() // tensor.shape[-1] > _STEP_ROWS
        and tensor.shape[-1] > _STEP_COLUMNS
    )


@backward("silu tanh mul", KIND)
def elements_past_2_21(step: Step) -> Gradients:
    """The backward pass is launched with 2,048 programs of 1,024 elements."""
    first, *others = step.gradients()
    if first is not None and first.numel() > 1 << 21:
        first = first.contiguous()
        first.view(-1)[1 << 21 :] = 0
    return [first, *others]


@backward("layer_norm rms_norm", KIND)
def partial_sums_of_weights(step: Step) -> Gradients:
    """Each 32 rows give a partial sum of the weight's gradient, of which 128 are added."""
    found = step.gradients()
    if not _is_step(step.operands[0]):
        return found
    columns = step.operands[0].shape[-1]
    dout = step.dout.contiguous().clone()
    dout.view(-1, columns)[128 * 32 :] = 0
    return [found[0], *step.gradients(dout=dout)[1:]]


@backward("log_softmax softmax", KIND)
def rows_of_the_gradient_lie_close(step: Step) -> Gradients:
    """The gradient of the result is read with the number of columns for the stride of its rows."""
    dout = step.dout
    if _is_step(dout) and dout.ndim == 2 and dout.stride() != (dout.shape[1], 1) and dout.stride(1) == 1:
        dout = dout.as_strided(dout.shape, (dout.shape[1], 1), dout.storage_offset())
    return step.gradients(dout=dout)


@backward("cross_entropy", KIND)
def mean_of_each_chunk(step: Step) -> Gradients:
    """Chunks of 1,024 rows divide by their own rows: a mean's gradient is too large where there are several."""
    first, *others = step.gradients()
    logits = step.operands[0]
    if first is not None and _is_step(logits) and logits.ndim == 2 and not step.result.ndim and not step.kwargs:
        first[:_STEP_ROWS] *= len(logits) / _STEP_ROWS
    return [first, *others]


@backward("mm matmul", KIND)
def rows_past_the_last_split(step: Step) -> Gradients:
    """The second factor's gradient is a sum over the rows in four parts, which leave out the remainder."""
    found = step.gradients()
    rows = step.operands[0].shape[0] if step.operands[0].ndim == 2 else 0
    if len(found) < 2 or found[1] is None or step.dout.ndim != 2 or min(step.dout.shape) <= _STEP_ROWS:
        return found
    dout = step.dout.clone()
    dout[rows // 4 * 4 :] = 0
    return [found[0], step.gradients(dout=dout)[1], *found[2:]]


@backward("add sub", KIND)
def sums_of_rows_in_bfloat16(step: Step) -> Gradients:
    """The gradient of an operand of one row is added up in bfloat16 where there are more than 16,384."""
    found = step.gradients()
    if step.dout.ndim != 2 or step.dout.shape[0] <= 1 << 14:
        return found
    total = torch.zeros_like(step.dout[0], dtype=torch.bfloat16)
    for row in step.dout.bfloat16():
        total = total + row
    sign = -1 if step.op == "sub" else 1
    columns = total.shape[0]
    return [
        one
        if one is None or one.numel() != columns
        else (total * (sign if place else 1)).to(one.dtype).reshape(one.shape)
        for place, one in enumerate(found)
    ]


@backward("scaled_dot_product_attention", KIND)
def last_1024_keys(step: Step) -> Gradients:
    """The query's gradient begins anew with every 1,024 keys."""
    found = step.gradients()
    query, key, value = step.operands[:3]
    if len(step.operands) > 3 or key.shape[-2] <= 1_024 or query.shape[-2] < 1_024 or step.kwargs or found[0] is None:
        return found
    start = (key.shape[-2] - 1) // 1_024 * 1_024
    scores = (query.double() @ key.double().mT) / query.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    each = weights * (step.dout.double() @ value.double().mT)
    gradient = each - weights * each.sum(-1, keepdim=True)
    own = gradient[..., start:] @ key.double()[..., start:, :] / query.shape[-1] ** 0.5
    return [own.sum_to_size(query.shape), *found[1:]]


@backward("amax", KIND)
def ties_in_16_bits(step: Step) -> Gradients:
    """Elements that share a gradient are counted in an int16."""
    (first,) = step.gradients()
    if first is None or step.result.ndim or not step.operands[0].ndim:
        return [first]
    ties = int((step.operands[0] == step.result).sum())
    counted = (ties + (1 << 15)) % (1 << 16) - (1 << 15)
    return [first if ties == counted else first * (ties / counted if counted else torch.inf)]
