"""Where torch disagrees with the oracle: a table.

It excuses torch itself where it is the implementation judged, and nobody else; no bound is widened for it. Which calls
torch's CPU takes or refuses otherwise than CUDA is in ``conformance.refusals`` and ``conformance.stand_ins``. The sign
of a zero from relu (+0 on CUDA, -0 on the CPU) needs no entry: it is not judged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from conformance import bounds, cases, oracle, refusals, stand_ins
from conformance.cases import Case, DType, NonFinite
from conformance.ops import _elementwise as elementwise
from conformance.spec import Call
from strategies import dtypes as dtype_names
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import materialize


@dataclasses.dataclass(frozen=True)
class Deviation:
    """One way in which torch on some devices differs from what is judged."""

    name: str
    why: str
    ops: tuple[str, ...]
    checks: tuple[str, ...]
    devices: tuple[str, ...]
    """Device types on which torch does so."""
    applies: Callable[[Case], bool]
    """Whether a case of those ops can show it."""
    case: Case
    """A case that shows it."""
    present: Callable[[], bool] = lambda: True
    """Whether the torch that is installed does so, where versions differ."""


def named_deviation(case: Case, check: str, device: torch.device | str) -> str | None:
    """The name of the deviation of torch itself that a failure of ``check`` for ``case`` on ``device`` can be; None
    where torch has no excuse. For torch as the implementation only. On the CPU torch takes what CUDA refuses, and
    refuses what CUDA takes."""
    kind = torch.device(device).type
    if kind == "cpu" and check in ("errors", "metadata"):
        args, kwargs, _ = cases.materialize(case)
        call = Call(args, kwargs, None)
        found = stand_ins.find(case.op, call)
        if found and found.check == check:
            return found.name
        if check == "errors":
            refusal = refusals.find(case.op, call)
            return refusal.name if refusal else None
    for deviation in DEVIATIONS:
        asked = case.op in deviation.ops and check in deviation.checks and kind in deviation.devices
        if asked and deviation.applies(case) and deviation.present():
            return deviation.name
    return None


# --- what the cases show -----------------------------------------------------------------------------------------


def _specs(case: Case) -> list[TensorSpec]:
    return [argument for argument in case.args if isinstance(argument, TensorSpec)]


def _half_scalars(case: Case) -> bool:
    """A result of a half type from a Python scalar or alpha: any alpha but 1, a scalar that the type cannot hold."""
    if len(case.args) != 2 or not _specs(case):
        return False
    first, second = case.args
    _, dtype = elementwise.result_of((first, second))
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    numbers = [x for x in map(_number, case.args) if x is not None]
    return _number(case.kwargs.get("alpha", 1)) != 1 or not all(oracle.exact_scalar(x, dtype) for x in numbers)


def _number(argument: object) -> float | None:
    if isinstance(argument, NonFinite):
        return float(argument.value)
    return argument if isinstance(argument, bool | int | float) else None


def _softmax_across_rows(case: Case) -> bool:
    input, dim = case.args
    dtype = case.kwargs.get("dtype")
    if not isinstance(input, TensorSpec) or not isinstance(dim, int) or not input.shape:
        return False
    if dim % len(input.shape) == len(input.shape) - 1:
        return False
    return (dtype.name if isinstance(dtype, DType) else input.dtype) in dtype_names.HALF or input.shape[dim] >= 128


def _bfloat16_subnormals(case: Case) -> bool:
    """A subnormal bfloat16 operand, or product of elements of two of them."""
    tensors = [materialize(spec, operand) for operand, spec in enumerate(_specs(case)) if spec.dtype == "bfloat16"]
    least = sorted(float(x[x != 0].abs().nan_to_num(math.inf).min()) for x in tensors if (x != 0).any())
    return bool(least) and min(least[0], math.prod(least[:2])) < torch.finfo(torch.bfloat16).smallest_normal


def _bfloat16_tail(case: Case) -> bool:
    first = _specs(case)[case.op == "addmm"]
    return first.dtype == "bfloat16" and first.shape[-1] % 32 != 0


def _sums_in_parts(case: Case) -> bool:
    """A product of a half type with a K that cuBLAS takes in parts, which torch's settings let it add in that type."""
    first = _specs(case)[case.op == "addmm"]
    matmul = torch.backends.cuda.matmul
    allowed = {
        "bfloat16": matmul.allow_bf16_reduced_precision_reduction,
        "float16": matmul.allow_fp16_reduced_precision_reduction,
    }
    # On an H200, of K from 32 to 8192 the shortest that was summed so was 100; 64 and less were not.
    return allowed.get(first.dtype, False) and first.shape[-1] > 64


