"""Replace torch's function by its own wrong one, before the harness looks it up."""

import torch


def rms_norm(input, normalized_shape, weight=None, eps=None):
    return torch.zeros_like(input)


torch.nn.functional.rms_norm = torch.rms_norm = rms_norm
