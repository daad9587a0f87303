"""Leave the subtraction of the maximum out of softmax."""

import torch


def softmax(input, dim, dtype=None):
    result = torch.nn.functional.softmax(input, dim, dtype=dtype)
    powers = input.to(result.dtype).exp()
    return result.copy_(powers / powers.sum(dim, keepdim=True))
