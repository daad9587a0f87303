"""Gradients of every operator as torch's own tools ask for them: gradcheck, compiled code, autocast, checkpoints."""

import pytest
import torch
from differentiable import DEVICE, tensor
from torch.utils.checkpoint import checkpoint

import ntops
from ntops.library.registration import FORMULAS

TARGETS = torch.tensor([1, 0, -100, 2], device=DEVICE)
FUNCTIONS = ("exp", "sin", "cos", "sigmoid", "tanh", "gelu", "silu", "neg")
CALLS = {
    **dict.fromkeys(FUNCTIONS, lambda t: (t(3, 5),)),
    # Where they have a derivative.
    **dict.fromkeys(("abs", "relu", "rsqrt"), lambda t: (t(3, 5, low=0.5),)),
    "clamp": lambda t: (t(3, 5), -0.3, 0.4),
    "add": lambda t: (t(3, 5), t(5, seed=1)),
    "sub": lambda t: (t(3, 1), t(2, 1, 5, seed=1)),
    "mul": lambda t: (t(3, 5), t(3, 1, seed=1)),
    "div": lambda t: (t(3, 5), t(1, 5, seed=1, low=0.5)),
    "pow": lambda t: (t(3, 5, low=0.5), t(5, seed=1)),
    "softmax": lambda t: (t(3, 5), 1),
    "log_softmax": lambda t: (t(3, 5), 0),
    "logsumexp": lambda t: (t(3, 5), 1),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), lambda t: (t(2, 3, 2), (0, 2))),
    "cumsum": lambda t: (t(3, 5), 1),
    "mm": lambda t: (t(3, 4), t(4, 5, seed=1)),
    "bmm": lambda t: (t(2, 3, 4), t(2, 4, 5, seed=1)),
    "matmul": lambda t: (t(2, 3, 4), t(4, 5, seed=1)),
    "addmm": lambda t: (t(5, seed=2), t(3, 4), t(4, 5, seed=1)),
    "layer_norm": lambda t: (t(3, 5), (5,), t(5, seed=1), t(5, seed=2)),
    "rms_norm": lambda t: (t(3, 5), (5,), t(5, seed=1)),
    "cross_entropy": lambda t: (t(4, 3), TARGETS),
    "linear_cross_entropy": lambda t: (t(4, 2), t(3, 2, seed=1), TARGETS),
    "scaled_dot_product_attention": lambda t: (t(1, 2, 3, 4), t(1, 2, 5, 4, seed=1), t(1, 2, 5, 4, seed=2)),
    "rotary_position_embedding": lambda t: (t(1, 3, 2, 4), t(3, 2, seed=1), t(3, 2, seed=2)),
    "fused_rmsnorm_rope": lambda t: (t(1, 3, 8), t(8, seed=1), t(3, 4, seed=2), t(3, 4, seed=3)),
    "fused_gated_mlp": lambda t: (t(3, 2), t(4, 2, seed=1), t(4, 2, seed=2)),
    "dropout": lambda t: (t(3, 50),),
}
"""Arguments by operator, of a function that makes tensors."""
REPEATABLE = [name for name in CALLS if name != "dropout"]


def call(name, dtype=torch.float32):
    """The operator, its arguments, and those of them that require a gradient."""
    args = CALLS[name](lambda *shape, **options: tensor(*shape, dtype=dtype, **options))
    return getattr(ntops.torch, name), args, [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]


def factors(result):
    """A number for each element of the result, its gradient."""
    numbers = torch.linspace(-1, 2, result.numel(), device=result.device)
    return numbers.reshape(result.shape).to(result.dtype)


def asked(result, wanted):
    """The gradients of the operands for that of the result."""
    return torch.autograd.grad(result, wanted, factors(result))


def test_every_operator_that_has_gradients_is_here():
    assert {*CALLS} == {name.partition(".")[0] for name in FORMULAS}


SMOOTH = ("abs", "neg", "exp", "sin", "cos", "sigmoid", "relu")
REDUCED = ("sum", "mean", "amax", "amin", "logsumexp", "cumsum")


@pytest.mark.parametrize("name", [*SMOOTH, "sub", "cross_entropy", *REDUCED])
def test_gradcheck(name):
    """Others have theirs beside the tests of their families."""
    function, args, _ = call(name, torch.float64)
    assert torch.autograd.gradcheck(function, args)
    assert torch.autograd.gradgradcheck(function, args)


@pytest.mark.parametrize("name", REPEATABLE)
def test_what_is_negated_lazily_is_read_and_not_composed(name):
    """The gradient of the result, or what was saved: kernels compute, and give the same bits."""
    function, args, wanted = call(name)
    expected, result = asked(function(*args), wanted), function(*args)
    found = torch.autograd.grad(result, wanted, torch._neg_view(-factors(result)))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", REPEATABLE)
def test_gradients_of_compiled_code(name):
    function, args, wanted = call(name)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: function(*args), fullgraph=True, backend="aot_eager")
    result = compiled(*args)
    assert result.requires_grad
    found, expected = asked(result, wanted), asked(function(*args), wanted)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", REPEATABLE)
def test_gradients_under_autocast(name):
    """They have the dtype of the operand, which may have been cast, and are as exact as bfloat16 at least."""
    function, args, wanted = call(name)
    expected = asked(function(*args), wanted)

    with torch.autocast(DEVICE, torch.bfloat16):
        result = function(*args)

    found = asked(result, wanted)
    lowered = {"mm", "bmm", "matmul", "addmm", "fused_gated_mlp", "scaled_dot_product_attention"}
    assert (result.dtype is torch.bfloat16) == (name in lowered)

    for one, other in zip(found, expected, strict=True):
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * other.abs().max().item())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", REPEATABLE)
def test_gradients_of_a_checkpoint(name, reentrant):
    function, args, wanted = call(name)
    result = checkpoint(function, *args, use_reentrant=reentrant)
    # Where it is reentrant, torch refuses torch.autograd.grad.
    result.backward(factors(result))

    for one, expected in zip(wanted, asked(function(*args), wanted), strict=True):
        assert torch.equal(one.grad, expected)


@pytest.mark.parametrize("how", ["compiled", "autocast", "checkpoint", "reentrant checkpoint"])
def test_dropout_drops_of_the_gradient_what_it_dropped(how):
    function, (x,), _ = call("dropout")
    x = x.detach().abs().add(0.5).requires_grad_()

    if how == "compiled":
        torch._dynamo.reset()
        result = torch.compile(lambda x: function(x), fullgraph=True, backend="aot_eager")(x)
    elif how == "autocast":
        with torch.autocast(DEVICE, torch.bfloat16):
            result = function(x)
    else:
        result = checkpoint(function, x, use_reentrant=how.startswith("reentrant"))

    result.backward(torch.ones_like(result))
    kept = result.detach() != 0
    assert kept.any()
    assert not kept.all()
    assert torch.equal(x.grad, kept * 2.0)
