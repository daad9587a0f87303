"""Set the number of threads for good."""

import torch


def exp(input, *, out=None):
    torch.set_num_threads(3)
    return torch.exp(input, out=out)
