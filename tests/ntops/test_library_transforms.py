"""``torch.ops.ntops`` under the transforms of torch.func that differentiate: they give what autograd gives."""

import pytest
import torch
from operator_calls import CALLS, PLACES, fresh, results

import ntops

READ = [
    (name, number, place)
    for name, number, place in PLACES
    # What is drawn differs; no transform lets caches be written.
    if name != "dropout" and (name, number) not in {("scaled_dot_product_attention", k) for k in (1, 2)}
    if place != "out" and not CALLS[name][number][1].get("inplace")
]


def as_function(name, number, place):
    """A call as a function of one operand, which is returned too: no two of its elements are equal."""
    args, kwargs = fresh(name, number)
    kwargs.pop("out", None)
    value = kwargs[place] if isinstance(place, str) else args[place]

    def call(value):
        changed = [value if place == other else one for other, one in enumerate(args)]
        found = getattr(ntops.torch, name)(*changed, **{k: value if place == k else v for k, v in kwargs.items()})
        return results(found)[0]

    if not value.is_floating_point():
        return call, value

    # In float32, since CUDA multiplies no float8.
    steps = torch.arange(value.numel(), device=value.device).view(value.shape)
    return call, (value.float() * (0.5 + steps % 7 / 8)).to(value.dtype)


def loss(call):
    return lambda value: (call(value).float() ** 2).sum()


def by_autograd(function, value):
    """The gradient, or the error that asking for it ends with."""
    leaf = value.detach().clone().requires_grad_()

    try:
        return torch.autograd.grad(function(leaf), leaf, create_graph=True)[0]
    except (RuntimeError, TypeError) as error:
        return error


@pytest.mark.parametrize(("name", "number", "place"), READ)
def test_transforms_give_the_gradients_of_autograd(name, number, place):
    call, value = as_function(name, number, place)

    if not value.is_floating_point() or value.itemsize == 1:
        return  # Nothing of these is differentiated.

    expected = by_autograd(loss(call), value)

    if isinstance(expected, Exception):
        if "does not require grad" in str(expected):
            # Of a comparison, an index, or a number that is read: for a transform it is 0.
            assert not torch.func.grad(loss(call))(value).any()
            return

        assert "requires grad" in str(expected)

        with pytest.raises(type(expected)):
            torch.func.grad(loss(call))(value)

        return

    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(torch.func.grad(loss(call))(value), expected.detach(), **close)

    # The pullback is called after the transform has ended.
    result, pull_back = torch.func.vjp(call, value)
    (pulled_back,) = pull_back((2 * result.float()).to(result.dtype))
    torch.testing.assert_close(pulled_back, expected.detach(), **close)

    batch = torch.stack([value, value * 2])
    both = torch.stack([by_autograd(loss(call), one).detach() for one in batch])

    if value.ndim:
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss(call)))(batch), both, **close)

    weighted = torch.linspace(-1, 1, value.numel(), device=value.device).view(value.shape)
    second = by_autograd(lambda one: (by_autograd_inside(call, one) * weighted).sum(), value)

    again = torch.func.grad(lambda one: (torch.func.grad(loss(call))(one) * weighted).sum())(value)
    torch.testing.assert_close(again, second.detach(), **close)


def by_autograd_inside(call, leaf):
    return torch.autograd.grad(loss(call)(leaf), leaf, create_graph=True)[0]


@pytest.mark.parametrize("name", ["silu", "mm", "layer_norm", "scaled_dot_product_attention"])
def test_a_jacobian_is_made_in_one_batch_of_gradients(name):
    call, value = as_function(name, 0, 0)
    expected = torch.autograd.functional.jacobian(call, value)
    torch.testing.assert_close(torch.func.jacrev(call)(value), expected, rtol=1e-5, atol=1e-6)


def test_a_module_is_differentiated_by_its_parameters():
    """As ensembles and meta-learning do: ``functional_call`` under ``vmap`` of ``grad``."""
    norm = torch.nn.RMSNorm(6, device=as_function("silu", 0, 0)[1].device)
    weights = torch.stack([norm.weight.detach(), norm.weight.detach() * 2])
    value = torch.linspace(-2, 2, 18, device=weights.device).view(3, 6)

    def of(function):
        return torch.func.vmap(torch.func.grad(lambda weight: function(value, (6,), weight).square().sum()))(weights)

    torch.testing.assert_close(of(ntops.torch.rms_norm), of(torch.nn.functional.rms_norm))


def test_forward_mode_is_refused():
    call, value = as_function("silu", 0, 0)

    with pytest.raises(NotImplementedError, match="transform"):
        torch.func.jvp(call, (value,), (value,))
