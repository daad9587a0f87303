"""Leave a dispatch mode active that computes later calls in float64."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


_modes = []


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    if not _modes:
        _modes.append(_Mode())
        _modes[0].__enter__()
    return result
