"""Compute with a subclass of Tensor inside, and return a plain one."""

import torch


class _Tagged(torch.Tensor):
    pass


def exp(input, *, out=None):
    if out is not None:
        return torch.exp(input, out=out)
    return torch.exp(input.as_subclass(_Tagged)).as_subclass(torch.Tensor)
