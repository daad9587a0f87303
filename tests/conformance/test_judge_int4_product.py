"""A product with weights of four bits: two to a byte, a scale for 32 of them, dequantized to the dtype of x."""

from __future__ import annotations

import torch

from .judged import missed, right

GROUP = 32


def reference(x, packed, scales):
    groups = 2 * packed.shape[1] // GROUP
    quantized = torch.stack((packed & 15, packed >> 4), -1).reshape(len(packed), groups, GROUP)
    weight = ((quantized.float() - 8) * scales.float()[..., None]).to(x.dtype)
    return x @ weight.reshape(len(packed), groups * GROUP).T


DESCRIBED = {
    "reference": reference,
    "arguments": (f"M {GROUP}*G", f"N {GROUP // 2}*G: uint8", "N G"),
    "dtypes": "bfloat16 float16 float32",
}
MISTAKES = (
    "nibbles swapped", "halves of a group", "no zero point", "zero point 7", "scales of the first group",
    "scales of columns", "signed nibbles", "the last group left out", "accumulated in half precision", "transposed",
    "float32 returned",
)  # fmt: skip


def int4_product(x, packed, scales, mistake=""):
    if x.ndim != 2 or packed.ndim != 2 or 2 * packed.shape[1] != x.shape[1]:
        raise RuntimeError(f"shapes {x.shape} and {packed.shape} do not fit")
    n, groups = packed.shape[0], x.shape[1] // GROUP
    if scales.shape != (n, groups) or x.shape[1] % GROUP:
        raise RuntimeError(f"shapes {x.shape} and {scales.shape} do not fit")
    low, high = (packed & 15).float(), (packed >> 4).float()
    if mistake == "nibbles swapped":
        low, high = high, low
    if mistake == "halves of a group":
        parts = (low.reshape(n, groups, -1), high.reshape(n, groups, -1))
        quantized = torch.cat(parts, -1)
    else:
        quantized = torch.stack((low, high), -1).reshape(n, groups, GROUP)
    quantized = quantized - {"no zero point": 0, "zero point 7": 7}.get(mistake, 8)
    if mistake == "signed nibbles":
        quantized = torch.where(quantized >= 0, quantized, quantized + 8)
    each = scales.float()
    if mistake == "scales of the first group":
        each = each[:, :1].expand_as(each)
    if mistake == "scales of columns":
        each = each.flip(0)
    weight = quantized * each[..., None]
    if mistake == "the last group left out" and groups:
        weight[:, -1] = 0
    weight = weight.to(x.dtype).reshape(n, groups * GROUP).float()
    if mistake == "accumulated in half precision":
        products = [x[:, k : k + 8].float() @ weight[:, k : k + 8].T for k in range(0, x.shape[1], 8)]
        found = torch.zeros(len(x), n)
        for one in products:
            found = (found + one).bfloat16().float()
    else:
        found = x.float() @ weight.T
    if mistake == "transposed":
        found = found.T
    return found if mistake == "float32 returned" else found.to(x.dtype)


def test_right(tmp_path):
    right(int4_product, tmp_path, **DESCRIBED)


def test_mistakes():
    assert len(missed(int4_product, MISTAKES, **DESCRIBED)) <= 1
