"""Raise an exception whose text raises."""

import torch


class _Unprintable(ValueError):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def exp(input, *, out=None):
    if input.numel() > 4:
        raise _Unprintable
    return torch.exp(input, out=out)
