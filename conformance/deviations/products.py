"""List where torch disagrees with the oracle: matrix products."""

from __future__ import annotations

import math

import torch

from conformance import cuda_refusals, float_formats, oracle
from conformance.cases import Case
from conformance.deviations.table import Deviation, number, specs, tensor
from strategies import dtypes as dtype_names
from strategies.specs import Layout
from strategies.tensors import materialize


def _bfloat16_subnormals(case: Case) -> bool:
    """Tell whether a bfloat16 operand, or a product of elements of two of them, may be subnormal."""
    tensors = [materialize(spec, operand) for operand, spec in enumerate(specs(case)) if spec.dtype == "bfloat16"]
    least = sorted(float(x[x != 0].abs().nan_to_num(math.inf).min()) for x in tensors if (x != 0).any())
    return bool(least) and min(least[0], math.prod(least[:2])) < torch.finfo(torch.bfloat16).smallest_normal


def _bfloat16_tail(case: Case) -> bool:
    first = specs(case)[case.op == "addmm"]
    return first.dtype == "bfloat16" and first.shape[-1] % 32 != 0


def _rounds_to_bfloat16() -> bool:
    return torch.get_float32_matmul_precision() == "medium" and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _sums_in_parts(case: Case) -> bool:
    """Tell whether a product of a half type has a K that cuBLAS takes in parts, which torch's settings let it add in
    that type."""
    first = specs(case)[case.op == "addmm"]
    matmul = torch.backends.cuda.matmul
    allowed = {
        "bfloat16": matmul.allow_bf16_reduced_precision_reduction,
        "float16": matmul.allow_fp16_reduced_precision_reduction,
    }
    # On an H200, of K from 32 to 8192 the shortest that was summed so was 100; 64 and less were not.
    return allowed.get(first.dtype, False) and first.shape[-1] > 64


def _rounded_beta(case: Case) -> bool:
    """Tell whether there is nothing to multiply, and a beta that the half type cannot hold."""
    product, beta = specs(case)[1], number(case.kwargs.get("beta", 1))
    half = product.dtype in dtype_names.HALF and product.shape[-1] == 0
    return half and not oracle.exact_scalar(beta or 0.0, dtype_names.to_torch(product.dtype))


def _outweighed(case: Case) -> bool:
    """Tell whether two terms or more are summed that are all smaller than an element of the input."""
    input, left, right = (materialize(spec, operand).double().abs() for operand, spec in enumerate(specs(case)[:3]))
    beta, alpha = (abs(number(case.kwargs.get(name, 1)) or 0.0) for name in ("beta", "alpha"))
    if left.shape[-1] < 2 or not (input.numel() and right.numel()):
        return False
    return bool(input.max() * beta > left.max() * right.max() * alpha)


def _alpha_leaves_range(case: Case) -> bool:
    alpha = abs(number(case.kwargs.get("alpha", 1)) or 0.0)
    tensors = [materialize(spec, operand) for operand, spec in enumerate(specs(case))][1:]
    for x in tensors:
        if not x.dtype.is_floating_point:
            continue
        size, form = x.double().abs(), torch.finfo(float_formats.compute_dtype(x.dtype))
        scaled = size * alpha
        if bool(((scaled > form.max) | ((scaled < form.smallest_normal) & (size > 0))).any()):
            return True
    return False


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "bfloat16 subnormals in CPU products",
        "the bfloat16 dot product instructions of CPUs take subnormal operands and sums as zero",
        ops=(*cuda_refusals.PRODUCTS, "scaled_dot_product_attention"),
        checks=("values", "gradients"),
        devices=("cpu",),
        applies=_bfloat16_subnormals,
        case=Case(
            op="mm",
            args=(
                tensor("bfloat16", 64, 32, values="subnormal"),
                tensor("bfloat16", 32, 64, values="near_overflow"),
            ),
        ),
    ),
    Deviation(
        "bfloat16 products with a tail of K on the CPU",
        "where the CPU has AMX and K is no multiple of 32, torch reads beyond each row of the first operand and "
        "multiplies what is there with 0, so that a NaN or infinity shows",
        ops=cuda_refusals.PRODUCTS,
        checks=("values", "deterministic", "guard_bands"),
        devices=("cpu",),
        applies=_bfloat16_tail,
        case=Case(
            op="mm",
            args=(tensor("bfloat16", 129, 33, layout=Layout(padding=(0, 3))), tensor("bfloat16", 33, 129)),
        ),
    ),
    Deviation(
        "float32 products of medium precision on the CPU",
        "CPUs that multiply bfloat16 round float32 to it where the precision of products is 'medium'; CUDA takes TF32",
        ops=cuda_refusals.PRODUCTS,
        checks=("values",),
        devices=("cpu",),
        applies=lambda case: specs(case)[0].dtype == "float32",
        case=Case(op="mm", args=(tensor("float32", 71, 72), tensor("float32", 72, 71))),
        present=_rounds_to_bfloat16,
    ),
    Deviation(
        "long sums in half products on CUDA",
        "cuBLAS rounds the sums of parts of K to the half type before it adds them, as torch lets it by default "
        "(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction, and fp16); of bmm it was not seen",
        ops=("addmm", "matmul", "mm"),
        checks=("values",),
        devices=("cuda",),
        applies=_sums_in_parts,
        case=Case(op="mm", args=(tensor("bfloat16", 3, 4200), tensor("bfloat16", 4200, 5, seed=1))),
    ),
    Deviation(
        "beta of half types in CPU products of nothing",
        "where K is 0 torch's CPU rounds beta to the half type before it multiplies",
        ops=("addmm",),
        checks=("values",),
        devices=("cpu",),
        applies=_rounded_beta,
        case=Case(
            op="addmm",
            args=(tensor("float16", 999), tensor("float16", 1, 0), tensor("float16", 0, 999)),
            kwargs={"beta": 32.078125},
        ),
    ),
    Deviation(
        "small terms in CPU addmm",
        "the CPU's matrix library may add each term to the input, so that the sum of terms that are small "
        "beside that is rounded as often as there are terms",
        ops=("addmm",),
        checks=("values",),
        devices=("cpu",),
        applies=_outweighed,
        case=Case(
            op="addmm",
            args=(
                tensor("float64", 1, 769, values="large_mean", seed=225, layout=Layout(expanded=(1,))),
                tensor("float64", 1023, 6, values="uniform", seed=75),
                tensor("float64", 6, 769, values="positive", seed=65),
            ),
        ),
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
            args=(tensor("float64", 2), tensor("float64", 1, 1, values="near_overflow"), tensor("float64", 1, 2)),
            kwargs={"alpha": 64.0},
        ),
    ),
)
