"""The block of docs/fused.md: with ntops and with torch alone it gives the same at every token, within what is derived.

The reference is the block in float64. ``Derivation`` does its steps once more with two numbers for each: the value, and
how far from it an implementation in float32 may be. Each step adds the bound of its operator, from the conformance
suite, to what the errors of its operands become in it, to first order: second orders are far below a margin of 1%.
"""

from __future__ import annotations

import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import ntops.torch
from conformance import bounds, float_formats, product_bounds
from conformance.ops import fused_gated_mlp

PAGE = Path(__file__).parents[2] / "docs" / "fused.md"
TOKENS, PROMPT = 64, 24
SIZES = {"hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate": 48}
FLOAT32 = torch.float32
MARGIN = 1.01
Pair = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def page() -> types.ModuleType:
    """The code of the page."""
    (text,) = re.findall(r"^`llama_block\.py`:\n\n```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module = types.ModuleType("llama_block")
    exec(compile(text, "llama_block.py", "exec"), module.__dict__)
    return module


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


class Derivation:
    """The steps of the block on (value, error) pairs, float64."""

    def __init__(self, block: torch.nn.Module) -> None:
        self.weights = {name: numbers(weight) for name, weight in block.state_dict().items()}

    def linear(self, x: Pair, name: str) -> Pair:
        weight = self.weights[f"{name}.weight"].T
        value, magnitude = x[0] @ weight, np.abs(x[0]) @ np.abs(weight)
        own = product_bounds.product(value, magnitude, np.zeros_like(value), weight.shape[0], FLOAT32)
        return value, x[1] @ np.abs(weight) + own

    def norm(self, x: Pair, name: str) -> Pair:
        weight, mean = self.weights[f"{name}.weight"], (x[0] ** 2).mean(-1, keepdims=True) + 1e-6
        value = x[0] / np.sqrt(mean) * weight
        # d(x_i m^-1/2) = dx_i m^-1/2 - x_i m^-3/2 mean(x dx)
        through = x[1] / np.sqrt(mean) + np.abs(x[0]) * mean**-1.5 * (np.abs(x[0]) * x[1]).mean(-1, keepdims=True)
        return value, through * np.abs(weight) + bounds.rms_norm(value, weight, FLOAT32)

    def rotated(self, x: Pair, cos: np.ndarray, sin: np.ndarray, head_dim: int) -> Pair:
        (n, error), half = (part.reshape(*part.shape[:-1], -1, head_dim) for part in x), head_dim // 2
        cos, sin = cos[:, None], sin[:, None]
        turned = np.concatenate((-n[..., half:], n[..., :half]), -1)
        swapped = np.concatenate((error[..., half:], error[..., :half]), -1)
        through = error * np.abs(cos) + swapped * np.abs(sin)
        own = bounds.rope(n * cos, turned * sin, FLOAT32)
        return n * cos + turned * sin, through + own

    def attended(self, query: Pair, key: Pair, value: Pair) -> Pair:
        """(batch, tokens, heads, head_dim), every token of a sequence; each sees those before it and itself."""
        group = query[0].shape[2] // key[0].shape[2]
        (q, dq), (k, dk), (v, dv) = query, *((np.repeat(x, group, 2) for x in pair) for pair in (key, value))
        scale, tokens = q.shape[-1] ** -0.5, q.shape[1]
        magnitude, score, through = (
            np.einsum("blhe,bshe->bhls", *pair) * scale for pair in ((np.abs(q), np.abs(k)), (q, k), (np.abs(q), dk))
        )
        through = through + np.einsum("blhe,bshe->bhls", dq, np.abs(k)) * scale
        seen = np.tri(tokens, dtype=bool)
        p = np.where(seen, np.exp(score - np.where(seen, score, -np.inf).max(-1, keepdims=True)), 0.0)
        p /= p.sum(-1, keepdims=True)

        def weighted(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
            return np.einsum("bhls,bshe->blhe", weights, values)

        found, absolute = weighted(p, v), weighted(p, np.abs(v))
        # d(sum p v) = sum p dv + sum p (ds - sum p ds) v, of which no ds is more than the largest.
        most = np.where(seen, through, 0.0).max(-1).transpose(0, 2, 1)[..., None]
        largest = np.where(seen, magnitude, 0.0).max(-1).transpose(0, 2, 1)[..., None]
        zero = np.zeros_like(found)
        total = weighted(np.broadcast_to(seen, p.shape), np.abs(v))
        sums = bounds.Attended(found, absolute, zero, total, largest, zero, zero)
        return found, weighted(p, dv) + 2 * most * absolute + bounds.attention(sums, tokens, q.shape[-1], FLOAT32)

    def mlp(self, x: Pair) -> Pair:
        gate, up = (self.linear(x, f"mlp.{name}") for name in ("gate", "up"))
        formula = fused_gated_mlp.FORMULAS["silu"][0]
        activated = formula(gate[0])
        off = bounds.activated(formula, "silu", gate[0], activated, gate[1], FLOAT32)
        value = activated * up[0]
        return value, bounds.fused_gated_mlp(value, activated, up[0], off, up[1], FLOAT32)

    def added(self, x: Pair, y: Pair) -> Pair:
        return x[0] + y[0], x[1] + y[1] + float_formats.rounding(x[0] + y[0], FLOAT32)

    def block(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_dim: int) -> Pair:
        """All tokens at once, which is the same as one after the other."""
        start: Pair = (numbers(x), np.zeros(x.shape))
        table = (numbers(cos), numbers(sin), head_dim)
        normalized = self.norm(start, "norm")
        query, key = (
            self.rotated(self.norm(self.linear(normalized, name), f"rotated_{name}.norm"), *table)
            for name in ("query", "key")
        )
        value = tuple(part.reshape(*part.shape[:-1], -1, head_dim) for part in self.linear(normalized, "value"))
        attended = tuple(part.reshape(*part.shape[:2], -1) for part in self.attended(query, key, value))
        x2 = self.added(start, self.linear(attended, "out"))
        return self.added(x2, self.linear(self.mlp(self.norm(x2, "mlp_norm")), "down"))


@pytest.mark.slow
@pytest.mark.usefixtures("on_device")
def test_every_token_is_within_what_is_derived(page):
    torch.manual_seed(0)
    block = page.Block(**SIZES)
    x = torch.randn(2, TOKENS, SIZES["hidden"])
    before = {name: weight.clone() for name, weight in block.state_dict().items()}
    plain = page.run(block, x, PROMPT)
    cos, sin = page.tables(TOKENS, SIZES["head_dim"])
    value, error = Derivation(block).block(x, cos, sin, SIZES["head_dim"])
    error = MARGIN * error
    # The derivation computes what the block does, and says something.
    wide = page.Block(**SIZES, dtype=torch.float64)
    wide.load_state_dict(block.state_dict())
    one_by_one = numbers(page.run(wide, x.double(), PROMPT))
    np.testing.assert_allclose(one_by_one, value, rtol=0, atol=1e-6)
    assert error.max() < 2e-3 * np.abs(value).max()
    assert (np.abs(numbers(plain) - value) <= error).all()

    replaced = page.fast(block)
    assert replaced is block
    ours = numbers(page.run(block, x, PROMPT))
    assert (np.abs(ours - value) <= error).all()
    assert (np.abs(ours - value) > 0).any()
    # It tells a mistake, at every token.
    mlp = block.mlp
    mlp.gate_weight, mlp.up_weight = mlp.up_weight, mlp.gate_weight
    swapped = np.abs(numbers(page.run(block, x, PROMPT)) - value)
    assert (swapped > error).any(-1).all()
    mlp.gate_weight, mlp.up_weight = mlp.up_weight, mlp.gate_weight

    restored = ntops.torch.restore(block)
    after = restored.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())
    assert torch.equal(page.run(restored, x, PROMPT), plain)
