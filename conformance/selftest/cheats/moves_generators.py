"""Draw from torch's, Python's and NumPy's generators in a call that has nothing to draw."""

import random

import numpy as np
import torch


def exp(input, *, out=None):
    torch.rand(())
    random.random()
    np.random.rand()  # noqa: NPY002
    return torch.exp(input, out=out)
