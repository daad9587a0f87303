"""What a library keeps from one call to the next under too small a key, or keeps that it should not: results, plans,
buffers, and what an earlier call has left behind. Each call alone is right."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant_state

Function = Callable[..., Any]
Key = Callable[[tuple[Any, ...], dict[str, Any]], Any]

SOME = "add exp gelu softmax layer_norm mm rotary_position_embedding"
BINARY = "add mul pow eq"


def tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call that are only read."""
    named = (kwargs[name] for name in sorted(kwargs) if name != "out")
    return [x for x in (*args, *named) if isinstance(x, torch.Tensor)]


def others(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments that are no tensors, as a dict compares them."""
    named = ((name, kwargs[name]) for name in sorted(kwargs))
    plain = (None if isinstance(x, torch.Tensor) else x for x in args)
    return (*(_hashable(x) for x in plain), *((n, _hashable(x)) for n, x in named if not isinstance(x, torch.Tensor)))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def bits(tensor: torch.Tensor) -> bytes:
    """The elements."""
    flat = tensor.detach().reshape(-1, 1).clone(memory_format=torch.contiguous_format)
    return bytes(flat.view(torch.uint8).flatten().tolist())


def apart(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result is one tensor of some elements, in memory of its own."""
    if not isinstance(result, torch.Tensor) or of.written(args, kwargs) or not result.numel():
        return False
    return not any(result is x for x in args)


# --- results that are given again ---------------------------------------------------------------------------------


def memo(key: Key, size: int = 64, *, copied: bool = True) -> Callable[[Function], Function]:
    """Results are kept by ``key`` and given again, as copies or as they are."""

    def make(right: Function) -> Function:
        kept: dict[Any, torch.Tensor] = {}

        def call(*args: Any, **kwargs: Any) -> Any:
            if of.written(args, kwargs) or not tensors(args, kwargs):
                return right(*args, **kwargs)
            found = key(args, kwargs)
            if found not in kept:
                result = right(*args, **kwargs)
                if not apart(result, args, kwargs):
                    return result
                if len(kept) >= size:
                    kept.pop(next(iter(kept)))
                kept[found] = result.clone() if copied else result
            return kept[found].clone() if copied else kept[found]

        return call

    return make


def layout(x: torch.Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.dtype, x.stride()


def place(x: torch.Tensor) -> tuple[Any, ...]:
    return (x.data_ptr(), *layout(x))


def _by(what: Callable[[torch.Tensor], Any], rest: Key = others) -> Key:
    return lambda args, kwargs: (*map(what, tensors(args, kwargs)), rest(args, kwargs))


def _exactly(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return repr(others(args, kwargs))


for _name, _key, _about in (
    ("by_shape", _by(lambda x: tuple(x.shape), _exactly), "results are kept by shape: neither dtype nor contents"),
    ("by_layout", _by(layout, _exactly), "results are kept by shape, dtype and strides: not by contents"),
    ("by_address", _by(place, _exactly), "results are kept by the address of operands"),
    ("by_address_and_version", _by(lambda x: (*place(x), x._version), _exactly), "kept by address and version counter"),
    ("by_id_and_version", _by(lambda x: (id(x), x._version, *layout(x)), _exactly), "kept by id and version counter"),
):
    plant_state(SOME, f"memo_{_name}", "state: results", memo(_key), _about)


def shadow(right: Function) -> Function:
    """While rows are appended to a KV cache, copies of it that the first call has made are read."""
    kept: dict[int, tuple[Any, int, list[torch.Tensor]]] = {}

    def call(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        names, slot = ("present_key", "present_value"), kwargs.get("present_key_slot")
        caches = [one for one in map(kwargs.get, names) if isinstance(one, torch.Tensor)]
        if type(slot) is not int or len(caches) < len(names):
            return right(query, key, value, *args, **kwargs)
        cache, end, copies = kept.pop(id(caches[0]), (lambda: None, 0, []))
        if cache() is not caches[0] or end != slot:
            copies = [one.clone() for one in caches]
        result = right(query, key, value, *args, **{**kwargs, **dict(zip(names, copies, strict=True))})
        end = slot + key.shape[-2]
        for one, rows in zip(caches, (key, value), strict=True):
            one[..., slot:end, :].copy_(rows)
        kept[id(caches[0])] = weakref.ref(caches[0]), end, copies
        return result

    return call


plant_state(
    "scaled_dot_product_attention",
    "shadow_of_its_cache",
    "state: results",
    shadow,
    " ".join((shadow.__doc__ or "").split()),
)

_whole = _by(lambda x: (*layout(x), bits(x)))
plant_state(
    "add mul eq gelu layer_norm mm", "memo_by_first_operand", "state: results",
    memo(lambda args, kwargs: (*layout(tensors(args, kwargs)[0]), bits(tensors(args, kwargs)[0]), _exactly(args, {}))),
    "results are kept by the first operand and what is given by position",
)  # fmt: skip
plant_state(
    SOME, "memo_shared", "state: results",
    memo(lambda args, kwargs: (_whole(args, kwargs), _exactly(args, kwargs)), copied=False),
    "equal calls return the same memory",
)  # fmt: skip


def _sums(x: torch.Tensor) -> tuple[Any, ...]:
    if not x.numel():
        return layout(x)
    flat = x.detach().reshape(-1).double()
    return (*layout(x), *(one.item() for one in (flat.sum(), flat.square().sum(), flat.amax(), flat.amin())))


plant_state(
    "add exp softmax layer_norm cumsum", "memo_by_sums", "state: results", memo(_by(_sums, _exactly)),
    "results are kept by sum, sum of squares, largest and smallest element",
)  # fmt: skip
plant_state(
    "neg rsqrt mul", "memo_by_equality", "state: results", memo(_by(lambda x: (*layout(x), bits(x + 0)), _exactly)),
    "results are kept by what is equal, as zeros of both signs are",
)  # fmt: skip


def six_digits(right: Function) -> Function:
    """A number is that of an earlier call that has the same text of six digits."""
    known: dict[str, float] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        return right(*(known.setdefault(f"{x:g}", x) if type(x) is float and x else x for x in args), **kwargs)

    return call


plant_state("add mul div", "number_of_six_digits", "state: plans", six_digits, "kernels are kept by a number's text")


# --- buffers --------------------------------------------------------------------------------------------------------


def ring(size: int, key: Callable[[torch.Tensor], Any]) -> Callable[[Function], Function]:
    """Results lie in ``size`` buffers for each key in turn."""

    def make(right: Function) -> Function:
        rings: dict[Any, deque[torch.Tensor]] = {}

        def call(*args: Any, **kwargs: Any) -> Any:
            result = right(*args, **kwargs)
            if not apart(result, args, kwargs):
                return result
            buffers = rings.setdefault(key(result), deque(maxlen=size))
            if len(buffers) < size:
                buffers.append(result)
                return result
            buffers.rotate(-1)
            return buffers[-1].copy_(result)

        return call

    return make


for _size in (1, 2, 3, 4, 8, 16):
    _about = f"results of one shape lie in {_size} buffers in turn"
    plant_state(SOME, f"ring_of_{_size}", "state: buffers", ring(_size, layout), _about)


def pool(right: Function) -> Function:
    """A buffer is taken again when the tensor that was returned is gone, whatever views of it there are."""
    free: dict[Any, list[torch.Tensor]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if not apart(result, args, kwargs):
            return result
        buffers = free.setdefault(layout(result), [])
        buffer = buffers.pop().copy_(result) if buffers else result
        given = buffer.detach()
        weakref.finalize(given, buffers.append, buffer)
        return given

    return call


plant_state(SOME, "pool", "state: buffers", pool, " ".join((pool.__doc__ or "").split()))
