"""Be right only where the operand's memory was not allocated by torch, which could resize it."""

import torch


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    return result if out is not None or not input.untyped_storage().resizable() else result.zero_()
