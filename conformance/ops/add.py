"""``torch.add(input, other, *, alpha=1, out=None)``: input + alpha * other; of bools, or."""

from __future__ import annotations

import torch

from conformance.ops import _sums
from strategies import dtypes as dtype_names

SPEC = _sums.spec("add", torch.add, 1, dtype_names.ALL)
