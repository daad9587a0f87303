"""The calls that torch takes on the CPU and refuses on CUDA, as a table.

CUDA's semantics hold everywhere, so a reference computed on the CPU is read through it, unless ``semantics`` are those
of the CPU. Calls that CUDA alone takes are in ``conformance.cpu_cuda_differences``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import torch

from conformance import cpu_cuda_differences, semantics
from conformance.cases import Case
from conformance.spec import Call
from strategies.specs import Layout, TensorSpec

PRODUCTS = ("mm", "bmm", "addmm", "matmul")


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A kind of call that torch refuses on CUDA and takes on the CPU, or refuses there with another exception."""

    name: str
    ops: tuple[str, ...]
    error: type[Exception]
    """The exception that CUDA raises."""
    applies: Callable[[Call], bool]
    case: Case
    """A case that shows it."""


def find(op: str, call: Call) -> Refusal | None:
    """Return the refusal of a call of ``op`` by CUDA alone; None where there is none."""
    return None if semantics.of_cpu() else next((r for r in REFUSALS if op in r.ops and r.applies(call)), None)


def cuda_refuses(op: str, call: Call) -> type[Exception] | None:
    """Return the exception that torch on CUDA raises for a call of ``op`` that torch may take on the CPU; None where it
    takes it too."""
    found = find(op, call)
    return found.error if found else None


# --- what calls show ---------------------------------------------------------------------------------------------


def _bool_alpha_for_another_out(call: Call) -> bool:
    out = call.kwargs.get("out")
    return isinstance(call.kwargs.get("alpha"), bool) and isinstance(out, torch.Tensor) and out.dtype != torch.bool


def numbers_alone(call: Call) -> bool:
    """Tell whether both operands are Python numbers."""
    return len(call.args) == 2 and all(isinstance(x, bool | int | float) for x in call.args)


def _numbers_into_out(call: Call) -> bool:
    """Tell whether both operands are numbers, of the CPU, beside an ``out``: a kernel for a GPU takes one of them."""
    return numbers_alone(call) and isinstance(call.kwargs.get("out"), torch.Tensor)


def _floating_out(call: Call) -> bool:
    """Tell whether a bitwise call has a floating-point ``out``; a number as the first operand is refused with any
    ``out``."""
    out = call.kwargs.get("out")
    return isinstance(call.args[0], torch.Tensor) and isinstance(out, torch.Tensor) and out.is_floating_point()


def _integer_product(call: Call) -> bool:
    """Tell whether it is a product of integers. Empty operands (but in vectors) are excepted: torch answers those
    before it looks for a kernel of the dtype."""
    operands = [x for x in call.args if isinstance(x, torch.Tensor)]
    whole = len({x.dtype for x in operands}) == 1 and not operands[0].dtype.is_floating_point
    return whole and len(operands) == len(call.args) and all(x.numel() or x.ndim == 1 for x in operands[-2:])


def expanded_out(call: Call) -> bool:
    """Tell whether several elements of ``out`` are at one address."""
    out = call.kwargs.get("out")
    return isinstance(out, torch.Tensor) and any(
        size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)
    )


def _exponent_beyond_float32(call: Call) -> bool:
    if len(call.args) != 2 or not isinstance(call.args[0], torch.Tensor) or not isinstance(call.args[1], float):
        return False
    finite = math.isfinite(call.args[1]) and abs(call.args[1]) > torch.finfo(torch.float32).max
    return finite and torch.result_type(*call.args) == torch.float32


def _other_parameters(call: Call, integers: bool = False) -> bool:
    input, *rest = call.args
    parameters = [x for x in (*rest, *call.kwargs.values()) if isinstance(x, torch.Tensor)]
    return (
        isinstance(input, torch.Tensor)
        and input.dtype.is_floating_point is not integers
        and any(x.dtype != input.dtype for x in parameters)
        and not cpu_cuda_differences.norm_of_no_rows(call)
    )


def _random(call: Call) -> bool:
    """Tell whether dropout draws elements, into a tensor of their own: torch's other path."""
    return _drawn(*call.args, **call.kwargs)


def _drawn(input: object, p: object = 0.5, training: bool = True, inplace: bool = False) -> bool:
    if not isinstance(input, torch.Tensor) or not isinstance(p, bool | int | float):
        return False
    return training and not inplace and 0 < p < 1 and input.numel() > 0


def _integer_dropout(call: Call) -> bool:
    return _random(call) and not call.args[0].dtype.is_floating_point


# --- the table -----------------------------------------------------------------------------------------------------

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "products of integers",
        ops=PRODUCTS,
        error=NotImplementedError,
        applies=_integer_product,
        case=Case(op="mm", args=(TensorSpec((3, 5), "int32"), TensorSpec((5, 2), "int32"))),
    ),
    Refusal(
        "layer_norm with parameters of another dtype",
        ops=("layer_norm",),
        error=RuntimeError,
        applies=_other_parameters,
        case=Case(
            op="layer_norm",
            args=(TensorSpec((3, 5), "float16"), (5,), TensorSpec((5,), "float32"), TensorSpec((5,), "float32")),
        ),
    ),
    Refusal(
        "layer_norm of integers with parameters of another dtype",
        ops=("layer_norm",),
        error=NotImplementedError,
        applies=functools.partial(_other_parameters, integers=True),
        case=Case(op="layer_norm", args=(TensorSpec((3, 5), "int32"), (5,), TensorSpec((5,), "float32"))),
    ),
    Refusal(
        "dropout of integers",
        ops=("dropout",),
        error=NotImplementedError,
        applies=_integer_dropout,
        case=Case(op="dropout", args=(TensorSpec((3, 5), "int32"),)),
    ),
    Refusal(
        "bmm into an out with several elements at one address",
        ops=("bmm",),
        error=RuntimeError,
        applies=expanded_out,
        case=Case(
            op="bmm",
            args=(TensorSpec((2, 3, 5), "float32"), TensorSpec((2, 5, 4), "float32")),
            kwargs={"out": TensorSpec((2, 3, 4), "float32", layout=Layout(expanded=(2,)))},
        ),
    ),
    Refusal(
        "two numbers into an out",
        ops=("add", "sub", "mul", "div"),
        error=RuntimeError,
        applies=_numbers_into_out,
        case=Case(op="add", args=(2, 1), kwargs={"out": TensorSpec((), "int64")}),
    ),
    Refusal(
        "an exponent beyond float32",
        ops=("pow",),
        error=RuntimeError,
        applies=_exponent_beyond_float32,
        case=Case(op="pow", args=(TensorSpec((3,), "float32"), 1e39)),
    ),
    Refusal(
        "a floating-point out of bitwise functions",
        ops=("bitwise_and", "bitwise_or"),
        error=NotImplementedError,
        applies=_floating_out,
        case=Case(
            op="bitwise_and",
            args=(TensorSpec((3,), "int32"), TensorSpec((3,), "int32")),
            kwargs={"out": TensorSpec((3,), "float16")},
        ),
    ),
    Refusal(
        "a bool alpha where out= is not bool",
        ops=("add",),
        error=RuntimeError,
        applies=_bool_alpha_for_another_out,
        case=Case(
            op="add",
            args=(TensorSpec((3,), "bool"), TensorSpec((3,), "bool")),
            kwargs={"alpha": True, "out": TensorSpec((3,), "int32")},
        ),
    ),
)
