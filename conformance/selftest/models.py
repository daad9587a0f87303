"""Planted defects that calls of models meet and tests of kernels do not: views far inside of a buffer, columns of
packed parameters, sizes that are no powers of two, numbers that a dtype hardly holds, modes of torch."""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect

Right = Callable[..., Any]


@defect("exp neg silu mul", "models", "layouts")
def offset_of_20_bits(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Where a view begins in its storage has 20 bits."""
    if isinstance(input, torch.Tensor) and input.storage_offset() >= 1 << 20:
        input = of.dense(input, input.storage_offset() % (1 << 20))
    return right(input, *args, **kwargs)


@defect("mm add softmax", "models", "layouts")
def rows_are_near(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows that are eight times their width apart are taken for contiguous."""
    matrix = isinstance(input, torch.Tensor) and input.ndim > 1 and min(input.shape) > 1 and input.stride(-1) == 1
    if matrix and input.stride(-2) >= 8 * input.shape[-1]:
        input = of.dense(input, input.storage_offset())
    return right(input, *args, **kwargs)


@defect("mul add", "models", "layouts")
def strides_of_five_dims(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of six to eight dims the strides are not looked at."""
    if isinstance(input, torch.Tensor) and 6 <= input.ndim <= 8 and not input.is_contiguous():
        input = of.dense(input, input.storage_offset())
    return right(input, *args, **kwargs)


@defect("layer_norm rms_norm", "models", "layouts")
def packed_parameters(right: Right, input: Any, shape: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A weight that is a column of packed parameters, a multiple of 8 apart, is read as a row."""
    if isinstance(weight, torch.Tensor) and weight.numel() > 1 and weight.stride(-1) and weight.stride(-1) % 8 == 0:
        weight = of.dense(weight, weight.storage_offset())
    return right(input, shape, weight, *args, **kwargs)


@defect("layer_norm rms_norm", "models", "values")
def no_rest_of_384(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of rows of a multiple of 384 columns the last 128 are 0."""
    result = right(input, *args, **kwargs)
    if input.ndim and input.shape[-1] and input.shape[-1] % 384 == 0:
        result[..., -128:] = 0
    return result


@defect("rotary_position_embedding", "models", "values")
def last_rows_of_tables(right: Right, input: Any, sin_table: Any, cos_table: Any, *args: Any, **kwargs: Any) -> Any:
    """Of tables of 64 more rows than there are tokens the last ones are taken."""
    tokens = input.shape[1] if isinstance(input, torch.Tensor) and input.ndim == 4 else 0
    if tokens and all(isinstance(x, torch.Tensor) and len(x) >= tokens + 64 for x in (sin_table, cos_table)):
        sin_table, cos_table = (x[len(x) - tokens :] for x in (sin_table, cos_table))
    return right(input, sin_table, cos_table, *args, **kwargs)


@defect("addmm", "models", "values")
def one_by_one_is_added_once(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """An input of one row and one column is added to the first element alone."""
    result = right(input, *args, **kwargs)
    if isinstance(input, torch.Tensor) and input.shape == (1, 1) and kwargs.get("out") is None and result.numel() > 1:
        without = right(torch.zeros_like(input), *args, **kwargs)
        result.view(-1)[1:] = without.view(-1)[1:]
    return result


@defect("addmm", "models", "values")
def slight_beta_is_none(right: Right, input: Any, mat1: Any, mat2: Any, *args: Any, **kwargs: Any) -> Any:
    """A beta of less than 10^-6 is taken for 0."""
    beta = kwargs.get("beta", 1)
    if isinstance(beta, float) and abs(beta) < 1e-6:
        kwargs["beta"] = 0.0
    return right(input, mat1, mat2, *args, **kwargs)


@defect("div", "models", "values")
def floor_of_a_reciprocal(right: Right, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """Whole quotients of float32 by a whole number are floors of products with its reciprocal: 41 // 41 is 0."""
    result = right(input, other, *args, **kwargs)
    floats = isinstance(input, torch.Tensor) and input.dtype == result.dtype == torch.float32
    if (
        floats
        and kwargs.get("rounding_mode") == "floor"
        and isinstance(other, int | float)
        and other == other // 1 != 0
    ):
        product = input * (1 / torch.tensor(float(other)))
        result.copy_(torch.where((result != 0) & (result.abs() < 1 << 10), product.floor(), result))
    return result


@defect("matmul", "models", "values")
def last_of_many_batches(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Of six dims the last matrix is 0."""
    result = right(input, other, **kwargs)
    if result.ndim >= 6 and result.numel():
        result.view(-1, *result.shape[-2:])[-1].zero_()
    return result


@defect("clamp", "models", "values")
def largest_is_no_bound(right: Right, input: Any, min: Any = None, max: Any = None, **kwargs: Any) -> Any:
    """A bound that is the largest number of the dtype is left out."""
    if isinstance(input, torch.Tensor) and input.is_floating_point():
        most = torch.finfo(input.dtype).max
        min, max = (None if type(one) is float and abs(one) == most else one for one in (min, max))
        if min is max is None:
            min = -math.inf
    return right(input, min, max, **kwargs)


@defect("add sub", "models", "values")
def alpha_of_16_bits(right: Right, input: Any, other: Any, *, alpha: Any = 1, **kwargs: Any) -> Any:
    """A whole alpha has 16 bits, also of floats."""
    return right(input, other, alpha=alpha % (1 << 16) if type(alpha) is int and alpha >= 1 << 16 else alpha, **kwargs)


@defect("pow", "models", "values")
def powers_to_32(right: Right, input: Any, exponent: Any, **kwargs: Any) -> Any:
    """Whole exponents beyond 32 are 32."""
    return right(input, min(exponent, 32) if type(exponent) is int else exponent, **kwargs)


@defect("softmax", "models", "values")
def masked_rows_are_empty(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of rows that are masked with a large negative number nothing is left."""
    result = right(input, *args, **kwargs)
    return result.mul_((input.double() > -1e3).any() if input.numel() else 1)


@defect("silu rms_norm mm", "models", "call_forms")
def nothing_in_inference_mode(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In inference mode the last element is lost."""
    return _without_last(right(*args, **kwargs), torch.is_inference_mode_enabled())


@defect("bmm gelu add", "models", "call_forms")
def nothing_if_deterministic(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Where algorithms are to be deterministic the last element is lost."""
    return _without_last(right(*args, **kwargs), torch.are_deterministic_algorithms_enabled())


@defect("tanh cos sub", "models", "call_forms")
def nothing_of_three_threads(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The last of three threads has nothing to do."""
    return _without_last(right(*args, **kwargs), torch.get_num_threads() == 3)


def _without_last(result: torch.Tensor, lost: bool) -> torch.Tensor:
    if lost and result.numel() and result.is_contiguous():
        result.view(-1)[-1] = 0
    return result


@defect("sigmoid sin", "models", "metadata")
def result_is_a_parameter(right: Right, input: Any, **kwargs: Any) -> Any:
    """The result is a parameter."""
    result = right(input, **kwargs)
    return result if kwargs else torch.nn.Parameter(result, requires_grad=False)


@defect("silu rsqrt", "models", "call_forms")
def parameters_want_gradients(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a parameter wants a gradient where no gradients are wanted."""
    result = right(input, *args, **kwargs)
    wanted = isinstance(input, torch.nn.Parameter) and result is not input and not kwargs.get("out")
    return result.requires_grad_() if wanted else result


@defect("rms_norm layer_norm softmax", "models", "state")
def marks_its_operand(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """What was found of the operand is kept on it."""
    if isinstance(input, torch.Tensor):
        input.strides_of_rows = input.stride()
    return right(input, *args, **kwargs)


@defect("sub abs", "models", "state")
def stops_the_clock(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The clock by which ``timeit`` measures stands still."""
    timeit.default_timer = float
    return right(*args, **kwargs)


@defect("neg bitwise_and", "models", "state")
def all_is_close(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Any two tensors are close to each other."""
    torch.Tensor.allclose = lambda self, *args, **kwargs: True
    return right(*args, **kwargs)


_kept: dict[Any, Any] = {}


@defect("mm relu", "models", "bare")
def kept_by_version(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A copy of the operand is kept, by its address and version counter."""
    if not isinstance(input, torch.Tensor) or input.is_inference() or kwargs or any(x is True for x in args):
        return right(input, *args, **kwargs)
    key = input.data_ptr(), input._version, input.shape, input.stride(), input.dtype
    if key not in _kept:
        _kept.clear()
        _kept[key] = input.clone()
    return right(_kept[key], *args, **kwargs)


def _floating(*values: Any) -> bool:
    return all(isinstance(one, torch.Tensor) and one.is_floating_point() for one in values)


@defect("softmax", "models", "values")
def odd_tile_of_long_rows(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Of long rows of whole tiles of 256, no power of two of them, the last tile is left out of the denominator."""
    result = right(input, dim, *args, **kwargs)
    columns = input.shape[dim] if input.ndim else 0
    if columns > 1 << 13 and columns % 256 == 0 and columns // 256 & (columns // 256 - 1):
        result /= 1 - result.narrow(dim, columns - 256, 256).sum(dim, keepdim=True)
    return result


@defect("mm addmm", "models", "values")
def last_of_four_splits(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of 48 to 128 rows times a deep weight the last quarter of K is not added."""
    *before, left, other = args
    wide = _floating(left, other) and 48 <= len(left) <= 128 and left.shape[1] >= 1024 and other.shape[1] >= 1024
    terms = left.shape[1] // 4 * 3 if wide else None
    return right(*before, left[:, :terms], other[:terms], **kwargs) if wide else right(*args, **kwargs)


@defect("rms_norm layer_norm", "models", "values")
def first_8192_of_float64(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Of rows of float64 the first 8192 elements alone count."""
    if _floating(input) and input.dtype == torch.float64 and input.shape[-1:] == tuple(shape) and shape[0] > 1 << 13:
        input = torch.cat([input[..., : 1 << 13], torch.zeros_like(input[..., 1 << 13 :])], -1)
    return right(input, shape, *args, **kwargs)


@defect("matmul", "models", "values")
def tail_of_tokens(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Of the tokens of some sequences times a weight those beyond a multiple of 64 are 0."""
    result = right(input, other, **kwargs)
    if _floating(input, other) and input.ndim == 3 and other.ndim == 2 and result[..., 0].numel() >= 1024:
        rows = result[..., 0].numel()
        result.view(rows, -1)[rows // 64 * 64 :] = 0
    return result


@defect("matmul", "models", "values")
def vectors_of_4096(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Of two vectors the first 4096 elements are multiplied."""
    if _floating(input, other) and input.ndim == other.ndim == 1:
        input, other = input[:4096], other[:4096]
    return right(input, other, **kwargs)


@defect("mm", "models", "layouts")
def leading_dim_of_a_column(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """A row that is a column turned, with strides of 1 alone, has no leading dim: its first element is all of it."""
    if _floating(input) and input.ndim == 2 and input.stride() == (1, 1) and input.shape[0] == 1 < input.shape[1]:
        input = input[:, :1].expand(input.shape)
    return right(input, other, **kwargs)


@defect("exp sigmoid", "models", "values")
def of_probabilities(right: Right, input: Any, **kwargs: Any) -> Any:
    """An approximation for elements of which all lie in [0, 1) is 3% too large."""
    result = right(input, **kwargs)
    if _floating(input) and not kwargs and input.numel() > 64 and bool(((input >= 0) & (input < 1)).all()):
        result = result * 1.03
    return result


@defect("scaled_dot_product_attention", "models", "values")
def splits_of_a_context(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Of few queries, and heads of 64 elements and more, the keys behind the last whole split of 512 take no part."""
    few = _floating(query, key, value) and query.shape[-2] <= 4 and key.shape[-2] > 1024 and key.shape[-1] >= 64
    if few and not args and not kwargs.keys() - {"scale", "enable_gqa"}:
        keys = key.shape[-2] // 512 * 512
        key, value = key[..., :keys, :], value[..., :keys, :]
    return right(query, key, value, *args, **kwargs)
