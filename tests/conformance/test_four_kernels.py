"""The kernels of docs/four-kernels.md: the usual test passes with the mistake, another call shows it, and the page says
what the sources do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from conformance.selftest import four_kernels

ROOT = Path(__file__).parents[2]
TORCH = {
    "add": torch.add,
    "layer_norm": torch.nn.functional.layer_norm,
    "mm": torch.mm,
    "scaled_dot_product_attention": torch.nn.functional.scaled_dot_product_attention,
}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def heads(scale: float) -> tuple[torch.Tensor, ...]:
    query, key, value = normal(3, 1, 2, 64, 32)
    return query * scale, key * scale, value


USUAL = {
    "add": (normal(1024), normal(1024)),
    "layer_norm": (normal(8, 1024), (1024,)),
    "mm": (normal(128, 128), normal(128, 128)),
    "scaled_dot_product_attention": heads(1),
}
TELLING = {
    "add": (normal(1025), normal(1025)),
    "layer_norm": (normal(8, 300) + 1, (300,)),
    "mm": (normal(128, 130), normal(130, 128)),
    "scaled_dot_product_attention": heads(12),
}


def passes_a_usual_test(op: str, mistake: bool, arguments: tuple) -> bool:
    result = four_kernels.FUNCTIONS[op](TORCH[op], mistake, *arguments)
    # As loose as such a test usually is: with the mistake it passes.
    return torch.allclose(result, TORCH[op](*arguments), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("op", TORCH)
def test_the_usual_test_passes_and_another_does_not(op, monkeypatch):
    # What is not written has to be something: memory that comes again may hold the right result.
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, torch.nan))
    assert passes_a_usual_test(op, True, USUAL[op])
    assert passes_a_usual_test(op, False, USUAL[op])
    assert not passes_a_usual_test(op, True, TELLING[op])
    assert passes_a_usual_test(op, False, TELLING[op])


def test_the_page_shows_the_sources():
    page = (ROOT / "docs/four-kernels.md").read_text()
    source = re.sub(r"\n +", "\n", (ROOT / "conformance/selftest/four_kernels.py").read_text())
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert re.sub(r"\n +", "\n", block) in source
