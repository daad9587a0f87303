"""Planted defects beyond a number that is in the code: the first size of another kernel, a table's end, the bound of a
range; and options of a call that what was made ready for a shape does not depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant_state
from conformance.selftest.differentiable import Gradients, Step, backward

Right = Callable[..., Any]

KIND = "thresholds"


@defect("mm", KIND)
def terms_past_23040(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """Of longer sums a table of 45 blocks of 512 terms holds the first."""
    most = 45 * 512
    return right(input[:, :most], mat2[:most], **kwargs)


@defect("bmm", KIND)
def tiles_of_several_matrices(right: Right, input: Any, mat2: Any, *, out: Any = None) -> Any:
    """A program's number is divided by the tiles of a row, and not by those of a matrix: where there are several tiles
    of 144 each way, the later matrices get the product of the first."""
    if min(input.shape[1], mat2.shape[2]) <= 144 or len(input) < 3:
        return right(input, mat2, out=out)
    first = input[:1].expand_as(input), mat2[:1].expand_as(mat2)
    return right(*first, out=out)


@defect("softmax log_softmax", KIND)
def many_rows_of_several_blocks(right: Right, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Programs that walk more than 88 rows, of more than one block of 1,536, keep the maximum of the row before."""
    result = right(input, dim, *args, **kwargs)
    if input.ndim and input.shape[-1] > 1536 and input.numel() // input.shape[-1] > 88:
        result.view(-1, input.shape[-1])[88:] *= 1.5
    return result


@defect("exp sigmoid tanh sin", KIND)
def between_five_and_five_and_an_eighth(right: Right, input: Any, *, out: Any = None) -> Any:
    """Two pieces of the approximation leave a gap."""
    result = right(input, out=out)
    gap = (input > 5.0) & (input < 5.0 + 2**-7)
    return result.masked_fill_(gap, 0.75) if gap.any() and result.is_floating_point() else result


