"""Attention as it is defined, in float64, and how far from it a result may be, for the tests of this folder."""

import numpy as np
import torch

from conformance import bounds, float_formats, product_bounds

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def random(*shape, dtype=torch.float32, seed=0):
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def definition(query, key, value, mask=None, causal=None, scale=None):
    """Attention in float64; ``causal`` is how many keys more than its own position a query sees."""
    return _sums(query, key, value, mask, causal, scale)[0]


def _sums(query, key, value, mask, causal, scale):
    """The result in float64, and the sums that its bound is made of: see ``conformance.bounds.Attended``."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[-3] // key.shape[-3]
    key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    added, kept = torch.zeros_like(scores), torch.ones_like(scores, dtype=torch.bool)

    if mask is not None and mask.dtype is torch.bool:
        kept &= mask
    elif mask is not None:
        added += mask.double()
        kept &= added != -torch.inf

    if causal is not None:
        kept = kept.tril(causal)

    scores = (scores + added).masked_fill(~kept, -torch.inf)
    nothing = ~kept.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(nothing, 0), -1).masked_fill(nothing, 0)
    weighted = weights @ value.abs()
    masked = weights * added.abs().masked_fill(~kept, 0)
    # The zero is for rows without keys.
    sizes = torch.nn.functional.pad((query.abs() @ key.abs().mT * abs(scale)).masked_fill(~kept, 0), (0, 1))

    return (
        weights @ value,
        weighted,
        (weights**2 @ value**2).sqrt(),
        kept.double() @ value.abs(),
        sizes.amax(-1, keepdim=True),
        masked @ value.abs() + weighted * masked.sum(-1, keepdim=True),
    )


def assert_attends(actual, query, key, value, mask=None, causal=None, scale=None):
    """Check a result against the definition, by the bound of the conformance suite and one rounding to its dtype."""
    expected, *sums = (x.cpu().numpy() for x in _sums(query, key, value, mask, causal, scale))
    dtype = query.dtype
    assert not product_bounds.uses_tf32(dtype)
    attended = bounds.Attended(expected, *sums, walk=np.zeros(()))
    bound = bounds.attention(attended, key.shape[-2], query.shape[-1], dtype)
    # What is compared with is float64 itself.
    bound = bound * (2 if dtype is torch.float64 else 1)
    allowed = bound + float_formats.rounding(np.abs(expected) + bound, dtype)
    error = np.abs(actual.double().cpu().numpy() - expected)
    assert actual.shape == expected.shape
    assert actual.dtype is dtype
    assert (error <= allowed).all(), (error / allowed).max(initial=0)
