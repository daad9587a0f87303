"""Record a call and repeat its launches for later calls on tensors of the same geometry.

The host's work -- checks, promotion, strides, the choice of the kernel -- depends on dtypes, shapes, strides, alignment
and numbers, never on the contents of memory. The first call of a kind is recorded: its allocations and its launches. A
later call like it repeats only these, and moves the version counters of the tensors that it writes.

A call whose ``out=`` shares part of its memory with an input is made anew: torch's rules say whether it may.

A call that does anything more (a cast, a copy, reading a number from memory) is not recorded. Such a call shows in
three ways: it launches on memory that is neither an argument nor allocated here, the version counter of a tensor shows
that torch wrote to it, or a watch saw torch being called. The watch costs about 10 us for each operation of torch, so
it runs once for arguments of the same dtypes, numbers of dims and flags, and not for each size.
"""

import contextlib
import functools
import threading
from typing import Any

import torch
from torch.autograd import forward_ad, profiler
from torch.autograd.graph import increment_version
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from ntops._runtime import INTERPRETED
from ntops.launch import boundary, replay, tracing, virtual_tensors
from ntops.launch.call_keys import describe_call
from ntops.launch.dispatch_watch import Watch, known

# This is enough for the calls that a model repeats; beyond it a function starts over.
LIMIT = 4096
# For each shape of the first argument, this many recordings are tried before a call is looked up by its full key.
RECENT = 8

# Whole numbers wrap around, as torch's do. Triton's checks of it, which it takes out again except under TRITON_DEBUG,
# take a seventh of the time in which it compiles a kernel.
_OPTIONS = {"sanitize_overflow": False}

_included, _excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
_memory = []
_constants = {}


class _Local(threading.local):
    recording = None


_local = _Local()


class _Recording:
    def __init__(self):
        self.allocations = []
        self.drawn = []
        self.launches = []
        self.configurations = []
        self.written = []


def repeatable(function=None, *, state=None, recorded=not INTERPRETED):
    """Decorate a public function so that its calls can be recorded.

    :param state: A function without arguments that returns what else a call depends on, such as torch's precision.
    :param recorded: Whether calls are recorded; not under the interpreter, which must see every launch.
    """
    if function is None:
        return functools.partial(repeatable, state=state, recorded=recorded)

    plain, function, name = function, boundary.decided(function), tracing.name_of(function)

    if not recorded:
        return function

    # Recordings by the key of a call; ``False`` for kinds of calls that cannot be repeated.
    kinds, recent, watched = {}, {}, set()
    _memory.extend((watched, recent, kinds))

    @functools.wraps(function)
    def call(*args, **kwargs):
        # Calls inside a recorded call are part of it.
        if _local.recording is not None:
            return plain(*args, **kwargs)

        if (tracing.NVTX or profiler._is_profiler_enabled) and tracing.is_outermost() and not boundary.is_inside():
            return tracing.traced(name, call, args, kwargs)

        # A tensor's geometry does not show a tangent. Read the level directly: each call comes by here, and a function
        # call costs time.
        if forward_ad._current_level >= 0:
            return function(*args, **kwargs)

        # Under a mode of torch.overrides, do not ask a tensor: the mode would be called.
        first: Any = args[0] if args else None
        shape = None

        if type(first) in replay.TENSORS and not virtual_tensors.function_modes() and not first.is_nested:
            shape = first.shape

        for again in recent.get(shape, ()):
            if (result := again(args, kwargs)) is not None:
                return result

        # A kernel goes to the current device, on which all of a call's tensors are. Modes of torch decide what is
        # allocated.
        modes = (_included().raw_repr(), _excluded().raw_repr())
        context = (*kwargs, state() if state else None, replay.current_device(), *modes)
        values = (*args, *kwargs.values())

        if (modes != virtual_tensors.USUAL or virtual_tensors.function_modes()) and boundary.goes_through(values):
            return function(*args, **kwargs)

        described = None if virtual_tensors.is_hidden() else describe_call(values, context)

        if described is None:
            return function(*args, **kwargs)

        key, tensors, pointers = described
        found = kinds.get(key)

        if found and (result := found.repeat(tensors, pointers)) is not None:
            if found.again is None:
                found.tell(tensors, args, kwargs)

            tried = recent.get(shape, ())

            if found.again and found.again not in tried:
                if len(recent) >= LIMIT:
                    recent.clear()

                recent[shape] = (found.again, *tried[: RECENT - 1])

            return result

        if found is not None:
            return function(*args, **kwargs)

        structure = _structure(values, context)
        watch = None if structure in watched else Watch()
        versions = [_version(tensor) for tensor in tensors]
        _local.recording = recording = _Recording()

        try:
            with watch or contextlib.nullcontext():
                result = plain(*args, **kwargs)
        finally:
            _local.recording = None

        if not _is_whole(recording, watch, tensors, versions):
            found = False
        else:
            watched.add(structure)
            out = kwargs.get("out") if kwargs else None
            constants = (*_constants.values(),)
            found = replay.write(recording, constants, tensors, result, state, out) if tensors else None

        if found is not None:
            if len(kinds) >= LIMIT:
                kinds.clear()

            kinds[key] = found

        return result

    return call


