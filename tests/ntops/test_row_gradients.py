"""The gradients of softmax and of the norms, against torch's autograd of float64 copies."""

import pytest
import torch
from differentiable import DEVICE, doubled, gradients, tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ntops
from ntops.host import row_gradients

F = torch.nn.functional
UNIT = 2.0**-24


def _half_ulp(dtype, want):
    return torch.finfo(dtype).eps / 2 * want.abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "dim"), [((5, 33), -1), ((4, 7, 5), 1), ((3,), 0), ((), 0), ((2, 20000), 1)])
def test_gradients_of_softmax(shape, dim, dtype):
    x, given = tensor(*shape, dtype=dtype), tensor(*shape, dtype=dtype, seed=1, requires_grad=False)
    (found,) = gradients(ntops.torch.softmax, (x, dim), given)
    (want,) = gradients(torch.softmax, (*doubled([x]), dim), given.cpu().double())
    result = torch.softmax(x.detach().cpu().double(), dim)
    slopes = given.cpu().double()
    # The result that it takes is rounded to its dtype, and all else to float32.
    sizes = result * (slopes.abs() + (slopes.abs() * result).sum(dim, keepdim=True) if shape else slopes.abs())
    bound = 2 * torch.finfo(dtype).eps * sizes + 32 * UNIT * sizes
    assert (found.dtype, found.shape, found.is_contiguous()) == (dtype, x.shape, True)
    assert ((found.cpu().double() - want).abs() <= bound).all()


def test_gradients_of_softmax_that_casts():
    x, given = tensor(3, 5, dtype=torch.bfloat16), tensor(3, 5, dtype=torch.float64, requires_grad=False)
    (found,) = gradients(ntops.torch.softmax, (x, 1, torch.float64), given)
    (want,) = gradients(torch.softmax, (x, 1, torch.float64), given)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, want, rtol=0, atol=0)


NORMS = {
    "one row": ((1, 7), 1),
    "rows": ((37, 33), 1),
    "full": ((300, 64), 1),
    "batch": ((2, 3, 5, 4), 2),
    "rows of the next power": ((300, 600), 1),
    "long rows": ((3, 8200), 1),
    "walked rows": ((19, 16400), 1),
    "many rows": ((2000, 3), 1),
}


def _reference(name):
    return F.layer_norm if name == "layer_norm" else F.rms_norm


def _norm_args(name, shape, dims, dtype, weight, bias):
    sizes = shape[len(shape) - dims :]
    x = (tensor(*shape, dtype=torch.float64) + 3).detach().to(dtype).requires_grad_()
    parameters = [tensor(*sizes, dtype=dtype, seed=1) if weight else None]
    parameters += [tensor(*sizes, dtype=dtype, seed=2) if bias else None] if name == "layer_norm" else []
    return (x, sizes, *parameters, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_gradients_of_norms(name, norm, dtype):
    shape, dims = NORMS[norm]
    args = _norm_args(name, shape, dims, dtype, True, True)
    given = tensor(*shape, dtype=dtype, seed=9, requires_grad=False)
    found = gradients(getattr(ntops.torch, name), args, given)
    wanted = gradients(_reference(name), doubled(args), given.cpu().double())
    x, slopes = args[0].detach().cpu().double(), given.cpu().double()
    over = [*range(-dims, 0)]
    centered = x - x.mean(over, keepdim=True) if name == "layer_norm" else x
    scale = torch.rsqrt((centered * centered).mean(over, keepdim=True) + 1e-5)
    normal = centered * scale
    slopes_in = (slopes * args[2].detach().cpu().double()).abs()
    # What is centered is off by a rounding of the largest; that is scaled.
    off = UNIT * 16 * (1 + x.abs().amax(over, keepdim=True) * scale)
    along = (slopes_in * normal.abs()).mean(over, keepdim=True)
    sizes = scale * (slopes_in + slopes_in.mean(over, keepdim=True) + (normal.abs() + 1) * along)
    batch = [*range(len(shape) - dims)]
    bounds = [off * sizes, (off * slopes.abs() * (normal.abs() + 1)).sum(batch), 16 * UNIT * slopes.abs().sum(batch)]
    sources = [one for one in args if isinstance(one, torch.Tensor)]

    for one, want, source, bound in zip(found, wanted, sources, bounds, strict=False):
        assert (one.dtype, one.shape) == (dtype, source.shape)
        assert ((one.cpu().double() - want).abs() <= bound + _half_ulp(dtype, want)).all()


@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)])
@pytest.mark.parametrize("columns", [5, 8200, 16400])
def test_each_gradient_alone(needed, columns):
    args = list(_norm_args("layer_norm", (6, columns), 1, torch.float32, True, True))
    for place, wanted in zip((0, 2, 3), needed, strict=True):
        args[place] = args[place].detach().requires_grad_(bool(wanted))
    given = tensor(6, columns, seed=9, requires_grad=False)
    torch.testing.assert_close(gradients(ntops.torch.layer_norm, args, given), gradients(F.layer_norm, args, given))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_without_parameters_and_without_rows(name):
    given = tensor(6, 5, seed=9, requires_grad=False)
    args = _norm_args(name, (6, 5), 1, torch.float32, False, False)
    torch.testing.assert_close(
        gradients(getattr(ntops.torch, name), args, given), gradients(_reference(name), args, given)
    )
    args = _norm_args(name, (0, 5), 1, torch.float32, True, True)
    found = gradients(getattr(ntops.torch, name), args, torch.empty(0, 5, device=DEVICE))
    assert [one.shape for one in found] == [one.shape for one in args if isinstance(one, torch.Tensor)]
    assert not any(one.any() for one in found)


