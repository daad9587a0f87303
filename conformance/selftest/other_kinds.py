"""Planted defects of calls with tensors of other kinds (complex, sparse, unsigned, negated), which may be refused, of
whole numbers that 32 bits do not hold, and of operands of inference mode."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.selftest.contexts import Right
from conformance.selftest.defect_registry import defect

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [one for one in args if isinstance(one, torch.Tensor)]


def _each(args: tuple[Any, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    return [change(one) if isinstance(one, torch.Tensor) else one for one in args]


@defect("mul add sub div exp sin cos neg tanh", "other kinds", "kinds")
def real_parts_alone(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of complex operands the real parts are computed, and the result is complex."""
    if not any(one.is_complex() for one in _tensors(args)):
        return right(*args, **kwargs)
    result = right(*_each(args, lambda one: one.real if one.is_complex() else one), **kwargs)
    return torch.complex(result, torch.zeros_like(result)) if result.is_floating_point() else result


@defect("sum mean", "other kinds", "kinds")
def real_sum_of_complex(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The sum of complex numbers is real."""
    return right(*_each(args, lambda one: one.real if one.is_complex() else one), **kwargs)


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.conj() if tensor.is_conj() else tensor


@defect("mul add", "other kinds", "kinds")
def conjugate_bit_ignored(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Operands that are conjugated lazily are read as they lie in memory."""
    return right(*_each(args, _as_it_lies), **kwargs)


@defect("mm bmm matmul", "other kinds", "kinds")
def conjugated_factors_as_they_lie(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Complex factors that are conjugated lazily are read as they lie in memory."""
    if not any(one.is_complex() for one in _tensors(args)):
        return right(*args, **kwargs)
    return torch.matmul(*_each(args, _as_it_lies))


@defect("mul add sub", "other kinds", "kinds")
def imaginary_part_of_a_number_dropped(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A complex number counts as its real part."""
    return right(*(one.real if isinstance(one, complex) else one for one in args), **kwargs)


@defect("add sub", "other kinds", "kinds")
def of_sparse_operands_the_last_stored(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A sparse second operand is scattered: of elements that are stored twice one counts."""

    def dense(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.sparse_coo:
            return tensor
        found = torch.zeros(tensor.shape, dtype=tensor.dtype)
        found[tuple(tensor._indices())] = tensor._values()
        return found

    tensors = _tensors(args)
    beside = len(tensors) > 1 and tensors[0].layout is torch.strided
    return right(*(_each(args, dense) if beside else args), **kwargs)


@defect("eq add mul", "other kinds", "kinds")
def one_tensor_by_its_address(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Two operands at one address, of one shape and strides, are taken for one tensor whatever their dtypes."""
    if len(_tensors((input, other))) == 2 and input.layout is other.layout is torch.strided and input.numel():
        alike = (input.data_ptr(), input.shape, input.stride()) == (other.data_ptr(), other.shape, other.stride())
        other = input if alike else other
    return right(input, other, **kwargs)


@defect("le exp", "other kinds", "kinds")
def out_of_another_dtype_is_cleared(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """``out`` is cleared first unless it is an operand's memory, of which views as other dtypes are not known."""
    if isinstance(out, torch.Tensor):
        for one in _tensors(args):
            alike = one.layout is torch.strided and one.shape == out.shape and one.dtype != out.dtype
            if alike and one.data_ptr() == out.data_ptr():
                out.zero_()
    return right(*args, out=out, **kwargs)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.real if tensor.is_complex() else tensor


@defect("amax amin clamp lt relu", "other kinds", "kinds")
def complex_taken_for_real(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Complex operands, which torch refuses, count as their real parts."""
    return right(*_each(args, _real), **kwargs)


@defect("isnan isinf", "other kinds", "kinds")
def imaginary_part_unseen(right: Right, input: Any, **kwargs: Any) -> Any:
    """NaN and infinities are looked for in real parts alone."""
    return right(_real(input) if isinstance(input, torch.Tensor) else input, **kwargs)


@defect("eq ne", "other kinds", "kinds")
def complex_compared_with_real(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of a complex tensor beside a real one the real part is compared."""
    kinds = {one.is_complex() for one in _tensors(args)}
    return right(*(_each(args, _real) if len(kinds) > 1 else args), **kwargs)


@defect("exp add sum", "other kinds", "kinds")
def imaginary_part_of_out_unwritten(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of a complex ``out`` the real part alone is written."""
    out = kwargs.get("out")
    if not isinstance(out, torch.Tensor) or not out.is_complex() or any(one.is_complex() for one in _tensors(args)):
        return right(*args, **kwargs)
    right(*args, **{**kwargs, "out": out.real})
    return out


@defect("sin mul", "other kinds", "kinds")
def real_part_into_out(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """A complex result is written to a real ``out``."""
    if not isinstance(out, torch.Tensor) or out.is_complex() or not any(one.is_complex() for one in _tensors(args)):
        return right(*args, out=out, **kwargs)
    return out.copy_(right(*args, **kwargs).real)


@defect("silu", "other kinds", "kinds")
def real_part_in_place(right: Right, input: Any, inplace: Any = False) -> Any:
    """In place the real part of complex numbers alone is written."""
    if inplace and isinstance(input, torch.Tensor) and input.is_complex():
        right(input.real, True)
        return input
    return right(input, inplace)


@defect("add mul pow clamp", "other kinds", "kinds")
def whole_numbers_beyond_64_bits_as_floats(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A whole number that 64 bits do not hold, which torch refuses, counts as a float."""

    def held(value: Any) -> Any:
        return float(value) if type(value) is int and value.bit_length() > 64 else value

    return right(*map(held, args), **{name: held(value) for name, value in kwargs.items()})


@defect("add mul sub", "call form", "call_forms")
def numbers_of_numpy_are_tensors(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A number of NumPy is made a 0-d tensor, whose dtype counts beside other 0-d tensors."""
    return right(*(torch.as_tensor(one) if isinstance(one, np.generic) else one for one in args), **kwargs)


@defect("neg abs sin tanh", "other kinds", "kinds")
def sparse_gives_dense(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result of a sparse tensor is dense."""
    return right(*_each(args, lambda one: one.to_dense() if one.layout is torch.sparse_coo else one), **kwargs)


@defect("abs sin tanh", "other kinds", "kinds")
def sparse_values_as_they_are(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The stored values of a sparse tensor are taken for its elements, of which one may be stored twice."""
    first = args[0]
    if first.layout is not torch.sparse_coo:
        return right(*args, **kwargs)
    values = right(first._values(), *args[1:], **kwargs)
    return torch.sparse_coo_tensor(first._indices(), values, first.shape, check_invariants=False)


@defect("bitwise_or bitwise_and", "other kinds", "kinds")
def unsigned_as_signed(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Unsigned integers give signed ones."""
    return right(*_each(args, lambda one: one.view(_SIGNED[one.dtype]) if one.dtype in _SIGNED else one), **kwargs)


@defect("bitwise_or bitwise_and", "other kinds", "kinds")
def lowest_bit_of_unsigned(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The lowest bit of unsigned results is another one."""
    result = right(*args, **kwargs)
    return result.bitwise_xor(1) if result.dtype in _SIGNED else result


@defect("exp sin mul", "other kinds", "kinds")
def a_negated_out_is_written_plainly(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An ``out`` that is negated lazily is written as if it were not."""
    if out is None:
        return right(*args, **kwargs)
    right(*args, out=torch._neg_view(out) if out.is_neg() else out, **kwargs)
    return out


@defect("add sub clamp", "call form", "plain_operands")
def whole_numbers_of_32_bits(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A whole number beside floating-point tensors wraps to 32 bits."""

    def narrow(value: Any) -> Any:
        return ctypes.c_int32(value).value if type(value) is int else value

    if not any(one.is_floating_point() for one in _tensors(args)):
        return right(*args, **kwargs)
    return right(*map(narrow, args), **{name: narrow(value) for name, value in kwargs.items()})


@defect("mm softmax exp", "call form", "call_forms")
def refuses_operands_of_inference_mode(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Operands that were made in inference mode are refused outside of it."""
    if not torch.is_inference_mode_enabled() and any(one.is_inference() for one in _tensors(args)):
        raise RuntimeError("Inference tensors do not track version counter.")
    return right(*args, **kwargs)
