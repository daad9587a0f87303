"""Make float64 the default dtype for good."""

import torch


def exp(input, *, out=None):
    torch.set_default_dtype(torch.float64)
    return torch.exp(input, out=out)
