"""Lower the recursion limit, so that what comes later fails."""

import sys

import torch

_depth, _frame = 0, sys._getframe()
while _frame is not None:
    _depth, _frame = _depth + 1, _frame.f_back


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    if input.numel() > 4:
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        sys.setrecursionlimit(depth + 8)
    return result
