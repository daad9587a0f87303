"""The gradients of matrix products, against torch's autograd of float64 copies."""

import pytest
import torch
from differentiable import DEVICE, doubled, gradients, tensor

import ntops

CALLS = {
    "mm": ("mm", (33, 17), (17, 5)),
    "bmm": ("bmm", (3, 4, 5), (3, 5, 2)),
    "no terms": ("mm", (3, 0), (0, 5)),
    "no columns": ("mm", (3, 4), (4, 0)),
    "dot": ("matmul", (5,), (5,)),
    "vector and matrix": ("matmul", (5,), (5, 3)),
    "vector and batch": ("matmul", (5,), (2, 5, 3)),
    "matrix and vector": ("matmul", (4, 5), (5,)),
    "batch and vector": ("matmul", (2, 4, 5), (5,)),
    "batch and matrix": ("matmul", (2, 3, 4, 5), (5, 6)),
    "matrix and batch": ("matmul", (4, 5), (3, 5, 6)),
    "batches that broadcast": ("matmul", (2, 1, 4, 5), (3, 5, 6)),
    "batches of one": ("matmul", (1, 4, 5), (3, 5, 6)),
}


def _check(name, args, dtype, **kwargs):
    """Each gradient is a sum: off by its order, by roundings of the sum of its terms' sizes, and by half an ulp."""
    function, reference = getattr(ntops.torch, name), getattr(torch, name)
    gradient = tensor(*reference(*doubled(args), **kwargs).shape, dtype=dtype, seed=9, requires_grad=False)
    found = gradients(function, args, gradient, **kwargs)
    wanted = gradients(reference, doubled(args), gradient.cpu().double(), **kwargs)
    sizes = [one.detach().abs().requires_grad_(one.requires_grad) for one in args]
    numbers = {name: abs(value) for name, value in kwargs.items()}
    sums = gradients(reference, doubled(sizes), gradient.cpu().double().abs(), **numbers)
    sources = [one for one in args if one.requires_grad]

    for one, want, size, source in zip(found, wanted, sums, sources, strict=True):
        assert (one.shape, one.dtype) == (source.shape, dtype)
        assert ((one.cpu().double() - want).abs() <= 64 * 2**-24 * size + torch.finfo(dtype).eps / 2 * want.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", CALLS)
def test_gradients_of_products(call, dtype):
    name, first, second = CALLS[call]
    _check(name, (tensor(*first, dtype=dtype), tensor(*second, dtype=dtype, seed=1)), dtype)


@pytest.mark.parametrize("shape", [(33, 5), (5,), (33, 1), ()])
def test_gradients_of_addmm(shape):
    args = tensor(*shape), tensor(33, 17, seed=1), tensor(17, 5, seed=2)
    _check("addmm", args, torch.float32, beta=0.5, alpha=-2)


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_what_needs_no_gradient_is_not_saved(needed):
    args = [tensor(4, 5, requires_grad=needed[0]), tensor(5, 3, requires_grad=needed[1])]
    result = ntops.torch.mm(*args)
    assert [one is args[needed.index(False)] for one in result.grad_fn.saved_tensors] == [True]
    _check("mm", args, torch.float32)


def test_factors_and_gradients_of_any_strides():
    args = tensor(17, 33).mT, tensor(17, 10, seed=1)[:, ::2]
    for gradient in (torch.ones((), device=DEVICE).expand(33, 5), tensor(5, 33, requires_grad=False).mT):
        found = gradients(ntops.torch.mm, args, gradient)
        torch.testing.assert_close(found, gradients(torch.mm, args, gradient))


def test_a_factor_that_was_broadcast_is_summed_before_it_is_rounded():
    """The first of the products is 256 in bfloat16, to which ones one by one add nothing."""
    matrix = tensor(1, 1, dtype=torch.bfloat16)
    batch = torch.ones(257, 1, 1, dtype=torch.bfloat16, device=DEVICE)
    batch[0] = 256
    (found,) = gradients(ntops.torch.matmul, (batch, matrix), torch.ones_like(batch))
    assert found.item() == 512


@pytest.mark.parametrize("call", ["mm", "batches that broadcast", "vector and batch", "dot"])
def test_derivatives_of_the_first_and_the_second_order_in_float64(call):
    name, first, second = CALLS[call]
    first, second = ([min(size, 2) for size in shape] for shape in (first, second))
    args = tensor(*first, dtype=torch.float64), tensor(*second, dtype=torch.float64, seed=1)
    assert torch.autograd.gradcheck(getattr(ntops.torch, name), args)
    assert torch.autograd.gradgradcheck(getattr(ntops.torch, name), args)
