"""Map torch's functions, methods and operators to their equivalents in ``ntops.torch``."""

import functools
import inspect

import torch
from torch.nn import functional

import ntops.torch
from ntops.aten.linear import linear

_ALIASES = {
    "abs": ("absolute", "__abs__"),
    "add": ("__add__", "__radd__"),
    "bitwise_and": ("__and__", "__rand__"),
    "bitwise_not": ("__invert__",),
    "bitwise_or": ("__or__", "__ror__"),
    "clamp": ("clip",),
    "div": ("divide", "true_divide", "__truediv__", "__div__"),
    "eq": ("__eq__",),
    "ge": ("greater_equal", "__ge__"),
    "gt": ("greater", "__gt__"),
    "le": ("less_equal", "__le__"),
    "lt": ("less", "__lt__"),
    "matmul": ("__matmul__",),
    "mul": ("multiply", "__mul__", "__rmul__"),
    "ne": ("not_equal", "__ne__"),
    "neg": ("negative", "__neg__"),
    "pow": ("__pow__",),
    "sub": ("subtract", "__sub__"),
}
"""torch's further names of the same function."""
_REFLECTED = {
    "div": ("__rtruediv__", "__rdiv__"),
    "matmul": ("__rmatmul__",),
    "pow": ("__rpow__",),
    "sub": ("rsub", "__rsub__"),
}
"""torch's names of the same function with the operands swapped."""


def _softmax(softmax):
    def call(input, dim=None, _stacklevel=3, dtype=None):
        if dim is None:
            raise NotImplementedError("argument 'dim' is None, which torch.nn.functional.softmax guesses")

        return softmax(input, dim, dtype)

    return call


def _layer_norm(layer_norm):
    def call(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
        return layer_norm(input, normalized_shape, weight, bias, eps)

    return call


def _dropout(dropout):
    def call(input, p, train):
        return dropout(input, p, train)

    return call


def _attention(attention):
    def call(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if attn_mask is not None and is_causal:
            raise NotImplementedError("arguments 'attn_mask' and 'is_causal' are given together, which ntops refuses")

        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    return call


def _floored(div):
    def call(input, other, *, out=None):
        return div(input, other, rounding_mode="floor", out=out)

    return call


def _embedding(*args, **kwargs):
    raise NotImplementedError("there is no kernel of embeddings")


_SPECIAL = {
    "softmax": ((functional.softmax, _softmax),),
    "log_softmax": ((functional.log_softmax, _softmax),),
    "layer_norm": ((torch.layer_norm, _layer_norm),),
    "dropout": ((torch.dropout, _dropout),),
    "scaled_dot_product_attention": ((functional.scaled_dot_product_attention, _attention),),
    "div": (
        (torch.floor_divide, _floored),
        (torch.Tensor.floor_divide, _floored),
        (torch.Tensor.__floordiv__, _floored),
        (torch.Tensor.__rfloordiv__, lambda div: _reflected(_floored(div))),
    ),
}
"""torch's functions with signatures of their own, and the adapter that makes such a call from an ntops function."""


def _reflected(function):
    def call(input, other, **kwargs):
        return function(other, input, **kwargs)

    return call


def _written(function, flagged, inplace):
    """Return a function that writes the result to its input.

    :param function: The ntops function that computes the result.
    :param flagged: Whether ``function`` takes ``inplace``, not ``out``.
    :param inplace: torch's in-place function, for calls that it must refuse.
    """

    def call(input, *args, **kwargs):
        tensors = [one for one in (input, *args, *kwargs.values()) if isinstance(one, torch.Tensor)]

        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            # The gradient may keep the input, so compute from a copy.
            result = function(input.clone(), *args, **kwargs)
            fits = result.shape == input.shape and input.is_floating_point()
            return input.copy_(result) if fits else inplace(input, *args, **kwargs)

        if flagged:
            return function(input, *args, **kwargs, inplace=True)

        # torch resizes an 'out', but never an input.
        if any(one.shape != input.shape for one in tensors) and not _broadcasts(tensors[1:], input.shape):
            return inplace(input, *args, **kwargs)

        return function(input, *args, **kwargs, out=input)

    return call


def _broadcasts(tensors, shape):
    try:
        return torch.broadcast_shapes(shape, *(one.shape for one in tensors)) == shape
    except RuntimeError:
        return False


def _places(name):
    """Return the objects that torch has under a name; some are the same object."""
    return [getattr(one, name) for one in (torch, torch.Tensor, functional) if hasattr(one, name)]


def _pairs(name, function):
    """Yield each of torch's functions for an operator with the function to call instead."""
    flagged = "inplace" in inspect.signature(function).parameters

    for alias in (name, *_ALIASES.get(name, ())):
        yield from ((one, function) for one in _places(alias))
        inplace = f"__i{alias[2:]}" if alias.startswith("__") else f"{alias}_"
        yield from ((one, _written(function, flagged, one)) for one in _places(inplace))

    for alias in _REFLECTED.get(name, ()):
        yield from ((one, _reflected(function)) for one in _places(alias))

    for one, make in _SPECIAL.get(name, ()):
        yield one, make(function)


@functools.cache
def table():
    """Return, by operator, a mapping from torch's functions to functions that take the same arguments."""
    operators = {name: getattr(ntops.torch, name) for name in ntops.torch.OPERATORS}
    found = {name: dict(_pairs(name, function)) for name, function in operators.items()}
    found["linear"] = {functional.linear: linear}
    found["embedding"] = {functional.embedding: _embedding, torch.embedding: _embedding}
    return {name: calls for name, calls in found.items() if calls}


@functools.cache
def _keys():
    return {function: f"{name} {place}" for name, calls in table().items() for place, function in enumerate(calls)}


@torch.compiler.assume_constant_result
def key(function):
    """Return a string for a function of torch in :func:`table`, or ``None``. Dynamo confuses some of torch's functions
    when they are dictionary keys."""
    return _keys().get(function)
