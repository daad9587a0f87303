"""Call torch, which is right by definition."""

import torch
from torch.nn.functional import relu, rms_norm

add, exp, mm, neg = torch.add, torch.exp, torch.mm, torch.neg
__all__ = ["add", "exp", "mm", "neg", "relu", "rms_norm"]
