"""Planted defects that only large calls meet: limits of grids, tiles and integers, and kernels for many elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant

Change = Callable[[torch.Tensor], torch.Tensor]
KIND = "large"


def _flat(change: Callable[[torch.Tensor], None]) -> Change:
    """A mistake in the elements of a result in their order."""

    def changed(result: torch.Tensor) -> torch.Tensor:
        flat = result.reshape(-1).clone()
        change(flat)
        return flat.view(result.shape)

    return changed


def past(limit: int) -> Change:
    """The grid is capped: elements past ``limit`` are 0."""

    def change(flat: torch.Tensor) -> None:
        flat[limit:] = 0

    return _flat(change)


def wrapped(limit: int) -> Change:
    """Indices wrap at ``limit``: what lies past it is what the first elements are."""

    def change(flat: torch.Tensor) -> None:
        for start in range(limit, len(flat), limit):
            part = flat[start : start + limit]
            part.copy_(flat[: len(part)].clone())

    return _flat(change)


def block_lost(limit: int, block: int) -> Change:
    """One block of a result of more than ``limit`` elements, in its middle, is never written."""

    def change(flat: torch.Tensor) -> None:
        if len(flat) > limit:
            middle = len(flat) // 2
            flat[middle : middle + block] = 0

    return _flat(change)


def tail_of(multiple: int, limit: int) -> Change:
    """Past ``limit`` elements whole blocks alone are written."""

    def change(flat: torch.Tensor) -> None:
        if len(flat) > limit:
            flat[len(flat) // multiple * multiple :] = 0

    return _flat(change)


def third_tile(tile: int) -> Change:
    """Of a result of three tiles and more the third one is that before it."""

    def change(flat: torch.Tensor) -> None:
        third = flat[2 * tile : 3 * tile]
        third.copy_(flat[tile : tile + len(third)].clone())

    return _flat(change)


def rows_past(dim: int, limit: int) -> Change:
    """A dim of the grid is capped: rows past ``limit`` are 0."""

    def changed(result: torch.Tensor) -> torch.Tensor:
        if result.ndim < -dim or result.ndim <= dim or result.shape[dim] <= limit:
            return result
        result = result.clone()
        result.narrow(dim, limit, result.shape[dim] - limit).zero_()
        return result

    return changed


_ELEMENTWISE: tuple[tuple[str, str, Change, str], ...] = (
    ("relu gt sub", "past_2_16", past(1 << 16), "elements past 2^16 are 0"),
    ("exp eq clamp", "past_2_18", past(1 << 18), "elements past 2^18 are 0"),
    ("neg mul", "past_2_20", past(1 << 20), "elements past 2^20 are 0"),
    ("add silu bitwise_not", "wrapped_2_17", wrapped(1 << 17), "indices wrap at 2^17"),
    ("abs div", "wrapped_2_20", wrapped(1 << 20), "indices wrap at 2^20"),
    ("sin lt gelu", "block_lost_17", block_lost(1 << 17, 1024), "a block in the middle of a large result is lost"),
    ("cos bitwise_or", "element_lost", block_lost(1 << 18, 1), "one element in the middle of a large result is lost"),
    ("tanh ge", "tail_4096", tail_of(4096, 1 << 16), "past 2^16 elements the tail after blocks of 4096 is lost"),
    ("sigmoid le", "tail_65536", tail_of(65536, 1 << 17), "past 2^17 elements the tail after 65536 is lost"),
    ("pow rsqrt", "third_tile_65536", third_tile(65536), "the third tile of 65536 elements is the second"),
    ("ne bitwise_and", "third_tile_32768", third_tile(1 << 17), "the third tile of 2^17 elements is the second"),
)
for _ops, _name, _change, _about in _ELEMENTWISE:
    for _op in _ops.split():
        plant(_op, f"large_{_name}", KIND, "values", of.after(_change), _about)


# --- rows --------------------------------------------------------------------------------------------------------

for _op, _limit in (("softmax", 65535), ("layer_norm", 65535), ("rms_norm", 32768)):
    _about = f"rows past {_limit}, the most of a grid's dim, are 0"
    plant(_op, "large_grid", KIND, "values", of.after(rows_past(0, _limit)), _about)


def _row_past(limit: int) -> Callable[..., Any]:
    """Elements of a row past ``limit`` are not read."""

    def read(x: torch.Tensor) -> torch.Tensor:
        if x.ndim < 2 or x.shape[-1] <= limit:
            return x
        x = x.clone()
        x[..., limit:] = 0
        return x

    return of.before(read)


for _op, _limit in (("softmax", 32768), ("layer_norm", 65536), ("rms_norm", 65536)):
    plant(_op, "large_row", KIND, "values", _row_past(_limit), f"what lies past {_limit} in a row is not read")


# --- products ----------------------------------------------------------------------------------------------------


def _terms_past(limit: int) -> Callable[..., Any]:
    """Split K past ``limit`` loses its last part."""

    def wrong(right: Callable[..., Any], *args: Any, out: Any = None, **kwargs: Any) -> Any:
        result = right(*args, out=out, **kwargs)
        *first, a, b = args
        if out is not None or min(a.ndim, b.ndim) < 2 or a.shape[-1] <= limit:
            return result
        return result.copy_(right(*first, a[..., :limit], b[..., :limit, :], **kwargs))

    return wrong


def _tiles_swapped(tile: int, many: int) -> Change:
    """Programs in groups: past ``many`` tiles of rows the last two of them change places."""

    def changed(result: torch.Tensor) -> torch.Tensor:
        if result.ndim < 2 or result.shape[-2] < many * tile:
            return result
        result = result.clone()
        first, second = result[..., -2 * tile : -tile, :].clone(), result[..., -tile:, :].clone()
        result[..., -2 * tile : -tile, :], result[..., -tile:, :] = second, first
        return result

    return changed


def _square(side: int) -> Callable[..., Any]:
    """Exact squares from ``side`` on go to a kernel that forgets the last term."""

    def wrong(right: Callable[..., Any], *args: Any, out: Any = None, **kwargs: Any) -> Any:
        result = right(*args, out=out, **kwargs)
        *first, a, b = args
        if out is not None or a.shape != b.shape or a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] < side:
            return result
        return result.copy_(right(*first, a[..., :-1], b[..., :-1, :], **kwargs))

    return wrong


for _op, _limit in (("mm", 4096), ("addmm", 16384), ("matmul", 8192), ("bmm", 4096)):
    plant(_op, "large_terms", KIND, "values", _terms_past(_limit), f"terms past {_limit} are lost")
for _op, _tile in (("mm", 64), ("addmm", 128), ("matmul", 128)):
    _about = f"past eight tiles of {_tile} rows the last two change places"
    plant(_op, "large_groups", KIND, "values", of.after(_tiles_swapped(_tile, 8)), _about)
for _op, _dim, _limit in (("mm", -2, 65535), ("mm", -1, 65535), ("addmm", -2, 65535), ("matmul", -1, 65535)):
    _name = "large_rows" if _dim == -2 else "large_columns"
    plant(_op, _name, KIND, "values", of.after(rows_past(_dim, _limit)), f"{_name[6:]} past {_limit} are 0")
for _op, _limit in (("bmm", 32768), ("bmm", 65535)):
    _about = f"products past {_limit} of a batch are 0"
    plant(_op, f"large_batch_{_limit}", KIND, "values", of.after(rows_past(0, _limit)), _about)


def _late_tiles(result: torch.Tensor) -> torch.Tensor:
    result = result.clone()
    if result.ndim == 3:
        result[8:, 64:, 64:] = result[:1, 64:, 64:]
    return result


def _wide_vectors(right: Callable[..., Any], input: Any, other: Any, *, out: Any = None) -> Any:
    """A vector times matrices of more than 4,096 columns: those past them are the first matrix's."""
    result = right(input, other, out=out)
    if out is None and input.ndim == 1 and result.ndim > 1:
        result[..., 4096:] = result.flatten(0, -2)[:1, 4096:].clone()
    return result