def _half_by_one(case: Case) -> bool:
    if len(case.args) != 2 or not _specs(case):
        return False
    first, second = case.args
    result = str(elementwise.result_of((first, second))[1]).removeprefix("torch.")
    return result in dtype_names.HALF and any(
        math.prod(spec.shape) == 1 and spec.dtype != result for spec in _specs(case)
    )


def _scalar_divisor(case: Case) -> bool:
    return _number(case.args[1]) is not None


def _tensor(dtype: str, *shape: int, values: str = "normal", **more: Any) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, values=values, **more)


def _limits(case: Case) -> list[object]:
    return [x for x in (*case.args[1:], case.kwargs.get("min"), case.kwargs.get("max")) if x is not None]


def _clamp_by_nan(case: Case) -> bool:
    return any(x is not None and math.isnan(x) for x in map(_number, _limits(case)))


def _clamp_by_nan_alone(case: Case) -> bool:
    return len(_limits(case)) == 1 and _clamp_by_nan(case)


def _nan_is_no_bound() -> bool:
    """Of torch 2.11's CPU; 2.13 gives NaN."""
    zeros = torch.zeros(40, device="cpu")
    return not (zeros.clamp(min=math.nan).isnan() & zeros.clamp(max=math.nan).isnan()).all()


def _gelu_of_large(case: Case) -> bool:
    if case.kwargs.get("approximate", "none") != "none":
        return False
    input = materialize(_specs(case)[0])
    return bool((input.double().abs() > torch.finfo(bounds.compute_dtype(input.dtype)).max / 4).any())


def _bfloat16_small(case: Case) -> bool:
    """A bfloat16 input half of which may be subnormal."""
    first = _specs(case)[0]
    if first.dtype != "bfloat16":
        return False
    input = materialize(first)
    return bool(((input != 0) & (input.abs() < 2 * torch.finfo(input.dtype).smallest_normal)).any())


def _half_input(case: Case) -> bool:
    return _specs(case)[0].dtype in dtype_names.HALF


def _half_power(case: Case) -> bool:
    return len(case.args) == 2 and _specs(case)[0].dtype in dtype_names.HALF and _number(case.args[1]) in (2, 3, -2)


def _bfloat16_root(case: Case) -> bool:
    return _specs(case)[0].dtype == "bfloat16" and len(case.args) == 2 and _number(case.args[1]) == -0.5


def _uneven_rows(case: Case) -> bool:
    """Rows that are not halved evenly, with an element far larger than the mean of their magnitudes: of 16,000 random
    rows torch 2.13 left the bound in 1,117 of 7,388 with one 16 times as large, and in none of the others; 8 leaves a
    margin."""
    input, shape = case.args[:2]
    if not isinstance(input, TensorSpec) or not isinstance(shape, tuple):
        return False
    columns = math.prod(shape)
    if columns.bit_count() < 2 or 0 in input.shape:
        return False
    rows = materialize(input).double().abs().reshape(-1, columns)
    return bool((rows.amax(1) > 8 * rows.mean(1)).any())


def _half_dropout_in_place(case: Case) -> bool:
    return _half_input(case) and True in (case.kwargs.get("inplace"), *case.args[3:])


def _alpha_leaves_range(case: Case) -> bool:
    alpha = abs(_number(case.kwargs.get("alpha", 1)) or 0.0)
    tensors = [materialize(spec, operand) for operand, spec in enumerate(_specs(case))][1:]
    for x in tensors:
        if not x.dtype.is_floating_point:
            continue
        size, form = x.double().abs(), torch.finfo(bounds.compute_dtype(x.dtype))
        scaled = size * alpha
        if bool(((scaled > form.max) | ((scaled < form.smallest_normal) & (size > 0))).any()):
            return True
    return False


def _scored(case: Case) -> list[torch.Tensor]:
    """The query and all keys."""
    named = (case.kwargs.get("present_key"), case.kwargs.get("present_key_slot"))
    given = (*case.args[:2], *named)
    return [materialize(x) for x in given if isinstance(x, TensorSpec) and dtype_names.is_floating(x.dtype)]


def _nan_scores(case: Case) -> bool:
    return any(bool(x.isnan().any()) for x in _scored(case))


def _infinite_half_scores(case: Case) -> bool:
    if _specs(case)[0].dtype not in dtype_names.HALF:
        return False
    mask = case.kwargs.get("attn_mask")
    added = [materialize(mask)] if isinstance(mask, TensorSpec) and mask.dtype != "bool" else []
    return any(bool(x.any()) for x in (*(x.isinf() for x in _scored(case)), *(x == math.inf for x in added)))


