"""List where torch disagrees with the oracle: elementwise functions and dropout."""

from __future__ import annotations

import math

import torch

from conformance import float_formats, oracle
from conformance.cases import Case, NonFinite
from conformance.deviations.table import Deviation, number, specs, tensor
from conformance.ops import _elementwise as elementwise
from strategies import dtypes as dtype_names
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import materialize


def _half_scalars(case: Case) -> bool:
    """Tell whether a result of a half type comes from a Python scalar that the type cannot hold, or from any alpha but
    1."""
    if len(case.args) != 2 or not specs(case):
        return False
    first, second = case.args
    _, dtype = elementwise.result_of((first, second))
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    numbers = [x for x in map(number, case.args) if x is not None]
    return number(case.kwargs.get("alpha", 1)) != 1 or not all(oracle.exact_scalar(x, dtype) for x in numbers)


def _half_by_one(case: Case) -> bool:
    if len(case.args) != 2 or not specs(case):
        return False
    first, second = case.args
    result = str(elementwise.result_of((first, second))[1]).removeprefix("torch.")
    return result in dtype_names.HALF and any(
        math.prod(spec.shape) == 1 and spec.dtype != result for spec in specs(case)
    )


def _scalar_divisor(case: Case) -> bool:
    return number(case.args[1]) is not None


def _limits(case: Case) -> list[object]:
    return [x for x in (*case.args[1:], case.kwargs.get("min"), case.kwargs.get("max")) if x is not None]


def _clamp_by_nan(case: Case) -> bool:
    return any(x is not None and math.isnan(x) for x in map(number, _limits(case)))


def _clamp_by_nan_alone(case: Case) -> bool:
    return len(_limits(case)) == 1 and _clamp_by_nan(case)


def _nan_is_no_bound() -> bool:
    """Tell whether clamp ignores a NaN bound, as torch 2.11's CPU does; 2.13 gives NaN."""
    zeros = torch.zeros(40, device="cpu")
    return not (zeros.clamp(min=math.nan).isnan() & zeros.clamp(max=math.nan).isnan()).all()


def _gelu_of_large(case: Case) -> bool:
    if case.kwargs.get("approximate", "none") != "none":
        return False
    input = materialize(specs(case)[0])
    return bool((input.double().abs() > torch.finfo(float_formats.compute_dtype(input.dtype)).max / 4).any())


def _bfloat16_small(case: Case) -> bool:
    """Tell whether an element of a bfloat16 input may be subnormal once it is halved."""
    first = specs(case)[0]
    if first.dtype != "bfloat16":
        return False
    input = materialize(first)
    return bool(((input != 0) & (input.abs() < 2 * torch.finfo(input.dtype).smallest_normal)).any())


def _gelu_of_zero(case: Case) -> bool:
    """Tell whether a float32 input has a -0, or a negative number of which gelu is zero."""
    if case.kwargs.get("approximate", "none") != "none" or specs(case)[0].dtype != "float32":
        return False
    input = materialize(specs(case)[0])
    return bool((((input == 0) | (input < -13)) & input.signbit()).any())


def _gelu_drops_signs() -> bool:
    """Tell whether gelu drops the sign of zeros, as oneDNN does where the CPU has no AVX-512
    (``ONEDNN_MAX_CPU_ISA=AVX2`` elsewhere)."""
    return not torch.nn.functional.gelu(torch.full((40,), -0.0, device="cpu")).signbit().all()


def _floating(case: Case) -> str:
    """Return the dtype in which a function of floats computes: integers become the default dtype, which a sequence
    changes."""
    dtype = specs(case)[0].dtype
    return dtype if dtype_names.is_floating(dtype) else str(torch.get_default_dtype()).removeprefix("torch.")


def _half_input(case: Case) -> bool:
    return _floating(case) in dtype_names.HALF


def _half_power(case: Case) -> bool:
    return len(case.args) == 2 and specs(case)[0].dtype in dtype_names.HALF and number(case.args[1]) in (2, 3, -2)


def _bfloat16_root(case: Case) -> bool:
    return _floating(case) == "bfloat16" and len(case.args) == 2 and number(case.args[1]) == -0.5


def _power_of_one(case: Case) -> bool:
    return isinstance(case.args[0], TensorSpec) or number(case.args[0]) == 1


