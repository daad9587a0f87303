"""Implementations of relu in Triton, each with one thing that a kernel must not do to memory.

To be imported after ntops, which without a GPU makes kernels run on CPU tensors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 64


@triton.jit
def kernel(
    out, x, n, BLOCK: tl.constexpr, MASK: tl.constexpr, TAIL: tl.constexpr, STORE: tl.constexpr, RACE: tl.constexpr
):
    program = tl.program_id(0)
    i = program * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n if MASK else i < n + BLOCK, other=0)
    value = tl.where(value <= 0, 0, value)
    if STORE:
        tl.store(x + i, value, mask=i < n)
    if RACE:
        tl.store(out + tl.arange(0, BLOCK), program + tl.zeros([BLOCK], tl.int32), mask=tl.arange(0, BLOCK) < n)
    tl.store(out + i, value, mask=i < n - TAIL)


class Defect:
    """relu by the kernel, with one of its flags set wrong."""

    def __init__(self, **flags: bool) -> None:
        self.flags = {"MASK": True, "TAIL": 0, "STORE": False, "RACE": False} | flags

    def relu(self, input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        if input.dtype != torch.float32 or not input.is_contiguous() or inplace:
            return torch.nn.functional.relu(input, inplace)
        out = torch.empty_like(input)
        if out.numel():
            kernel[(triton.cdiv(out.numel(), BLOCK),)](out, input, out.numel(), BLOCK=BLOCK, **self.flags)
        return out


sound = Defect()
outside = Defect(MASK=False)
unwritten = Defect(TAIL=1)
input = Defect(STORE=True)
race = Defect(RACE=True)


class Uninitialized(Defect):
    """Reads what torch.empty left."""

    def relu(self, input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        scratch = torch.empty_like(input, memory_format=torch.contiguous_format)
        super().relu(scratch)
        return super().relu(input, inplace)


uninitialized = Uninitialized()
