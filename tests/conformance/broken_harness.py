"""Breaks the harness in the process that imports it. relu is right."""

from __future__ import annotations

import torch

from conformance.checks import CHECKS


def _broken(*arguments: object) -> None:
    raise ZeroDivisionError("in the oracle")


CHECKS["values"] = _broken
relu = torch.nn.functional.relu
