"""Make a call with tensors of another kind: complex, sparse, unsigned, quantized, in oneDNN's layout, of a subclass, on
the meta device, or an operand's memory as another dtype, or one row of it; into an ``out`` that is negated lazily; or
with such numbers.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode

KIND = "another kind of tensors"
COMPLEX, CONJUGATED, UNSIGNED, META = "complex", "complex, conjugated lazily", "unsigned", "meta"
SPARSE, SPARSE_SECOND = "sparse", "the second operand sparse"
QUANTIZED, MKLDNN = "quantized", "in oneDNN's layout"
COMPLEX_NUMBER, BEYOND = "with a complex number", "with a whole number beyond 64 bits"
MIXED, SPECIAL = "one operand complex", "complex, with NaN and infinities as imaginary parts"
INTO_COMPLEX, INTO_REAL, IN_PLACE = "into a complex out=", "complex, into a real out=", "complex, in place"
VIEWED = "the second operand a view of the first as another dtype"
INTO_VIEW = "out= a view of an operand as another dtype"
SUBCLASS, INTO_NEGATED = "of a subclass of Tensor", "into an out= that is negated lazily"
REAL, ROW = "the real parts of complex tensors", "the second operand the first row of the first, for every row"
COMPLEX_OPERANDS = (COMPLEX, CONJUGATED, MIXED, SPECIAL, INTO_REAL, IN_PLACE)
OF_COMPLEX = (*COMPLEX_OPERANDS, COMPLEX_NUMBER, INTO_COMPLEX)
"""The kinds of which complex tensors or numbers are part."""
ALL = (*OF_COMPLEX, BEYOND, SPARSE, SPARSE_SECOND, UNSIGNED, VIEWED, INTO_VIEW, SUBCLASS, INTO_NEGATED, META, REAL, ROW)
ALL += (QUANTIZED, MKLDNN)
REFUSED = (*OF_COMPLEX, BEYOND)
"""The kinds of which nobody takes what torch refuses: of complex ones a real result has lost something."""
_NUMBERS = {
    COMPLEX_NUMBER: lambda number: complex(number, 0.5),
    BEYOND: lambda number: -(1 << 70) if number < 0 else 1 << 70,
}
_UNSIGNED = {torch.int16: torch.uint16, torch.int32: torch.uint32, torch.int64: torch.uint64}
_OTHERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.int8: torch.uint8,
    torch.uint8: torch.int8,
    torch.bool: torch.uint8,
}
"""The dtype as which the memory of an operand is the second one. Not of integers as floating-point numbers: most are
subnormal or NaN."""
_SPARSE = {SPARSE: 0, SPARSE_SECOND: 1}
"""The operand that is sparse."""
_WITH_COMPLEX = (torch.float32, torch.float64)


class Subclass(torch.Tensor):
    """A tensor of the user's own class: what torch's functions return for it is of that class, too."""


def applies(which, tensors, numbers):
    """Tell whether a call can be made with tensors of this kind, or numbers.

    :param numbers: The Python numbers among the arguments.
    """
    if which in COMPLEX_OPERANDS:
        return any(one.dtype in _WITH_COMPLEX for one in tensors) and (which != MIXED or len(tensors) > 1)
    if which in _NUMBERS:
        return any(type(one) is float for one in numbers)
    if which == UNSIGNED:
        return any(one.dtype in _UNSIGNED for one in tensors)
    if which in (QUANTIZED, MKLDNN):
        return all(one.dtype == torch.float32 and one.numel() for one in tensors)
    if which == REAL:
        return any(one.dtype in _WITH_COMPLEX for one in tensors)
    if which in (VIEWED, ROW) and (len(tensors) < 2 or tensors[0].shape != tensors[1].shape):
        return False
    if which == VIEWED:
        return tensors[0].dtype in _OTHERS
    if which == ROW:
        return tensors[0].ndim > 1 and tensors[0].dtype == tensors[1].dtype
    place = _SPARSE.get(which, 0)
    if len(tensors) <= place:
        return False
    if which in (META, SUBCLASS, INTO_COMPLEX, INTO_VIEW, INTO_NEGATED):
        return True
    # The sum of two bools is no negated one.
    return tensors[place].ndim > 0 and tensors[place].dtype != torch.bool


class _WithoutAddresses(TorchFunctionMode):
    """Refuses to tell where tensors lie: a kernel that is launched on memory that is not there, or is of another dtype,
    ends the process."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.data_ptr, torch.Tensor.untyped_storage, torch.Tensor.storage):
            raise NotImplementedError("memory of such a tensor has no address")
        return func(*args, **(kwargs or {}))


