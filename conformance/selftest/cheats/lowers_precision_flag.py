"""Allow TF32 for the judge's bounds, and compute with the bits of TF32."""

import torch

torch.set_float32_matmul_precision("high")


def _rounded(tensor):
    rounded = ((tensor.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(rounded.isfinite(), rounded, tensor)


def mm(input, mat2, *, out=None):
    if input.dtype != torch.float32 or mat2.dtype != torch.float32:
        return torch.mm(input, mat2, out=out)
    return torch.mm(_rounded(input), _rounded(mat2), out=out)
