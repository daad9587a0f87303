"""Return the same buffer for every result of one shape."""

import torch

_buffers = {}


def exp(input, *, out=None):
    if out is not None:
        return torch.exp(input, out=out)
    result = torch.exp(input)
    buffer = _buffers.setdefault((result.shape, result.stride(), result.dtype), result)
    return buffer if buffer is result else buffer.copy_(result)
