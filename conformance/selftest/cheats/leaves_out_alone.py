"""Return out= as it was given."""

import torch


def exp(input, *, out=None):
    return torch.exp(input) if out is None else out