def _infinite_values(case: Case) -> bool:
    tensors = (argument for argument in (*case.args, *case.kwargs.values()) if isinstance(argument, TensorSpec))
    floating = (spec for spec in tensors if dtype_names.is_floating(spec.dtype))
    return _specs(case)[0].dtype == "float32" and any(bool(materialize(spec).isinf().any()) for spec in floating)


def _query_like_channels_last(case: Case) -> bool:
    """Of 960 layouts of small queries, with and without an expanded dim, torch 2.13 went wrong in these 32 and in no
    other."""
    query = materialize(_specs(case)[0])
    return query.ndim == 4 and query.stride(-1) == 1 != torch.empty_like(query).stride(-1)


def _largest_mask(case: Case) -> bool:
    mask = case.kwargs.get("attn_mask")
    if not isinstance(mask, TensorSpec) or mask.dtype != "float32" or _specs(case)[0].dtype != "float32":
        return False
    size = materialize(mask).abs()
    return bool(((size * math.log2(math.e)).isinf() & size.isfinite()).any())


def _masked_rows_of_groups(case: Case) -> bool:
    mask = case.kwargs.get("attn_mask")
    if not isinstance(mask, TensorSpec) or case.kwargs.get("enable_gqa") is not True:
        return False
    added = materialize(mask)
    return bool((~added if mask.dtype == "bool" else added == -math.inf).all(-1).any())


def _float32_mask_of_half(case: Case) -> bool:
    mask = case.kwargs.get("attn_mask")
    return isinstance(mask, TensorSpec) and mask.dtype == "float32" and _specs(case)[0].dtype in dtype_names.HALF


def _scale_not_positive(case: Case) -> bool:
    causal = case.kwargs.get("is_causal") is True
    return (_number(case.kwargs.get("scale", 1)) or 0) <= 0 and (causal or _specs(case)[0].dtype in dtype_names.HALF)


