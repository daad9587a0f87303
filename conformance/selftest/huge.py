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
