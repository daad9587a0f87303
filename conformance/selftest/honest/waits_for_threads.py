"""Compute in two threads, and wait for both."""

from concurrent.futures import ThreadPoolExecutor

import torch

_threads = ThreadPoolExecutor(2)


@torch.no_grad()
def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    if out is not None or input.ndim < 1 or input.shape[0] < 2:
        return result
    half = input.shape[0] // 2
    # Each thread has a gradient mode of its own.
    input = input.detach()
    parts = [(input[:half], result[:half]), (input[half:], result[half:])]
    list(_threads.map(lambda part: part[1].copy_(torch.exp(part[0])), parts))
    return result
