"""Return an nn.Parameter, which is no plain tensor and asks for a gradient."""

import torch


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    return result if out is not None else torch.nn.Parameter(result)
