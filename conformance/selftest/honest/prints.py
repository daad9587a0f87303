"""Print to both streams in every call."""

import sys

import torch


def exp(input, *, out=None):
    print("status: passed", '{"status":"failed"}')
    print("about to call", file=sys.stderr)
    return torch.exp(input, out=out)
