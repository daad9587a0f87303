"""Turn gradients off for good."""

import torch


def exp(input, *, out=None):
    torch.set_grad_enabled(False)
    return torch.exp(input, out=out)