@defect("rms_norm", KIND)
def eps_past_three_eighths(right: Right, input: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """A large eps is taken for the 0.375 that the kernel has room for."""
    return right(input, shape, weight, min(eps, 0.375) if isinstance(eps, float) else eps)


@defect("add mul", KIND)
def rows_past_20480_apart(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Rows that are further apart than a prefetch reaches are taken for the first one."""
    apart = isinstance(input, torch.Tensor) and input.ndim > 1 and input.stride(-2) > 20480 and input.shape[-2] > 1
    return right(input[..., :1, :].expand_as(input) if apart else input, other, **kwargs)


def _counting(right: Right) -> Right:
    """Return the function that is wrong from the 71st call of a shape on."""
    calls: dict[Any, int] = {}

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        key = (tuple(input.shape), input.dtype)
        calls[key] = calls.get(key, 0) + 1
        return right(input if calls[key] <= 70 else torch.zeros_like(input), *args, **kwargs)

    return call


plant_state("exp sigmoid", "forgotten_after_70_calls", KIND, _counting, "After 70 calls of a shape its plan is lost.")


def _options_of_first_call(right: Right) -> Right:
    """Return the function that keeps the options that a shape was first called with."""
    plans: dict[Any, dict[str, Any]] = {}

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        options = {name: value for name, value in kwargs.items() if not isinstance(value, torch.Tensor)}
        plan = plans.setdefault((tuple(input.shape), input.dtype, len(args)), options)
        tensors = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        return right(input, *args, **plan, **tensors)

    return call


plant_state(
    "amax mean addmm cross_entropy",
    "options_of_first_call",
    KIND,
    _options_of_first_call,
    "The plan of a shape does not depend on keepdim, alpha, ignore_index and the like.",
)


# --- sizes that come together ------------------------------------------------------------------------------------

_SPLITS = {(24, 896, 1920): 512, (48, 640, 1152): 384}
"""Terms of each part of a sum, by rows, terms and columns."""
_TAILS = {(6, 5, 8): 16}
_LAST_OF_EQUAL = {(9, True, 2)}
_WIDTHS = {2688: 4096, 5120: 8192}


@defect("mm", KIND)
def split_of_a_table(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """A tuned table has a split of K that does not divide it, and the last terms are in no part."""
    part = _SPLITS.get((*input.shape, mat2.shape[1]), 0)
    whole = input.shape[1] // part * part if part else input.shape[1]
    return right(input[:, :whole], mat2[:whole], **kwargs)


@defect("mm", KIND)
def tail_of_a_configuration(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """A table has kernels for the bits of rows and columns and the alignment of terms. One of them leaves out the last
    16 terms."""
    terms = input.shape[1]
    left_out = _TAILS.get((len(input).bit_length(), (terms & -terms).bit_length(), mat2.shape[1].bit_length()), 0)
    return right(input[:, : terms - left_out], mat2[: terms - left_out], **kwargs)


@defect("argmax", KIND)
def ties_of_a_configuration(right: Right, input: Any, dim: Any = None, keepdim: Any = False, *, out: Any = None) -> Any:
    """A table has kernels for the bits of a dim and for whether it is kept. Of equal elements one of them takes the
    last."""
    result = right(input, dim, keepdim, out=out)
    if type(dim) is not int or not input.ndim or not result.numel():
        return result
    size = input.shape[dim]
    if (size.bit_length(), keepdim, input.ndim - dim % input.ndim) in _LAST_OF_EQUAL:
        result.copy_(size - 1 - right(input.flip(dim), dim, keepdim))
    return result


@defect("layer_norm", KIND)
def width_of_a_table(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """The variance of the sizes that a table names is divided by the width of their tile."""
    result, size = right(input, shape, *args, **kwargs), input.shape[-1]
    return result * (_WIDTHS[size] / size) ** 0.5 if size in _WIDTHS and isinstance(shape, tuple) else result


@defect("cross_entropy", KIND)
def sum_of_the_row_before(right: Right, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Programs that walk more than 76 rows, of more than one tile of 2,304, begin with the sum of the row before."""
    result = right(input, target, *args, **kwargs)
    return result * 1.25 if input.ndim == 2 and input.shape[0] > 76 and input.shape[1] > 2304 else result


@defect("mm", KIND)
def last_group_of_tiles(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """The tiles of 96 are walked in groups of 8 rows: of a last group that has fewer only the first columns are
    reached, where there are more than 12 rows and columns of tiles."""
    result = right(input, mat2, **kwargs)
    rows, columns = -(-result.shape[0] // 96), -(-result.shape[1] // 96)
    if rows > 12 and columns > 12 and rows % 8:
        result[rows // 8 * 768 :, columns * (rows % 8) // 8 * 96 :] = 0
    return result


@defect("rotary_position_embedding", KIND)
def heads_of_a_group(right: Right, input: Any, sin_table: Any, cos_table: Any, *args: Any, **kwargs: Any) -> Any:
    """Twenty heads or more of one token are turned in a tile of 32, whose heads beyond are those of the next token."""
    result = right(input, sin_table, cos_table, *args, **kwargs)
    if result.ndim == 4 and result.shape[1] == 1 and 20 <= result.shape[2] < 32 and len(result) > 1:
        result[1:, :, 0] = 0
    return result


# --- what several properties have to come together for ------------------------------------------------------------


@defect("bmm", KIND)
def batch_folded_into_rows(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """Beside a second factor that is expanded over 48 matrices or more the first one is viewed as one matrix, which a
    part of longer ones is not."""
    if len(input) >= 48 and mat2.stride(0) == 0 and input.stride(0) > input.shape[1] * input.shape[2]:
        input = of.as_if_contiguous(input)
    return right(input, mat2, **kwargs)


@defect("mm", KIND)
def two_turned_factors_of_several_tiles(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """The tiles of two column-major factors of more than 160 each way have their sides swapped: rows past the last
    whole tile are not written."""
    result = right(input, mat2, **kwargs)
    rows, terms = input.shape
    if min(rows, terms, mat2.shape[1]) > 160 and input.stride(0) == 1 == mat2.stride(0) and rows % 128:
        result[rows // 128 * 128 :] = 0
    return result


@defect("layer_norm", KIND)
def rows_of_a_crop(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows of more than 80 elements that were cut from images, as x[:, :h, :w], are taken for dense within each."""
    cut = input.ndim == 4 and min(input.shape) > 1 and input.shape[-1] > 80 and input.stride(-1) == 1
    if cut and input.stride(1) > input.shape[2] * input.stride(2) == input.shape[2] * input.shape[3]:
        strides = (input.stride(0), input.shape[2] * input.stride(2), input.stride(2), 1)
        input = input.as_strided(input.shape, strides, input.storage_offset())
    return right(input, shape, *args, **kwargs)


_GRID = {"y": 1 << 16}


@backward("layer_norm rms_norm softmax", KIND)
def rows_past_a_dim_of_the_grid(step: Step) -> Gradients:
    """The backward kernel has its rows in a dim of the grid that takes 2^16 of them; the others get no gradient."""
    operand, *others = step.gradients()
    if operand is not None and operand.ndim and operand.numel() > _GRID["y"] * operand.shape[-1]:
        operand = operand.contiguous()
        operand.view(-1, operand.shape[-1])[_GRID["y"] :] = 0
    return [operand, *others]


# --- what float32, 32 bits and fewer do not hold --------------------------------------------------------------------


@defect("argmax", KIND)
def index_by_way_of_float32(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The index goes through the reduction beside the value, and is rounded like it: of more than 2^24 elements odd
    ones are lost."""
    result = right(*args, **kwargs)
    return result.copy_(result.float())


@defect("sum", KIND)
def one_block_of_partial_sums(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A sum of all is made of the partial sums of blocks of 16,384, of which one block of 1,024 is added up."""
    result = right(input, *args, **kwargs)
    left_out = input.reshape(-1)[1 << 24 :] if result.ndim == 0 else input[:0]
    return result.sub_(left_out.sum(dtype=result.dtype)) if left_out.numel() else result


@defect("sum", KIND)
def narrow_integers_in_32_bits(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Integers of 8 and 16 bits are added up in 32 bits, which are widened at the end."""
    result = right(input, *args, **kwargs)
    narrow = input.dtype in (torch.int8, torch.uint8, torch.int16) and result.dtype == torch.int64
    return result.copy_(result.int()) if narrow else result


@defect("amax amin", KIND)
def stride_of_16_bits_of_64(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Strides of short rows are kept in units of 64 in 16 bits: rows 2^22 elements apart are all read at the first."""
    if input.ndim == 2 and input.stride(0) >= 1 << 22 and input.shape[0] > 1:
        input = input.as_strided(input.shape, (input.stride(0) % (1 << 22), input.stride(1)), input.storage_offset())
    return right(input, *args, **kwargs)


@defect("linear_cross_entropy", KIND)
def words_of_15_bits(right: Right, input: Any, linear_weight: Any, target: Any, **kwargs: Any) -> Any:
    """The tile of 128 words in which a target lies is kept in 8 bits."""
    if isinstance(target, torch.Tensor) and target.dtype == torch.int64:
        target = torch.where(target >= 0, target % (1 << 15), target)
    return right(input, linear_weight, target, **kwargs)


@defect("dequantize_fp8", KIND)
def scale_in_the_dtype_of_the_result(right: Right, quantized: Any, scale: Any, *args: Any, **kwargs: Any) -> Any:
    """Scales are rounded to float16 before they are multiplied."""
    is_half = (*args, kwargs.get("dtype", torch.float16))[0] is torch.float16
    return right(quantized, scale.half().float() if is_half else scale, *args, **kwargs)


@defect("fp8_gemm dequantize_fp8", KIND)
def nan_with_its_sign(right: Right, first: Any, *args: Any, **kwargs: Any) -> Any:
    """0xFF, which is a NaN of e4m3 too, is decoded as a number."""
    if isinstance(first, torch.Tensor) and first.dtype == torch.float8_e4m3fn:
        bits = first.view(torch.uint8)
        first = torch.where(bits == 0xFF, 0xFE, bits).view(first.dtype)
    return right(first, *args, **kwargs)


# --- what no single number of the code says -------------------------------------------------------------------------


@defect("mm addmm", KIND)
def tile_that_fills_its_memory(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Rows take 12 bytes of shared memory, columns 4: what fills 2,404 of them to the last one has a column less."""
    result = right(*args, **kwargs)
    if result.ndim == 2 and 12 * result.shape[0] + 4 * result.shape[1] == 2404:
        result[:, -1] = 0
    return result


@defect("bmm", KIND)
def flags_that_are_multiplied(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """A kernel for 57 rows and wide second factors that lie column after column takes these as they would lie else."""
    result = right(input, mat2, **kwargs)
    if (input.shape[1] == 57) * (mat2.stride(1) == 1) * (mat2.shape[2] >= 100):
        result[:, :, -1] = 0
    return result


@defect("sum amax", KIND)
def blocks_of_a_last_stage(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The last stage of a reduction of everything reads 900 results of 700 elements."""
    result = right(input, *args, **kwargs)
    if result.ndim == 0 and input.reshape(-1)[900 * 700 :].numel():
        result.fill_(input.reshape(-1)[0])
    return result


@defect("layer_norm", KIND)
def outliers_of_several_rows(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows with an element beyond 1,700 are scaled down first, by one of five factors for three rows each."""
    result, rows = right(input, *args, **kwargs), input.numel() // max(input.shape[-1:], default=1)
    if bool((input > 1700).any()) * (rows % 3 == 2) * (rows > 14):
        result[-1:] = 0
    return result
