"""Compute in a workspace that is kept, and copy out of it."""

import torch

_workspaces = {}


@torch.no_grad()
def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    workspace = _workspaces.setdefault((result.numel(), result.dtype), torch.empty(result.numel(), dtype=result.dtype))
    workspace.copy_(result.detach().flatten())
    return result.copy_(workspace.view(result.shape))
