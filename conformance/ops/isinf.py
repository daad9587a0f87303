"""``torch.isinf(input)``: no integer is."""

from __future__ import annotations

import torch

from conformance.ops import _unary

SPEC = _unary.question_spec("isinf", torch.isinf)
