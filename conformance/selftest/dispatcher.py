"""Planted defects of calls that only registered libraries take: ``vmap``, ``opcheck`` and ``export``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance import spec as specs
from conformance.selftest.contexts import Right, Wrong, compiled_as, entering, instead_where

# --- vmap --------------------------------------------------------------------------------------------------------


def _batched(*values: Any) -> list[torch.Tensor]:
    """Return the tensors that have a batch."""
    return [x for x in values if isinstance(x, torch.Tensor) and torch._C._functorch.is_batchedtensor(x)]


def _raw(value: Any) -> Any:
    """Return a tensor with its batch as the first dim; other values as they are."""
    if not _batched(value):
        return value
    return torch._C._functorch.get_unwrapped(value).movedim(torch._C._functorch.maybe_get_bdim(value), 0)


def _in_batch(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first dim is the batch, in the ``vmap`` of another one."""
    return torch._C._functorch._add_batch_dim(result, 0, torch._C._functorch.maybe_get_level(like))


batched_as, with_vmap = instead_where(lambda *args, **kwargs: bool(_batched(*args, *kwargs.values())))


def vmap(*ops: str) -> Callable[[Any], Any]:
    """Enter the decorated function as what each of these ops is in a batch, a defect of its own."""
    return entering(ops, "batch", "vmap", batched_as)


@vmap("add", "softmax", "mm", "layer_norm")
def no_rule(right: Right, *args: Any, **kwargs: Any) -> Any:
    """There is no batching rule."""
    raise RuntimeError("Batching rule not implemented; we could not generate a fallback.")


