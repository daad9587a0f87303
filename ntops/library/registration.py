"""Register each overload of ``torch.ops.ntops`` with torch's dispatcher."""

import itertools

import torch

import ntops.torch
from ntops.autograd import elementwise, formulas
from ntops.launch import boundary
from ntops.library import autocast, autograd, batching, calls, kernels, schemas

NAMESPACE = "ntops"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
FORMULAS = formulas.FORMULAS | elementwise.of_families()
"""The gradients by the name of the operator. One that is not here raises :class:`NotImplementedError` for an input that
requires grad."""
OVERLOADS = {}
"""The overloads of ``torch.ops.ntops`` by name, such as ``add.Scalar_out``."""


def register():
    """Define every overload, with kernels for memory, for shapes alone and for gradients; then send calls there that
    belong to the dispatcher."""
    for operator, overloads in itertools.groupby(schemas.overloads(), lambda overload: overload.operator):
        pairs = [(overload, _register(overload)) for overload in overloads]
        function = getattr(ntops.torch, operator)
        boundary.OPERATORS[operator] = call = calls.make(operator, function, pairs)
        _trace(function, call)


def _trace(function, call):
    """Make torch.compile trace ``call`` instead of ``function``, which deals with memory: for calls from compiled code
    (torch/_dynamo/variables/functions.py), and for the compiled function itself (torch/_dynamo/eval_frame.py). Checking
    in each call whether it is traced would slow down all other calls."""
    function._torchdynamo_inline = call
    function._torchdynamo_orig_callable = call
    function._torchdynamo_wrapper_id = id(function)


def _register(overload):
    LIBRARY.define(overload.name + overload.schema, tags=(torch.Tag.pt2_compliant_tag,))
    packet, _, suffix = overload.name.partition(".")
    OVERLOADS[overload.name] = op = getattr(getattr(torch.ops.ntops, packet), suffix or "default")
    kernel = kernels.real(overload)

    for key in ("CPU", "CUDA"):
        LIBRARY.impl(overload.name, kernel, key)

    torch.library.register_fake(f"{NAMESPACE}::{overload.name}", kernels.fake(overload), lib=LIBRARY)
    autograd.register(LIBRARY, overload, op, FORMULAS)
    autocast.register(LIBRARY, overload, op)
    batching.register(LIBRARY, overload, op)
    return op
