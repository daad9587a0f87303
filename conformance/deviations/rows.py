"""List where torch disagrees with the oracle: softmax, layer_norm and sums."""

from __future__ import annotations

import math

from conformance.cases import Case, DType, Ints
from conformance.deviations.table import Deviation, number, specs, tensor
from strategies import dtypes as dtype_names
from strategies.specs import Special, TensorSpec
from strategies.tensors import materialize


def _softmax_across_rows(case: Case) -> bool:
    input, dim = case.args
    dtype = case.kwargs.get("dtype")
    if not isinstance(input, TensorSpec) or not isinstance(dim, int) or not input.shape:
        return False
    if dim % len(input.shape) == len(input.shape) - 1:
        return False
    return (dtype.name if isinstance(dtype, DType) else input.dtype) in dtype_names.HALF or input.shape[dim] >= 128


def _half_softmax(case: Case) -> bool:
    input, dtype = case.args[0], case.kwargs.get("dtype")
    name = dtype.name if isinstance(dtype, DType) else input.dtype if isinstance(input, TensorSpec) else ""
    return name in dtype_names.HALF


def _softmax_of_long_rows(case: Case) -> bool:
    """Tell whether rows have 2^18 elements or more. With torch 2.13 the share of the bound grows with the row: 0.5 at
    2^18 elements of float32, 1.4 at 2^22; of half types, whose own rounding takes most of it, over 1 from 2^19 on."""
    input, dim = case.args
    return isinstance(input, TensorSpec) and isinstance(dim, int) and bool(input.shape) and input.shape[dim] >= 1 << 18


def _uneven_rows(case: Case) -> bool:
    """Tell whether rows are not halved evenly, and have an element far larger than the mean of their magnitudes. Of
    16,000 random rows torch 2.13 left the bound in 1,117 of 7,388 with one 16 times as large, and in none of the
    others; 8 leaves a margin."""
    input, shape = case.args[:2]
    if not isinstance(input, TensorSpec) or not isinstance(shape, tuple):
        return False
    columns = math.prod(shape)
    if columns.bit_count() < 2 or 0 in input.shape:
        return False
    rows = materialize(input).double().abs().reshape(-1, columns)
    return bool((rows.amax(1) > 8 * rows.mean(1)).any())


THREADED = 1 << 15
"""The least number of elements that torch's CPU gives to several threads (GRAIN_SIZE in ATen/Parallel.h)."""


def _dtype_of_total(case: Case) -> str:
    """Return the dtype of the result of a sum or a mean of floats."""
    input, named, out = case.args[0], case.kwargs.get("dtype"), case.kwargs.get("out")
    assert isinstance(input, TensorSpec)
    return named.name if isinstance(named, DType) else out.dtype if isinstance(out, TensorSpec) else input.dtype


def _half_sum_of_threads(case: Case) -> bool:
    """Tell whether a half sum may be split up over threads: it has ``THREADED`` elements or more."""
    input = case.args[0]
    if not isinstance(input, TensorSpec) or math.prod(input.shape) < THREADED:
        return False
    return _dtype_of_total(case) in dtype_names.HALF


def _half_sum_of_others(case: Case) -> bool:
    """Tell whether a half sum over several dims is one of elements of another dtype."""
    input, dim = (*case.args, None)[:2]
    if not isinstance(input, TensorSpec) or len(input.shape) < 2:
        return False
    several = dim is None or len(dim.items if isinstance(dim, Ints) else dim if isinstance(dim, tuple) else (0,)) != 1
    return several and input.dtype != _dtype_of_total(case) in dtype_names.HALF


def _half_mean_of_others(case: Case) -> bool:
    """Tell whether a mean of a half type is one of elements of another dtype."""
    input = case.args[0]
    return isinstance(input, TensorSpec) and input.dtype != _dtype_of_total(case) in dtype_names.HALF


def _half_input(case: Case) -> bool:
    input = case.args[0]
    return isinstance(input, TensorSpec) and input.dtype in dtype_names.HALF


def _infinite_element(case: Case) -> bool:
    input = case.args[0]
    return isinstance(input, TensorSpec) and bool(materialize(input).isinf().any())


