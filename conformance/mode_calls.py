"""Settings of torch around a call: autocast, and the flags of reduced precision.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import contextlib

import torch

AUTOCAST, FLAGS = "autocast", "flags"
_REDUCED = (
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cudnn, "allow_tf32"),
)
"""The flags that allow less precision, beside that of float32 products."""


def surroundings(context, device):
    """Return a context manager for a call: what it finds set, and what is restored afterwards.

    :param context: None, or ``kind``; any but those above set nothing. ``AUTOCAST`` takes ``dtype``, ``FLAGS`` takes
        ``reduced``: whether less precision is allowed.
    """
    kind = context and context["kind"]
    if kind == AUTOCAST:
        return torch.autocast(device.type, dtype=getattr(torch, context["dtype"]))
    return reduced_precision(context["reduced"]) if kind == FLAGS else contextlib.nullcontext()


def left(device):
    """Return a context manager for a backward pass, which comes after the region of autocast, as torch advises."""
    inside = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if inside else contextlib.nullcontext()


@contextlib.contextmanager
def reduced_precision(allowed):
    """Set all flags of reduced precision, and restore them."""
    precision, flags = torch.get_float32_matmul_precision(), [getattr(*flag) for flag in _REDUCED]
    # "medium" would let torch's CPU compute products of float32 in bfloat16.
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    for owner, name in _REDUCED:
        setattr(owner, name, allowed)
    try:
        yield
    finally:
        for (owner, name), was in zip(_REDUCED, flags, strict=True):
            setattr(owner, name, was)
        torch.set_float32_matmul_precision(precision)
