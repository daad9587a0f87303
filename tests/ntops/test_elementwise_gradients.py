"""The gradients of elementwise functions, against torch's autograd of float64 copies."""

import pytest
import torch
from differentiable import DEVICE, doubled, gradients, tensor

import ntops
from ntops.host.gradients import add_up, summed

F = torch.nn.functional
CALLS = {
    "add": ("add", torch.add, lambda t: (t(3, 5), t(5, seed=1)), {"alpha": 2.5}),
    "add a 0-d tensor": ("add", torch.add, lambda t: (t(3, 5), t(seed=1)), {}),
    "add of 0-d tensors": ("add", torch.add, lambda t: (t(), t(seed=1)), {}),
    "sub": ("sub", torch.sub, lambda t: (t(3, 1), t(2, 1, 5, seed=1)), {"alpha": 2.5}),
    "mul": ("mul", torch.mul, lambda t: (t(3, 5), t(3, 1, seed=1)), {}),
    "mul of nothing": ("mul", torch.mul, lambda t: (t(0, 5), t(1, seed=1)), {}),
    "mul in columns": ("mul", torch.mul, lambda t: (t(70, 130), t(130, seed=1)), {}),
    "mul transposed": ("mul", torch.mul, lambda t: (t(5, 3).mT, t(5, seed=1)), {}),
    "div": ("div", torch.div, lambda t: (t(3, 5), t(1, 5, seed=1, low=0.5)), {}),
    "div a number": ("div", torch.div, lambda t: (2.5, t(3, 5, low=0.5)), {}),
    "div by a number": ("div", torch.div, lambda t: (t(3, 5), 2.5), {}),
    "div rounded": ("div", torch.div, lambda t: (t(3, 5), t(5, low=0.5)), {"rounding_mode": "floor"}),
    "pow": ("pow", torch.pow, lambda t: (t(3, 5, low=0.5), t(5, seed=1)), {}),
    "pow 2": ("pow", torch.pow, lambda t: (t(3, 5), 2), {}),
    "pow of a number": ("pow", torch.pow, lambda t: (3.0, t(3, 5)), {}),
    "clamp": ("clamp", torch.clamp, lambda t: (t(3, 5), -0.5, 0.7), {}),
    "clamp from below": ("clamp", torch.clamp, lambda t: (t(3, 5), -0.5), {}),
    "clamp from above": ("clamp", torch.clamp, lambda t: (t(3, 5), None, 0.5), {}),
    "clamp by tensors": ("clamp", torch.clamp, lambda t: (t(3, 5), t(5, seed=1), t(3, 1, seed=2)), {}),
    "clamp by one tensor": ("clamp", torch.clamp, lambda t: (t(3, 5), None, t(5, seed=1)), {}),
    "gelu": ("gelu", F.gelu, lambda t: (t(3, 5),), {}),
    "gelu by tanh": ("gelu", lambda x, how: F.gelu(x, approximate=how), lambda t: (t(3, 5), "tanh"), {}),
    "silu": ("silu", F.silu, lambda t: (t(3, 5),), {}),
} | {
    name: (name, getattr(torch, name), lambda t: (t(3, 5, low=0.1),), {})
    for name in ("abs", "neg", "exp", "rsqrt", "sin", "cos", "relu", "sigmoid", "tanh")
}


def _bound(name, reference, args, gradient, kwargs, dtype):
    """Half an ulp of the result; and 16 roundings of float32 for each term of a sum, which none of the formulas
    exceeds: an exponential, a logarithm or a power is off by 4, and each of up to 8 operations by 1. A result that a
    formula takes, as torch's does, was rounded, and counts up to three times."""
    halves = 4 if name in ("exp", "rsqrt", "sigmoid", "tanh") else 1
    expanded = [one.expand(gradient.shape) if isinstance(one, torch.Tensor) else one for one in args]
    leaves = doubled(expanded)
    terms = gradients(reference, leaves, gradient.cpu().double(), **kwargs)
    shapes = [one.shape for one in args if isinstance(one, torch.Tensor) and one.requires_grad]
    sums = [
        (term.abs() + gradient.cpu().double().abs()).sum_to_size(shape)
        for term, shape in zip(terms, shapes, strict=True)
    ]
    unit = 2.0**-53 if dtype is torch.float64 else 2.0**-24
    return [16 * unit * one + halves * torch.finfo(dtype).eps / 2 * one for one in sums]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", CALLS)
def test_gradients(call, dtype):
    name, reference, make, kwargs = CALLS[call]
    args = make(lambda *shape, **options: tensor(*shape, dtype=dtype, **options))
    shape = reference(*doubled(args), **kwargs).shape
    gradient = tensor(*shape, dtype=dtype, seed=9, requires_grad=False)
    found = gradients(getattr(ntops.torch, name), args, gradient, **kwargs)
    wanted = gradients(reference, doubled(args), gradient.cpu().double(), **kwargs)
    sources = [one for one in args if isinstance(one, torch.Tensor)]

    for one, want, source, bound in zip(
        found, wanted, sources, _bound(name, reference, args, gradient, kwargs, dtype), strict=True
    ):
        assert (one.shape, one.dtype, one.device) == (source.shape, dtype, source.device)
        assert ((one.cpu().double() - want).abs() <= bound).all()


@pytest.mark.parametrize("call", ["add", "mul", "div", "pow", "clamp by tensors", "gelu", "silu", "tanh", "rsqrt"])
def test_derivatives_of_the_first_and_the_second_order_in_float64(call):
    name, _, make, kwargs = CALLS[call]
    args = make(lambda *shape, **options: tensor(*shape, dtype=torch.float64, **options))
    function = getattr(ntops.torch, name)
    assert torch.autograd.gradcheck(lambda *args: function(*args, **kwargs), args)
    assert torch.autograd.gradgradcheck(lambda *args: function(*args, **kwargs), args)


