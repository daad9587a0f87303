"""Compute in a workspace that is kept, and copy out of it; each thread has its own."""

import threading

import torch

_workspaces = {}


@torch.no_grad()
def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    key = threading.get_ident(), result.numel(), result.dtype
    workspace = _workspaces.setdefault(key, torch.empty(result.numel(), dtype=result.dtype))
    workspace.copy_(result.detach().flatten())
    return result.copy_(workspace.view(result.shape))
