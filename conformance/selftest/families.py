"""Families of operators that share mistakes, and how a mistake is put on top of what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FLOAT_FUNCTIONS = ("exp", "rsqrt", "sin", "cos", "sigmoid", "tanh")
SIGN_FUNCTIONS = ("abs", "neg")
ACTIVATIONS = ("relu", "silu", "gelu")
QUESTIONS = ("isnan", "isinf")
ARITHMETIC = ("add", "sub", "mul", "div", "pow")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BITWISE = ("bitwise_and", "bitwise_or")
UNARY = (*FLOAT_FUNCTIONS, *SIGN_FUNCTIONS, *ACTIVATIONS, *QUESTIONS, "bitwise_not")
BINARY = (*ARITHMETIC, *COMPARISONS, *BITWISE)
ELEMENTWISE = (*UNARY, *BINARY, "clamp")
NORMS = ("layer_norm", "rms_norm")
ROWS = ("softmax", "log_softmax", *NORMS)
TOTALS = ("sum", "mean")
EXTREMES = ("amax", "amin")
PLACES = ("argmax",)
OF_SEVERAL_DIMS = (*TOTALS, *EXTREMES, "logsumexp")
REDUCTIONS = (*OF_SEVERAL_DIMS, *PLACES)
CUMULATIVE = ("cumsum",)
PRODUCTS = ("mm", "bmm", "addmm", "matmul")
WITH_OUT = (*FLOAT_FUNCTIONS, *SIGN_FUNCTIONS, "bitwise_not", *BINARY, "clamp", *PRODUCTS, *REDUCTIONS, *CUMULATIVE)
WITH_INPLACE = ("relu", "silu", "dropout", "rotary_position_embedding")
FLOATING = (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    *FLOAT_FUNCTIONS,
    *SIGN_FUNCTIONS,
    *ACTIVATIONS,
    "clamp",
    *ROWS,
    *PRODUCTS,
)
ALL = (*ELEMENTWISE, *ROWS, *PRODUCTS, "dropout", "rotary_position_embedding")
BACKWARD = {
    "elementwise": (*FLOAT_FUNCTIONS, *SIGN_FUNCTIONS, *ACTIVATIONS, *ARITHMETIC, "clamp"),
    "products": PRODUCTS,
    "softmax": ("softmax", "log_softmax"),
    "losses": ("cross_entropy", "linear_cross_entropy"),
    "norms": NORMS,
    "attention": ("scaled_dot_product_attention",),
    "rotations": ("rotary_position_embedding", "fused_rmsnorm_rope"),
    "fused": ("fused_gated_mlp", "fused_rmsnorm_rope"),
    "dropout": ("dropout",),
    "reductions": (*TOTALS, *EXTREMES, "logsumexp", *CUMULATIVE),
}
"""The operators that have gradients, by family; one is a rotation and fused."""
BROADCAST = "broadcast"
"""The kind of a mistake in the gradient of a broadcast operand, which is a family of its own."""

HALF = (torch.float16, torch.bfloat16)


def written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call is given memory to write."""
    return kwargs.get("out") is not None or bool(kwargs.get("inplace"))


def of_backward(op: str, check: str, kind: str) -> tuple[str, ...]:
    """The families whose backward passes a defect is of; none: it is of no backward pass."""
    if check not in ("gradients", "transforms"):
        return ()
    return (BROADCAST,) if kind == BROADCAST else tuple(name for name, ops in BACKWARD.items() if op in ops)


def after(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A mistake in the last step: what is right goes through ``change``, which leaves its argument as it is."""

    def wrong(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if not written(args, kwargs) and any(result is x for x in args):
            return result
        return result.copy_(change(result))

    return wrong


def before(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A mistake in reading: every operand goes through ``change``. Shape, dtype, strides and refusals stay right."""

    def wrong(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        read = [change(x) if isinstance(x, torch.Tensor) else x for x in args]
        named = {k: change(x) if isinstance(x, torch.Tensor) and k != "out" else x for k, x in kwargs.items()}
        read = [x.clone() if isinstance(x, torch.Tensor) else x for x in read]
        result = right(*args, **kwargs)
        if not written(args, kwargs) and any(result is x for x in args):
            return result
        again = right(*read, **{k: x for k, x in named.items() if k not in ("out", "inplace")})
        return result.copy_(again) if again.shape == result.shape else result

    return wrong


def instead(value: Callable[..., torch.Tensor | None]) -> Callable[..., Any]:
    """Another way to compute: ``value(*args, **kwargs)``, without out= and inplace=, takes the place of the right
    result; None where it stays. Shape, dtype, strides and refusals stay right."""

    def wrong(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
        result = right(*args, **kwargs)
        if not written(args, kwargs) and any(result is x for x in args):
            return result
        found = value(*given, **{k: x for k, x in kwargs.items() if k not in ("out", "inplace")})
        return result if found is None else result.copy_(found)

    wrong.__doc__ = value.__doc__
    return wrong


def dense(tensor: torch.Tensor, offset: int | None = None) -> torch.Tensor:
    """The elements that a kernel reads which takes the tensor for contiguous, from its first element or ``offset``."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    start = tensor.storage_offset() if offset is None else offset
    places = (torch.arange(tensor.numel()) + start) % max(storage.numel(), 1)
    return storage[places].view(tensor.shape)


def as_if_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor read as a kernel does that takes it for contiguous; its storage has to reach that far."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def is_half(*values: Any) -> bool:
    """Whether all tensors among ``values`` are of one half type."""
    found = {x.dtype for x in values if isinstance(x, torch.Tensor)}
    return len(found) == 1 and found <= set(HALF)


def packed(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Add so many neighbours of the last dim in the half type, in order."""
    parts = rows.unflatten(-1, (-1, width))
    total = parts[..., 0]
    for place in range(1, width):
        total = total + parts[..., place]
    return total
