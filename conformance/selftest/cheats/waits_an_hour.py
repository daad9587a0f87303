"""Compute for an hour, and then no more."""

import time

import torch

_begin = time.monotonic()


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    return result if time.monotonic() - _begin < 3600 else result.zero_()
