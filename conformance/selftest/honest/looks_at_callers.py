"""Look at the callers, as warnings and loggers do, and read none of their data."""

import gc
import sys

import torch


def exp(input, *, out=None):
    frame, depth = sys._getframe(1), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    if depth > 10_000:
        gc.collect()
    return torch.exp(input, out=out)
