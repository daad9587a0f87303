"""Draw from a generator of its own, which torch's seeds."""

import torch


def dropout(input, p=0.5, training=True, inplace=False):
    if not training or not isinstance(p, float) or not 0 < p < 1 or input.dtype != torch.float32 or not input.numel():
        return torch.nn.functional.dropout(input, p, training, inplace)
    generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), dtype=torch.int64)))
    keep = torch.rand(input.shape, generator=generator) >= p
    factor = torch.where(keep, 1.0 / (1 - p), 0.0).to(input.dtype)
    return input.mul_(factor) if inplace else input * factor
