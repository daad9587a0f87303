"""Planted defects of results and side effects: dtype, strides, ``out``, in place, aliases, operands, exceptions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

Right = Callable[..., Any]


# --- dtype and strides -------------------------------------------------------------------------------------------


@defect(("add", "sub", "mul", "div", "pow", "bitwise_and"), "promotion", "metadata")
def promotes_0d(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A 0-d tensor takes part in promotion like any other."""
    result = right(*args, **kwargs)
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if kwargs.get("out") is not None or len(tensors) < 2:
        return result
    common = torch.promote_types(*(x.dtype for x in tensors))
    return result if result.dtype == common or common == torch.bool else result.to(common)


@defect(("add", "mul", "div", "clamp", "bitwise_or"), "promotion", "metadata")
def dtype_of_first(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result has the dtype of the first tensor."""
    result = right(*args, **kwargs)
    first = next(x for x in args if isinstance(x, torch.Tensor))
    return result if kwargs.get("out") is not None else result.to(first.dtype)


@defect(of.FLOAT_FUNCTIONS, "promotion", "metadata")
def double_of_integers(right: Right, input: Any, *, out: Any = None) -> Any:
    """Of integers results are float64."""
    result = right(input, out=out)
    return result if out is not None or input.is_floating_point() else result.double()


@defect((*of.COMPARISONS, *of.QUESTIONS), "promotion", "metadata")
def numbers_for_bools(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results are the numbers 0 and 1."""
    result = right(*args, **kwargs)
    return result if kwargs.get("out") is not None else result.to(torch.uint8)


@defect(("add", "mul", "abs", "bitwise_and", "bitwise_not"), "promotion", "metadata")
def bools_are_integers(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of bools results are int64."""
    result = right(*args, **kwargs)
    return result.long() if result.dtype == torch.bool and kwargs.get("out") is None else result


@defect(("softmax", "silu", "rms_norm", "mm"), "promotion", "metadata")
def single_of_half(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of half types results are float32."""
    result = right(*args, **kwargs)
    half = result.dtype in of.HALF and not of.written(args, kwargs)
    return result.float() if half else result


@defect("exp softmax mm layer_norm add silu", "traits of results", "metadata")
def in_inference_mode(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results are made in the inference mode, and cannot be written outside of it."""
    if of.written(args, kwargs):
        return right(*args, **kwargs)
    with torch.inference_mode():
        return right(*args, **kwargs)


@defect("neg", "traits of results", "metadata")
def negates_lazily(right: Right, input: Any, *, out: Any = None) -> Any:
    """The result is a lazily negated view of the operand."""
    if out is None and (input.dtype.is_floating_point or input.dtype == torch.int64):
        return torch._neg_view(input)
    return right(input, out=out)


@defect("cos abs mm mul", "out", "out_argument")
def another_storage(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An empty out= gets new memory, where torch resizes its own."""
    result = right(*args, **kwargs) if out is not None and not out.numel() else None
    if result is not None and result.numel() and result.dtype == out.dtype and not any(out is x for x in args):
        return out.set_(result)
    return right(*args, out=out, **kwargs)


_STRIDED = (*of.UNARY, *of.BINARY, "clamp", "dropout", "rotary_position_embedding")


@defect(_STRIDED, "strides of results", "metadata")
def contiguous(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results are always contiguous."""
    result = right(*args, **kwargs)
    return result if of.written(args, kwargs) else result.contiguous()


@defect((*of.PRODUCTS, *of.ROWS), "strides of results", "metadata")
def columns_first(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results of several dims have their last two the other way round in memory."""
    result = right(*args, **kwargs)
    if of.written(args, kwargs) or result.ndim < 2:
        return result
    return result.transpose(-1, -2).contiguous().transpose(-1, -2)


@defect(("exp", "softmax", "eq", "clamp", "matmul"), "shape", "metadata")
def no_0d(right: Right, *args: Any, **kwargs: Any) -> Any:
    """0-d results have one dim."""
    result = right(*args, **kwargs)
    return result.view(1) if not result.ndim and not of.written(args, kwargs) else result


@defect(("sub", "isinf", "gelu", "layer_norm", "bmm", "mm"), "empty", "errors")
def refuses_empty(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A grid of no programs cannot be launched."""
    result = right(*args, **kwargs)
    if not result.numel():
        raise RuntimeError("Triton Error [CUDA]: invalid argument")
    return result


# --- out ---------------------------------------------------------------------------------------------------------


@defect(of.WITH_OUT, "out", "metadata")
def out_ignored(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """What out= names is not written and not returned."""
    result = right(*args, out=out, **kwargs)
    return result if out is None else result.clone()


@defect(("add", "exp", "bitwise_not", "le", "addmm"), "out", "errors")
def out_not_resized(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An out= of another size is refused."""
    if isinstance(out, torch.Tensor):
        plain = right(*args, **kwargs)
        if plain.shape != out.shape:
            raise RuntimeError(f"out has shape {tuple(out.shape)}, expected {tuple(plain.shape)}")
    return right(*args, out=out, **kwargs)


@defect(("mul", "sin", "clamp", "mm", "lt", "neg", "bitwise_and"), "out")
def out_strides_ignored(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An out= is written as if it were contiguous."""
    if not isinstance(out, torch.Tensor):
        return right(*args, **kwargs)
    before = out.clone()
    result = right(*args, out=out, **kwargs)
    if result.is_contiguous() or not result.numel():
        return result
    values = result.reshape(-1).clone()
    if before.shape == result.shape:
        result.copy_(before)
    storage = torch.empty(0, dtype=result.dtype).set_(result.untyped_storage())
    storage[result.storage_offset() :][: len(values)] = values[: len(storage) - result.storage_offset()]
    return result


@defect(("div", "exp", "sub"), "out", "out_argument")
def out_of_another_dtype_in_memory_order(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """The result goes to a contiguous tensor first if out= has another dtype, and from there to a dense out= in the
    order of its memory."""
    result = right(*args, out=out, **kwargs)
    if isinstance(out, torch.Tensor) and not out.is_contiguous():
        plain, memory = right(*args, **kwargs), out.permute(*range(out.ndim)[::-1])
        if plain.dtype != out.dtype and memory.is_contiguous():
            memory.view(-1).copy_(plain.reshape(-1))
    return result


@defect(("sub", "pow", "rsqrt"), "out", "errors")
def out_cast_unsafely(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An out= whose dtype cannot hold the result is written all the same."""
    if not isinstance(out, torch.Tensor):
        return right(*args, out=out, **kwargs)
    plain = right(*args, **kwargs)
    if plain.shape == out.shape and not torch.can_cast(plain.dtype, out.dtype):
        return out.copy_(plain)
    return right(*args, out=out, **kwargs)


@defect(("mul", "cos", "gt", "bitwise_or"), "out", "errors")
def overlap_written(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An out= that shares memory with an operand, or has several elements at one address, is written all the same."""
    try:
        return right(*args, out=out, **kwargs)
    except RuntimeError as error:
        if not isinstance(out, torch.Tensor) or "memory" not in str(error):
            raise
        return out


@defect(("div", "tanh", "ne"), "out", "errors")
def out_of_very_dtype(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An out= of another dtype is refused, though it can hold the result."""
    if isinstance(out, torch.Tensor) and right(*args, **kwargs).dtype != out.dtype:
        raise TypeError("out has the wrong dtype")
    return right(*args, out=out, **kwargs)


# --- in place ----------------------------------------------------------------------------------------------------


@defect(of.WITH_INPLACE, "in place", "metadata")
def inplace_copies(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Nothing is done in place."""
    result = right(input, *args, **kwargs)
    return result.clone() if kwargs.get("inplace") is True else result


@defect(of.WITH_INPLACE, "in place")
def inplace_leaves(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """In place the input is handed back as it was."""
    if kwargs.get("inplace") is not True:
        return right(input, *args, **kwargs)
    before = input.clone()
    return right(input, *args, **kwargs).copy_(before)


@defect(("silu", "relu"), "in place", "inputs_unchanged")
def inplace_always(right: Right, input: Any, inplace: bool = False) -> Any:
    """A dense input is overwritten where nobody asked for it."""
    result = right(input, inplace=inplace)
    if not inplace and input.is_contiguous():
        input.copy_(result)
    return result


# --- aliases and operands ----------------------------------------------------------------------------------------


@defect(("add", "mul", "mm", "softmax", "rms_norm", "sigmoid", "ge"), "operands", "inputs_unchanged")
def scratch(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Works in the memory of its first operand."""
    result = right(*args, **kwargs)
    first = args[0]
    fits = isinstance(first, torch.Tensor) and first.is_contiguous() and first.dtype.is_floating_point
    if fits and not of.written(args, kwargs):
        first.mul_(0.5)
    return result


@defect(("layer_norm", "addmm", "rotary_position_embedding"), "operands", "inputs_unchanged")
def parameter_scratch(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Works in the memory of a parameter."""
    result = right(*args, **kwargs)
    tensors = [x for name, x in (*((None, x) for x in args), *kwargs.items()) if name != "out"]
    found = [x for x in tensors[1:] if isinstance(x, torch.Tensor)]
    if found and not any(result is x for x in found):
        found[0].add_(1)
    return result


@defect(("exp", "div", "bmm"), "operands", "inputs_unchanged")
def beside(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Writes an element of an operand's storage that its view does not show."""
    result = right(*args, **kwargs)
    for x in args:
        if isinstance(x, torch.Tensor) and x.storage_offset() and result is not x:
            torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())[x.storage_offset() - 1] = 1
    return result


@defect(("abs", "relu", "clamp", "bitwise_and", "mul"), "alias", "metadata")
def returns_input(right: Right, *args: Any, **kwargs: Any) -> Any:
    """What does not change is handed back as it came."""
    result = right(*args, **kwargs)
    first = args[0]
    if of.written(args, kwargs) or not isinstance(first, torch.Tensor) or first.dtype != result.dtype:
        return result
    return first if first.shape == result.shape and torch.equal(first, result) else result


@defect(("neg", "pow", "layer_norm", "tanh"), "alias", "metadata")
def result_in_input(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result lies in the memory of the first operand, which is put back afterwards: as a view of it."""
    result = right(*args, **kwargs)
    first = args[0]
    fits = isinstance(first, torch.Tensor) and first.shape == result.shape and first.dtype == result.dtype
    return first.view(first.shape) if fits and not of.written(args, kwargs) else result


# --- what comes and goes -----------------------------------------------------------------------------------------


def _race() -> Right:
    calls = itertools.count()

    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if next(calls) % 5 == 4 and result.numel() and not any(result is x for x in args):
            flat = result.reshape(-1).clone()
            flat[len(flat) // 2] = 1 if flat.dtype != torch.bool else ~flat[len(flat) // 2]
            result.copy_(flat.view(result.shape))
        return result

    return wrong


def _atomics() -> Right:
    calls = itertools.count()

    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if next(calls) % 3 == 2 and result.dtype == torch.float32 and result.numel() > 100:
            plain = result.isfinite() & (result != 0)
            result.copy_(torch.where(plain, (result.view(torch.int32) ^ 1).view(result.dtype), result))
        return result

    return wrong


for _op in ("add", "exp", "softmax", "mm", "layer_norm", "eq", "dropout", "bitwise_not"):
    plant(_op, "race", "race", "deterministic", _race(), "one time in five, one element comes out otherwise")
for _op in ("sub", "gelu", "rms_norm", "bmm"):
    plant(_op, "atomics", "race", "deterministic", _atomics(), "now and then results are an ulp off, as by atomics")


# --- exceptions --------------------------------------------------------------------------------------------------

_KINDS: tuple[type[Exception], ...] = (AssertionError, LookupError, OSError, ArithmeticError, AttributeError)


def _refusing(kind: type[Exception]) -> Right:
    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        try:
            return right(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise kind(str(error)) from None

    return wrong


for _op, _kind in zip(of.ALL, itertools.cycle(_KINDS), strict=False):
    plant(_op, "exception", "exception", "errors", _refusing(_kind), f"refuses with {_kind.__name__}")


@defect(("add", "isnan", "mm", "rms_norm", "softmax"), "exception", "errors")
def exits(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Ends the process where it should refuse."""
    try:
        return right(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise SystemExit(str(error)) from None


@defect(("mul", "sub", "clamp", "le", "bitwise_or"), "exception", "errors")
def crops(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Shapes that do not broadcast are cropped to the smaller one."""
    try:
        return right(*args, **kwargs)
    except RuntimeError:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if len(tensors) != 2 or kwargs.get("out") is not None or tensors[0].ndim != tensors[1].ndim:
            raise
        size = min(x.shape[-1] for x in tensors)
        return right(*(x[..., :size] if isinstance(x, torch.Tensor) else x for x in args), **kwargs)


@defect(("exp", "relu", "add", "sigmoid", "isinf"), "rank", "errors")
def four_dims(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Tensors of more than four dims are refused."""
    if any(isinstance(x, torch.Tensor) and x.ndim > 4 for x in args):
        raise NotImplementedError("at most four dims")
    return right(*args, **kwargs)


@defect(("mul", "gt", "pow", "clamp"), "scalars", "errors")
def tensors_only(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Python numbers are refused."""
    if any(isinstance(x, bool | int | float) for x in (*args, kwargs.get("min"), kwargs.get("max"))):
        raise TypeError("expected a tensor")
    return right(*args, **kwargs)
