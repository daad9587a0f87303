"""The cumulative sum: tiles, parts, strides, dtypes and gradients that a few drawn cases may miss."""

import math

import pytest
import torch

import ntops
from ntops.host import cumulative, reductions
from ntops.launch import config_selection

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = [(1, 16, 1, 1), (2, 16, 2, 1), (4, 8, 64, 1), (16, 4, 4, 1)]
"""Rows and columns of a tile, tiles of a part, warps."""


def _whole(*shape, seed=0):
    """Return whole numbers, whose sums are exact in any order."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).float().to(DEVICE)


def _both(x, dim):
    found = ntops.torch.cumsum(x, dim)
    torch.testing.assert_close(found, x.cumsum(dim), rtol=0, atol=0, equal_nan=True)
    return found


@pytest.mark.parametrize("options", OPTIONS)
def test_each_part_starts_at_the_sum_of_those_before_it(options):
    x = _whole(3, 5, 71)

    with config_selection.forced("cumsum", reductions.Options(*options)):
        for dim in range(-3, 3):
            _both(x, dim)
            _both(x.permute(2, 0, 1), dim)
            leaf = x.detach().requires_grad_()
            weights = _whole(*x.shape, seed=1)
            (found,) = torch.autograd.grad(ntops.torch.cumsum(leaf, dim), leaf, weights)
            assert torch.equal(found, weights.flip(dim).cumsum(dim).flip(dim))


@pytest.mark.parametrize("options", OPTIONS)
def test_infinities_and_nan_reach_what_follows_them_alone(options):
    x = torch.ones(4, 200, device=DEVICE)
    x[0, 70], x[1, 130], x[2, 5], x[2, 150] = math.nan, math.inf, -math.inf, math.inf

    with config_selection.forced("cumsum", reductions.Options(*options)):
        _both(x, 1)


def test_few_long_rows_are_split_up_and_many_are_not():
    few, many = (cumulative.config(1, rows, 1 << 16, False, 2, 4) for rows in (4, 4096))
    tiles = (1 << 16) // few.block_columns
    assert few.steps < tiles <= many.steps
    _both(_whole(1, 70_000), 1)


def test_nothing_is_copied_for_the_strides(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    x = _whole(4, 6, 9, 10)

    for view in (x.permute(2, 0, 3, 1), x[:, ::2, 1:, ::3], x[:, :1].expand(4, 7, 9, 10), x.transpose(1, 3)):
        for dim in range(4):
            assert _both(view, dim).is_contiguous()


def test_half_types_are_summed_in_float32():
    """In float16, ones would stop at 2048; and each element is rounded once."""
    x = torch.ones(2, 5000, dtype=torch.float16, device=DEVICE)
    assert torch.equal(ntops.torch.cumsum(x, 1), x.float().cumsum(1).half())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32])
def test_integers_give_int64(dtype):
    x = torch.ones(3, 300, device=DEVICE).to(dtype)
    assert torch.equal(ntops.torch.cumsum(x, 1), x.cumsum(1))
    assert torch.equal(ntops.torch.cumsum(x, 1, dtype=torch.int8), x.cumsum(1, dtype=torch.int8))


def test_torchs_other_name_of_the_dim():
    x = torch.randn(3, 4, device=DEVICE)
    assert torch.equal(ntops.torch.cumsum(x, axis=0), ntops.torch.cumsum(x, 0))

    with pytest.raises(TypeError):
        ntops.torch.cumsum(x, 0, axis=0)


def test_out_may_share_memory_with_the_input():
    x = _whole(3, 9000)
    expected = x.cumsum(1)
    assert torch.equal(ntops.torch.cumsum(x, 1, out=x), expected)


def test_bool_has_no_sums_but_of_nothing_or_without_dims():
    with pytest.raises(NotImplementedError, match="bool"):
        ntops.torch.cumsum(torch.ones(3, device=DEVICE), 0, dtype=torch.bool)

    assert ntops.torch.cumsum(torch.ones(0, 3, device=DEVICE), 0, dtype=torch.bool).shape == (0, 3)
    assert ntops.torch.cumsum(torch.tensor(2.5, device=DEVICE), 0, dtype=torch.bool).item() is True


def test_gradients_are_summed_in_the_dtype_of_the_argument():
    x = torch.ones(300, dtype=torch.float16, device=DEVICE, requires_grad=True)
    slopes = torch.linspace(0, 1, 300, dtype=torch.float64, device=DEVICE)
    (found,) = torch.autograd.grad(ntops.torch.cumsum(x, 0, dtype=torch.float64), x, slopes)
    # The slopes are cast first; where torch adds them up in float16 too, on a GPU, these are nearer to the sums.
    expected = slopes.half().double().flip(0).cumsum(0).flip(0).half()
    # One ulp of float16: sums of float32 in another order may round to its neighbour.
    torch.testing.assert_close(found, expected, rtol=2**-10, atol=0)
