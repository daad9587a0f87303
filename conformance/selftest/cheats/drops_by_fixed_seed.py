"""Seed the generator in every call, so that every mask is the same."""

import torch


def dropout(input, p=0.5, training=True, inplace=False):
    torch.manual_seed(0)
    return torch.nn.functional.dropout(input, p, training, inplace)
