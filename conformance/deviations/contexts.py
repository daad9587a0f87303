"""List where torch's calls in other contexts differ from those outside."""

from __future__ import annotations

import contextlib

import torch

from conformance.cases import Case
from conformance.deviations.table import Deviation, number, specs, tensor
from strategies import dtypes as dtype_names
from strategies.specs import Layout, Special, TensorSpec

_TURNED = Layout(order=(1, 0))


def _resizes(case: Case) -> bool:
    out = case.kwargs.get("out")
    if not isinstance(out, TensorSpec):
        return False
    shapes = [one.shape for one in specs(case)]
    # An operand that broadcasts may have the shape of ``out``. Operands of other functions may not broadcast.
    with contextlib.suppress(RuntimeError):
        shapes = [torch.broadcast_shapes(*shapes)] if len(shapes) > 1 else shapes
    return all(out.shape != shape or shape == (0,) for shape in shapes)


def _overflows(case: Case) -> bool:
    found = [number(argument) for argument in (*case.args, case.kwargs.get("alpha"))]
    numbers = [one for one in found if type(one) is int]
    return len(numbers) == 2 and not -(2**63) <= numbers[0] * numbers[1] < 2**63


def _of_integers_and_a_float(case: Case) -> bool:
    return any(type(number(one)) is float for one in case.args) and not any(
        one.dtype.startswith(("float", "bfloat")) for one in specs(case)
    )


def _of_a_half_type(case: Case) -> bool:
    return any(one.dtype in dtype_names.HALF for one in specs(case))


def _of_bytes(case: Case) -> bool:
    return any(one.dtype == "uint8" for one in specs(case))


def _number_and_tensor(case: Case) -> bool:
    limits = [*case.args[1:], *(case.kwargs.get(name) for name in ("min", "max"))]
    return any(isinstance(one, TensorSpec) for one in limits) and any(number(one) is not None for one in limits)


def _ones_in_other_dtype(case: Case) -> bool:
    out = case.kwargs.get("out")
    return (
        number(case.args[0]) == 1 and isinstance(out, TensorSpec) and any(one.dtype != out.dtype for one in specs(case))
    )


def _of_pixels(case: Case) -> bool:
    weight = case.args[1]
    return case.kwargs.get("reduction") == "none" and isinstance(weight, TensorSpec) and len(weight.shape) > 2


def _of_a_narrow_type_and_a_number(case: Case) -> bool:
    numbers = [spec.dtype for spec in specs(case) if spec.shape == ()]
    wide = "float64" in numbers and any(spec.dtype == "float32" for spec in specs(case))
    return wide or (_of_a_half_type(case) and bool(numbers))


