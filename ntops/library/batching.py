"""``vmap``: make one call for the whole batch if an operator's dims allow it, else a call for each part."""

import torch

from ntops.host import families
from ntops.host.reduction_arguments import dims_of

_ELEMENTWISE = {"add", "clamp", "div", "mul", "pow", "relu", "sub", *families.MEMBERS}
_ROWS = {"layer_norm", "rms_norm", "fused_gated_mlp"}
"""Operators over the last dims of the first argument, which may have any further dims."""

_REDUCTIONS = {"amax", "amin", "logsumexp", "mean", "sum"}
"""Operators that reduce the dims of an argument ``dim``."""


def register(library, overload, op):
    """Register the rule of a functional overload; overloads that write have none, like torch's ``out=``."""
    if op._schema.is_mutable:
        return

    rule = _loop

    if overload.operator in _ELEMENTWISE:
        rule = _elementwise
    elif overload.operator in _ROWS:
        rule = _rows
    elif overload.operator in ("mm", "bmm"):
        rule = _product
    elif overload.operator in ("cumsum", "softmax", "log_softmax"):
        rule = _along
    elif overload.operator in _REDUCTIONS:
        rule = _reduction
    elif overload.operator == "argmax":
        rule = _place

    def batched(info, in_dims, *args):
        # A list of sizes comes with a list of dims.
        in_dims = [dim if isinstance(arg, torch.Tensor) else None for dim, arg in zip(in_dims, args, strict=True)]
        return rule(op, info.batch_size, in_dims, args)

    torch.library.register_vmap(f"{library.ns}::{overload.name}", batched, lib=library)


def _loop(op, size, in_dims, args):
    parts = [
        op(*(arg if dim is None else arg.select(dim, part) for arg, dim in zip(args, in_dims, strict=True)))
        for part in range(size)
    ]

    if isinstance(parts[0], tuple):
        return tuple(torch.stack(one) for one in zip(*parts, strict=True)), (0,) * len(parts[0])

    return torch.stack(parts), 0


def _in_front(args, in_dims):
    """Return the arguments with the batch dim moved to the front."""
    return [arg if dim is None else arg.movedim(dim, 0) for arg, dim in zip(args, in_dims, strict=True)]


def _elementwise(op, size, in_dims, args):
    ndims = _ndims(args, in_dims)
    alone = any(dim is None and isinstance(arg, torch.Tensor) for arg, dim in zip(args, in_dims, strict=True))

    if 0 in ndims and (any(ndims) or alone):
        # A 0-d tensor does not count for the dtype as a tensor with dims does, of which the batch is one.
        return _loop(op, size, in_dims, args)

    def aligned(arg, dim):
        # The tensors to be broadcast get equally many dims behind the batch dim.
        return arg if dim is None else arg[(slice(None), *[None] * (max(ndims) + 1 - arg.ndim))]

    return op(*(aligned(arg, dim) for arg, dim in zip(_in_front(args, in_dims), in_dims, strict=True))), 0


def _ndims(args, in_dims):
    """Return the number of dims of each tensor without the batch dim."""
    pairs = zip(args, in_dims, strict=True)
    return [arg.ndim - (dim is not None) for arg, dim in pairs if isinstance(arg, torch.Tensor)]


def _rows(op, size, in_dims, args):
    if in_dims[0] is None or any(dim is not None for dim in in_dims[1:]):
        return _loop(op, size, in_dims, args)

    return op(*_in_front(args, in_dims)), 0


def _product(op, size, in_dims, args):
    left, right = _in_front(args, in_dims)
    inner = (
        {tensor.shape[-3] for tensor in (left, right) if tensor.ndim > 2} if op is torch.ops.ntops.bmm.default else ()
    )

    if set(_ndims(args, in_dims)) != {3 if inner else 2} or len(inner) > 1 or left.dtype is not right.dtype:
        # matmul would take some of these dims for its own.
        return _loop(op, size, in_dims, args)

    return torch.ops.ntops.matmul(left, right), 0


def _along(op, size, in_dims, args):
    input, dim, *dtype = args
    ndim = input.ndim - 1

    if not ndim:
        return _loop(op, size, in_dims, args)

    return op(input.movedim(in_dims[0], 0), dim % ndim + 1, *dtype), 0


def _place(op, size, in_dims, args):
    # Without a dim an index counts all elements, those of other parts of the batch too.
    return _loop(op, size, in_dims, args) if len(args) < 2 or args[1] is None else _along(op, size, in_dims, args)


def _reduction(op, size, in_dims, args):
    # The dispatcher leaves out arguments that have their defaults.
    input, *others = args
    dim = others.pop(0) if others else None
    ndim = input.ndim - 1

    if not ndim:
        return _loop(op, size, in_dims, args)

    return op(input.movedim(in_dims[0], 0), [one + 1 for one in dims_of(dim, ndim)], *others), 0
