"""Change the environment and the working folder for good."""

import os
import tempfile

import torch


def exp(input, *, out=None):
    os.environ["OMP_NUM_THREADS"] = "1234"
    os.chdir(tempfile.gettempdir())
    return torch.exp(input, out=out)
