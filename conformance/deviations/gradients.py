"""List where torch's gradients disagree with the oracle, beyond what its values do."""

from __future__ import annotations

import torch

from conformance import cuda_refusals
from conformance.cases import Case, DType, Same
from conformance.deviations.table import Deviation, specs, tensor
from strategies import dtypes as dtype_names
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import materialize


def _half(case: Case) -> bool:
    return specs(case)[0].dtype in dtype_names.HALF


def _half_result(case: Case) -> bool:
    dtype = case.kwargs.get("dtype")
    return _half(case) if dtype is None else isinstance(dtype, DType) and dtype.name in dtype_names.HALF


def _smaller_limit(case: Case) -> bool:
    """Tell whether the input and one bound of two together are smaller than the other bound."""
    args, kwargs = [*case.args, None, None], case.kwargs
    given = [args[0], kwargs.get("min", args[1]), kwargs.get("max", args[2])]
    shapes = [(args[0] if isinstance(one, Same) else one) for one in given]
    shapes = [one.shape for one in shapes if isinstance(one, TensorSpec)]
    if len(shapes) < 3:
        return False
    whole = torch.broadcast_shapes(*shapes)
    return any(torch.broadcast_shapes(shapes[0], bound) != whole for bound in shapes[1:])


def _broadcast_batch(case: Case) -> bool:
    shapes = [spec.shape for spec in specs(case)[:2]]
    return _half(case) and len({shape[:-2] for shape in shapes}) > 1


def _bool_power(case: Case) -> bool:
    return any(isinstance(x, bool) or (isinstance(x, TensorSpec) and x.dtype == "bool") for x in case.args)


def _least_exponent(case: Case) -> bool:
    exponent = case.args[1]
    if not isinstance(exponent, TensorSpec) or exponent.dtype not in dtype_names.INTEGRAL:
        return False
    found = materialize(exponent, len(specs(case)) - 1)
    return bool((found == torch.iinfo(found.dtype).min).any())


def _bfloat16_tails_of_gradients(case: Case) -> bool:
    """Tell whether the rows or columns of a product of bfloat16, along which its gradients are summed, have a tail."""
    given = [argument for argument in case.args if isinstance(argument, TensorSpec | Same)]
    first, second = (one if isinstance(one, TensorSpec) else specs(case)[0] for one in given[-2:])
    rows, columns = first.shape[-2:-1], second.shape[-1:]
    return first.dtype == "bfloat16" and any(size % 32 for size in (*rows, *columns))


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "means of half types in gradients of layer_norm on the CPU",
        "torch's CPU rounds the mean and the reciprocal root of the variance to the half type before it saves them",
        ops=("layer_norm",),
        checks=("gradients",),
        devices=("cpu",),
        applies=_half,
        case=Case(op="layer_norm", args=(tensor("bfloat16", 5, 64, values="large_mean"), (64,))),
    ),
    Deviation(
        "results of half types in gradients of log_softmax on the CPU",
        "torch's CPU computes the gradient of its result, whose own error is beyond that of one rounding (log_softmax "
        "of half types on the CPU), and an even gradient adds up that of each element",
        ops=("log_softmax",),
        checks=("gradients",),
        devices=("cpu",),
        applies=_half_result,
        case=Case(op="log_softmax", args=(tensor("float16", 4, 700, seed=3), -1)),
    ),
    Deviation(
        "results of half types in gradients of logsumexp",
        "torch computes the gradient of its result, which is rounded to the half type",
        ops=("logsumexp",),
        checks=("gradients",),
        devices=("cpu", "cuda"),
        applies=_half,
        case=Case(op="logsumexp", args=(tensor("float16", 65535, values="constant"), (0,))),
    ),
    Deviation(
        "gradients of clamp between tensors of which one is larger",
        "torch combines comparisons of the input with either bound in place, and fails if one of them is smaller",
        ops=("clamp",),
        checks=("gradients",),
        devices=("cpu", "cuda"),
        applies=_smaller_limit,
        case=Case(
            op="clamp", args=(tensor("float32", 1, 2), tensor("float32", 64, 2, seed=1), tensor("float32", 1, 2))
        ),
    ),
    Deviation(
        "sums of half types in gradients of broadcast matrices",
        "torch rounds the product of each of the matrices that share a factor to the half type, and adds up these",
        ops=("matmul",),
        checks=("gradients",),
        devices=("cpu", "cuda"),
        applies=_broadcast_batch,
        case=Case(
            op="matmul",
            args=(
                tensor("bfloat16", 2, 2, 1, values="near_overflow"),
                tensor("bfloat16", 1, 4096, layout=Layout(expanded=(1,))),
            ),
        ),
    ),
    Deviation(
        "sums of half types in gradients of CPU attention",
        "torch's CPU adds up the gradients of blocks of queries and keys in the half type",
        ops=("scaled_dot_product_attention",),
        checks=("gradients",),
        devices=("cpu",),
        applies=_half,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(tensor("bfloat16", 1, 1, 1100, 4, seed=seed) for seed in range(3)),
        ),
    ),
    Deviation(
        "gradients of powers with a bool",
        "torch's backward pass ends in an internal error where the base is a Python bool, subtracts from bool tensors, "
        "which it refuses, and gives NaN for 0 to the power of False",
        ops=("pow",),
        checks=("gradients",),
        devices=("cpu", "cuda"),
        applies=_bool_power,
        case=Case(op="pow", args=(True, tensor("float32", 5))),
    ),
    Deviation(
        "gradients of powers to the least integer",
        "torch subtracts 1 from the exponent in its integer dtype, which wraps",
        ops=("pow",),
        checks=("gradients",),
        devices=("cpu", "cuda"),
        applies=_least_exponent,
        case=Case(op="pow", args=(tensor("float32", 5), tensor("int16", 5, specials=(Special(0, "min"),)))),
    ),
    Deviation(
        "gradients of bfloat16 products with tails on the CPU",
        "gradients are products with the same fault as 'bfloat16 products with a tail of K on the CPU'",
        ops=cuda_refusals.PRODUCTS,
        checks=("gradients",),
        devices=("cpu",),
        applies=_bfloat16_tails_of_gradients,
        case=Case(
            op="mm", args=(tensor("bfloat16", 65, 65, layout=Layout(padding=(0, 65))), tensor("bfloat16", 65, 64))
        ),
    ),
)