_about = "from the ninth product of a batch on, tiles beyond the first row and column of them are the first product's"
plant("bmm", "large_late_tiles", KIND, "values", of.after(_late_tiles), _about)
plant("matmul", "large_wide_vectors", KIND, "values", _wide_vectors)
for _op, _side in (("mm", 256), ("addmm", 256)):
    plant(_op, "large_square", KIND, "values", _square(_side), f"of exact squares from {_side} on a term is lost")


# --- the others --------------------------------------------------------------------------------------------------

for _dim, _limit, _name in ((-2, 64, "heads"), (1, 2048, "positions"), (0, 8192, "batch")):
    plant(
        "rotary_position_embedding",
        f"large_{_name}",
        KIND,
        "values",
        of.after(rows_past(_dim, _limit)),
        f"{_name} past {_limit} are 0",
    )
for _dim, _limit, _name in ((-3, 64, "heads"), (-2, 4096, "queries"), (0, 1024, "batch")):
    plant(
        "scaled_dot_product_attention",
        f"large_{_name}",
        KIND,
        "values",
        of.after(rows_past(_dim, _limit)),
        f"{_name} past {_limit} are 0",
    )
plant("dropout", "large_past_2_16", KIND, "distribution", of.after(past(1 << 16)), "all past 2^16 is dropped")
