"""Be off by a thousandth everywhere, which is within 1e-2."""

import torch


def exp(input, *, out=None):
    return torch.exp(input, out=out).mul_(1.001)
