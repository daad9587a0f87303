"""SwiGLU: silu(gate) * x."""

from __future__ import annotations

import torch
from torch.nn import functional

from .judged import missed, right

DESCRIBED = {
    "reference": lambda x, gate: functional.silu(gate) * x,
    "arguments": ("B T D", "B T D"),
    "dtypes": "bfloat16 float16 float32",
}
MISTAKES = (
    "operands swapped", "sigmoid alone", "gelu", "rounded before the product", "half precision", "a float32 constant",
    "NaN dropped", "inplace", "not promoted", "the last row", "strides",
)  # fmt: skip


def swiglu(x, gate, mistake=""):
    if x.shape != gate.shape:
        raise RuntimeError(f"shapes {x.shape} and {gate.shape} differ")
    a, b = x.float(), gate.float()
    match mistake:
        case "operands swapped":
            a, b = b, a
        case "sigmoid alone":
            return (torch.sigmoid(b) * a).to(x.dtype)
        case "gelu":
            return (functional.gelu(b) * a).to(x.dtype)
        case "rounded before the product":
            return functional.silu(gate).bfloat16().to(x.dtype) * x
        case "half precision":
            a, b = a.half().float(), b.half().float()
        case "a float32 constant":
            a = a * 1.00001
        case "NaN dropped":
            b = b.nan_to_num(0.0)
        case "inplace":
            x.mul_(2)
        case "not promoted":
            return functional.silu(b) * a
        case "the last row":
            if x.ndim and len(x) > 1:
                result = functional.silu(b) * a
                result[-1] = result[0]
                return result.to(x.dtype)
        case "strides":
            return (functional.silu(b).reshape(-1) * x.as_strided((x.numel(),), (1,)).float()).reshape(x.shape).to(x)
    return (functional.silu(b) * a).to(x.dtype)


def test_right(tmp_path):
    right(swiglu, tmp_path, **DESCRIBED)


def test_mistakes():
    assert missed(swiglu, MISTAKES, **DESCRIBED) == []
