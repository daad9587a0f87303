"""Where torch disagrees: its CPU with its CUDA answers, and torch itself with the oracle. Two tables.

CUDA's semantics hold everywhere, so a reference computed on the CPU is read through ``REFUSALS``. ``DEVIATIONS`` excuse
torch itself where it is the implementation judged, and nobody else; no bound is widened for them. The sign of a zero
from relu (+0 on CUDA, -0 on the CPU) needs neither: it is not judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from conformance import cases, oracle
from conformance.cases import Case, DType, NonFinite
from conformance.ops import _elementwise as elementwise
from conformance.spec import Call
from strategies import dtypes as dtype_names
from strategies.specs import Layout, TensorSpec
from strategies.tensors import materialize


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A kind of call that torch takes on the CPU and refuses on CUDA."""

    name: str
    ops: tuple[str, ...]
    error: type[Exception]
    """What CUDA raises."""
    applies: Callable[[Call], bool]
    case: Case
    """A case that shows it."""


def cuda_refuses(op: str, call: Call) -> type[Exception] | None:
    """What torch on CUDA raises for a call of ``op`` that torch may take on the CPU; None where it takes it too."""
    return next((r.error for r in REFUSALS if op in r.ops and r.applies(call)), None)


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


def named_deviation(case: Case, check: str, device: torch.device | str) -> str | None:
    """The name of the deviation of torch itself that a failure of ``check`` for ``case`` on ``device`` can be; None
    where torch has no excuse. For torch as the implementation only. On the CPU torch takes what CUDA refuses."""
    kind = torch.device(device).type
    if kind == "cpu" and check == "errors":
        args, kwargs, _ = cases.materialize(case)
        call = Call(args, kwargs, None)
        return next((r.name for r in REFUSALS if case.op in r.ops and r.applies(call)), None)
    for deviation in DEVIATIONS:
        asked = case.op in deviation.ops and check in deviation.checks and kind in deviation.devices
        if asked and deviation.applies(case):
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
    tensors = [materialize(spec, operand) for operand, spec in enumerate(_specs(case)) if spec.dtype == "bfloat16"]
    return any(bool(((x != 0) & (x.abs() < torch.finfo(x.dtype).smallest_normal)).any()) for x in tensors)


def _bfloat16_odd(case: Case) -> bool:
    first = _specs(case)[0]
    return first.dtype == "bfloat16" and len(first.shape) == 2 and first.shape[1] % 2 == 1


def _half_by_0d(case: Case) -> bool:
    dividend, divisor = case.args
    if not isinstance(divisor, TensorSpec) or divisor.shape:
        return False
    _, dtype = elementwise.result_of((dividend, divisor))
    return str(dtype).removeprefix("torch.") in dtype_names.HALF and str(dtype) != f"torch.{divisor.dtype}"


def _scalar_divisor(case: Case) -> bool:
    return _number(case.args[1]) is not None


def _tensor(dtype: str, *shape: int, values: str = "normal", **more: Any) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, values=values, **more)


def _bool_alpha_for_another_out(call: Call) -> bool:
    out = call.kwargs.get("out")
    return isinstance(call.kwargs.get("alpha"), bool) and isinstance(out, torch.Tensor) and out.dtype != torch.bool


def _integer_product(call: Call) -> bool:
    """Empty operands excepted: those torch answers before it looks for a kernel of the dtype."""
    operands = [x for x in call.args if isinstance(x, torch.Tensor)]
    return len(operands) == 2 and all(not x.dtype.is_floating_point and x.numel() for x in operands)


# --- the tables --------------------------------------------------------------------------------------------------

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "products of integers",
        ops=("mm",),
        error=NotImplementedError,
        applies=_integer_product,
        case=Case(op="mm", args=(_tensor("int32", 3, 5), _tensor("int32", 5, 2))),
    ),
    Refusal(
        "a bool alpha where out= is not bool",
        ops=("add",),
        error=RuntimeError,
        applies=_bool_alpha_for_another_out,
        case=Case(
            op="add",
            args=(_tensor("bool", 3), _tensor("bool", 3)),
            kwargs={"alpha": True, "out": _tensor("int32", 3)},
        ),
    ),
)

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "add of half scalars on the CPU",
        "torch's CPU rounds alpha, Python scalars and alpha * other to the half type; CUDA keeps them at float32",
        ops=("add",),
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
        "the bfloat16 dot product instructions of CPUs take subnormal operands as zero",
        ops=("mm",),
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
        "bfloat16 products with an odd K on the CPU",
        "where the CPU has AMX, torch reads an element beyond each row of the first operand and multiplies it with 0, "
        "so that a NaN or infinity there shows",
        ops=("mm",),
        checks=("values", "deterministic"),
        devices=("cpu",),
        applies=_bfloat16_odd,
        case=Case(
            op="mm",
            args=(_tensor("bfloat16", 129, 33, layout=Layout(padding=(0, 3))), _tensor("bfloat16", 33, 129)),
        ),
    ),
    Deviation(
        "half division by a 0-d tensor on the CPU",
        "torch's CPU keeps the divisor at float32, as if it were a Python scalar; CUDA converts it to the half type",
        ops=("div",),
        checks=("values",),
        devices=("cpu",),
        applies=_half_by_0d,
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
)