def _special(dtype):
    values = [0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), float("-inf"), float("nan"), 1e-30]
    return torch.tensor(values, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("name", "reference", "others"),
    [
        (name, getattr(torch, name), ())
        for name in ("abs", "exp", "rsqrt", "sin", "cos", "relu", "sigmoid", "tanh", "neg")
    ]
    + [
        ("silu", F.silu, ()),
        ("clamp", torch.clamp, (-0.5, 0.5)),
        ("clamp", torch.clamp, (float("nan"), None)),
        ("pow", torch.pow, (0,)),
        ("pow", torch.pow, (2,)),
        ("pow", torch.pow, (0.5,)),
        ("div", torch.div, (0.0,)),
    ],
)
@pytest.mark.parametrize("gradient", [0.0, 1.0, float("inf")])
def test_special_numbers(name, reference, others, gradient):
    """Those of torch's formulas, NaN for NaN and infinity for infinity."""
    x = _special(torch.float32)
    # By rsqrt, -0 to the power of -0.5 is -inf for torch, and inf by its other paths.
    x = x.abs() if others == (0.5,) else x
    given = torch.full_like(x, gradient)
    (found,) = gradients(getattr(ntops.torch, name), (x.requires_grad_(), *others), given)
    (want,) = gradients(reference, (x.detach().requires_grad_(), *others), given)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("exponent", [2.0, 0.0, -1.0, 0.5])
def test_the_exponents_gradient_at_zero(exponent):
    args = [torch.zeros(3, device=DEVICE), torch.full((3,), exponent, device=DEVICE).requires_grad_()]
    given = torch.ones(3, device=DEVICE)
    torch.testing.assert_close(
        gradients(ntops.torch.pow, args, given), gradients(torch.pow, args, given), equal_nan=True
    )


def test_a_gradient_that_is_expanded():
    args = tensor(3, 4), tensor(4, seed=1)
    given = torch.ones((), device=DEVICE).expand(3, 4)
    found = gradients(ntops.torch.mul, args, given)
    torch.testing.assert_close(found, gradients(torch.mul, args, given))


@pytest.mark.parametrize(("name", "arguments"), [("mul", (1,)), ("mul", (True,)), ("div", (1.0,)), ("pow", (1,))])
def test_a_factor_of_1_passes_no_gradient_on(name, arguments):
    gradient = torch.ones(1, 1, device=DEVICE).expand(2, 1)
    strides = []

    for library in (torch, ntops.torch):
        x = torch.ones(2, 1, device=DEVICE, requires_grad=True)
        (found,) = torch.autograd.grad(getattr(library, name)(x, *arguments), x, gradient)
        assert found.data_ptr() != gradient.data_ptr()
        strides.append(found.stride())

    assert strides[0] == strides[1]


def test_a_difference_of_alpha_minus_1_passes_no_gradient_on():
    x, gradient = (torch.ones(2, 3, device=DEVICE) for _ in range(2))
    y = torch.ones(2, 3, device=DEVICE, requires_grad=True)
    (found,) = torch.autograd.grad(ntops.torch.sub(x, y, alpha=-1), y, gradient)
    assert torch.equal(found, gradient)
    assert found.data_ptr() != gradient.data_ptr()


def test_a_gradient_of_zeros_is_zero():
    args = tensor(3, 4), tensor(4, seed=1)
    found = gradients(ntops.torch.mul, args, torch.zeros(3, 4, device=DEVICE))
    assert not any(one.any() for one in found)


@pytest.mark.parametrize("argument", [0, 1])
def test_what_needs_no_gradient_is_neither_saved_nor_computed(argument):
    args = [tensor(3, 4, requires_grad=number == argument) for number in range(2)]
    result = ntops.torch.mul(*args)
    assert [one is args[1 - argument] for one in result.grad_fn.saved_tensors] == [True]
    result.backward(torch.ones_like(result))
    assert [one.grad is not None for one in args] == [number == argument for number in range(2)]


def test_what_was_saved_and_then_written_to_is_refused():
    args = [tensor(3, 4) * 1, tensor(3, 4, seed=1)]
    result = ntops.torch.mul(*args)
    args[0].add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_what_was_broadcast_is_summed_in_float32():
    """In bfloat16 the sum of ones stops at 256, and terms that are rounded first are off by what they lose."""
    scale = tensor(1, dtype=torch.bfloat16)
    values = torch.full((4096, 1), 1 + 2**-7, dtype=torch.bfloat16, device=DEVICE)
    (found,) = gradients(ntops.torch.mul, (values, scale), values)
    assert found.item() == torch.tensor(4096 * (1 + 2**-7) ** 2).to(torch.bfloat16)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (31, 130), (4097, 1), (2000, 3), (300, 130)])
def test_sums_of_columns(rows, columns):
    """Of whole numbers they are exact, in each of the parts."""
    matrix = torch.arange(rows * columns, device=DEVICE).remainder(7).float().view(rows, columns)
    assert torch.equal(add_up(matrix, torch.float32), matrix.sum(0))
    assert torch.equal(add_up(matrix.mT.contiguous().mT, torch.float64, 2.0), 2 * matrix.double().sum(0))


def test_sums_over_dims_that_no_stride_walks_over():
    values = torch.arange(3 * 4 * 5 * 6, device=DEVICE).float().view(3, 4, 5, 6)
    assert torch.equal(summed(values, (4, 1, 6), torch.float32), values.sum((0, 2))[:, None])
    assert torch.equal(summed(values, (), torch.float32), values.sum())
