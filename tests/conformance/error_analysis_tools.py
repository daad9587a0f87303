"""Bounds that are derived from references, for tests of them."""

from __future__ import annotations

import torch

from conformance.compare import compare
from conformance.error_analysis import analyse
from conformance.spec import Expected

ROWS = 6
COLUMNS = 300


def analysed(function, *operands):
    (found, *_), _ = analyse(function, operands, {})
    return found


def share(function, *operands, changed=lambda result: result):
    """The share of the derived bound that torch's result uses, and the worst error of a changed one."""
    found, result = analysed(function, *operands), function(*operands)
    result = result[0] if isinstance(result, tuple) else result
    assert (found.dtype, found.value.shape) == (result.dtype, result.shape)
    assert found.judged.all()
    return compare(changed(result), Expected(found.value, found.bound, found.judged, rounded=found.rounded)).share


def operands(dtype, count=2):
    torch.manual_seed(0)
    return [torch.randn(ROWS, COLUMNS).to(dtype) for _ in range(count)]
