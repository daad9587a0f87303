"""Planted defects of calls in other contexts: fake kernels that do not do as the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance import spec as specs
from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

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


CONTROLS = (("fake kernels", FAKED, with_fake, ("deterministic", "fake")),)
"""Right implementations: a name, the ops, what makes one of an op and its right function, and what it claims."""


def _planted(op: str, wrong: Wrong) -> Wrong:
    return lambda right, *args, **kwargs: with_fake(op, right, wrong)(*args, **kwargs)


def entering(ops: Sequence[str], kind: str, check: str, made: Callable[[str, Wrong], Wrong]) -> Callable[[Any], Any]:
    """Return a decorator that enters a function as a defect of each op. ``made``: what it makes of the function."""

    def enter(wrong: Any) -> Any:
        name, about = f"{check}_{wrong.__name__}", " ".join(wrong.__doc__.split())
        for op in ops:
            plant(op, name, kind, check, made(op, wrong), about)
        return wrong

    return enter


def instead_where(applies: Callable[..., bool]) -> tuple[Callable[[str, Wrong], Wrong], Callable[[str, Right], Right]]:
    """Return two functions that make an op whose calls to which ``applies`` are another function's: one that is wrong,
    which gets torch's function first, and torch's own."""

    def wrong_there(op: str, wrong: Wrong) -> Wrong:
        reference = specs.registry()[op].reference

        def call(right: Right, *args: Any, **kwargs: Any) -> Any:
            if not applies(*args, **kwargs):
                return right(*args, **kwargs)
            # Controls are called without gradients.
            with torch.enable_grad():
                return wrong(reference, *args, **kwargs)

        return call

    def torchs_there(op: str, right: Right) -> Right:
        made = wrong_there(op, lambda reference, *args, **kwargs: reference(*args, **kwargs))
        return lambda *args, **kwargs: made(right, *args, **kwargs)

    return wrong_there, torchs_there


def fake(*ops: str) -> Callable[[Any], Any]:
    """Enter the decorated function as the fake kernel of each of these ops, a defect of its own."""
    return entering(ops, "fake kernel", "fake", _planted)


def _own(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether the call returns a tensor of its own."""
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


# --- compiled calls ----------------------------------------------------------------------------------------------


def compiled_as(op: str, wrong: Wrong) -> Wrong:
    """Return torch's function, which in a graph is ``wrong`` instead; that gets torch's first."""
    reference = specs.registry()[op].reference

    def call(_right: Right, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return wrong(reference, *args, **kwargs)
        return reference(*args, **kwargs)

    return call


def compiled(*ops: str) -> Callable[[Any], Any]:
    """Enter the decorated function as what each of these ops is in a graph, a defect of its own."""
    return entering(ops, "graph", "compiled", compiled_as)


@compiled("exp", "softmax", "mm")
def reads_an_element(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a graph an element is read, which breaks it."""
    if args[0].numel() and args[0].flatten()[0].item() > 0:
        return right(*args, **kwargs)
    return right(*args, **kwargs)


@compiled("add", "layer_norm", "gelu")
def breaks(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The call is hidden from torch's compiler, so that it breaks the graph."""
    torch._dynamo.graph_break()
    return right(*args, **kwargs)


@compiled("abs", "rms_norm", "matmul")
def in_other_dtype(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a graph the result is float32."""
    result = right(*args, **kwargs)
    return result if kwargs.get("out") is not None else result.float()


@compiled("mul", "sigmoid", "bmm")
def rounds_more(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a graph results pass through bfloat16."""
    result = right(*args, **kwargs)
    return result if kwargs.get("out") is not None else result.bfloat16().to(result.dtype)


@torch.library.custom_op("ntops_selftest::undeclared", mutates_args=())
def _undeclared(out: torch.Tensor, value: torch.Tensor) -> None:
    out.copy_(value)


@_undeclared.register_fake
def _(out: torch.Tensor, value: torch.Tensor) -> None:
    return None


@compiled("sin", "addmm", "sub")
def write_undeclared(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """``out`` is written by a custom operator that does not declare it, so that the graph leaves the write out."""
    result = right(*args, **kwargs)
    if out is None:
        return result
    torch.ops.ntops_selftest.undeclared(out, result)
    return out


@compiled("relu", "silu")
def new_for_in_place(right: Right, input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
    """In a graph a call in place returns another tensor, and the operand stays as it is."""
    return right(input, *args, **kwargs)


@compiled("cos", "tanh", "neg")
def over_operand(right: Right, input: Any, **kwargs: Any) -> Any:
    """In a graph the operand is written, too."""
    result = right(input, **kwargs)
    if result.dtype == input.dtype and kwargs.get("out") is None and input.is_contiguous():
        input.copy_(result)
    return result


# --- threads -----------------------------------------------------------------------------------------------------

_BUFFERS: dict[object, torch.Tensor] = {}


@defect("add exp softmax mm", "threads", "threads")
def workspace_shared(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results are made in a buffer for each shape, which all threads share, and copied."""
    result = right(*args, **kwargs)
    if not _own(args, kwargs) or not isinstance(result, torch.Tensor) or any(result is x for x in args):
        return result
    key = result.dtype, result.shape, result.stride()
    if len(_BUFFERS) >= 64:
        _BUFFERS.clear()
    buffer = _BUFFERS.setdefault(key, torch.empty_like(result))
    buffer.copy_(result)
    return result.copy_(buffer)


_CALL: list[Any] = []


@defect("mul sigmoid layer_norm bmm", "threads", "threads")
def arguments_shared(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The arguments of a call lie in one place for all threads."""
    _CALL[:] = [args, kwargs]
    args, kwargs = _CALL
    return right(*args, **kwargs)


_BUSY: list[int] = []


@defect("sub gelu rms_norm matmul", "threads", "threads")
def refuses_at_once(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A call is refused while another one is on its way."""
    if _BUSY:
        raise RuntimeError("busy")
    _BUSY.append(1)
    try:
        return right(*args, **kwargs)
    finally:
        _BUSY.clear()
