"""Make a call in another context: of fake tensors, which have no memory, compiled, or from several threads.

Loaded by its path into the judged process, so it needs torch and nothing else. torch's compiler, which takes seconds to
import, is imported where it is needed.
"""

import contextlib
import functools
import sys
import threading

import torch

FAKE, COMPILED, THREADS = "fake", "compiled", "threads"
ROUNDS = 3
"""The calls that each thread makes, one after the other."""


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


def _compiled(function, dynamic, amid, constants=False):
    """Let torch trace the call as a whole, and make the calls of the graph.

    :param dynamic: Whether sizes are symbols in the graph.
    :param amid: Whether all operands are copied before and after the call in the same graph: the call then returns its
        results, the copies of before, and those of after.
    :param constants: Whether numbers are constants of the graph, also where sizes are symbols.
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
        numbers = torch._dynamo.config.patch(specialize_float=True) if constants else contextlib.nullcontext()
        try:
            with numbers:
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


# --- threads -----------------------------------------------------------------------------------------------------


def _threads(function):
    """Let three threads make the call at once, ``ROUNDS`` times each, on operands of their own: the third one with
    other contents. Return the results of all calls, thread by thread."""

    def call(*args, **kwargs):
        given = operands(args, kwargs)
        calls = [
            replaced(args, kwargs, given, copied(given, other)) for other in (False, False, True) for _ in range(ROUNDS)
        ]
        found, barrier = [(None, None)] * len(calls), threading.Barrier(3)
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def work(thread):
            # Modes are a thread's own.
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                for number in range(thread * ROUNDS, (thread + 1) * ROUNDS):
                    try:
                        barrier.wait()
                        args, kwargs = calls[number]
                        found[number] = (function(*args, **kwargs), None)
                    # Raised again where all threads have ended.
                    except BaseException as error:  # noqa: BLE001
                        found[number] = (None, error)
                        barrier.abort()
                        return

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(3)]
        interval = sys.getswitchinterval()
        # Threads take turns as often as they can, so that they meet in all places.
        sys.setswitchinterval(1e-6)
        try:
            for one in threads:
                one.start()
            for one in threads:
                one.join()
        finally:
            sys.setswitchinterval(interval)
        errors = [error for _, error in found if error is not None]
        if errors:
            raise next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
        return tuple(one for value, _ in found for one in (value if isinstance(value, tuple) else (value,)))

    return call


def copied(tensors, other=False):
    """Return copies of the tensors that share memory as these do. ``other``: with the elements of each storage in
    reverse order, of floating-point ones."""
    storages = {}

    def one(tensor):
        key = tensor.untyped_storage()._cdata
        if key not in storages:
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()
            if other and tensor.dtype.is_floating_point:
                words = memory[: len(memory) // tensor.itemsize * tensor.itemsize].view(-1, tensor.itemsize)
                words.copy_(words.flip(0))
            storages[key] = memory
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storages[key].untyped_storage(), *place)

    return [one(tensor) for tensor in tensors]


_KINDS = {FAKE: _fake, COMPILED: _compiled, THREADS: _threads}
