"""torch itself, as something that is judged: its functions under the names of the ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.implementations import torch_function

# torch breaks the invariances for some ops (sums are split differently for other layouts and batch sizes). What is
# composed around its attention, the cache, reads elements on the host.
_ALL = ("deterministic", "fake", "compiled", "autocast", "vmap", "transforms", "export", "graph", "stream", "device")
conformance_claims = {
    "*": _ALL,
    # Cast for its product and for its loss, it is no call of operands that are cast.
    "linear_cross_entropy": tuple(claim for claim in _ALL if claim != "autocast"),
    "scaled_dot_product_attention": ("deterministic",),
}


def __getattr__(op: str) -> Callable[..., Any]:
    if (function := torch_function(op)) is None:
        raise AttributeError(op)
    return function
