"""The kernels that the dispatcher calls: functions of ``ntops.torch`` that take the arguments of a schema."""

import inspect

import torch

import ntops.torch
from ntops.host.attention import attention_with_statistics
from ntops.host.attention_gradients import needed_gradients
from ntops.host.cross_entropy import class_loss
from ntops.host.dropout import masked
from ntops.host.linear_cross_entropy import linear_class_loss
from ntops.kernels.scaled_dot_product_attention import CausalVariant
from ntops.launch import boundary

_SYMBOLS = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
"""Values that stand for symbolic numbers of which only the kind matters for the result."""
_FUNCTIONS = {
    "cross_entropy": class_loss,
    "dropout": masked,
    "linear_cross_entropy": linear_class_loss,
    "scaled_dot_product_attention.gradients": needed_gradients,
    "scaled_dot_product_attention.statistics": attention_with_statistics,
}
"""The functions of overloads whose schemas differ from the operators' signatures."""


def real(overload):
    """Return the kernel of an overload for tensors with memory."""
    call = _translated(overload, _function(overload))

    def kernel(*args, **kwargs):
        with boundary.inside():
            return call(*args, **kwargs)

    return kernel


def fake(overload):
    """Return the kernel of an overload for tensors without memory; the same function checks and allocates."""
    call = _translated(overload, inspect.unwrap(_function(overload)))
    numbers = {place for place, (_, kind) in enumerate(overload.arguments) if kind.rstrip("?") in ("Scalar", "float")}

    def kernel(*args, **kwargs):
        args = [_SYMBOLS.get(type(one), one) if place in numbers else one for place, one in enumerate(args)]

        with boundary.inside(abstract=True):
            return call(*args, **kwargs)

    return kernel


def _function(overload):
    return _FUNCTIONS.get(overload.name) or getattr(ntops.torch, overload.operator)


def _translated(overload, function):
    """Return ``function`` taking a schema's arguments by position."""
    names = [name for name, _ in overload.arguments]
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    positional = [name for name in names if parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    # Positional arguments of the function come first in the schema; others are passed as keywords.
    leading = next(
        (k for k, name in enumerate(names) if [*parameters][k] != name or name not in positional), len(names)
    )
    fixed = {"inplace": True} if overload.writes == "inplace" else {}
    first = overload.name == "quantize_fp8.scale"
    variant = names.index("causal_variant") if "causal_variant" in names else None

    def call(*args, **kwargs):
        if variant is not None and len(args) > variant and args[variant] is not None:
            args = (*args[:variant], CausalVariant[args[variant]], *args[variant + 1 :])

        keywords = dict(zip(names[leading:], args[leading:], strict=False))
        result = function(*args[:leading], **keywords, **fixed, **kwargs)
        return None if overload.writes else result[0] if first else result

    return call
