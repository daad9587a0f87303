"""Make a call in another context: of fake tensors, which have no memory, or compiled.

Loaded by its path into the judged process, so it needs torch and nothing else. torch's compiler, which takes seconds to
import, is imported where it is needed.
"""

import functools

import torch

FAKE, COMPILED = "fake", "compiled"


def within(context, function):
    """Return a function that makes the call of ``function`` in a context.

    :param context: ``kind``, one of those above, and what its function takes.
    """
    how = dict(context)
    return _KINDS[how.pop("kind")](function, **how)


def operands(args, kwargs):
    """Return the tensors among the arguments, each once, in their order."""
    found = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and not any(value is one for one in found):
            found.append(value)
    return found


def replaced(args, kwargs, old, new):
    """Return the arguments with the tensors ``new`` in the places of ``old``."""

    def one(value):
        return next((other for own, other in zip(old, new, strict=True) if own is value), value)

    return [one(value) for value in args], {name: one(value) for name, value in kwargs.items()}


# --- fake --------------------------------------------------------------------------------------------------------


def _fake(function):
    """Let the call see fake tensors. It returns tensors of the same metadata that hold nothing: operands where it
    returned them, views of operands where it returned views; operands that it resized are resized."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def call(*args, **kwargs):
        mode = FakeTensorMode()
        given = operands(args, kwargs)
        fakes = [mode.from_tensor(one) for one in given]
        args, kwargs = replaced(args, kwargs, given, fakes)
        with mode:
            value = function(*args, **kwargs)
        for real, one in zip(given, fakes, strict=True):
            if (real.shape, real.stride(), real.storage_offset()) != (one.shape, one.stride(), one.storage_offset()):
                _resize(real, one)
        results = value if isinstance(value, tuple | list) else [value]
        real = [_real(one, given, fakes) for one in results]
        return type(value)(real) if isinstance(value, tuple | list) else real[0]

    return call


def _resize(tensor, fake):
    size = fake.untyped_storage().nbytes()
    storage = torch.empty(int(size), dtype=torch.uint8, device=tensor.device).untyped_storage()
    tensor.set_(storage, fake.storage_offset(), fake.shape, fake.stride())


def _real(fake, given, fakes):
    """Return the tensor that a fake one stands for; other values as they are."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(fake, torch.Tensor):
        return fake
    if not isinstance(fake, FakeTensor):
        raise TypeError("of fake tensors it made a real one")
    place = next((real for real, one in zip(given, fakes, strict=True) if one is fake), None)
    if place is not None:
        return place
    for real, one in zip(given, fakes, strict=True):
        if one.untyped_storage()._cdata == fake.untyped_storage()._cdata and one.dtype == fake.dtype:
            return real.as_strided(fake.shape, fake.stride(), fake.storage_offset())
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


# --- compiled ----------------------------------------------------------------------------------------------------


def _compiled(function, dynamic, amid):
    """Let torch trace the call as a whole, and make the calls of the graph.

    :param dynamic: Whether sizes are symbols in the graph.
    :param amid: Whether all operands are copied before and after the call in the same graph: the call then returns its
        results, the copies of before, and those of after.
    """
    import torch._dynamo

    def inside(args, kwargs):
        # torch.compile may run code as it is without a word, under modes of some kinds for one.
        if not torch.compiler.is_compiling():
            raise RuntimeError("torch.compile did not compile the call")
        return function(*args, **kwargs)

    def between(given, args, kwargs):
        before = [one.clone() for one in given]
        value = inside(args, kwargs)
        return value, before, [one.clone() for one in given]

    def call(*args, **kwargs):
        given, graph = operands(args, kwargs), functools.partial(torch.compile, fullgraph=True, dynamic=dynamic)
        # Graphs of earlier calls are for other functions.
        torch._dynamo.reset()
        try:
            if not amid:
                return _unmarked(graph(inside, backend="aot_eager")(args, kwargs), given)
            value, before, after = graph(between, backend="aot_eager")(given, args, kwargs)
            results = value if isinstance(value, tuple | list) else [value]
            return _unmarked((*results, *before, *after), given)
        finally:
            torch._dynamo.reset()

    return call


def _unmarked(value, given):
    """Return a value without what torch notes on tensors for later graphs: which of their sizes are symbols."""
    for one in (*(value if isinstance(value, tuple | list) else [value]), *given):
        for name in [name for name in getattr(one, "__dict__", ()) if name.startswith("_dynamo_")]:
            delattr(one, name)
    return value


_KINDS = {FAKE: _fake, COMPILED: _compiled}
