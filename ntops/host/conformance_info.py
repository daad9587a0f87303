"""Tell the conformance harness what the library claims: the properties of its operators, its configurations and its
settings.

The names are the harness's; ``ntops.torch`` exports them.
"""

import contextlib

from ntops._runtime import INTERPRETED
from ntops.launch import autotuning, configuration, settings

_OF_GPU = ("graph", "stream", "device")
_ALL = ("deterministic", "layout_invariant", "batch_invariant", "gradients", *_OF_GPU)
_OF_TORCH = ("fake", "compiled", "autocast", "vmap", "transforms", "opcheck", "export")
_NOT_JUDGED = {"linear_cross_entropy": ("autocast",)}
"""Names checks that cannot judge an operator: autocast casts the operands of its product and of its loss to different
dtypes, and the harness compares with a call of operands that are all cast to one."""
_SUMS = ("deterministic", "gradients", *_OF_GPU)
_PRODUCT = ("deterministic", "layout_invariant", "batch_invariant:fixed", "gradients", *_OF_GPU)

# softmax and the losses run along any dim of any strides without a copy; compiled, their order of summation depends
# on the strides.
# Products use other blocks for few rows. Attention splits keys if the batch is small, and uses other blocks if rows are
# not aligned.
_CLAIMS = {
    "*": _ALL,
    **dict.fromkeys(("cross_entropy", "linear_cross_entropy", "softmax", "log_softmax"), _SUMS),
    # Dims are ordered by strides, and rows are split up if there are few.
    **dict.fromkeys(("cumsum", "logsumexp", "mean", "sum"), _SUMS),
    **dict.fromkeys(("mm", "addmm", "bmm", "matmul", "fused_gated_mlp"), _PRODUCT),
    "scaled_dot_product_attention": ("deterministic", "batch_invariant:fixed", "gradients", *_OF_GPU),
}


def claims(registered):
    """Return the claims of all operators; those that are ``registered`` with torch also take fake tensors,
    ``torch.compile`` and autocast."""
    of_torch = {
        op: (*_CLAIMS.get(op, _ALL), *(one for one in _OF_TORCH if one not in _NOT_JUDGED.get(op, ())))
        for op in registered
    }
    return {**_CLAIMS, **of_torch}


_CANDIDATES = tuple(("max_num_configs", 16, one) for one in range(1, 16))
"""Settings under which calls measure their configurations and take the fastest; number 0 is the library's choice."""
_SETTINGS = (
    *(("num_warps", value, 0) for value in (1, 2, 4, 8, 16)),
    *(("num_stages", value, 0) for value in (1, 2, 3, 4, 5)),
    *(("max_num_configs", value, 0) for value in (1, 2, 3, 16)),
    *_CANDIDATES,
)
_SETTINGS_INTERPRETED = (("num_warps", 16, 0), ("num_stages", 5, 0), *_CANDIDATES)
"""Settings under the interpreter, where nothing is measured, and warps and stages change little of what a kernel
does."""


def conformance_configurations(op, number=None):
    """Return a context that fixes calls to the configuration of this number and yields the names of all:
    ``configuration.fixed``."""
    return configuration.fixed(number)


@contextlib.contextmanager
def conformance_settings(op, number=None):
    """Return a context that puts calls under the setting of this number (``None``: unchanged) and yields the names of
    all."""
    choices = _SETTINGS_INTERPRETED if INTERPRETED else _SETTINGS
    names = [f"{name}={value}" + f", the fastest being number {one}" * bool(one) for name, value, one in choices]

    if number is None:
        yield names
        return

    name, value, one = choices[number]
    set_default = getattr(settings, f"set_default_{name}")
    before = getattr(settings, f"get_default_{name}")()
    set_default(value)

    try:
        with autotuning.assumed(one) if one else contextlib.nullcontext():
            yield names
    finally:
        set_default(before)
