"""A masked softmax with a sink: a score of each head that takes part in the sum, and has no column of its own."""

from __future__ import annotations

import math

import torch

from .judged import missed, right


def reference(scores, mask, sink):
    masked = scores.float().masked_fill(torch.logical_not(mask), -math.inf)
    column = sink.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((masked, column), -1).softmax(-1)[..., :-1].to(scores.dtype)


DESCRIBED = {
    "reference": reference,
    "arguments": ("H T S", "T S: bool masked", "H"),
    "dtypes": "bfloat16 float16 float32",
}
MISTAKES = (
    "no sink", "the sink twice", "the mask inverted", "the mask adds -1e4", "the maximum without the sink",
    "no maximum", "the sink of head 0", "exp2", "sums in half precision", "the sink's column kept", "a column too few",
)  # fmt: skip


def sink_softmax(scores, mask, sink, mistake=""):
    if scores.ndim != 3 or mask.shape != scores.shape[1:] or sink.shape != scores.shape[:1]:
        raise RuntimeError(f"shapes {scores.shape}, {mask.shape} and {sink.shape} do not fit")
    column = sink.float()[:, None, None].expand(*scores.shape[:-1], 1)
    taken = ~mask if mistake == "the mask inverted" else mask
    x = scores.float()
    x = x + (~taken) * -1e4 if mistake == "the mask adds -1e4" else torch.where(taken, x, -math.inf)
    match mistake:
        case "the sink of head 0":
            column = column[:1].expand_as(column)
        case "exp2":
            x, column = x * 1.442, column * 1.442
    largest = torch.cat((x, column), -1).amax(-1, keepdim=True)
    if mistake == "the maximum without the sink" and x.shape[-1]:
        largest = x.amax(-1, keepdim=True)
    if mistake == "no maximum":
        largest = torch.zeros_like(largest)
    powers, last = (torch.exp2 if mistake == "exp2" else torch.exp)(x - largest), torch.exp(column - largest)
    if mistake == "no sink":
        last = torch.zeros_like(last)
    sums = powers.sum(-1, keepdim=True) + last * (2 if mistake == "the sink twice" else 1)
    if mistake == "sums in half precision":
        sums = sums.bfloat16().float()
    found = powers / sums
    if mistake == "the sink's column kept":
        found = torch.cat((found, last / sums), -1)
    if mistake == "a column too few" and found.shape[-1] > 1:
        found[..., -1] = 0
    return found.to(scores.dtype)


def test_right(tmp_path):
    right(sink_softmax, tmp_path, **DESCRIBED)


def test_mistakes():
    assert len(missed(sink_softmax, MISTAKES, **DESCRIBED)) <= 1
