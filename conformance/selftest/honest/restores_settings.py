"""Change settings for a call and put them back."""

import torch


def mm(input, mat2, *, out=None):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return torch.mm(input, mat2, out=out)
    finally:
        torch.set_float32_matmul_precision(before)
