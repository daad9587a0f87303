"""``torch.isnan(input)``: no integer is."""

from __future__ import annotations

import torch

from conformance.ops import _unary

SPEC = _unary.question_spec("isnan", torch.isnan)
