"""Group norm over channels and positions, with an affine map of the channels."""

from __future__ import annotations

import torch

from .judged import missed, right


def reference(x, groups, weight, bias, eps=1e-5):
    n, channels, length = x.shape
    rows = x.float().reshape(n, groups, channels // groups * length)
    apart = rows - rows.mean(-1, keepdim=True)
    normed = apart * torch.rsqrt(apart.square().mean(-1, keepdim=True) + eps)
    return (normed.reshape(x.shape) * weight.float()[:, None] + bias.float()[:, None]).to(x.dtype)


DESCRIBED = {
    "reference": reference,
    "arguments": ("N 4*C L", 4, "4*C", "4*C"),
    "dtypes": "bfloat16 float16 float32",
}
MISTAKES = (
    "unbiased", "one pass", "groups of channels next to each other", "no bias", "bias before weight", "eps 1e-3",
    "the norm of a channel", "weight by position", "sums in half precision", "absolute values", "the last group",
)  # fmt: skip


def group_norm(x, groups, weight, bias, eps=1e-5, mistake=""):
    if x.ndim != 3 or weight.shape != x.shape[1:2] or bias.shape != weight.shape or x.shape[1] % groups:
        raise RuntimeError(f"shapes {x.shape}, {weight.shape} and {bias.shape} do not fit")
    n, channels, length = x.shape
    wide, w, b = x.float(), weight.float()[:, None], bias.float()[:, None]
    count = channels if mistake == "the norm of a channel" else groups
    rows = wide.reshape(n, count, channels // max(count, 1) * length)
    if mistake == "groups of channels next to each other":
        rows = wide.reshape(n, channels // groups, groups, length).transpose(1, 2).reshape(rows.shape)
    size = rows.shape[-1]
    mean = rows.sum(-1, keepdim=True) / size if size else rows.new_zeros(n, count, 1)
    if mistake == "sums in half precision":
        mean = mean.half().float()
    apart = rows - mean
    squares = (apart.abs() if mistake == "absolute values" else apart.square()).sum(-1, keepdim=True)
    variance = squares / max(size - 1 if mistake == "unbiased" else size, 1)
    if mistake == "one pass":
        variance = rows.square().sum(-1, keepdim=True) / max(size, 1) - mean.square()
    normed = apart * torch.rsqrt(variance + (1e-3 if mistake == "eps 1e-3" else eps))
    if mistake == "the last group":
        normed[:, -1] = apart[:, -1]
    if mistake == "groups of channels next to each other":
        normed = normed.reshape(n, groups, channels // groups, length).transpose(1, 2)
    normed = normed.reshape(x.shape)
    match mistake:
        case "no bias":
            found = normed * w
        case "bias before weight":
            found = (normed + b) * w
        case "weight by position":
            found = normed * w.flip(0) + b
        case _:
            found = normed * w + b
    return found.to(x.dtype)


def test_right(tmp_path):
    right(group_norm, tmp_path, **DESCRIBED)


def test_mistakes():
    assert len(missed(group_norm, MISTAKES, **DESCRIBED)) <= 1
