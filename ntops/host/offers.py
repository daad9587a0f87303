"""What the library says of itself to the conformance harness: which properties its operators have, which configurations
and which settings there are.

The names are the harness's; ``ntops.torch`` exports them.
"""

import contextlib

from ntops._runtime import INTERPRETED
from ntops.host import configuration, measuring
from ntops.torch import utils

_ALL = ("deterministic", "layout_invariant", "batch_invariant")
_PRODUCT = ("deterministic", "layout_invariant", "batch_invariant:fixed")

# softmax runs along any dim of any strides without a copy; compiled, the order of its sums follows them. Products take
# other blocks for few rows. Attention splits keys where a batch is small, and takes other blocks where rows are not
# aligned.
conformance_claims = {
    "*": _ALL,
    "softmax": ("deterministic",),
    **dict.fromkeys(("mm", "addmm", "bmm", "matmul", "fused_gated_mlp"), _PRODUCT),
    "scaled_dot_product_attention": ("deterministic", "batch_invariant:fixed"),
}

_CANDIDATES = tuple(("max_num_configs", 16, one) for one in range(1, 16))
"""What may be the fastest of the configurations that are measured; number 0 is the library's choice."""
_SETTINGS = (
    *(("num_warps", value, 0) for value in (1, 2, 4, 8, 16)),
    *(("num_stages", value, 0) for value in (1, 2, 3, 4, 5)),
    *(("max_num_configs", value, 0) for value in (1, 2, 3, 16)),
    *_CANDIDATES,
)
_SETTINGS_INTERPRETED = (("num_warps", 16, 0), ("num_stages", 5, 0), *_CANDIDATES)
"""Where nothing is measured, and warps and stages change little of what a kernel does."""


def conformance_configurations(op, number=None):
    """A context of calls in the configuration of a number, which gives the names of all: ``configuration.fixed``."""
    return configuration.fixed(number)


@contextlib.contextmanager
def conformance_settings(op, number=None):
    """A context of calls under the setting of a number (None: as set), which gives the names of all."""
    settings = _SETTINGS_INTERPRETED if INTERPRETED else _SETTINGS
    names = [f"{name}={value}" + f", the fastest being number {one}" * bool(one) for name, value, one in settings]

    if number is None:
        yield names
        return

    name, value, one = settings[number]
    set_default = getattr(utils, f"set_default_{name}")
    before = getattr(utils, f"get_default_{name}")()
    set_default(value)

    try:
        with measuring.assumed(one) if one else contextlib.nullcontext():
            yield names
    finally:
        set_default(before)
