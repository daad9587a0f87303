"""Norms: ``normalized_shape`` as one int, which torch's norms do not take, and weights of a wider dtype."""

import numpy as np
import pytest
import torch

import ntops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NORMS = [ntops.torch.layer_norm, ntops.torch.rms_norm]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", [int, np.int64, np.uint8])
def test_an_int_stands_for_the_tuple_of_it(norm, kind):
    for size in (5, 48):
        x, weight = torch.randn(2, 3, size, device=DEVICE), torch.randn(size, device=DEVICE)

        # On a GPU the second call of a kind repeats a recorded one.
        for _ in range(3):
            assert torch.equal(norm(x, kind(size)), norm(x, (size,)))
            assert torch.equal(norm(x, normalized_shape=kind(size), weight=weight), norm(x, [size], weight))


@pytest.mark.parametrize("norm", NORMS)
def test_an_int_is_the_last_dim_alone(norm):
    x = torch.randn(3, 1, device=DEVICE)

    for _ in range(2):
        assert norm(x, 1).shape == (3, 1)

        for size in (3, 0, -1):
            with pytest.raises(RuntimeError, match=rf"'normalized_shape' \({size},\) must be the last dims of 'input'"):
                norm(x, size)

        for wrong in (True, np.bool_(True), 1.0, "1", None, torch.tensor(1)):
            with pytest.raises(TypeError, match="'normalized_shape' must be a tuple of ints, or an int, not"):
                norm(x, wrong)


def test_a_wider_weight_is_not_rounded_first():
    """A weight that float32 holds as a subnormal number would lose up to half a step, times what it multiplies."""
    input = torch.tensor([[4.0, 1, 2, 3, -5, 0.1, 0.2, 0.3]], device=DEVICE)
    step = 2.0**-149
    weight = torch.full((8,), 3.4 * step, dtype=torch.float64, device=DEVICE)
    mean = input.double().square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps
    expected = input.double() / mean.sqrt() * weight
    assert (ntops.torch.rms_norm(input, (8,), weight).double() - expected).abs().max() <= 0.5001 * step
