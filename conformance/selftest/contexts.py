"""Planted defects of calls in other contexts: fake kernels that do not do as the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance import spec as specs
from conformance.selftest import families as of
from conformance.selftest.controls import control_of
from conformance.selftest.defect_registry import plant

Right = Callable[..., Any]
"""A right fake kernel, with the op's torch signature."""
Wrong = Callable[..., Any]

OUT = ("add", "mul", "exp", "sigmoid", "lt", "clamp", "bitwise_and")
ROWS = ("softmax", "layer_norm", "rms_norm")
PRODUCTS = ("mm", "bmm", "addmm", "matmul")
FAKED = (*OUT, *ROWS, *PRODUCTS, "sub", "abs", "relu", "silu", "gelu", "dropout")
"""Ops whose fake kernels are made of torch's functions."""


# --- fake kernels ------------------------------------------------------------------------------------------------


def fake_kernel(op: str) -> Right:
    """Return a right fake kernel. torch's own gives an ``out`` that is resized other strides than the real one does,
    and refuses numbers whose product with ``alpha`` overflows."""

    def call(*args: Any, out: Any = None, inplace: bool = False, alpha: Any = 1, **kwargs: Any) -> Any:
        result = specs.registry()[op].reference(*args, **kwargs)
        if inplace:
            return args[0]
        if out is None:
            return result
        if out.shape != result.shape:
            out.resize_(result.shape).as_strided_(result.shape, result.stride())
        return out

    return call


def _is_fake(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(value, FakeTensor) for value in (*args, *kwargs.values()))


def with_fake(op: str, right: Right, wrong: Wrong | None = None) -> Right:
    """Return the op with a fake kernel, a right one or ``wrong``, which gets the right one first."""
    fake = fake_kernel(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not _is_fake(args, kwargs):
            return right(*args, **kwargs)
        return fake(*args, **kwargs) if wrong is None else wrong(fake, *args, **kwargs)

    return call


control_of("fake kernels", FAKED, with_fake, ("deterministic", "fake"))


def _planted(op: str, wrong: Wrong) -> Wrong:
    return lambda right, *args, **kwargs: with_fake(op, right, wrong)(*args, **kwargs)


def fake(*ops: str) -> Callable[[Wrong], Wrong]:
    """Enter the decorated function as the fake kernel of each of these ops, a defect of its own."""

    def enter(wrong: Any) -> Wrong:
        name, about = f"fake_{wrong.__name__}", " ".join(wrong.__doc__.split())
        for op in ops:
            plant(op, name, "fake kernel", "fake", _planted(op, wrong), about)
        return wrong

    return enter


def _own(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call returns a tensor of its own."""
    return not of.written(args, kwargs)


@fake("add", "mul", "lt", "bitwise_and")
def shape_of_first(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Of fake tensors the result has the shape of the first operand, also where that is broadcast."""
    result = right(input, other, **kwargs)
    if not isinstance(input, torch.Tensor) or not _own((), kwargs):
        return result
    return result.new_empty(input.shape)


@fake("add", "sub", "lt", "exp", "abs", "gelu", "relu", "silu", "clamp")
def contiguous(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors the result is contiguous, whatever the operands are."""
    result = right(*args, **kwargs)
    return result.contiguous() if _own(args, kwargs) else result


@fake("add", "mul", "lt", "exp", "clamp")
def dtype_of_first(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors the result has the dtype of the first one."""
    first = next(x for x in args if isinstance(x, torch.Tensor))
    result = right(*args, **kwargs)
    return result.to(first.dtype) if _own(args, kwargs) else result


@fake("add", "silu", *ROWS, "mm", "matmul")
def flat_where_empty(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors a result without elements has one dim."""
    result = right(*args, **kwargs)
    return result.flatten() if not result.numel() and _own(args, kwargs) else result


@fake("add", "exp", "sigmoid", "mm", "bmm", "addmm")
def new_for_out(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors another tensor than ``out`` is returned."""
    result = right(*args, **kwargs)
    return torch.empty_like(result) if kwargs.get("out") is not None else result


@fake("mul", "clamp", "mm", "matmul")
def out_is_not_resized(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A fake ``out`` keeps its shape."""
    out = kwargs.get("out")
    return right(*args, **kwargs) if out is None else out


@fake("relu", "silu", "dropout")
def new_in_place(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors a call in place returns another tensor than the operand."""
    result = right(*args, **kwargs)
    return torch.empty_like(result) if any(result is x for x in args) else result


@fake("abs", "relu", "gelu", "softmax", "layer_norm")
def input_returned(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors the operand is returned where it has shape and dtype of the result."""
    result = right(input, *args, **kwargs)
    same = (result.shape, result.dtype) == (input.shape, input.dtype)
    return input if same and _own(args, kwargs) else result


@fake("exp", "softmax", "rms_norm", "mm")
def elements_read(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors an element is read."""
    if args[0].numel() and float(args[0].flatten()[0]) > 0:
        return right(*args, **kwargs)
    return right(*args, **kwargs)


@fake("sigmoid", "layer_norm", "matmul", "addmm")
def memory_asked_for(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors the address is looked at, as before a launch: there is none."""
    if not args[0].data_ptr():
        raise RuntimeError("a null pointer")
    return right(*args, **kwargs)


@fake("gelu", "softmax", "bmm")
def on_meta(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors the result is on the device meta."""
    result = right(*args, **kwargs)
    return torch.empty_like(result, device="meta") if _own(args, kwargs) else result


@fake("softmax")
def dtype_ignored(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of fake tensors ``dtype=`` is ignored."""
    return right(*args, **{name: value for name, value in kwargs.items() if name != "dtype"})


@fake("matmul")
def vectors_are_matrices(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Of fake tensors the result of a vector keeps a dim of one element."""
    result = right(input, other, **kwargs)
    return result.unsqueeze(-1) if other.ndim == 1 and _own((), kwargs) else result
