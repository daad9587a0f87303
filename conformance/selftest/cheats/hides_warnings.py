"""Silence all warnings for good."""

import warnings

import torch


def exp(input, *, out=None):
    warnings.simplefilter("ignore")
    return torch.exp(input, out=out)
