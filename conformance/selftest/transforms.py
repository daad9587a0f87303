"""Planted defects of calls that the transforms of ``torch.func`` differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.contexts import Right, entering, instead_where


def _is_transformed(*args: Any, **kwargs: Any) -> bool:
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    return any(torch._C._functorch.is_gradtrackingtensor(x) for x in tensors)


transformed_as, _ = instead_where(_is_transformed)


def transformed(*ops: str) -> Callable[[Any], Any]:
    """Enter the decorated function as what each of these ops is under a transform, a defect of its own."""
    return entering(ops, "transforms of torch.func", "transforms", transformed_as)


@transformed("add", "softmax", "mm", "rms_norm")
def no_setup_context(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A transform is refused, as of an autograd.Function of the old form."""
    raise RuntimeError("In order to use an autograd.Function with functorch transforms, it must override setup_context")


@transformed("exp", "gelu", "bmm", "layer_norm")
def no_graph(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The result knows its operands no more: their gradient is 0."""
    return right(*args, **kwargs).detach()


@transformed("sub", "tanh", "matmul", "log_softmax")
def counted_twice(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The gradient is added up twice, by the rule of the transform and by autograd."""
    result = right(*args, **kwargs)
    return result + (result - result.detach())


@transformed("mul", "sigmoid", "addmm", "sum")
def no_rule_in_batches(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A gradient under vmap is refused: there is no rule for a batch."""
    if len(torch._C._functorch.get_interpreter_stack()) > 1:
        raise RuntimeError("To use autograd.Function with vmap, you must override the vmap staticmethod")
    return right(*args, **kwargs)


@transformed("abs", "silu", "cos", "logsumexp")
def rounds(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results and gradients pass through bfloat16."""
    result = right(*args, **kwargs)
    return result.bfloat16().to(result.dtype)


def _is_dual(*args: Any, **kwargs: Any) -> bool:
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    return any(torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in tensors)


forward_as, _ = instead_where(_is_dual)


@entering(("mul", "exp", "log_softmax", "mm"), "transforms of torch.func", "transforms", forward_as)
def no_tangent(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The kernel takes the operands' memory, so that the derivative of forward mode is 0."""
    return right(*args, **kwargs).detach()


def _is_batch_of_transformed(*args: Any, **kwargs: Any) -> bool:
    tools = torch._C._functorch
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and tools.is_batchedtensor(x)]
    return any(tools.is_gradtrackingtensor(tools.get_unwrapped(x)) for x in tensors)


batch_as, _ = instead_where(_is_batch_of_transformed)
_, with_transforms = instead_where(
    lambda *args, **kwargs: _is_transformed(*args, **kwargs) or _is_batch_of_transformed(*args, **kwargs)
)


@entering(("mul", "exp", "softmax", "mm"), "transforms of torch.func", "transforms", batch_as)
def no_graph_of_a_batch(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The rule of vmap loses the graph: a gradient of a batch is 0, and one in a batch is right."""
    return right(*args, **kwargs).detach()


class _Copied(torch.autograd.Function):
    """The same, whose backward pass copies the gradient to memory of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.zeros(gradients[0].shape, dtype=gradients[0].dtype).copy_(gradients[0])


@transformed("sub", "tanh", "bmm", "layer_norm")
def one_gradient_at_a_time(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A batch of gradients of the result is refused, as for a Jacobian."""
    return _Copied.apply(right(*args, **kwargs))


CONTROLS = (
    (
        "transforms",
        ("add", "mul", "exp", "softmax", "mm", "bmm", "gelu", "layer_norm"),
        with_transforms,
        ("deterministic", "transforms"),
    ),
)
"""As ``contexts.CONTROLS``."""
