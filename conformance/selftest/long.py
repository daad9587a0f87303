"""Planted defects that show where a dim, or two together, are past 8, 15 or 16 bits, and another is past a tile; and
special numbers that are lost behind the first tile of a row, or in one order of its dims."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from conformance.ops._reductions import reduced
from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import Gradients, Step, backward

Right = Callable[..., Any]
Change = Callable[[torch.Tensor], torch.Tensor]

KIND = "size"


def _rows_of(bits: int, columns: int) -> Change:
    """Rows have so many bits in the tiles behind the first ``columns``."""

    def changed(result: torch.Tensor) -> torch.Tensor:
        width = result.shape[-1] if result.ndim > 1 else 0
        if width <= columns or result.numel() <= width << bits:
            return result
        rows = result.reshape(-1, width).clone()
        for start in range(1 << bits, len(rows), 1 << bits):
            part = rows[start : start + (1 << bits), columns:]
            part.copy_(rows[: len(part), columns:].clone())
        return rows.view(result.shape)

    return changed


def _planes_of(bits: int, tile: int) -> Change:
    """Matrices of a batch have so many bits in the tiles of rows behind the first."""

    def changed(result: torch.Tensor) -> torch.Tensor:
        if result.ndim < 3 or result.shape[-2] <= tile or math.prod(result.shape[:-2]) <= 1 << bits:
            return result
        planes = result.reshape(-1, *result.shape[-2:]).clone()
        for start in range(1 << bits, len(planes), 1 << bits):
            part = planes[start : start + (1 << bits), tile:]
            part.copy_(planes[: len(part), tile:].clone())
        return planes.view(result.shape)

    return changed


for _op in ("mm", "matmul", "addmm", "softmax", "log_softmax", "rms_norm", "layer_norm", "mul", "add", "gelu"):
    _about = "columns behind the first 8 have rows of 16 bits"
    plant(_op, "rows_of_16_bits_behind_8_columns", KIND, "values", of.after(_rows_of(16, 8)), _about)
for _op in ("bmm", "matmul", "scaled_dot_product_attention"):
    _about = "tiles of rows behind the first have a batch of 8 bits"
    plant(_op, "batch_of_8_bits_behind_a_tile", KIND, "values", of.after(_planes_of(8, 16)), _about)


@defect("cumsum", KIND)
def columns_begin_anew(right: Right, input: Any, dim: Any, **kwargs: Any) -> Any:
    """Along another dim than the last, columns behind the first 8 begin anew at row 2^15."""
    result = right(input, dim, **kwargs)
    is_last = not input.ndim or dim % input.ndim == input.ndim - 1
    if is_last or input.shape[dim] <= 1 << 15 or input.shape[-1] <= 8 or not result.is_floating_point():
        return result
    late = result.movedim(dim, 0)[1 << 15 :]
    late[..., 8:] -= result.movedim(dim, 0)[(1 << 15) - 1][..., 8:].clone()
    return result


@defect("sum mean", KIND)
def tokens_of_8_bits_behind_4_sequences(right: Right, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Tokens between sequences and channels have 8 bits, for the sequences behind the first four."""
    result = right(input, *(() if dim is None else (dim,)), *args, **kwargs)
    if dim is None or input.ndim != 3 or reduced(dim, 3) != (1,) or min(input.shape[0] - 4, input.shape[1] - 256) < 1:
        return result
    short = input[4:, : input.shape[1] % 256 or 1].contiguous()
    wrong = right(short, dim, *args, **{name: value for name, value in kwargs.items() if name != "out"})
    result[4:] = wrong.to(result.dtype)
    return result


@backward("layer_norm rms_norm", KIND)
def weight_without_late_rows(step: Step) -> Gradients:
    """The weight's gradient: columns behind the first 8 leave out rows from 2^15 on."""
    found = step.gradients()
    weight = step.operands[1] if len(step.operands) > 1 else None
    if weight is None or found[1] is None or weight.ndim != 1 or step.dout.numel() >> 15 < len(weight):
        return found
    dout = step.dout.contiguous().clone()
    dout.view(-1, len(weight))[1 << 15 :, 8:] = 0
    return [found[0], *step.gradients(dout=dout)[1:]]


@backward("log_softmax softmax", KIND)
def late_rows(step: Step) -> Gradients:
    """Columns behind the first 8 take the gradient of the row 2^15 before."""
    (first,) = step.gradients()
    if first is None or first.ndim < 2 or first.shape[-1] <= 8 or first.numel() <= first.shape[-1] << 15:
        return [first]
    rows = first.reshape(-1, first.shape[-1]).clone()
    rows[1 << 15 :, 8:] = rows[: len(rows) - (1 << 15), 8:].clone()
    return [rows.view(first.shape)]


# --- special numbers -----------------------------------------------------------------------------------------------


_TILE = 2048


def _between_tiles(input: torch.Tensor) -> torch.Tensor:
    """The operand without special numbers in tiles that are neither the first nor the last of a row."""
    if not input.ndim or not input.is_floating_point() or input.shape[-1] <= 2 * _TILE:
        return input
    changed, last = input.clone(), (input.shape[-1] - 1) // _TILE * _TILE
    changed[..., _TILE:last].nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return changed


for _op in ("amax", "amin", "argmax", "sum", "mean", "cumsum", "logsumexp", "softmax", "log_softmax"):
    _about = "NaN and infinities count in the first and the last tile of a row alone"
    plant(_op, "special_numbers_between_tiles", KIND, "values", of.before(_between_tiles), _about)


def _one_dim_after_the_other(input: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor | None:
    """Dims are reduced one after the other, each from its largest element, which may be -inf."""
    dims = reduced(dim, input.ndim)
    if len(dims) < 2 or not input.is_floating_point() or 0 in input.shape:
        return None
    found = input.double()
    for one in dims:
        largest = found.amax(one, True)
        found = (found - largest).exp().sum(one, True).log() + largest
    return found if keepdim else found.reshape([size for at, size in enumerate(input.shape) if at not in dims])


plant("logsumexp", "one_dim_after_the_other", "values", "values", of.instead(_one_dim_after_the_other))


def _reciprocal_powers(input: Any, exponent: Any) -> torch.Tensor | None:
    """A whole exponent below 0 is the reciprocal of the positive power: results that are subnormal are 0."""
    is_whole = isinstance(exponent, int | float) and exponent < 0 and exponent == int(exponent)
    if not is_whole or not isinstance(input, torch.Tensor) or input.dtype not in (torch.float32, torch.float64):
        return None
    return input.pow(-exponent).reciprocal()


plant("pow", "reciprocals_of_positive_powers", "values", "values", of.instead(_reciprocal_powers))


@defect("cross_entropy", "values")
def labels_of_16_bits_behind_the_classes(right: Right, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Pack labels in 16 bits where tokens lie behind the classes."""
    if input.ndim == 3 and not target.is_floating_point():
        target = torch.where(target >= 0, target % (1 << 16), target)
    return right(input, target, *args, **kwargs)