class Passing(TorchDispatchMode):
    """As profilers and counters of operations are."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_gradients_under_a_mode(name):
    args = (tensor(3, 5), 1) if name == "softmax" else _norm_args(name, (3, 5), 1, torch.float32, True, True)
    given = tensor(3, 5, seed=9, requires_grad=False)
    function = getattr(ntops.torch, name)
    plain = gradients(function, args, given)
    with Passing():
        found = gradients(function, args, given)
    assert all(map(torch.equal, found, plain))


def test_an_eps_that_is_left_out():
    x = (tensor(3, 5) * 1e-4).detach().requires_grad_()
    given = tensor(3, 5, seed=1, requires_grad=False)
    found = gradients(ntops.torch.rms_norm, (x, (5,)), given)
    torch.testing.assert_close(found, gradients(F.rms_norm, (x, (5,)), given))


@pytest.mark.parametrize("strides", ["transposed", "expanded", "sliced"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax"])
def test_gradients_of_any_strides(name, strides):
    given = {
        "transposed": tensor(5, 6, requires_grad=False).mT,
        "expanded": torch.ones((), device=DEVICE).expand(6, 5),
        "sliced": tensor(6, 10, requires_grad=False)[:, ::2],
    }[strides]
    args = (tensor(6, 5), 1) if name == "softmax" else _norm_args(name, (6, 5), 1, torch.float32, True, True)
    reference = torch.softmax if name == "softmax" else _reference(name)
    found = gradients(getattr(ntops.torch, name), args, given)
    torch.testing.assert_close(found, gradients(reference, args, given), rtol=1e-5, atol=2e-6)


def test_a_row_alone_has_the_bits_that_it_has_among_others():
    x, given = tensor(300, 33, requires_grad=False), tensor(300, 33, seed=1, requires_grad=False)
    weight = tensor(33, seed=2, requires_grad=False)
    whole, *_ = row_gradients.norm(given, x, weight, 1e-5, True, None, True, False, False)
    part, *_ = row_gradients.norm(given[7:9], x[7:9], weight, 1e-5, True, None, True, False, False)
    assert torch.equal(whole[7:9], part)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax"])
def test_derivatives_of_the_first_and_the_second_order_in_float64(name):
    args = (tensor(3, 4, dtype=torch.float64), 1)
    args = args if name == "softmax" else _norm_args(name, (3, 4), 1, torch.float64, True, True)
    assert torch.autograd.gradcheck(getattr(ntops.torch, name), args)
    assert torch.autograd.gradgradcheck(getattr(ntops.torch, name), args)


@pytest.mark.parametrize(("shape", "dim"), [((4, 5, 30), 1), ((3, 20_000), -1), ((), 0)])
def test_log_softmax(shape, dim):
    x, given = tensor(*shape), tensor(*shape, seed=1, requires_grad=False)
    (found,) = gradients(ntops.torch.log_softmax, (x, dim), given)
    (want,) = gradients(torch.log_softmax, (*doubled([x]), dim), given.cpu().double())
    torch.testing.assert_close(found.cpu().double(), want, rtol=1e-5, atol=1e-4)


def test_second_derivatives_of_log_softmax():
    x = tensor(3, 4, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: ntops.torch.log_softmax(x * x, 1), (x,))
