"""fused_rmsnorm_rope has two forms of its kernel: which rows go to which, and that they agree."""

import pytest
import torch

from ntops.host import rope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, torch.bfloat16)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("heads", [32, 40, 64])
def test_the_forms_agree(interleaved, heads, monkeypatch):
    width = 32 * heads
    x, weight, cos, sin = random(2, 9, width), random(width, seed=1), random(11, 16, seed=2), random(11, 16, seed=3)
    # Programs take several rows each.
    monkeypatch.setattr(rope, "multiprocessors", lambda index: 1)
    layouts = [x, torch.stack([x, x], 2)[:, :, 1], x.transpose(0, 1).contiguous().transpose(0, 1)]
    found = [rope.norm_and_rotate(one, weight, cos, sin, 1e-6, 16, interleaved) for one in layouts]
    assert all(torch.equal(one, found[0]) for one in found)
    monkeypatch.setattr(rope, "_warps", lambda *arguments: 0)
    other = rope.norm_and_rotate(x, weight, cos, sin, 1e-6, 16, interleaved)
    # Each is rounded to bfloat16 once, so that they are neighbours at most.
    torch.testing.assert_close(found[0], other, rtol=2**-7, atol=2**-20)


def test_which_rows_it_takes():
    single, double = torch.float32, torch.float64
    taken = {(32, 64, single): 4, (64, 64, single): 8, (40, 64, single): 8, (32, 16, single): 1, (128, 64, single): 16}
    left = [(32, 64, double), (32, 48, single), (32, 8, single), (129, 64, single), (16, 16, single)]
    assert {one: rope._warps(*one) for one in taken} == taken
    assert not any(rope._warps(*one) for one in left)
