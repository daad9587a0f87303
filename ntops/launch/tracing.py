"""Ranges for torch's profiler, and for NVTX with ``NTOPS_TRACE=1`` in the environment: one for each call of an
operator, with the dispatcher's name, and in it one for its kernels, with the configuration that was chosen.

Without a listener a call costs two look-ups more. Callers of :func:`span` first check ``tracing.NVTX or
profiler._is_profiler_enabled``, as torch's own hooks do.
"""

import contextlib
import os
import threading

import torch
from torch._C._profiler import _RecordFunctionFast

from ntops._runtime import INTERPRETED

NVTX = os.environ.get("NTOPS_TRACE") == "1" and not INTERPRETED
"""Whether ranges go to NVTX too: decided once, on import."""
_CHOSEN = ("BLOCK", "CHUNKS", "GROUP", "PIECES", "SPLIT", "STAGES", "TILE")
"""Prefixes of the kernel parameters that are part of a configuration."""


class _Local(threading.local):
    inside = False


_local = _Local()


def is_outermost():
    """Tell whether no operator's range is open."""
    return not _local.inside


def name_of(function):
    """Return the name of an operator's range: its schema's name; for functions of gradients, the name with the
    module."""
    package, _, module = function.__module__.rpartition(".")
    return f"ntops::{function.__name__}" if package == "ntops.torch" else f"ntops::{module}.{function.__name__}"


def traced(name, function, args, kwargs):
    """Call an operator in a range of this name, and return its result."""
    _local.inside = True

    try:
        with span(name):
            return function(*args, **kwargs)
    finally:
        _local.inside = False


@contextlib.contextmanager
def span(name):
    """Return a context with a range of this name."""
    record = begin(name)

    try:
        yield
    finally:
        end(record)


def begin(name):
    """Open a range, and return the value with which :func:`end` closes it."""
    if NVTX:
        torch.cuda.nvtx.range_push(name)

    # record_function would call the dispatcher with an operation that modes see.
    record = _RecordFunctionFast(name)
    record.__enter__()
    return record


def end(record):
    """Close a range."""
    record.__exit__(None, None, None)

    if NVTX:
        torch.cuda.nvtx.range_pop()


def describe(kernel, blocks):
    """Note which blocks a kernel has that are not its parameters, as pairs of name and size."""
    kernel.ntops_blocks = tuple(blocks)


def configuration(kernel, options, args):
    """Return a kernel's name with its blocks, those of tensor descriptors included, and its launch options."""
    chosen = [*getattr(kernel, "ntops_blocks", ())]

    for name, value in zip(kernel.arg_names, args, strict=False):
        if name.startswith(_CHOSEN) or hasattr(value, "block_shape"):
            chosen.append((name, getattr(value, "block_shape", value)))

    return f"{kernel.__name__}({', '.join(f'{name}={one}' for name, one in (*chosen, *options.items()))})"
