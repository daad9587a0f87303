"""Register gradients with the dispatcher: formulas where they exist, and an error elsewhere."""

import torch
from torch._library import utils
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd.graph import increment_version

from ntops.host import families
from ntops.launch import virtual_tensors
from ntops.library import schemas

_WITH_STATISTICS = {"scaled_dot_product_attention": "scaled_dot_product_attention.statistics"}
"""The operators that keep too little for a gradient, and the overload that returns more and is differentiated."""
_WITHOUT = {"argmax", "bitwise_not", *families.members("bitwise", "comparison", "question")}
"""Operators whose results have no gradients: the dispatcher's own kernel passes their calls on."""


def register(library, overload, op, formulas):
    """Register how inputs that require grad are treated, and how version counters of written tensors move."""
    if op._schema.is_mutable:
        library.impl(overload.name, _counted(op), "ADInplaceOrView", with_keyset=True)

    if overload.operator in _WITHOUT:
        return

    formula = formulas.get(overload.name) or formulas.get(overload.operator)

    has_formula = formula is not None and overload.name not in {*_WITH_STATISTICS, *schemas.BACKWARD}

    if overload.writes is None and has_formula and not op._schema.is_mutable:
        library.impl(overload.name, _differentiated(op, formula), "Autograd", with_keyset=True)
        return

    refused = _out if overload.writes == "out" else _refuse

    if overload.name in _WITH_STATISTICS:

        def refused(op, args, kwargs):
            packet, suffix = _WITH_STATISTICS[overload.name].split(".")
            return getattr(getattr(torch.ops.ntops, packet), suffix)(*args, **kwargs)[0]

    if overload.writes == "inplace" and formula is not None:
        functional = getattr(torch.ops.ntops, overload.functional).default

        def refused(op, args, kwargs):
            # The functional operator's result takes part in the graph; what it keeps of its input is not written.
            args[0].copy_(functional(args[0].clone(), *args[1:], **kwargs))

    def kernel(keyset, *args, **kwargs):
        if torch.is_grad_enabled() and any(_requires_grad(one) for one in (*args, *kwargs.values())):
            return refused(op, args, kwargs)

        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

    library.impl(overload.name, kernel, "Autograd", with_keyset=True)


def _differentiated(op, formula):
    """Return a kernel that records a call for its gradient: as ``torch.library.register_autograd`` does, and under a
    transform of :mod:`torch.func`, which torch refuses for registered gradients, by a function that has rules for it.
    """

    def backward_of(ctx, *grads):
        return formula.backward(ctx, *map(virtual_tensors.resolved, grads))

    recorded = make_autograd_impl(op, Info(backward_of, formula.setup_context))

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args):
            return op(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):
            with virtual_tensors.below_transforms():
                # The dispatcher leaves out arguments that have their defaults.
                formula.setup_context(ctx, utils.fill_defaults(op._schema, inputs, {})[0], output)

        @staticmethod
        def backward(ctx, *grads):
            found = backward_of(ctx, *grads)
            found = found if isinstance(found, tuple) else (found,)
            return found[: len(ctx.needs_input_grad)]

    def kernel(keyset, *args, **kwargs):
        if virtual_tensors.is_transformed() and torch.is_grad_enabled() and any(map(_requires_grad, args)):
            with virtual_tensors.dispatching_anew():
                return Transformed.apply(*args)

        return recorded(keyset, *args, **kwargs)

    return kernel


def _counted(op):
    """Return a kernel that moves the version counters once, whatever a mode below does with the call."""
    arguments = op._schema.arguments
    written = {a.name: place for place, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write}

    def kernel(keyset, *args, **kwargs):
        tensors = [kwargs[name] if name in kwargs else args[place] for name, place in written.items()]
        # Tensors of inference mode have none.
        versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]

        with torch._C._AutoDispatchBelowADInplaceOrView():
            result = op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, **kwargs)

        for tensor, version in zip(tensors, versions, strict=True):
            # The launch of a kernel has moved it.
            if version is not None and tensor._version == version:
                increment_version(tensor)

        return result

    return kernel


def _requires_grad(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def _named(op, args, kwargs):
    """Return the name of the first argument that requires grad."""
    names = [argument.name for argument in op._schema.arguments]
    return next(n for n, v in (*zip(names, args, strict=False), *kwargs.items()) if _requires_grad(v))


def _refuse(op, args, kwargs):
    raise NotImplementedError(
        f"argument '{_named(op, args, kwargs)}' requires grad, and there is no backward kernel of {op}: detach it, or "
        "call under torch.no_grad()"
    )


def _out(op, args, kwargs):
    raise RuntimeError(
        f"argument '{_named(op, args, kwargs)}' requires grad, and functions with an 'out' are not differentiated: "
        "call without, or under torch.no_grad()"
    )
