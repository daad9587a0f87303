"""List where torch's gradients disagree with the oracle, beyond what its values do."""

from __future__ import annotations

import torch

from conformance.cases import Case
from conformance.deviations.table import Deviation, specs, tensor
from strategies import dtypes as dtype_names
from strategies.specs import Special, TensorSpec
from strategies.tensors import materialize


def _half(case: Case) -> bool:
    return specs(case)[0].dtype in dtype_names.HALF


def _bool_power(case: Case) -> bool:
    return any(isinstance(x, bool) or (isinstance(x, TensorSpec) and x.dtype == "bool") for x in case.args)


def _least_exponent(case: Case) -> bool:
    exponent = case.args[1]
    if not isinstance(exponent, TensorSpec) or exponent.dtype not in dtype_names.INTEGRAL:
        return False
    found = materialize(exponent, len(specs(case)) - 1)
    return bool((found == torch.iinfo(found.dtype).min).any())


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
        applies=_half,
        case=Case(op="log_softmax", args=(tensor("float16", 4, 700, seed=3), -1)),
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
)
