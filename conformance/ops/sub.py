"""``torch.sub(input, other, *, alpha=1, out=None)``: input - alpha * other; bools are refused."""

from __future__ import annotations

import torch

from conformance.ops import _sums
from strategies import dtypes as dtype_names

SPEC = _sums.spec("sub", torch.sub, -1, dtype_names.FLOATING + dtype_names.INTEGRAL)
