"""Make a call as only libraries take it that are registered with torch's dispatcher: for a batch of
``torch.func.vmap``, under ``torch.library.opcheck``, and from a program of ``torch.export``.

Loaded by its path into the judged process, so it needs torch and nothing else. torch's compiler, which takes seconds to
import, is imported where it is needed.
"""

import itertools

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

VMAP, OPCHECK, EXPORT = "vmap", "opcheck", "export"
BATCH = (False, True, False)
"""For each part of a batch of ``vmap``, whether it has other contents than the call itself."""
_TORCHS = ("aten", "prim", "prims")
"""The namespaces of torch's own operators."""


def _vmap(function, tools, dims, nested):
    """Let the call be one of a batch, and return the results of all parts, one part after the other.

    :param dims: For each tensor argument the dim of its batch, or None: all parts have it in common.
    :param nested: Whether the batch is one of two equal ones, of another ``vmap`` around.
    """
    places = [place for place, dim in enumerate(dims) if dim is not None]

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        contents = {other: tools.copied(given, other) for other in BATCH}
        batches = [torch.stack([contents[other][place] for other in BATCH], dims[place]) for place in places]

        def part(*tensors):
            own = dict(zip(places, tensors, strict=True))
            new = [own.get(place, tensor) for place, tensor in enumerate(given)]
            args_of_part, kwargs_of_part = tools.replaced(args, kwargs, given, new)
            return function(*args_of_part, **kwargs_of_part)

        batched = torch.func.vmap(part, in_dims=tuple(dims[place] for place in places))
        if nested:
            batched, batches = torch.func.vmap(batched), [torch.stack([one, one]) for one in batches]
        value = batched(*batches)
        results = value if isinstance(value, tuple | list) else (value,)
        results = [one.select(0, 1) for one in results] if nested else results
        return tuple(one.select(0, number).clone() for number in range(len(BATCH)) for one in results)

    return call


# --- opcheck -----------------------------------------------------------------------------------------------------


class _Noted(TorchDispatchMode):
    """Notes the calls of operators that are not torch's, with copies of their tensors."""

    def __init__(self, tools, wanted):
        super().__init__()
        self.calls = []
        self._tools, self._wanted = tools, {one.untyped_storage()._cdata for one in wanted}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace not in _TORCHS:
            leaves, tree = _pytree.tree_flatten((args, kwargs or {}))
            tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
            copies = self._tools.copied(tensors)
            for one, copy in zip(tensors, copies, strict=True):
                _tame(copy)
                copy.requires_grad_(one.untyped_storage()._cdata in self._wanted and not func._schema.is_mutable)
            remaining = iter(copies)
            copies = [next(remaining) if isinstance(one, torch.Tensor) else one for one in leaves]
            self.calls.append((func, *_pytree.tree_unflatten(copies, tree)))
        return func(*args, **(kwargs or {}))


def _tame(tensor):
    """Fill the storage of a floating-point tensor with numbers around 1: torch's checks take no NaN for equal."""
    if tensor.is_floating_point():
        memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
        memory.copy_((torch.arange(len(memory), device=tensor.device) % 7 + 5) / 8)


def _opcheck(function, tools, wanted):
    """Let torch check the operators that the call is made of, each with arguments like those that it gets.

    :param wanted: The places of the tensor arguments that require a gradient.

    Raises RuntimeError where torch finds something, and where there is no such operator.
    """

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        with _Noted(tools, [given[place] for place in wanted]) as noted:
            value = function(*args, **kwargs)
        results = value if isinstance(value, tuple | list) else (value,)
        if not noted.calls and any(one.numel() and all(one is not other for other in given) for one in results):
            raise RuntimeError("the call is made of no operator that is registered with torch's dispatcher")
        for noted_call in noted.calls:
            _checked(tools, *noted_call)
        return value

    return call


def _checked(tools, op, args, kwargs):
    leaves, tree = _pytree.tree_flatten((args, kwargs))
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    checks = ["test_autograd_registration", "test_faketensor"]
    # torch compares no tensors of 8-bit floating point.
    if not any(one.is_floating_point() and one.itemsize == 1 for one in tensors):
        checks.append("test_schema")
    copies = iter(tools.copied(tensors))
    again = _pytree.tree_unflatten([next(copies) if isinstance(one, torch.Tensor) else one for one in leaves], tree)
    results = _pytree.tree_leaves(op(*again[0], **again[1]))
    # The mean of nothing is NaN, too.
    if not any(
        isinstance(one, torch.Tensor) and one.is_floating_point() and one.float().isnan().any() for one in results
    ):
        checks.append("test_aot_dispatch_dynamic")
    found = torch.library.opcheck(op, args, kwargs, test_utils=checks, raise_exception=False)
    for check, message in found.items():
        if message != "SUCCESS":
            text = " ".join(str(message).split())
            raise RuntimeError(f"{check} of {op}: {type(message).__name__}: {text[:200]}")
    _compare_strides(op, args, kwargs, results)


def _compare_strides(op, args, kwargs, results):
    """Raise RuntimeError where fake tensors lie otherwise than the results: some versions of torch (2.11) compare
    strides on CUDA alone."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        args, kwargs = _pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
        fakes = _pytree.tree_leaves(op(*args, **kwargs))
    for real, fake in zip(results, fakes, strict=True):
        if isinstance(real, torch.Tensor) and real.numel() and _strides(real) != _strides(fake):
            raise RuntimeError(
                f"test_faketensor of {op}: strides {fake.stride()} of fake tensors, {real.stride()} of others"
            )


def _strides(tensor):
    # A dim of one element has any stride.
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


# --- export ------------------------------------------------------------------------------------------------------


def _export(function, tools, strict, parts):
    """Export the call with all sizes dynamic, and return what the program returns; after it what it returns for parts
    of the operands.

    :param strict: As of ``torch.export.export``.
    :param parts: For each tensor argument None, or the arguments of ``narrow`` of its part; empty: there are none.
    """

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)

        class Call(torch.nn.Module):
            def forward(self, *tensors):
                args_of_call, kwargs_of_call = tools.replaced(args, kwargs, given, tensors)
                return function(*args_of_call, **kwargs_of_call)

        auto = torch.export.Dim.AUTO
        # torch takes a size of 0 or 1 for a constant.
        sizes = tuple({dim: auto for dim, size in enumerate(one.shape) if size > 1} for one in given)
        try:
            program = torch.export.export(Call(), tuple(given), dynamic_shapes=(sizes,), strict=strict).module()
        finally:
            torch._dynamo.reset()
        calls = [given]
        if parts:
            calls.append([one if part is None else one.narrow(*part) for one, part in zip(given, parts, strict=True)])
        values = [program(*tensors) for tensors in calls]
        return tuple(itertools.chain(*(one if isinstance(one, tuple | list) else (one,) for one in values)))

    return call


KINDS = {VMAP: _vmap, OPCHECK: _opcheck, EXPORT: _export}