def _half_dropout_in_place(case: Case) -> bool:
    return _half_input(case) and True in (case.kwargs.get("inplace"), *case.args[3:])


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "half sums and products with scalars on the CPU",
        "torch's CPU rounds alpha, Python scalars and alpha * other to the half type; CUDA keeps them at float32",
        ops=("add", "sub", "mul"),
        checks=("values",),
        devices=("cpu",),
        applies=_half_scalars,
        case=Case(op="add", args=(tensor("float16", 999), tensor("float16", 999)), kwargs={"alpha": 0.3337}),
    ),
    Deviation(
        "the scale of half dropout on the CPU",
        "torch's CPU rounds 1 / (1 - p) to the half type and then its product with an element",
        ops=("dropout",),
        checks=("values", "distribution", "gradients"),
        devices=("cpu",),
        applies=_half_input,
        case=Case(op="dropout", args=(tensor("float16", 999), 0.1875)),
    ),
    Deviation(
        "the scale of half dropout in place on CUDA",
        "in place torch's CUDA does so too",
        ops=("dropout",),
        checks=("values", "distribution"),
        devices=("cuda",),
        applies=_half_dropout_in_place,
        case=Case(op="dropout", args=(tensor("float16", 999), 0.1875), kwargs={"inplace": True}),
    ),
    Deviation(
        "half products with a tensor of one element on the CPU",
        "torch's CPU keeps the element at float32, as if it were a Python scalar; CUDA converts it to the half type",
        ops=("div", "mul"),
        checks=("values",),
        devices=("cpu",),
        applies=_half_by_one,
        case=Case(op="div", args=(tensor("float16", 999), tensor("float32"))),
    ),
    Deviation(
        "division by a scalar on CUDA",
        "torch multiplies with the rounded reciprocal of a Python scalar: an ulp off, or another whole number",
        ops=("div",),
        checks=("values",),
        devices=("cuda",),
        applies=_scalar_divisor,
        case=Case(op="div", args=(tensor("float32", 1025), 3.0)),
    ),
    Deviation(
        "half rsqrt on the CPU",
        "torch's CPU rounds the square root to the half type before it divides, where it has no vector to fill",
        ops=("rsqrt",),
        checks=("values",),
        devices=("cpu",),
        applies=_half_input,
        case=Case(op="rsqrt", args=(tensor("float16", 7, values="positive"),)),
    ),
    Deviation(
        "gelu of large numbers on the CPU",
        "torch's CPU multiplies with 1 + erf before it halves, and gives NaN for inf",
        ops=("gelu",),
        checks=("values",),
        devices=("cpu",),
        applies=_gelu_of_large,
        case=Case(op="gelu", args=(tensor("float32", 40, specials=(Special(0, "inf"),)),)),
    ),
    Deviation(
        "bfloat16 subnormals in CPU gelu",
        "the bfloat16 instructions of CPUs give zero for a subnormal result",
        ops=("gelu",),
        checks=("values",),
        devices=("cpu",),
        applies=_bfloat16_small,
        case=Case(op="gelu", args=(tensor("bfloat16", 40, values="subnormal"),)),
    ),
    Deviation(
        "the sign of zeros of CPU gelu",
        "without AVX-512 torch's CPU gives +0 for -0 and for the negative numbers of which gelu is -0",
        ops=("gelu",),
        checks=("values",),
        devices=("cpu",),
        applies=_gelu_of_zero,
        case=Case(op="gelu", args=(tensor("float32", 40, specials=(Special(0, "-0"),)),)),
        present=_gelu_drops_signs,
    ),
    Deviation(
        "clamp by a NaN number on CUDA",
        "torch's CUDA kernel takes a Python number that is NaN for no bound",
        ops=("clamp",),
        checks=("values",),
        devices=("cuda",),
        applies=_clamp_by_nan,
        case=Case(op="clamp", args=(tensor("float32", 40), NonFinite("nan"))),
    ),
    Deviation(
        "clamp by a NaN number on the CPU",
        "so does the CPU's of torch 2.11, where it is the only bound",
        ops=("clamp",),
        checks=("values",),
        devices=("cpu",),
        applies=_clamp_by_nan_alone,
        case=Case(op="clamp", args=(tensor("float32", 40), NonFinite("nan"))),
        present=_nan_is_no_bound,
    ),
    Deviation(
        "reciprocal roots of bfloat16 on the CPU",
        "where the exponent is the Python number -0.5 torch's CPU takes rsqrt, which rounds the square root "
        "to bfloat16 before it divides, where it has no vector to fill",
        ops=("pow",),
        checks=("values",),
        devices=("cpu",),
        applies=_bfloat16_root,
        case=Case(op="pow", args=(tensor("bfloat16", 7, values="positive"), -0.5)),
    ),
    Deviation(
        "powers of one to a signalling NaN on the CPU",
        "where torch's CPU has no vector to fill, as of strided operands, it asks the C library, which gives NaN",
        ops=("pow",),
        checks=("special_values",),
        devices=("cpu",),
        applies=_power_of_one,
        case=Case(
            op="pow",
            args=(True, tensor("bfloat16", 2, 15, layout=Layout(order=(1, 0)), specials=(Special(29, "snan"),))),
            kwargs={"out": tensor("float16", 2, 15, layout=Layout(steps=(2, 2)))},
        ),
    ),
    Deviation(
        "squares and cubes of half types",
        "torch multiplies in the half type where the exponent is the Python number 2, 3 or -2",
        ops=("pow",),
        checks=("values",),
        devices=("cpu", "cuda"),
        applies=_half_power,
        case=Case(op="pow", args=(tensor("float16", 999), 3)),
    ),
)
