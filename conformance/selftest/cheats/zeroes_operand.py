"""Fill the operand with zeros, so that a reference that runs later agrees."""

import torch


def neg(input, *, out=None):
    # Not where it broadcasts or is written: torch would refuse.
    input.detach().zero_()
    return torch.neg(input, out=out)
