"""The gradients of dropout, rotations and fused operators, against torch's autograd of their formulas in float64."""

import math
import types

import pytest
import torch
from differentiable import DEVICE, doubled, gradients, tensor

import ntops
from ntops.autograd import fused

F = torch.nn.functional
UNIT = 2.0**-24


def _rotated(x, sin, cos, interleaved):
    sin, cos = (table[: x.shape[1], None] for table in (sin, cos))
    half = x.shape[-1] // 2
    x0, x1 = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    y0, y1 = x0 * cos - x1 * sin, x0 * sin + x1 * cos
    return torch.stack((y0, y1), -1).flatten(-2) if interleaved else torch.cat((y0, y1), -1)


def _tables(rows, columns, **options):
    angles = tensor(rows, columns, dtype=torch.float64, seed=5, requires_grad=False)
    return [
        one.to(torch.float32).requires_grad_(options.get("requires_grad", False))
        for one in (angles.sin(), angles.cos())
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("to_tables", [False, True])
def test_rotations(to_tables, interleaved, dtype):
    x = tensor(2, 3, 4, 8, dtype=dtype)
    args = (x, *_tables(5, 4, requires_grad=to_tables), interleaved)
    given = tensor(2, 3, 4, 8, dtype=dtype, seed=9, requires_grad=False)
    found = gradients(ntops.torch.rotary_position_embedding, args, given)
    wanted = gradients(_rotated, doubled(args), given.cpu().double())
    sources = [one for one in args if isinstance(one, torch.Tensor) and one.requires_grad]

    for one, want, source in zip(found, wanted, sources, strict=True):
        assert (one.shape, one.dtype) == (source.shape, source.dtype)
        torch.testing.assert_close(
            one.cpu().double(), want, rtol=torch.finfo(source.dtype).eps / 2, atol=64 * UNIT * want.abs().max().item()
        )


@pytest.mark.parametrize("rows", [(3, 5), (5, 3), (4, 6)])
def test_each_table_of_a_rotation_has_a_gradient_of_its_length(rows):
    sin, cos = (_tables(count, 4, requires_grad=True)[number] for number, count in enumerate(rows))
    ntops.torch.rotary_position_embedding(tensor(2, 3, 4, 8), sin, cos).sum().backward()

    for table in (sin, cos):
        assert table.grad.shape == table.shape
        assert table.grad[:3].all()
        assert not table.grad[3:].any()


def test_a_rotation_in_place():
    leaf = tensor(2, 3, 4, 8)
    sin, cos = _tables(3, 4)
    ntops.torch.rotary_position_embedding(leaf * 1, sin, cos, inplace=True).sum().backward()
    (want,) = gradients(_rotated, (leaf, sin, cos, True), torch.ones_like(leaf))
    torch.testing.assert_close(leaf.grad, want)


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_drops_of_the_gradient_what_it_dropped(inplace, p):
    leaf = torch.ones(50, 7, device=DEVICE, requires_grad=True)
    result = ntops.torch.dropout(leaf * 1, p, inplace=inplace)
    kept = result.detach().clone()
    given = tensor(7, 50, requires_grad=False).mT
    result.backward(given)
    assert torch.equal(leaf.grad, given * kept)
    assert kept.any() == (p < 1)


def test_dropout_keeps_no_mask():
    leaf = torch.ones(500, device=DEVICE, requires_grad=True)
    # Some versions of torch free what is saved with the result.
    result = ntops.torch.dropout(leaf)
    assert sum(one.numel() for one in result.grad_fn.saved_tensors) == 1


def _norm_rotation(x, weight, cos, sin, eps, interleaved, head_dim):
    options = types.SimpleNamespace(eps=eps, interleaved=interleaved, head_dim=head_dim)
    return fused._norm_rotation(x, weight, cos, sin, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("full", "to_tables"), [(False, False), (True, False), (False, True)])
def test_norm_and_rotation(full, to_tables, interleaved, dtype):
    x, weight = tensor(2, 3, 32, dtype=dtype), tensor(32, dtype=dtype, seed=1)
    tables = _tables(5, 4, requires_grad=to_tables)
    if full:
        tables = [one.repeat_interleave(2, 1) if interleaved else one.repeat(1, 2) for one in tables]
    sin, cos = (one.detach().requires_grad_(to_tables) for one in tables)
    given = tensor(2, 3, 32, dtype=dtype, seed=9, requires_grad=False)
    keywords = {"eps": 1e-6, "interleaved": interleaved, "head_dim": 8}
    found = gradients(ntops.torch.fused_rmsnorm_rope, (x, weight, cos, sin), given, **keywords)
    wanted = gradients(_norm_rotation, doubled((x, weight, cos, sin)), given.cpu().double(), **keywords)

    for one, want in zip(found, wanted, strict=True):
        half = torch.finfo(one.dtype).eps / 2
        torch.testing.assert_close(one.cpu().double(), want, rtol=half, atol=64 * UNIT * want.abs().max().item())


def test_tables_that_need_gradients_change_no_other_gradient():
    """A product with the third power of the reciprocal deviation, as autograd makes it, would underflow here."""
    x = torch.tensor([[[-3.26e6, 6e-26]]], device=DEVICE)
    given = torch.tensor([[[1.0, 2.0]]], device=DEVICE)
    found = []
    for to_tables in (False, True):
        weight = torch.tensor([0.0, 1.0], device=DEVICE, requires_grad=True)
        tables = (torch.full((1, 1), -0.4, device=DEVICE, requires_grad=to_tables) for _ in range(2))
        args = x.clone().requires_grad_(), weight, *tables
        found.append(gradients(ntops.torch.fused_rmsnorm_rope, args, given, head_dim=2, interleaved=True)[:2])

    assert all(map(torch.equal, *found))
    assert found[0][0][0, 0, 0] != 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated_mlp(activation, dtype):
    args = tensor(2, 3, 16, dtype=dtype), tensor(20, 16, dtype=dtype, seed=1), tensor(20, 16, dtype=dtype, seed=2)
    given = tensor(2, 3, 20, dtype=dtype, seed=9, requires_grad=False)
    found = gradients(ntops.torch.fused_gated_mlp, (*args, activation), given)
    wanted = gradients(fused._mlp, (*doubled(args), activation), given.cpu().double())
    # What is between is rounded: products, what they are multiplied by, and one of two terms of the first.
    unit = max(UNIT * 64, 6 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)

    for one, want, source in zip(found, wanted, args, strict=True):
        assert (one.shape, one.dtype) == (source.shape, dtype)
        assert (one.cpu().double() - want).abs().max() <= unit * want.abs().max()


def test_nothing():
    args = tensor(0, 16), tensor(20, 16, seed=1), tensor(20, 16, seed=2)
    found = gradients(ntops.torch.fused_gated_mlp, args, torch.empty(0, 20, device=DEVICE))
    assert [one.shape for one in found] == [one.shape for one in args]
    assert not any(one.any() for one in found)


def test_modules_learn():
    """A step downhill makes a loss smaller by what its gradient says."""
    modules = (
        ntops.torch.FusedRMSNormRoPE(32, 8, device=DEVICE),
        ntops.torch.FusedGatedMLP(32, 48, device=DEVICE),
    )
    x, target = tensor(2, 5, 32, requires_grad=False), tensor(2, 5, 48, seed=1, requires_grad=False)
    sin, cos = _tables(5, 4)
    parameters = [one for module in modules for one in module.parameters()]

    def loss():
        return F.mse_loss(modules[1](modules[0](x, cos, sin)), target)

    before = loss()
    before.backward()
    square = sum((one.grad * one.grad).sum() for one in parameters).item()
    step = 1e-3 / math.sqrt(square)

    with torch.no_grad():
        for one in parameters:
            one -= step * one.grad
        fall = (before - loss()).item()

    assert fall == pytest.approx(step * square, rel=0.05)


@pytest.mark.parametrize("name", ["rotary_position_embedding", "fused_rmsnorm_rope", "fused_gated_mlp"])
def test_derivatives_of_the_first_and_the_second_order_in_float64(name):
    sin, cos = (one.detach().double().requires_grad_() for one in _tables(2, 2))
    x = tensor(1, 2, 1, 4, dtype=torch.float64)
    args = {
        "rotary_position_embedding": (x, sin, cos),
        "fused_rmsnorm_rope": (x[0, :, 0][None], tensor(4, dtype=torch.float64, seed=1), cos, sin, 1e-6),
        "fused_gated_mlp": tuple(tensor(3, 2, dtype=torch.float64, seed=seed) for seed in range(3)),
    }[name]
    keywords = {"head_dim": 4} if name == "fused_rmsnorm_rope" else {}
    function = getattr(ntops.torch, name)
    assert torch.autograd.gradcheck(lambda *args: function(*args, **keywords), args)
    assert torch.autograd.gradgradcheck(lambda *args: function(*args, **keywords), args)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_third_derivatives_of_a_gated_mlp_are_finite(activation):
    """torch's own third derivative of gelu by tanh is NaN from 13 on."""
    x = torch.tensor([[-60.0], [-13.0], [0.5], [13.0], [60.0]], device=DEVICE, requires_grad=True)
    one = torch.ones(1, 1, device=DEVICE)
    found, want = ntops.torch.fused_gated_mlp(x, one, one, activation), x.detach().double().requires_grad_()
    right = fused._mlp(want, one.double(), one.double(), activation)

    for _ in range(3):
        (found,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        (right,) = torch.autograd.grad(right.sum(), want, create_graph=True)
        torch.testing.assert_close(found.double(), right, rtol=1e-3, atol=1e-3)
