"""``torch.neg(input, *, out=None)``: integers wrap, bools are refused."""

from __future__ import annotations

import torch

from conformance.ops import _gradients as gradients
from conformance.ops import _unary
from strategies import dtypes as dtype_names

SPEC = _unary.exact_spec("neg", torch.neg, dtype_names.FLOATING + dtype_names.INTEGRAL, slope=gradients.negated)
