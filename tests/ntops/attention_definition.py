"""Attention as it is defined, in float64, for the tests of this folder."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# A few roundings of probabilities of about 0.1 and of the result.
TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random(*shape, dtype=torch.float32, seed=0):
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def definition(query, key, value, mask=None, causal=None, scale=None):
    """Attention in float64; ``causal`` is how many keys more than its own position a query sees."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[-3] // key.shape[-3]
    key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)

    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.double()

    if causal is not None:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(causal)
        scores = scores.masked_fill(~seen, -torch.inf)

    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(nothing, 0), -1).masked_fill(nothing, 0) @ value


def assert_attends(actual, query, key, value, **how):
    """Check a result against the definition."""
    expected = definition(query, key, value, **how)
    assert actual.shape == expected.shape
    assert actual.dtype is query.dtype
    error = (actual.double() - expected).abs().max().item() if expected.numel() else 0
    assert error <= TOLERANCES[query.dtype] * max(1, value.abs().max().item()), error