@vmap("exp", "rms_norm", "matmul", "clamp")
def element_read(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a batch an element is read."""
    first = _batched(*args, *kwargs.values())[0]
    first.flatten()[:1].sum().item()
    return right(*args, **kwargs)


@vmap("abs", "silu", "mul", "bmm", "argmax")
def first_for_all(right: Right, *args: Any, **kwargs: Any) -> Any:
    """All parts of a batch get the result of the first."""
    first = [_raw(x)[0] if _batched(x) else x for x in args]
    return right(*first, **{name: _raw(x)[0] if _batched(x) else x for name, x in kwargs.items()})


@vmap("softmax", "log_softmax", "amax", "argmax")
def dim_of_the_whole(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """A dim that is counted from the start counts the batch too."""
    counts = type(dim) is int and dim >= 0 and input.ndim
    return _in_batch(right(_raw(input), dim, *args, **kwargs), input) if counts else right(input, dim, *args, **kwargs)


@vmap("add", "sub", "lt", "bitwise_and")
def dims_not_aligned(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Operands of fewer dims are broadcast along the batch."""
    return _in_batch(right(*map(_raw, args), **kwargs), _batched(*args)[0])


@vmap("sigmoid", "gelu", "matmul", "mm")
def rounds_in_batch(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a batch results pass through bfloat16."""
    result = right(*args, **kwargs)
    return result.bfloat16().to(result.dtype)


@vmap("neg", "rms_norm", "bmm", "sum")
def float32_in_batch(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a batch the result is float32."""
    return right(*args, **kwargs).float()


# --- opcheck -----------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("ntops_selftest", "FRAGMENT")
_UNARY = ("exp", "sigmoid", "sin", "cos", "tanh", "abs", "neg", "rsqrt")


def _registered(name: str, kernel: Right, fake: Right | None) -> Right:
    """Register an operator of one tensor, and return the function that calls it. Its gradient is none."""
    _LIBRARY.define(f"{name}(Tensor input) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, kernel, key)
    if fake is not None:
        torch.library.register_fake(f"ntops_selftest::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.ntops_selftest, name)


def registered_as(op: str, name: str, kernel: Right, fake: Right | None) -> Wrong:
    """Return the op whose calls of a floating-point tensor alone go through an operator of torch's dispatcher."""
    reference, found = specs.registry()[op].reference, []

    def call(right: Right, *args: Any, **kwargs: Any) -> Any:
        alone = len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor) and args[0].is_floating_point()
        if not alone:
            # An operator is made of each call, too.
            torch.ops.ntops_selftest.nothing(torch.zeros(()))
            return right(*args, **kwargs)
        if not found:
            found.append(_registered(f"{op}_{name}", lambda input: kernel(reference, input), fake))
        return found[0](*args)

    return call


_registered("nothing", torch.clone, torch.empty_like)


def with_operator(op: str, right: Right) -> Right:
    """Return a right function whose operator is registered as it should be."""
    made = registered_as(op, "right", lambda _, input: right(input), torch.empty_like)
    return lambda *args, **kwargs: made(right, *args, **kwargs)


def opcheck(*ops: str, fake: Right | None = torch.empty_like) -> Callable[[Any], Any]:
    """Enter the decorated function as the kernel of each of these ops; it gets torch's function. ``fake``: the kernel
    of fake tensors."""

    def made(op: str, wrong: Any) -> Wrong:
        return registered_as(op, wrong.__name__, wrong, fake)

    return entering(ops, "registration", "opcheck", made)


@opcheck("exp", "sigmoid", "neg", fake=None)
def no_fake(right: Right, input: Any) -> Any:
    """There is no kernel of fake tensors."""
    return right(input)


@opcheck("cos", "tanh", "abs", fake=lambda input: torch.empty_like(input, dtype=torch.float32))
def fake_float32(right: Right, input: Any) -> Any:
    """Of fake tensors the result is float32."""
    return right(input)


@opcheck("sin", "exp", "rsqrt", fake=lambda input: input.new_empty(input.shape))
def fake_contiguous(right: Right, input: Any) -> Any:
    """Of fake tensors the result is contiguous."""
    return right(input)


@opcheck("tanh", "sigmoid", "cos", fake=lambda input: torch.empty_like(input) if input.sum() > 0 else input)
def fake_reads(right: Right, input: Any) -> Any:
    """The kernel of fake tensors reads elements."""
    return right(input)


@opcheck("neg", "sin", "rsqrt")
def writes_operand(right: Right, input: Any) -> Any:
    """The operand is written, and the schema does not say so."""
    result = right(input)
    if input.is_contiguous():
        input.add_(1)
    return result


@opcheck("abs")
def returns_operand(right: Right, input: Any) -> Any:
    """An operand without negative numbers is returned, and the schema does not say so."""
    return input if not input.signbit().any() else right(input)


@entering(("mul", "softmax", "mm", "gelu"), "registration", "opcheck", lambda op, wrong: wrong)
def no_operator(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The function calls no operator that is registered."""
    return right(*args, **kwargs)


# --- export ------------------------------------------------------------------------------------------------------


def export(*ops: str) -> Callable[[Any], Any]:
    """Enter the decorated function as what each of these ops is in a program, a defect of its own."""
    return entering(ops, "program", "export", compiled_as)


@export("exp", "softmax", "layer_norm", "mm")
def constant_sizes(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a program sizes are constants."""
    result = right(*args, **kwargs)
    return result.reshape([len([*range(size)]) for size in result.shape])


@export("gelu", "matmul", "add")
def element_in_program(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a program an element decides."""
    first = next(x for x in args if isinstance(x, torch.Tensor))
    return right(*args, **kwargs) if first.sum() > 0 else right(*args, **kwargs).clone()


@export("sigmoid", "rms_norm", "bmm")
def by_numpy(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Results pass through NumPy's memory, of which a program has none."""
    result = right(*args, **kwargs)
    torch.from_numpy(result.detach().float().numpy())
    return result


@export("abs", "silu", "addmm")
def float32_in_program(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a program the result is float32."""
    return right(*args, **kwargs).float()


@export("mul", "tanh", "sum")
def rounds_in_program(right: Right, *args: Any, **kwargs: Any) -> Any:
    """In a program results pass through bfloat16."""
    result = right(*args, **kwargs)
    return result.bfloat16().to(result.dtype)


CONTROLS = (
    ("batches", ("add", "mul", "exp", "softmax", "mm", "bmm", "gelu", "lt"), with_vmap, ("deterministic", "vmap")),
    ("registered operators", _UNARY, with_operator, ("deterministic", "opcheck")),
)
"""As ``contexts.CONTROLS``."""
