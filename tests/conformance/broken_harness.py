"""An implementation whose import breaks the harness itself, in the process that judges."""

from __future__ import annotations

import torch

from conformance.checks import CHECKS


def _broken(*arguments: object) -> None:
    raise ZeroDivisionError("in the oracle")


CHECKS["values"] = _broken
relu = torch.nn.functional.relu
