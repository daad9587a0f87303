"""Tensor arguments: strategies that draw TensorSpecs, and the tensors that the specs stand for."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st

from strategies import dtypes as _dtypes
from strategies import layouts as _layouts
from strategies import shapes as _shapes
from strategies import stored as _stored
from strategies import values as _values
from strategies.specs import Layout, Special, TensorSpec

SEEDS = st.integers(0, 255)

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def materialize(spec: TensorSpec, operand: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """The tensor of a spec, strided in its storage as its layout says, with bits that depend on nothing but the
    spec and ``operand`` (the number of the argument: equal specs of two arguments have different elements).

    Expanded dims hold the elements of the same spec with size 1 there. Storage outside the view is filled with NaN
    (integers: 0xA5 bytes, bool: True). Made on the CPU, then moved as it lies.
    """
    form = _dtypes.format_of(spec.dtype)
    layout, signed = spec.layout, _SIGNED[form.bits // 8]
    strides = _layouts.strides(layout, spec.shape)
    stored = tuple(1 if dim in layout.expanded else size for dim, size in enumerate(spec.shape))
    elements = torch.from_numpy(_elements(spec, stored, operand).view(f"i{form.bits // 8}"))

    # Neither NumPy's memory nor a view of another tensor: it may be resized as ``out`` and written like a fresh one.
    base = torch.empty(_layouts.storage_size(layout, spec.shape), dtype=_dtypes.to_torch(spec.dtype))
    if base.numel() > elements.numel():
        base.view(signed).fill_(int(np.array(_values.filler_bits(form), form.carrier).view(f"i{form.bits // 8}")))
    if _layouts.overlaps(layout):
        # Of elements at one address one would be left, and which one is not said.
        base.view(signed)[layout.offset :] = torch.from_numpy(np.resize(elements.numpy(), len(base) - layout.offset))
    else:
        base.view(signed).as_strided(stored, strides, layout.offset).copy_(elements.view(stored))
    base = base.to(device)
    result = torch.empty(0, dtype=base.dtype, device=device)
    return result.set_(base.untyped_storage(), layout.offset, spec.shape, strides)


def _elements(spec: TensorSpec, stored: tuple[int, ...], operand: int) -> np.ndarray:
    """The bits of a spec's elements, specials planted, row-major, for the sizes that are stored (1 where expanded)."""
    out = np.empty(math.prod(stored), _dtypes.format_of(spec.dtype).carrier)
    if spec.values.startswith(_values.STORED):
        out[:] = np.resize(_from_file(spec), out.size)
    else:
        _values.fill(out, spec.values, spec.dtype, stored, spec.seed, operand)
    total = math.prod(spec.shape)
    for special in spec.specials if total else ():
        first = special.index % total
        places = np.arange(first, min(first + special.run, total))
        if stored != spec.shape:
            logical = np.unravel_index(places, spec.shape)
            kept = tuple(where if size > 1 else where * 0 for where, size in zip(logical, stored, strict=True))
            places = np.ravel_multi_index(kept, stored)
        out[places] = _values.special_bits(special.value, spec.dtype)
    return out


