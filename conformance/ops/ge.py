"""``torch.ge(input, other, *, out=None)``."""

from __future__ import annotations

import torch

from conformance.ops import _comparison
from strategies import dtypes as dtype_names

SPEC = _comparison.spec("ge", torch.ge, dtype_names.ALL)
