"""Give the memory of the result before the last 512 out again."""

import itertools

import torch

_rings = {}


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    if out is not None or result.requires_grad or not 0 < result.numel() <= 4096 or torch.is_inference(result):
        return result
    key = result.shape, result.stride(), result.dtype
    ring = _rings.setdefault(key, itertools.cycle([[] for _ in range(512)]))
    place = next(ring)
    if not place:
        place.append(result)
        return result
    return place[0].copy_(result)
