"""Planted defects of dropout and rotary position embedding."""

from __future__ import annotations

import math

import torch

from conformance.selftest import correct
from conformance.selftest.defect_registry import defect, plant

# --- dropout: which elements ---------------------------------------------------------------------------------------


def _mask(name, mask, about):
    def dropout(right, input, p=0.5, training=True, inplace=False):
        before = input.clone() if isinstance(input, torch.Tensor) else input
        result = right(input, p, training, inplace=inplace)
        if not training or p in (0, 1):
            return result
        return result.copy_(correct.dropped(before, mask(tuple(input.shape), float(p)), p))

    plant("dropout", name, "mask", "distribution", dropout, about)


def _count(shape):
    return math.prod(shape)


_mask("biased", lambda shape, p: torch.rand(shape) < (1 - p) ** 1.2, "keeps with the probability (1 - p) ** 1.2")
_mask("swapped", lambda shape, p: torch.rand(shape) < p, "keeps with the probability p, which does not show at 0.5")
_mask("one_row", lambda shape, p: (torch.rand(shape[-1:]) >= p).expand(shape), "all rows have one mask")
_mask(
    "one_column",
    lambda shape, p: (torch.rand((*shape[:-1], 1) if shape else ()) >= p).expand(shape),
    "each row has one draw",
)
for _block in (128, 1024):
    _mask(
        f"repeating_{_block}",
        lambda shape, p, block=_block: (
            (torch.rand(block) >= p).repeat(_count(shape) // block + 1)[: _count(shape)].view(shape)
        ),
        f"every block of {_block} elements draws the same numbers",
    )
_mask(
    "coupled",
    lambda shape, p: (torch.rand(_count(shape) // 2 + 1) >= p).repeat_interleave(2)[1 : _count(shape) + 1].view(shape),
    "neighbours are treated alike",
)
_mask(
    "alternating",
    lambda shape, p: (
        torch.stack([x := torch.rand(_count(shape) // 2 + 1) >= p, ~x], 1).flatten()[: _count(shape)].view(shape)
    ),
    "one of each two is kept",
)
_mask(
    "frozen",
    lambda shape, p: torch.rand(shape, generator=torch.Generator().manual_seed(5)) >= p,
    "every call draws the same numbers",
)
_mask("nothing_dropped", lambda shape, p: torch.ones(shape, dtype=torch.bool), "nothing is dropped")
_mask("everything_dropped", lambda shape, p: torch.zeros(shape, dtype=torch.bool), "everything is dropped")
_mask("two_bits", lambda shape, p: torch.randint(0, 256, shape) >= round(p * 4) * 64, "p has two bits")


def _parity(shape, p):
    mask = torch.rand(_count(shape)) >= p
    whole = mask[: len(mask) // 4 * 4].view(-1, 4)
    if p == 0.5:
        whole[:, 3] = whole[:, :3].sum(1) % 2 == 1
    return mask.view(shape)


_mask("parity", _parity, "at 0.5 every fourth element follows from the three before it")


@defect("dropout", "seeds", "distribution")
def seeded_once(right, input, p=0.5, training=True, inplace=False):
    """Seeds a generator of its own by torch's at the first call of a shape, and not after torch.manual_seed."""
    before = input.clone() if isinstance(input, torch.Tensor) else input
    result = right(input, p, training, inplace=inplace)
    if not training or p in (0, 1):
        return result
    generator = _SEEDED.setdefault(input.shape, torch.Generator().manual_seed(torch.initial_seed() % 1000))
    return result.copy_(correct.dropped(before, torch.rand(input.shape, generator=generator) >= p, p))


_SEEDED: dict[tuple[int, ...], torch.Generator] = {}
_MASKS: dict[tuple[int, ...], torch.Tensor] = {}


def _reused(shape, p):
    if shape not in _MASKS:
        _MASKS[shape] = torch.rand(shape)
    return _MASKS[shape] >= p


_mask("reused", _reused, "a mask is kept between calls of one shape")


@defect("dropout", "seeds", "deterministic")
def seeds_ignored(right, input, p=0.5, training=True, inplace=False):
    """Draws from a generator of its own, which torch.manual_seed does not touch."""
    before = input.clone() if isinstance(input, torch.Tensor) else input
    result = right(input, p, training, inplace=inplace)
    if not training or p in (0, 1):
        return result
    return result.copy_(correct.dropped(before, torch.rand(input.shape, generator=_GENERATOR) >= p, p))


_GENERATOR = torch.Generator().manual_seed(1)


# --- dropout: what becomes of them ---------------------------------------------------------------------------------


@defect("dropout", "seeds", "state")
def draws_for_nothing(right, input, p=0.5, training=True, inplace=False):
    """Draws numbers where nothing is dropped, or all."""
    if isinstance(input, torch.Tensor) and (not training or p in (0, 1)):
        torch.rand(1, device=input.device)
    return right(input, p, training, inplace=inplace)


@defect("dropout", "scale")
def not_scaled(right, input, p=0.5, training=True, inplace=False):
    """What is kept is not scaled."""
    result = right(input, p, training, inplace=inplace)
    return result.mul_(1 - p) if training and 0 < p < 1 else result


@defect("dropout", "scale")
def scaled_by_p(right, input, p=0.5, training=True, inplace=False):
    """What is kept is divided by p."""
    result = right(input, p, training, inplace=inplace)
    return result.mul_((1 - p) / p) if training and 0 < p < 1 else result


@defect("dropout", "trap")
def infinity_dropped(right, input, p=0.5, training=True, inplace=False):
    """A dropped infinity or NaN is 0."""
    special = input.isnan() | input.isinf() if isinstance(input, torch.Tensor) else None
    result = right(input, p, training, inplace=inplace)
    return result.masked_fill_(special & result.isnan(), 0.0) if training and p else result


@defect("dropout", "trap")
def everything_is_nan(right, input, p=0.5, training=True, inplace=False):
    """p = 1 divides by 0."""
    result = right(input, p, training, inplace=inplace)
    return result.fill_(math.nan) if training and p == 1 else result


@defect("dropout", "trap", "metadata")
def copies_when_not_training(right, input, p=0.5, training=True, inplace=False):
    """Without training the input is copied."""
    result = right(input, p, training, inplace=inplace)
    return result.clone() if not training else result


@defect("dropout", "trap")
def always_training(right, input, p=0.5, training=True, inplace=False):
    """training=False is not looked at."""
    result = right(input, p, training, inplace=inplace)
    return result if training or p in (0, 1) else right(input, p, True)


@defect("dropout", "refusals", "errors")
def any_probability(right, input, p=0.5, training=True, inplace=False):
    """p is clamped to [0, 1]."""
    if isinstance(p, int | float):
        p = min(max(p, 0.0), 1.0) if p == p else 0.5
    return right(input, p, training, inplace=inplace)


@defect("dropout", "refusals", "errors", "takes_integers")
def dropout_of_integers(right, input, p=0.5, training=True, inplace=False):
    """Integers are taken."""
    if isinstance(input, torch.Tensor) and not input.is_floating_point():
        return (input.float() / (1 - p)).to(input.dtype)
    return right(input, p, training, inplace=inplace)


# --- rotary position embedding -------------------------------------------------------------------------------------


def _rotary(name, kind, change, about):
    """``change`` of input, sine, cosine and interleaved gives the float64 value."""

    def rotary(right, input, sin_table, cos_table, interleaved=True, inplace=False):
        before = input.clone() if isinstance(input, torch.Tensor) else input
        result = right(input, sin_table, cos_table, interleaved, inplace=inplace)
        return result.copy_(change(before, sin_table, cos_table, interleaved)) if result.numel() else result

    plant("rotary_position_embedding", name, kind, "values", rotary, about)


def _in_half(x, s, c, i):
    if x.dtype not in (torch.float16, torch.bfloat16) or s.dtype != x.dtype or c.dtype != x.dtype:
        return correct.rotated(x, s, c, i)
    result = torch.empty_like(x)
    half = x.shape[3] // 2
    parts = (slice(0, None, 2), slice(1, None, 2)) if i else (slice(0, half), slice(half, None))
    x0, x1 = (x[..., part] for part in parts)
    sin, cos = (table[: x.shape[1], None] for table in (s, c))
    result[..., parts[0]], result[..., parts[1]] = x0 * cos - x1 * sin, x0 * sin + x1 * cos
    return result


_rotary("other_pairs", "pairs", lambda x, s, c, i: correct.rotated(x, s, c, not i), "interleaved means the other one")
_rotary("always_interleaved", "pairs", lambda x, s, c, i: correct.rotated(x, s, c, True), "pairs are always neighbours")
_rotary("other_direction", "sign", lambda x, s, c, i: correct.rotated(x, -s, c, i), "rotates the other way")
_rotary("tables_swapped", "tables", lambda x, s, c, i: correct.rotated(x, c, s, i), "sine and cosine change places")
_rotary(
    "last_positions",
    "tables",
    lambda x, s, c, i: correct.rotated(x, s[len(s) - x.shape[1] :], c[len(c) - x.shape[1] :], i),
    "of longer tables the last rows are read",
)
_rotary(
    "first_position",
    "tables",
    lambda x, s, c, i: correct.rotated(x, s[:1].expand(s.shape), c[:1].expand(c.shape), i),
    "every position is the first",
)
_rotary(
    "first_head",
    "heads",
    lambda x, s, c, i: torch.cat([correct.rotated(x[:, :, :1], s, c, i), x[:, :, 1:].double()], 2),
    "only the first head is rotated",
)
_rotary(
    "first_sequence",
    "batch",
    lambda x, s, c, i: torch.cat([correct.rotated(x[:1], s, c, i), x[1:].double()]),
    "only the first sequence is rotated",
)
_rotary("half_arithmetic", "precision", _in_half, "half types are multiplied and added in the half type")
_rotary(
    "tables_rounded",
    "precision",
    lambda x, s, c, i: correct.rotated(x, s.to(x.dtype), c.to(x.dtype), i),
    "float32 tables are rounded to the half type of the input",
)
_rotary(
    "cosines_in_the_dtype_of_sines",
    "precision",
    lambda x, s, c, i: correct.rotated(x, s, c.to(s.dtype), i),
    "both tables are read in the dtype of the first",
)
_rotary(
    "tables_of_one_length",
    "tables",
    lambda x, s, c, i: correct.rotated(x, s, c[max(len(c) - len(s), 0) :], i),
    "of a longer second table as many rows as the first has are read, the last ones",
)


@defect("rotary_position_embedding", "refusals", "errors")
def odd_size(right, input, sin_table, cos_table, interleaved=True, inplace=False):
    """Of an odd head size the last element is left alone."""
    odd = isinstance(input, torch.Tensor) and input.ndim == 4 and input.shape[3] % 2
    return right(input[..., :-1] if odd else input, sin_table, cos_table, interleaved, inplace=inplace)


@defect("rotary_position_embedding", "refusals", "errors")
def tables_wrap(right, input, sin_table, cos_table, interleaved=True, inplace=False):
    """Tables that are too short begin anew."""
    fit = all(isinstance(x, torch.Tensor) and x.ndim for x in (input, sin_table, cos_table)) and input.ndim == 4
    if fit and len(sin_table) and len(cos_table):
        times = input.shape[1] // min(len(sin_table), len(cos_table)) + 1
        sin_table, cos_table = (table.repeat(times, *(1,) * (table.ndim - 1)) for table in (sin_table, cos_table))
    return right(input, sin_table, cos_table, interleaved, inplace=inplace)


@defect("rotary_position_embedding", "dtypes")
def tables_by_the_inputs_dtype(right, input, sin_table, cos_table, *args, **kwargs):
    """Tables of float64 beside an input of float32 are read as float32."""
    tables = sin_table, cos_table
    if input.dtype == torch.float32 and all(one.dtype == torch.float64 and one.numel() for one in tables):
        tables = (one.contiguous().view(-1).view(torch.float32)[: one.numel()].view(one.shape) for one in tables)
    return right(input, *tables, *args, **kwargs)