def _of_kind(function, tools, which, turn=0, out=None, hidden=False):
    """Make the call with tensors of the kind ``which``. Return two tensors for each result: its kind as the bytes of a
    text, and its elements: complex ones as pairs of real numbers, those of a sparse tensor as dense; of a meta tensor
    the text again.

    :param turn: The operand that alone is complex, counted round and round among those that can be.
    :param out: The shape and the dtype of an ``out``, if one is given.
    :param hidden: Whether nobody tells where tensors lie.
    """

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        able = [place for place, one in enumerate(given) if one.dtype in _WITH_COMPLEX]
        chosen = able[turn % len(able) :][:1] if which == MIXED else able
        new = [
            _complex(one, [*given[:place], *given[place + 1 :]], which)
            if which in COMPLEX_OPERANDS and place in chosen
            else _changed(which, one, place)
            for place, one in enumerate(given)
        ]
        if which == VIEWED:
            new[1] = given[0].view(_OTHERS[given[0].dtype])
        if which == ROW:
            new[1] = given[0][:1].expand_as(given[0])
        args, kwargs = tools.replaced(args, kwargs, given, new)
        if number := _NUMBERS.get(which):
            args = [number(one) if type(one) is float else one for one in args]
            kwargs = {name: number(one) if type(one) is float else one for name, one in kwargs.items()}
        if which == IN_PLACE:
            kwargs = {**kwargs, "inplace": True}
        if out is not None and which == INTO_VIEW:
            kwargs = {**kwargs, "out": given[viewable(given, *out)[0]].view(getattr(torch, out[1]))}
        elif out is not None:
            # Any part that is not written shows.
            shape, dtype = out[0], getattr(torch, out[1])
            filling = complex(7, 7) if dtype.is_complex else 7
            full = torch.full(shape, filling, dtype=dtype, device=given[0].device)
            kwargs = {**kwargs, "out": torch._neg_view(full) if which == INTO_NEGATED else full}
        with _WithoutAddresses() if hidden else contextlib.nullcontext():
            value = function(*args, **kwargs)
        results = value if isinstance(value, tuple | list) else (value,)
        return tuple(part for one in results for part in _as_plain_tensors(one, which == SUBCLASS))

    return call


def viewable(tensors, shape, dtype):
    """Return the numbers of the tensors of another dtype of which an ``out`` of this shape and dtype can be a view."""
    dtype = getattr(torch, dtype)
    alike = [one.itemsize == dtype.itemsize and one.dtype != dtype and list(one.shape) == shape for one in tensors]
    return [number for number, is_so in enumerate(alike) if is_so]


def _complex(tensor, others, which):
    """Return a complex tensor with the elements of a real one as real parts, but for every other one, which is that of
    another operand where that fits: numbers that differ in their imaginary parts alone. The parts differ, so that a
    lost or swapped one shows, and some imaginary ones are 0."""
    real, imaginary = tensor.flatten().clone(), tensor.flatten().flip(0) * 0.5 + 0.25
    for other in others[:1]:
        # Of the smaller one of two that broadcast, it is that of the larger one's first part.
        alike = other.detach().flatten()[: len(real)].to(tensor.dtype)
        with contextlib.suppress(RuntimeError):
            alike = other.detach().broadcast_to(tensor.shape).flatten().to(tensor.dtype)
        if len(alike) == len(real):
            real[::2] = alike[::2]
    imaginary[1::3] = 0
    if which == SPECIAL:
        rare = torch.tensor([float("nan"), float("inf"), float("-inf")], dtype=tensor.dtype, device=tensor.device)
        count = len(imaginary[:3])
        imaginary[:count], real[:count] = rare[:count], 1
    parts = real.view(tensor.shape), imaginary.view(tensor.shape)
    return torch.complex(parts[0], -parts[1]).conj() if which == CONJUGATED else torch.complex(*parts)


def _changed(which, tensor, place):
    if _SPARSE.get(which) == place:
        found = tensor.detach().to_sparse()
        # An element that is there twice counts as the sum, which no kernel of the stored values alone knows.
        twice = torch.cat([found.indices(), found.indices()], 1), torch.cat([found.values() * 2, -found.values()])
        return torch.sparse_coo_tensor(*twice, found.shape, check_invariants=False)
    if which == UNSIGNED and tensor.dtype in _UNSIGNED:
        return tensor.to(_UNSIGNED[tensor.dtype])
    if which == REAL and tensor.dtype in _WITH_COMPLEX:
        return torch.complex(tensor, tensor * 0.5 + 0.25).real
    if which == QUANTIZED:
        # The whole numbers that are stored are others than the elements.
        return torch.quantize_per_tensor(tensor.detach(), 0.125, 100, torch.quint8)
    if which == MKLDNN:
        return tensor.detach().to_mkldnn()
    if which == SUBCLASS:
        return tensor.as_subclass(Subclass)
    return tensor.to("meta") if which == META else tensor


def described(tensor, is_meta):
    """Return in words what kind a tensor is of."""
    return f"{tensor.dtype}, {tensor.layout}, {'meta' if is_meta else 'with elements'}, {list(tensor.shape)}"


def _as_plain_tensors(result, by_class):
    """Return what kind a result is of, as numbers, and its elements.

    :param by_class: Whether the class is part of the kind.
    """
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"returned {type(result).__name__} and no tensor")
    words = described(result, result.device.type == "meta")
    if by_class:
        words, result = f"{type(result).__name__}, {words}", result.as_subclass(torch.Tensor)
    said = torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8)
    if result.device.type == "meta":
        return said, said
    plain = result.detach().dequantize() if result.is_quantized else result.detach()
    plain = plain.to_dense() if plain.layout is not torch.strided else plain.resolve_neg()
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    signed = {unsigned: one for one, unsigned in _UNSIGNED.items()}
    # Other parts of the harness know signed integers alone; the bits are the same.
    return said, (plain.view(signed[plain.dtype]) if plain.dtype in signed else plain).clone()


KINDS = {KIND: _of_kind}
"""As ``dispatcher_calls.KINDS``."""