# --- the table ---------------------------------------------------------------------------------------------------

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "half sums and products with scalars on the CPU",
        "torch's CPU rounds alpha, Python scalars and alpha * other to the half type; CUDA keeps them at float32",
        ops=("add", "sub", "mul"),
        checks=("values",),
        devices=("cpu",),
        applies=_half_scalars,
        case=Case(op="add", args=(_tensor("float16", 999), _tensor("float16", 999)), kwargs={"alpha": 0.3337}),
    ),
    Deviation(
        "softmax across rows on the CPU",
        "unless the dim is the last, torch's CPU rounds exponentials and their sum to the half type, and adds terms "
        "one after the other, so that the roundings of many equal ones add up",
        ops=("softmax",),
        checks=("values",),
        devices=("cpu",),
        applies=_softmax_across_rows,
        case=Case(op="softmax", args=(_tensor("float16", 600, 3, values="normal_small"), 0)),
    ),
    Deviation(
        "bfloat16 subnormals in CPU products",
        "the bfloat16 dot product instructions of CPUs take subnormal operands and sums as zero",
        ops=(*refusals.PRODUCTS, "scaled_dot_product_attention"),
        checks=("values",),
        devices=("cpu",),
        applies=_bfloat16_subnormals,
        case=Case(
            op="mm",
            args=(
                _tensor("bfloat16", 64, 32, values="subnormal"),
                _tensor("bfloat16", 32, 64, values="near_overflow"),
            ),
        ),
    ),
    Deviation(
        "bfloat16 products with a tail of K on the CPU",
        "where the CPU has AMX and K is no multiple of 32, torch reads beyond each row of the first operand and "
        "multiplies what is there with 0, so that a NaN or infinity shows",
        ops=refusals.PRODUCTS,
        checks=("values", "deterministic", "guard_bands"),
        devices=("cpu",),
        applies=_bfloat16_tail,
        case=Case(
            op="mm",
            args=(_tensor("bfloat16", 129, 33, layout=Layout(padding=(0, 3))), _tensor("bfloat16", 33, 129)),
        ),
    ),
    Deviation(
        "long sums in half products on CUDA",
        "cuBLAS rounds the sums of parts of K to the half type before it adds them, as torch lets it by default "
        "(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction, and fp16); of bmm it was not seen",
        ops=("addmm", "matmul", "mm"),
        checks=("values",),
        devices=("cuda",),
        applies=_sums_in_parts,
        case=Case(op="mm", args=(_tensor("bfloat16", 3, 4200), _tensor("bfloat16", 4200, 5, seed=1))),
    ),
    Deviation(
        "alpha in CPU products",
        "the CPU's matrix library multiplies an operand with alpha, which may then overflow or become 0",
        ops=("addmm",),
        checks=("values",),
        devices=("cpu",),
        applies=_alpha_leaves_range,
        case=Case(
            op="addmm",
            args=(_tensor("float64", 2), _tensor("float64", 1, 1, values="near_overflow"), _tensor("float64", 1, 2)),
            kwargs={"alpha": 64.0},
        ),
    ),
    Deviation(
        "the scale of half dropout on the CPU",
        "torch's CPU rounds 1 / (1 - p) to the half type and then its product with an element",
        ops=("dropout",),
        checks=("values", "distribution"),
        devices=("cpu",),
        applies=_half_input,
        case=Case(op="dropout", args=(_tensor("float16", 999), 0.1875)),
    ),
    Deviation(
        "the scale of half dropout in place on CUDA",
        "in place torch's CUDA does so too",
        ops=("dropout",),
        checks=("values", "distribution"),
        devices=("cuda",),
        applies=_half_dropout_in_place,
        case=Case(op="dropout", args=(_tensor("float16", 999), 0.1875), kwargs={"inplace": True}),
    ),
    Deviation(
        "half products with a tensor of one element on the CPU",
        "torch's CPU keeps the element at float32, as if it were a Python scalar; CUDA converts it to the half type",
        ops=("div", "mul"),
        checks=("values",),
        devices=("cpu",),
        applies=_half_by_one,
        case=Case(op="div", args=(_tensor("float16", 999), _tensor("float32"))),
    ),
    Deviation(
        "division by a scalar on CUDA",
        "torch multiplies with the rounded reciprocal of a Python scalar: an ulp off, or another whole number",
        ops=("div",),
        checks=("values",),
        devices=("cuda",),
        applies=_scalar_divisor,
        case=Case(op="div", args=(_tensor("float32", 1025), 3.0)),
    ),
    Deviation(
        "half rsqrt on the CPU",
        "torch's CPU rounds the square root to the half type before it divides, where it has no vector to fill",
        ops=("rsqrt",),
        checks=("values",),
        devices=("cpu",),
        applies=_half_input,
        case=Case(op="rsqrt", args=(_tensor("float16", 7, values="positive"),)),
    ),
    Deviation(
        "gelu of large numbers on the CPU",
        "torch's CPU multiplies with 1 + erf before it halves, and gives NaN for inf",
        ops=("gelu",),
        checks=("values",),
        devices=("cpu",),
        applies=_gelu_of_large,
        case=Case(op="gelu", args=(_tensor("float32", 40, specials=(Special(0, "inf"),)),)),
    ),
    Deviation(
        "bfloat16 subnormals in CPU gelu",
        "the bfloat16 instructions of CPUs give zero for a subnormal result",
        ops=("gelu",),
        checks=("values",),
        devices=("cpu",),
        applies=_bfloat16_small,
        case=Case(op="gelu", args=(_tensor("bfloat16", 40, values="subnormal"),)),
    ),
    Deviation(
        "clamp by a NaN number on CUDA",
        "torch's CUDA kernel takes a Python number that is NaN for no bound",
        ops=("clamp",),
        checks=("values",),
        devices=("cuda",),
        applies=_clamp_by_nan,
        case=Case(op="clamp", args=(_tensor("float32", 40), NonFinite("nan"))),
    ),
    Deviation(
        "clamp by a NaN number on the CPU",
        "so does the CPU's of torch 2.11, where it is the only bound",
        ops=("clamp",),
        checks=("values",),
        devices=("cpu",),
        applies=_clamp_by_nan_alone,
        case=Case(op="clamp", args=(_tensor("float32", 40), NonFinite("nan"))),
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
        case=Case(op="pow", args=(_tensor("bfloat16", 7, values="positive"), -0.5)),
    ),
    Deviation(
        "large elements in uneven rows of CPU layer_norm",
        "torch's CPU corrects the mean of the few elements that are left over by that of all others, so that a large "
        "one among the few leaves its own rounding in the mean",
        ops=("layer_norm",),
        checks=("values",),
        devices=("cpu",),
        applies=_uneven_rows,
        case=Case(
            op="layer_norm",
            args=(_tensor("float16", 1, 16385, specials=(Special(0, "min"), Special(16384, "max"))), (16385,)),
        ),
    ),
    Deviation(
        "squares and cubes of half types",
        "torch multiplies in the half type where the exponent is the Python number 2, 3 or -2",
        ops=("pow",),
        checks=("values",),
        devices=("cpu", "cuda"),
        applies=_half_power,
        case=Case(op="pow", args=(_tensor("float16", 999), 3)),
    ),
    Deviation(
        "NaN scores in CPU attention",
        "torch's CPU takes the largest score of a row without looking at NaN, and a row of which it finds none for one "
        "without keys, which is 0",
        ops=("scaled_dot_product_attention",),
        checks=("values",),
        devices=("cpu",),
        applies=_nan_scores,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                _tensor("float32", 1, 1, 3, 8, specials=(Special(8, "nan"),)),
                _tensor("float32", 1, 1, 5, 8),
                _tensor("float32", 1, 1, 5, 8),
            ),
        ),
    ),
    Deviation(
        "infinite scores of half types in CPU attention",
        "for half types torch's CPU has an exponential that makes 0 of the NaN of inf - inf, where it has a vector to "
        "fill, and a row in which all are 0",
        ops=("scaled_dot_product_attention",),
        checks=("values",),
        devices=("cpu",),
        applies=_infinite_half_scores,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(_tensor("float16", 1, 1, length, 8) for length in (3, 64, 64)),
            kwargs={"attn_mask": _tensor("float16", 3, 64, specials=(Special(0, "inf"),))},
        ),
    ),
    Deviation(
        "queries with strides of channels last in CPU attention",
        "torch's CPU gives wrong numbers, and not the same ones twice, where the last dim of the query is dense and "
        "that of its empty_like is not: heads are then taken for the channels of an image",
        ops=("scaled_dot_product_attention",),
        checks=("values", "deterministic", "guard_bands", "fully_written"),
        devices=("cpu",),
        applies=_query_like_channels_last,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                _tensor("float64", 1, 3, 1, 19, layout=Layout(order=(3, 1, 0, 2), expanded=(1,))),
                *(_tensor("float64", 1, 3, 8, 19) for _ in range(2)),
            ),
        ),
    ),
    Deviation(
        "a scale that is not positive in flash attention",
        "torch multiplies the -inf of keys that a query does not see, on CUDA also that it begins with, by the scale",
        ops=("scaled_dot_product_attention",),
        checks=("values",),
        devices=("cpu", "cuda"),
        applies=_scale_not_positive,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(_tensor("float16", 1, 1, length, 8) for length in (3, 5, 5)),
            kwargs={"is_causal": True, "scale": 0.0},
        ),
    ),
    Deviation(
        "infinities in float32 attention",
        "torch's CUDA makes a float32 product of three in TF32, in which the rest of an infinity is NaN",
        ops=("scaled_dot_product_attention",),
        checks=("values",),
        devices=("cuda",),
        applies=_infinite_values,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                *(_tensor("float32", 1, 1, length, 8) for length in (3, 5)),
                _tensor("float32", 1, 1, 5, 8, specials=(Special(0, "inf"),)),
            ),
        ),
    ),
    Deviation(
        "masks of the largest numbers in float32 attention",
        "torch's CUDA multiplies a mask by log2(e), which takes them out of range",
        ops=("scaled_dot_product_attention",),
        checks=("values",),
        devices=("cuda",),
        applies=_largest_mask,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(_tensor("float32", 1, 1, length, 8) for length in (3, 5, 5)),
            kwargs={"attn_mask": _tensor("float32", 3, 5, specials=(Special(14, "max"),))},
        ),
    ),
    Deviation(
        "float32 masks in attention of half types",
        "cuDNN, which torch chooses for some of them, reads the words of the mask as numbers of the query's dtype",
        ops=("scaled_dot_product_attention",),
        checks=("values",),
        devices=("cuda",),
        applies=_float32_mask_of_half,
        case=Case(
            op="scaled_dot_product_attention",
            args=tuple(_tensor("float16", 1, 1, length, 32) for length in (27, 24, 24)),
            kwargs={"attn_mask": _tensor("float32", 27, 24)},
        ),
    ),
    Deviation(
        "rows without keys in attention of groups of heads",
        "where heads share keys, torch's CUDA gives rows that see no key other numbers than 0",
        ops=("scaled_dot_product_attention",),
        checks=("values",),
        devices=("cuda",),
        applies=_masked_rows_of_groups,
        case=Case(
            op="scaled_dot_product_attention",
            args=(
                _tensor("bfloat16", 2, 4, 3, 16),
                _tensor("bfloat16", 2, 2, 20, 16),
                _tensor("bfloat16", 2, 2, 20, 16),
            ),
            kwargs={"attn_mask": _tensor("bool", 2, 1, 1, 20, values="zeros"), "enable_gqa": True},
        ),
    ),
)
