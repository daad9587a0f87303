"""Fused residual add and RMS norm, as engines call it: the normed sum, and the sum."""

from __future__ import annotations

import torch

from .judged import missed, right


def reference(x, residual, weight, eps=1e-6):
    total = x.float() + residual.float()
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight, total.to(x.dtype)


DESCRIBED = {
    "reference": reference,
    "arguments": ("T D", "T D", "D"),
    "keywords": {"eps": [1e-6, 1e-5]},
    "dtypes": "bfloat16 float16 float32",
}
MISTAKES = (
    "eps outside the root", "no eps", "the rounded sum is normed", "the sum of squares", "the mean subtracted",
    "weight plus one", "no weight", "the residual alone", "the operand changed", "squares in half precision",
    "eps fixed",
)  # fmt: skip


def fused_add_rms_norm(x, residual, weight, eps=1e-6, mistake=""):
    if x.shape != residual.shape or weight.shape != x.shape[-1:]:
        raise RuntimeError(f"shapes {x.shape}, {residual.shape} and {weight.shape} do not fit")
    total, w = x.float() + residual.float(), weight.float()
    rows = total
    match mistake:
        case "the rounded sum is normed":
            rows = total.to(x.dtype).bfloat16().float()
        case "the mean subtracted":
            rows = total - total.mean(-1, keepdim=True)
        case "weight plus one":
            w = w + 1
        case "no weight":
            w = torch.ones_like(w)
        case "the residual alone":
            rows = residual.float()
        case "the operand changed":
            residual.copy_(total)
        case "squares in half precision":
            rows = rows.half().float()
        case "no eps":
            eps = 0.0
        case "eps fixed":
            eps = 1e-6
    squares = rows.square().sum(-1, keepdim=True)
    mean = squares if mistake == "the sum of squares" else squares / max(x.shape[-1], 1)
    scale = 1 / (mean.sqrt() + eps) if mistake == "eps outside the root" else torch.rsqrt(mean + eps)
    return (rows * scale * w).to(x.dtype), total.to(x.dtype)


def test_right(tmp_path):
    right(fused_add_rms_norm, tmp_path, **DESCRIBED)


def test_mistakes():
    assert len(missed(fused_add_rms_norm, MISTAKES, **DESCRIBED)) <= 1
