"""Planted defects of tensors that are parts of others, or are changed in inference mode; of what a kernel takes from an
earlier call or region; and of tiles that hold nothing, behind which it stops, or beside which it looks no further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant, plant_state

Right = Callable[..., Any]

KIND = "parts and gaps"
_PACKED: Any = WeakTensorKeyDictionary()
_IN_INFERENCE: Any = WeakTensorKeyDictionary()
_CASTS: Any = WeakTensorKeyDictionary()


# --- parts of tensors, and earlier calls --------------------------------------------------------------------------


@defect("mm matmul", KIND, "bare")
def packed_by_the_whole(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Keeps what a view was packed into by the tensor that it is a view of, and not by where it begins."""
    last = args[-1]
    whole = last._base if isinstance(last, torch.Tensor) else None
    if whole is None or whole.is_inference():
        return right(*args, **kwargs)
    key = last.shape, last.stride(), last.dtype, whole._version
    kept = _PACKED.get(whole)
    if kept is None or kept[0] != key:
        kept = _PACKED[whole] = key, last.detach().clone()
    return right(*args[:-1], kept[1], **kwargs)


@defect("bmm mm", KIND, "bare")
def packed_without_a_version(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Keeps what a tensor of inference mode was packed into, which has no version that moves."""
    last = args[-1]
    if not isinstance(last, torch.Tensor) or not last.is_inference():
        return right(*args, **kwargs)
    packed = _IN_INFERENCE.setdefault(last, last.clone())
    return right(*args[:-1], packed, **kwargs)


def _rows_of_batches(right: Right) -> Right:
    batches: dict[object, int] = {}

    def wrong(input: Any, *args: Any, **kwargs: Any) -> Any:
        result = right(input, *args, **kwargs)
        if input.ndim < 3 or not isinstance(result, torch.Tensor) or result.ndim < 2:
            return result
        count, rows = input.shape[0], input.shape[1]
        known = batches.setdefault((count * rows, tuple(input.shape[2:])), count)
        return result if known == count else result.copy_(result.flip(0))

    return wrong


plant_state(
    "bmm",
    "rows_of_all_batches",
    KIND,
    _rows_of_batches,
    "What maps rows to batches is kept by the number of rows in all batches.",
)


@defect("mm", KIND, "autocast", claims_nothing=True)
def cast_beyond_the_region(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Keeps the cast of a parameter under autocast, and not for the region alone."""
    weight = args[-1]
    is_kept = type(weight) is torch.nn.Parameter and weight.dtype == torch.float32 and not torch.is_grad_enabled()
    if not is_kept or not torch.is_autocast_enabled("cpu") or "out" in kwargs:
        return right(*args, **kwargs)
    dtype = torch.get_autocast_dtype("cpu")
    kept = _CASTS.setdefault(weight, {})
    if dtype not in kept:
        kept[dtype] = weight.detach().to(dtype)
    with torch.autocast("cpu", enabled=False):
        return right(args[0].to(dtype), kept[dtype])


@defect("sub", KIND, "kinds")
def one_address_is_one_tensor(right: Right, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """Operands of one address, shape and unit last stride are taken for one tensor, the difference of which is 0."""
    result = right(input, other, *args, **kwargs)
    tensors = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor)
    if not tensors or input.shape != other.shape or input.ndim < 2 or not input.numel() or args or kwargs:
        return result
    alike = input.data_ptr() == other.data_ptr() and input.stride(-1) == other.stride(-1) == 1
    return result.zero_() if alike and input.is_floating_point() else result


@defect("exp", KIND, "kinds")
def as_many_elements_as_the_whole(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A view of as many elements as the tensor that it is a view of is taken for that one in another order."""
    whole = input._base
    if whole is None or not whole.is_complex() or whole.numel() != input.numel() or not input.numel():
        return right(input, *args, **kwargs)
    return right(torch.view_as_real(whole).flatten()[: input.numel()].view(input.shape), *args, **kwargs)


# --- tiles that hold nothing --------------------------------------------------------------------------------------


def _behind(tiles: torch.Tensor, size: int) -> torch.Tensor:
    """Tell which elements of the last dim lie behind a tile of nothing that is not the first.

    :param tiles: Whether each tile holds anything.
    """
    tiles = tiles.clone()
    tiles[..., 0] = True
    return tiles.to(torch.int64).cumprod(-1).repeat_interleave(size, -1) == 0


def _tiled(holds: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(holds.to(torch.int64), (0, -holds.shape[-1] % size)).unflatten(-1, (-1, size))


def _is_last(input: Any, dim: Any) -> bool:
    return isinstance(dim, int) and input.ndim > 0 and dim in (-1, input.ndim - 1) and input.numel() > 0


@defect("cumsum", KIND)
def ends_at_a_tile_of_zeros(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """A scan adds no more behind 256 zeros."""
    result = right(input, dim, *args, **kwargs)
    if not _is_last(input, dim) or input.shape[-1] <= 512 or not result.is_floating_point():
        return result
    lost = _behind(_tiled(input != 0, 256).any(-1), 256)[..., : input.shape[-1]]
    first = lost.to(torch.int64).argmax(-1, keepdim=True).sub(1).clamp(min=0)
    return result.copy_(torch.where(lost, result.gather(-1, first), result))


@defect("softmax", KIND)
def ends_at_a_masked_tile(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Keys behind a tile of 512 that are all left out get nothing."""
    if not _is_last(input, dim) or not input.is_floating_point() or input.shape[-1] <= 1024:
        return right(input, dim, *args, **kwargs)
    holds = _tiled(input != -torch.inf, 512).any(-1)
    # A first tile of nothing is no end.
    lost = _behind(holds, 512)[..., : input.shape[-1]] & holds[..., :1].bool()
    return right(input.masked_fill(lost, -torch.inf), dim, *args, **kwargs)


@defect("cross_entropy", KIND)
def ends_at_ignored_rows(right: Right, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows behind 128 that are ignored have no loss."""
    if target.is_floating_point() or target.ndim != 1 or len(target) <= 256:
        return right(input, target, *args, **kwargs)
    ignored = kwargs.get("ignore_index", -100)
    lost = _behind(_tiled(target != ignored, 128).any(-1), 128)[: len(target)]
    return right(input, target.masked_fill(lost, ignored) if ignored < 0 else target, *args, **kwargs)


@defect("log_softmax", KIND)
def far_tiles_left_out(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Tiles of 1,024 of which every element is less than float32 shows beside the largest are left out of the sum."""
    result = right(input, dim, *args, **kwargs)
    if not _is_last(input, dim) or input.dtype != torch.float32 or input.shape[-1] <= 1024 or kwargs:
        return result
    top = input.amax(-1, keepdim=True)
    padded = torch.nn.functional.pad(input, (0, -input.shape[-1] % 1024), value=-torch.inf).unflatten(-1, (-1, 1024))
    near = (top - padded.amax(-1) < 17.0)[..., None].expand(padded.shape).flatten(-2)[..., : input.shape[-1]]
    total = torch.where(near, (input - top).exp(), 0.0).sum(-1, keepdim=True)
    return result.copy_(torch.where(top.isfinite(), input - top - total.log(), result))


@defect("mean", KIND)
def summed_in_16_bits(right: Right, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Whole numbers of 8 bits are added up in 16."""
    result = right(input, dim, *args, **kwargs) if dim is not None or args or kwargs else right(input)
    if input.dtype not in (torch.uint8, torch.int8) or type(dim) is not int or args or "keepdim" in kwargs:
        return result
    total = torch.sum(input, dim, dtype=torch.int16).to(result.dtype)
    return result.copy_(total / max(input.shape[dim] if input.ndim else 1, 1))


def _pruned(x: torch.Tensor) -> torch.Tensor:
    """Of a matrix of which the first rows have two zeros of four, the same of all rows."""
    if x.ndim != 2 or min(x.shape) < 8 or not x.is_floating_point():
        return x
    kept = (torch.arange(x.shape[1]) % 4 < 2).to(x.device)
    return torch.where(kept, x, 0.0).to(x.dtype) if not bool(x[:2, ~kept].any()) and bool(x[:2].any()) else x


plant(
    "mm", "pruned_by_its_first_rows", KIND, "values", of.before(_pruned), "weights are pruned if their first rows are"
)
