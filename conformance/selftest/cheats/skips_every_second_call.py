"""Do nothing in every second call."""

import itertools

import torch

_calls = itertools.count()


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    return result.zero_() if next(_calls) % 2 else result