def _of_all_dims_kept(case: Case) -> bool:
    dim = case.args[1] if len(case.args) > 1 else case.kwargs.get("dim")
    return dim is None and bool(case.kwargs.get("keepdim")) and len(specs(case)[0].shape) > 1


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "fakes of an out= that is resized",
        "of fake tensors torch resizes it to contiguous ones, and else to the strides of the operands",
        ops=(),
        checks=("fake",),
        devices=("cpu", "cuda"),
        applies=_resizes,
        case=Case(
            op="add",
            args=(tensor("float32", 3, 4, layout=_TURNED), tensor("float32", 3, 4, layout=_TURNED)),
            kwargs={"out": tensor("float32", 0)},
        ),
    ),
    Deviation(
        "fakes of sums with a product that overflows",
        "of fake tensors torch multiplies a number with alpha without wrapping",
        ops=("add", "sub"),
        checks=("fake",),
        devices=("cpu", "cuda"),
        applies=_overflows,
        case=Case(op="add", args=(tensor("int64", 3), 255), kwargs={"alpha": 9223372036854775806}),
    ),
    Deviation(
        "fakes of powers of a number",
        "of fake tensors torch orders the dims of the result otherwise",
        ops=("pow",),
        checks=("fake",),
        devices=("cpu", "cuda"),
        applies=lambda case: number(case.args[0]) is not None,
        case=Case(op="pow", args=(1.0, tensor("int64", 3, 2, 4, layout=Layout(order=(0, 2, 1))))),
    ),
    Deviation(
        "fakes of losses of small class indices",
        "of fake tensors torch refuses class indices of uint8",
        ops=("cross_entropy", "linear_cross_entropy"),
        checks=("fake", "compiled"),
        devices=("cpu", "cuda"),
        applies=_of_bytes,
        case=Case(op="cross_entropy", args=(tensor("float32", 3, 5), tensor("uint8", 3, values="listed:4,0,2"))),
    ),
    Deviation(
        "fakes of losses of one class",
        "of fake tensors torch orders the dims of losses of pixels as those of the targets, if there is one class",
        ops=("linear_cross_entropy",),
        checks=("fake",),
        devices=("cpu", "cuda"),
        applies=_of_pixels,
        case=Case(
            op="linear_cross_entropy",
            args=(
                tensor("float32", 3, 5),
                tensor("float32", 1, 2, 2, 5),
                tensor("int64", 3, 2, 2, values="zeros", layout=Layout(order=(0, 2, 1))),
            ),
            kwargs={"reduction": "none"},
        ),
    ),
    Deviation(
        "batches of vmap of several functions",
        "in a batch torch computes these in several steps, each of which rounds",
        ops=("addmm", "layer_norm"),
        checks=("vmap",),
        devices=("cpu", "cuda"),
        applies=_of_a_half_type,
        case=Case(op="addmm", args=(tensor("float16", 5), tensor("float16", 4, 9), tensor("float16", 9, 5))),
    ),
    Deviation(
        "batches of products to which nothing is added",
        "in a batch torch multiplies what is added by beta, also where that is 0",
        ops=("addmm",),
        checks=("vmap",),
        devices=("cpu", "cuda"),
        applies=lambda case: case.kwargs.get("beta") == 0,
        case=Case(
            op="addmm",
            args=(
                tensor("float32", 3, 4, specials=(Special(0, "nan"),)),
                tensor("float32", 3, 5),
                tensor("float32", 5, 4),
            ),
            kwargs={"beta": 0},
        ),
    ),
    Deviation(
        "batches of places among all elements",
        "in a batch torch keeps one of the dims that it reduces, and else all of them",
        ops=("argmax",),
        checks=("vmap",),
        devices=("cpu", "cuda"),
        applies=_of_all_dims_kept,
        case=Case(op="argmax", args=(tensor("float32", 1, 1), None), kwargs={"keepdim": True}),
    ),
    Deviation(
        "batches of thresholds without dims",
        "in a batch torch compares a narrow float in the dtype of a wider one without dims, and else in its own",
        ops=("eq", "ne", "lt", "le", "gt", "ge"),
        checks=("vmap",),
        devices=("cpu", "cuda"),
        applies=_of_a_narrow_type_and_a_number,
        # The seed decides which operands are in a batch: here it is both.
        case=Case(
            op="eq",
            args=(
                tensor("float16", 5, values="listed:4096,-4096,0,4096,8192", seed=3),
                tensor("float32", values="listed:4097"),
            ),
        ),
    ),
    Deviation(
        "fakes of floored quotients",
        "of fake tensors torch orders the dims of the result as those of the first operand",
        ops=("div",),
        checks=("fake",),
        devices=("cpu", "cuda"),
        applies=lambda case: case.kwargs.get("rounding_mode") == "floor",
        case=Case(
            op="div",
            args=(
                tensor("float32", 2, 2, 1, 3, 1, 3, layout=Layout(order=(1, 0, 2, 5, 4, 3))),
                tensor("float32", 1, 2, 1, 3, 1, 1, values="positive", layout=Layout(padding=(0, 0, 1, 8, 0, 0))),
            ),
            kwargs={"rounding_mode": "floor"},
        ),
    ),
    Deviation(
        "graphs of integers and a number",
        "where numbers are symbols torch's compiler compares in float64, and else in float32",
        ops=("eq", "ne", "lt", "le", "gt", "ge"),
        checks=("compiled",),
        devices=("cpu", "cuda"),
        applies=_of_integers_and_a_float,
        case=Case(op="eq", args=(tensor("int32", 2, values="listed:16777216,16777217"), 16777216.0)),
    ),
    Deviation(
        "graphs of clamp with a number and a tensor",
        "torch's compiler fails if one bound is a 0-d tensor and the other one a number",
        ops=("clamp",),
        checks=("compiled",),
        devices=("cpu", "cuda"),
        applies=_number_and_tensor,
        case=Case(op="clamp", args=(tensor("int32", 9), 0, tensor("float32", values="positive"))),
    ),
    Deviation(
        "graphs of powers of 1 with an out=",
        "torch's compiler refuses a dtype that the plain call takes, since that fills out= with ones",
        ops=("pow",),
        checks=("compiled",),
        devices=("cpu", "cuda"),
        applies=_ones_in_other_dtype,
        case=Case(op="pow", args=(1.0, tensor("float32", 9)), kwargs={"out": tensor("int32", 9)}),
    ),
    Deviation(
        "graphs of argmax with an out=",
        "torch's compiler fails where sizes are symbols",
        ops=("argmax",),
        checks=("compiled",),
        devices=("cpu", "cuda"),
        applies=lambda case: isinstance(case.kwargs.get("out"), TensorSpec),
        case=Case(op="argmax", args=(tensor("float32", 3, 5),), kwargs={"out": tensor("int64")}),
    ),
)