def _structure(values, context):
    """Return the properties of a call that decide which operations of torch it calls, but not their sizes."""
    return context, *(
        (value.dtype, value.ndim, value.is_contiguous())
        if isinstance(value, torch.Tensor)
        else type(value)
        if type(value) in (int, float) or type(value) in replay.SHAPES
        else value
        for value in values
    )


def _is_whole(recording, watch, tensors, versions):
    """Tell whether a recording contains all that its call did, as far as torch can tell.

    :param watch: The watch of the call, or ``None``.
    :param versions: The version counters of the call's tensors before the call.
    """
    if watch is not None and (watch.others or watch.launched > len(recording.launches)):
        return False

    # Views share the version counter of their base.
    written = [_base(tensor) for tensor in recording.written]
    expected = [
        None if before is None else before + _count(written, _base(tensor))
        for tensor, before in zip(tensors, versions, strict=True)
    ]
    expected += [None if tensor.is_inference() else _count(recording.drawn, tensor) for tensor in recording.allocations]

    return [_version(tensor) for tensor in (*tensors, *recording.allocations)] == expected


def _count(tensors, tensor):
    return sum(one is tensor for one in tensors)


def _version(tensor):
    return None if tensor.is_inference() else tensor._version


def _base(tensor):
    return tensor if tensor._base is None else tensor._base


def forget():
    """Forget all recorded calls, so that kernels are chosen anew."""
    for one in _memory:
        one.clear()


def empty(shape, strides, dtype, device):
    """Allocate a result or working memory of a recorded call, as ``torch.empty_strided`` does."""
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)

    if _local.recording is not None:
        _local.recording.allocations.append(tensor)

    return tensor


def drawn(device):
    """Draw a random number, int64 and 0-d, from torch's generator of the device. It stays on the device, so that
    nothing waits for it, and each repetition and each replay of a captured graph draws anew."""
    tensor = empty((), (), torch.int64, device)

    with known():
        tensor.random_(replay.SEEDS)

    if _local.recording is not None:
        _local.recording.drawn.append(tensor)

    return tensor


def constant(value, device, dtype=torch.float32):
    """Return a tensor of one element with a fixed address, for arguments that a caller left out."""
    if boundary.is_abstract():
        return torch.empty(1, dtype=dtype, device=device)

    key = (value, device, dtype)

    if key not in _constants:
        with known():
            _constants[key] = torch.full((1,), value, dtype=dtype, device=device)

    return _constants[key]


def launch(kernel, grid, options, *args):
    """Launch a Triton kernel, and record the launch if the call is recorded.

    Stages that do not fit shared memory are dropped: Triton reports it before it launches.

    :param grid: Up to three numbers of programs.
    :param options: Keyword arguments of Triton's launch; none is a parameter of the kernel.
    :raises TypeError: ``args`` does not have one value for each parameter.
    :raises NotImplementedError: A tensor has no memory because a mode of torch made it.
    """
    # A repetition launches with these arguments alone.
    if isinstance(kernel, JITFunction) and len(args) != len(kernel.arg_names):
        raise TypeError(f"{len(args)} arguments for the {len(kernel.arg_names)} parameters of {kernel.__name__}")

    # Arguments were checked, but not tensors that a mode made of them, or allocated.
    if virtual_tensors.is_watched():
        tensors = (getattr(arg, "base", arg) for arg in args)

        if any(isinstance(one, torch.Tensor) and not _is_there(one) for one in tensors):
            raise NotImplementedError("a mode of torch is active under which tensors have no memory for kernels")

    while True:
        try:
            compiled = _launched(kernel, grid, options, args)
            break
        except OutOfResources:
            if options.get("num_stages", 1) == 1:
                raise

            options = options | {"num_stages": options["num_stages"] - 1}

    if _local.recording is not None:
        # An autotuned kernel may be another one next time.
        repeated = compiled if isinstance(kernel, JITFunction) else None
        _local.recording.launches.append((repeated, (*grid, 1, 1)[:3], args))
        _local.recording.configurations.append(tracing.configuration(kernel, options, args))


def _launched(kernel, grid, options, args):
    if not (tracing.NVTX or profiler._is_profiler_enabled):
        return kernel[grid](*args, **options, **_OPTIONS)

    with tracing.span(tracing.configuration(kernel, options, args)):
        return kernel[grid](*args, **options, **_OPTIONS)


def _is_there(tensor):
    return virtual_tensors.is_ordinary(tensor) and not virtual_tensors.is_missing(tensor)


def written(tensor):
    """Report that a kernel writes to an argument: its version counter moves, as with torch's own functions, so that
    autograd knows. It moves in each repetition, too."""
    increment_version(tensor)

    if _local.recording is not None:
        _local.recording.written.append(tensor)


def prevent():
    """Report that the call depends on the contents of memory, or does unrecordable work, so that it must not be
    recorded."""
    if _local.recording is not None:
        _local.recording.launches.append((None, (1, 1, 1), ()))


@contextlib.contextmanager
def unrecorded():
    """Return a context for work that is not part of the recorded call."""
    outer, _local.recording = _local.recording, None

    try:
        with known():
            yield
    finally:
        _local.recording = outer
