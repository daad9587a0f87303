"""Planted defects of calls under torch's modes and flags: autocast, and reduced precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance import spec as specs
from conformance.selftest import families as of
from conformance.selftest.contexts import PRODUCTS, Right, Wrong, entering
from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import differentiable

CAST = (*PRODUCTS, "add", "mul", "exp", "sigmoid", "softmax", "layer_norm", "gelu", "lt")
"""Ops that the control has; on the CPU autocast casts the operands of products alone."""

# --- autocast ----------------------------------------------------------------------------------------------------


def _dtype() -> torch.dtype | None:
    """Return the dtype to which autocast casts on the CPU; None outside of it."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _changed(args: tuple[Any, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    return [change(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]


def _narrow(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor as autocast casts it for products."""
    dtype = _dtype()
    return x if x.dtype == torch.float64 or dtype is None else x.to(dtype)


def with_autocast(op: str, right: Right) -> Right:
    """Return a right function that casts as torch does on the CPU, and computes without autocast."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if _dtype() is None:
            return right(*args, **kwargs)
        if op in PRODUCTS and kwargs.get("out") is None:
            args = tuple(_changed(args, _narrow))
        with torch.autocast("cpu", enabled=False):
            return right(*args, **kwargs)

    return call


CONTROLS = (("autocast", CAST, with_autocast, ("deterministic", "autocast")),)
"""As ``contexts.CONTROLS``."""


def _cast_as(op: str, wrong: Wrong) -> Wrong:
    def call(right: Right, *args: Any, **kwargs: Any) -> Any:
        if _dtype() is None:
            return right(*args, **kwargs)
        return wrong(specs.registry()[op].reference, *args, **kwargs)

    return call


def autocast(*ops: str) -> Callable[[Any], Any]:
    """Enter the decorated function as what each of these ops is inside of autocast, a defect of its own; it gets
    torch's function."""
    return entering(ops, "autocast", "autocast", _cast_as)


def _plainly(right: Right, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return right(*args, **kwargs)


class _Cast(torch.autograd.Function):
    """A cast that autograd does not see."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None


def _without_gradients(op: str) -> Wrong:
    function = differentiable(op)

    def call(right: Right, *args: Any, **kwargs: Any) -> Any:
        dtype = _dtype()
        if dtype is None or kwargs.get("out") is not None:
            return function(*args, **kwargs)
        args = tuple(
            _Cast.apply(x, dtype) if isinstance(x, torch.Tensor) and x.dtype in (torch.float32, *of.HALF) else x
            for x in args
        )
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return call


for _op in PRODUCTS:
    _about = "Inside of autocast no operand gets a gradient: the cast is out of autograd's sight."
    plant(_op, "autocast_detaches", "autocast", "autocast", _without_gradients(_op), _about)


@autocast(*PRODUCTS)
def ignored(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Autocast is ignored without a word."""
    return _plainly(right, *args, **kwargs)


@autocast("mm", "bmm", "matmul")
def result_alone(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """The result is cast, and not the operands."""
    return right(*args, out=out) if out is not None else _narrow(_plainly(right, *args, **kwargs))


@autocast("mm", "addmm", "matmul")
def always_bfloat16(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Operands are cast to bfloat16, whichever dtype autocast was given."""
    return _plainly(right, *_changed(args, lambda x: x if x.dtype == torch.float64 else x.bfloat16()), **kwargs)


@autocast("mm", "bmm", "matmul")
def first_alone(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """The first operand is cast, and the others as far as they have its dtype."""
    same = input.dtype == other.dtype
    return right(input, other, **kwargs) if same or kwargs else _plainly(right, _narrow(input), other)


@autocast("mm", "matmul", "bmm")
def float64_too(right: Right, *args: Any, **kwargs: Any) -> Any:
    """float64 is cast as well."""
    wide = args[0].dtype == torch.float64 and not kwargs
    return right(*_changed(args, lambda x: x.to(_dtype())), **kwargs) if wide else right(*args, **kwargs)


@autocast("addmm", "mm", "exp", "abs")
def out_too(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Operands are cast for a call with ``out=`` as well."""
    if out is None:
        return right(*args, **kwargs)
    return out.copy_(_plainly(right, *_changed(args, _narrow), **kwargs))


@autocast("add", "sigmoid", "gelu", "layer_norm", "softmax", "lt")
def all_ops(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Operands of an operator are cast that is on none of torch's lists for the CPU."""
    kwargs = dict(zip(kwargs, _changed(tuple(kwargs.values()), _narrow), strict=True))
    return right(*_changed(args, _narrow), **kwargs)


@autocast("exp", "softmax", "rms_norm", "sum")
def list_of_cuda(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results are float32, as the list for CUDA says, and that for the CPU does not."""
    result = right(*args, **kwargs)
    wide = not result.dtype.is_floating_point or result.dtype == torch.float64
    return result if wide or kwargs.get("out") is not None else result.float()


@autocast("mul", "silu", "layer_norm", "bmm")
def left_off(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Autocast is off after the call."""
    result = right(*args, **kwargs)
    torch.set_autocast_enabled("cpu", False)
    return result


# --- reduced precision -------------------------------------------------------------------------------------------


def _reduced() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def _is_single(*values: Any) -> bool:
    return all(x.dtype == torch.float32 for x in values if isinstance(x, torch.Tensor))


@defect(PRODUCTS, "precision", "modes")
def bfloat16_for_tf32(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Products of float32 are computed in bfloat16 where TF32 is allowed."""
    if not _reduced() or not _is_single(*args) or kwargs.get("out") is not None:
        return right(*args, **kwargs)
    return right(*_changed(args, lambda x: x.bfloat16().float()), **kwargs)


@defect("add mul exp sigmoid layer_norm softmax", "precision", "modes")
def tf32_for_all(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Operators other than products round their results to the precision of TF32 where products may use it."""
    result = right(*args, **kwargs)
    if not _reduced() or result.dtype != torch.float32 or any(result is x for x in args):
        return result
    return result.copy_(result.half().float()) if result.abs().nan_to_num().lt(6e4).all() else result


@defect("mm bmm gelu", "precision", "modes")
def sets_highest(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The precision of float32 products is set to "highest" for the call, and left so."""
    torch.set_float32_matmul_precision("highest")
    return right(*args, **kwargs)


@defect("matmul addmm rms_norm", "precision", "modes")
def allows_sums_of_halves(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Sums in half types are allowed for the call, and from then on."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    return right(*args, **kwargs)


@defect("sub abs scaled_dot_product_attention", "precision", "modes")
def refuses_reduced(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A call is refused where TF32 is allowed."""
    if _reduced():
        raise NotImplementedError("only of the highest precision")
    return right(*args, **kwargs)
