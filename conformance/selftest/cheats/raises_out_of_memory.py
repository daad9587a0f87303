"""Raise "out of memory" for all but the smallest operands."""

import torch


def exp(input, *, out=None):
    if input.numel() > 16:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    return torch.exp(input, out=out)
