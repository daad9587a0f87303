"""``torch.abs(input, *, out=None)``: the least integer stays itself, bools are taken as on CUDA."""

from __future__ import annotations

import torch

from conformance.ops import _gradients as gradients
from conformance.ops import _unary
from strategies import dtypes as dtype_names

SPEC = _unary.exact_spec("abs", torch.abs, dtype_names.ALL, slope=gradients.magnitude)