def _smoothed_weighted_mean(case: Case) -> bool:
    given = case.kwargs
    smoothing, kind = number(given.get("label_smoothing")) or 0.0, given.get("reduction", "mean")
    return smoothing > 0 and kind == "mean" and isinstance(given.get("weight"), TensorSpec)


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "the mean of smoothed losses with weights",
        "torch adds the weights up in another order where a dispatch mode is active, or an operand is of a subclass "
        "(masked_fill in place of masked_select in cross_entropy_loss_label_smoothing, ATen/native/LossNLL.cpp)",
        ops=("cross_entropy",),
        checks=("deterministic",),
        devices=("cpu", "cuda"),
        applies=_smoothed_weighted_mean,
        case=Case(
            op="cross_entropy",
            args=(tensor("float32", 1000, 3, seed=6), tensor("int64", 1000, values="listed:-1,2,0,-1,2,1,1,-1")),
            kwargs={
                "ignore_index": -1,
                "weight": tensor("float32", 3, values="positive", seed=6),
                "label_smoothing": 0.1,
            },
        ),
    ),
    Deviation(
        "rms_norm of infinities on CUDA",
        "unless rows are whole vectors of four elements that begin at a multiple of their size, torch's CUDA updates "
        "the mean square element by element, which makes an infinity NaN: other elements are NaN in place of 0",
        ops=("rms_norm",),
        checks=("values", "call_forms", "layouts", "special_values"),
        devices=("cuda",),
        applies=_infinite_element,
        case=Case(op="rms_norm", args=(tensor("float32", 1, 16385, specials=(Special(0, "inf"),)), (16385,))),
    ),
    Deviation(
        "logsumexp of half types",
        "torch composes it of functions each of which rounds its result to the half type: exponentials, their sum, and "
        "its logarithm",
        ops=("logsumexp",),
        checks=("values", "call_forms", "layouts"),
        devices=("cpu", "cuda"),
        applies=_half_input,
        case=Case(op="logsumexp", args=(tensor("bfloat16", 8, 100), 1)),
    ),
    Deviation(
        "log_softmax of half types on the CPU",
        "torch's CPU rounds the logarithm of the sum, or the difference from the maximum, to the half type",
        ops=("log_softmax",),
        checks=("values", "call_forms", "layouts"),
        devices=("cpu",),
        applies=_half_softmax,
        case=Case(op="log_softmax", args=(tensor("bfloat16", 2), -1)),
    ),
    Deviation(
        "cross_entropy of half types",
        "torch composes it of log_softmax, which it rounds to the half type, products and sums that it rounds, too",
        ops=("cross_entropy", "linear_cross_entropy"),
        checks=("values", "call_forms", "layouts", "special_values", "aliasing", "gradients"),
        devices=("cpu", "cuda"),
        applies=lambda case: any(spec.dtype in dtype_names.HALF for spec in specs(case)),
        case=Case(
            op="cross_entropy",
            args=(tensor("float16", 4, 5, seed=36), tensor("float16", 4, 5, values="positive")),
        ),
    ),
    Deviation(
        "softmax across rows on the CPU",
        "unless the dim is the last, torch's CPU rounds exponentials and their sum to the half type, and adds terms "
        "one after the other, so that the roundings of many equal ones add up",
        ops=("softmax",),
        checks=("values", "gradients"),
        devices=("cpu",),
        applies=_softmax_across_rows,
        case=Case(op="softmax", args=(tensor("float16", 600, 3, values="normal_small"), 0)),
    ),
    Deviation(
        "softmax of rows of 2^18 elements on the CPU",
        "torch's CPU adds the exponentials of a row one after the other, but for the lanes of a vector, so that the "
        "roundings of a long row add up",
        ops=("softmax",),
        checks=("values",),
        devices=("cpu",),
        applies=_softmax_of_long_rows,
        case=Case(op="softmax", args=(tensor("float16", 1, 3086278, values="descending"), -1)),
    ),
    Deviation(
        "large elements in uneven rows of CPU layer_norm",
        "torch's CPU corrects the mean of the few elements that are left over by that of all others, so that a large "
        "one among the few leaves its own rounding in the mean",
        ops=("layer_norm",),
        checks=("values", "gradients"),
        devices=("cpu",),
        applies=_uneven_rows,
        case=Case(
            op="layer_norm",
            args=(tensor("float16", 1, 16385, specials=(Special(0, "min"), Special(16384, "max"))), (16385,)),
        ),
    ),
    Deviation(
        "half sums of several threads on the CPU",
        "torch's CPU rounds the sum of each thread's part to the half type, where it may also overflow",
        ops=("sum",),
        checks=("values", "call_forms"),
        devices=("cpu",),
        applies=_half_sum_of_threads,
        case=Case(op="sum", args=(tensor("float16", 44233, values="every_exponent"), None)),
    ),
    Deviation(
        "half sums of other dtypes over several dims on the CPU",
        "torch's CPU adds up the sums of the inner dims in the half type that dtype= names",
        ops=("sum",),
        checks=("values", "call_forms", "layouts"),
        devices=("cpu",),
        applies=_half_sum_of_others,
        case=Case(
            op="sum",
            args=(tensor("float32", 4, 3, 34, 35), (0, 2, 3)),
            kwargs={"dtype": DType("bfloat16")},
        ),
    ),
    Deviation(
        "half means of other dtypes on the CPU",
        "torch's CPU casts to float32, where CUDA casts to the half type that dtype= names, which may overflow",
        ops=("mean",),
        checks=("values", "call_forms"),
        devices=("cpu",),
        applies=_half_mean_of_others,
        case=Case(
            op="mean",
            args=(tensor("float32", 2, specials=(Special(0, "inf"), Special(1, "min"))), -1),
            kwargs={"dtype": DType("float16")},
        ),
    ),
)