def check_file(spec: TensorSpec) -> None:
    """Raise StoredError unless the elements of a spec, if they are in a file, are there, as many and of its dtype."""
    if not spec.values.startswith(_values.STORED):
        return
    stored = tuple(1 if dim in spec.layout.expanded else size for dim, size in enumerate(spec.shape))
    found = _in_file(spec, math.prod(stored) * _dtypes.format_of(spec.dtype).bits // 8)
    if (tuple(found.shape), found.dtype) != (stored, _dtypes.to_torch(spec.dtype)):
        told = f"{_dtypes.from_torch(found.dtype)}{list(found.shape)}, and not {spec.dtype}{list(stored)}"
        raise _stored.StoredError(f"the file of {spec.values} holds {told}")


def _in_file(spec: TensorSpec, most: int | None = None) -> torch.Tensor:
    wanted = spec.values.removeprefix(_values.STORED)
    tensor = _stored.read(wanted, most)
    if (found := digest(tensor)) != wanted:
        raise _stored.StoredError(f"{_stored.find(wanted)} holds other elements: their digest is {found}")
    return tensor


def _from_file(spec: TensorSpec) -> np.ndarray:
    """The bits of elements that a file holds; of a spec that follows from another one, converted to its dtype.

    Raises StoredError: there is no such file, or it holds others."""
    form, tensor = _dtypes.format_of(spec.dtype), _in_file(spec)
    if tensor.dtype != _dtypes.to_torch(spec.dtype):
        tensor = tensor.to(_dtypes.to_torch(spec.dtype))
    return tensor.view(_SIGNED[form.bits // 8]).reshape(-1).numpy().view(form.carrier)


def keep(elements: torch.Tensor, strides: Sequence[int], offset: int, folder: Path) -> TensorSpec:
    """The spec of a tensor whose elements are these, and are saved to a file in ``folder``.

    Its layout is that of the strides and the offset into its storage, where there is one that has them
    (``layouts.with_strides``), and contiguous elsewhere. Raises StoredError: there is no safetensors.
    """
    shape, dtype = tuple(elements.shape), _dtypes.from_torch(elements.dtype)
    # So far into its storage that it is aligned as it was.
    layout = _layouts.with_strides(shape, tuple(strides), offset % _ALIGNED)
    if layout is None or _layouts.storage_size(layout, shape) > _SPREAD * math.prod(shape) + _ALIGNED:
        layout = Layout()
    for dim in layout.expanded:
        elements = elements.narrow(dim, 0, 1)
    elements = elements.detach().cpu().contiguous()
    identity = digest(elements)
    _stored.write(identity, elements, folder)
    return TensorSpec(shape, dtype, f"{_values.STORED}{identity}", layout=layout)


_ALIGNED, _SPREAD = 16, 4
"""Elements of storage before a tensor, and elements of storage for each of its own, that a saved tensor may have."""


def digest(tensor: torch.Tensor) -> str:
    """16 hex digits of SHA-256 over dtype, shape and the elements' little-endian bytes in row-major order.

    It does not depend on the device, the strides or the storage offset.
    """
    form = _dtypes.format_of(_dtypes.from_torch(tensor.dtype))
    # As words: of bools torch copies truth values.
    flat = tensor.detach().cpu().view(_SIGNED[form.bits // 8]).contiguous().reshape(-1)
    found = hashlib.sha256(f"{_dtypes.from_torch(tensor.dtype)}{list(tensor.shape)}".encode())
    found.update(flat.numpy().astype(f"<i{form.bits // 8}", copy=False).data)
    return found.hexdigest()[:16]


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: tuple[int, ...] | st.SearchStrategy[tuple[int, ...]],
    dtypes: str | Sequence[str] | st.SearchStrategy[str] = _dtypes.FLOATING,
    *,
    values: str | Iterable[str] | None = None,
    layouts: str | Iterable[str] = _layouts.CLASSES,
    specials: Iterable[str] = _values.SPECIALS,
) -> TensorSpec:
    """The spec of one tensor argument.

    ``shape`` and ``dtypes`` may be fixed or drawn. ``values`` names the recipes to choose from (None: all that make
    sense for the dtype), ``layouts`` the layout classes, ``specials`` the special values that may be planted (those
    that the dtype has; () for none). Shrinks in this order: shape, float32, contiguous, no specials, "normal"
    values, seed 0.
    """
    shape = draw(shape) if isinstance(shape, st.SearchStrategy) else tuple(shape)
    if not isinstance(dtypes, st.SearchStrategy):
        dtypes = _dtypes.dtypes((dtypes,) if isinstance(dtypes, str) else dtypes)
    dtype = draw(dtypes)
    return TensorSpec(
        shape=shape,
        dtype=dtype,
        layout=_layouts.draw_layout(draw, shape, (layouts,) if isinstance(layouts, str) else layouts),
        specials=_planted(draw, shape, dtype, specials),
        values=draw(_values.recipes(dtype, (values,) if isinstance(values, str) else values)),
        seed=draw(SEEDS),
    )


_PLACES, _RUNS = st.integers(0, 4 + 2 * len(_shapes.BLOCKS)), st.integers(0, 5)
_SOME = st.lists(st.tuples(_PLACES, st.integers(0, len(_values.SPECIALS)), _RUNS), min_size=1, max_size=3)
_PLANTED = st.sampled_from((False, True, True)).flatmap(lambda any_: _SOME if any_ else st.just([]))


def planted(
    shape: tuple[int, ...], dtype: str, names: Iterable[str] = _values.SPECIALS
) -> st.SearchStrategy[tuple[Special, ...]]:
    """Up to three special values at the first or last element or at the edge of a block or row, singly or for a whole
    row or block; in a third of the draws none. Shrinks to none, else to one at the first element."""
    return _planted_alone(shape, dtype, names)


def _planted(
    draw: st.DrawFn, shape: tuple[int, ...], dtype: str, names: Iterable[str] = _values.SPECIALS
) -> tuple[Special, ...]:
    wanted = {"nan" if name in (_values.SIGNED_NAN, _values.FULL_NAN) else name for name in names}
    if unknown := wanted - {*_values.SPECIALS, _values.MASKED}:
        raise ValueError(f"unknown special value {sorted(unknown)[0]!r}; known: {', '.join(_values.SPECIALS)}")
    known = (*_values.specials_of(dtype), *((_values.MASKED,) if dtype in _values.WITH_MASKED else ()))
    possible = [name for name in known if name in wanted]
    total = math.prod(shape)
    if not possible or not total:
        return ()
    row = shape[-1] if shape else 1
    # Drawn as numbers in lists, whose entries mean the same for every shape: the last element stays the last while
    # a shape shrinks.
    edges = (block + side for block in _shapes.BLOCKS for side in (-1, 0))
    places = list(dict.fromkeys(place for place in (0, total - 1, row - 1, row, *edges) if place < total))
    runs = (1, 1, 1, row, min(16, total), min(64, total))
    found: dict[int, Special] = {}
    for place, value, run in draw(_PLANTED):
        index = places[place % len(places)]
        name = possible[value % len(possible)]
        if name == "nan":
            # As NumPy writes it, and as x86 and GPUs compute it. Not two of the names: that would change what else is
            # drawn.
            other = _values.FULL_NAN if run in (2, 5) else "nan"
            name = _values.SIGNED_NAN if (place + run) % 2 else other
        found.setdefault(index, Special(index, name, runs[run]))
    return tuple(found.values())


# Made once: to make a composite, Hypothesis reads the function's source.
_planted_alone = st.composite(_planted)
