"""Implementations that are wrong in ways that the tests of single ops see, beside those of ``conformance.selftest``."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from conformance.ops.rotary_position_embedding import composed, pairs


def _second_left(input, sin_table, cos_table, interleaved=True, inplace=False):
    """The second element of a pair is doubled, and not rotated."""
    second = pairs(input, interleaved)[1].clone()
    result = composed(input, sin_table, cos_table, interleaved, inplace)
    pairs(result, interleaved)[1].copy_(2 * second)
    return result


def _first_rows(input, sin_table, cos_table, interleaved=True, inplace=False):
    """Tables are read from the beginning of their storage, and a copy is returned of what is rotated in place."""
    tables = (torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()) for t in (sin_table, cos_table))
    tables = (flat[: t.numel()].view(t.shape) for flat, t in zip(tables, (sin_table, cos_table), strict=True))
    result = composed(input, *tables, interleaved, inplace)
    return result.clone() if inplace else result


CLAIMS = {"*": ("layout_invariant",)}
right = SimpleNamespace(rotary_position_embedding=composed, conformance_claims=CLAIMS)
second_left = SimpleNamespace(rotary_position_embedding=_second_left, conformance_claims=CLAIMS)
first_rows = SimpleNamespace(rotary_position_embedding=_first_rows, conformance_claims=CLAIMS)
