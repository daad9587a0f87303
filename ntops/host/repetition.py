"""Calls that come again: a function called on tensors of the same geometry launches the same kernels.

What the host works out -- checks, promotion, strides, which kernel -- follows from dtypes, shapes, strides, alignment
and numbers, never from what memory holds. The first call of a kind is recorded: what it allocates and what it launches.
A call like it does that and nothing else, and moves the version counters of what it writes.

A call that does anything more (a cast, a copy, reading a number from memory) is not recorded: what it launches refers
to memory that is neither an argument nor allocated here, or the version counter of a tensor shows that torch wrote to
it, or torch was seen to be asked for it. The last takes some 10 us for each operation that torch is asked for, so it is
looked for once for arguments of the same dtypes, numbers of dims and flags, and not for each size.
"""

import contextlib
import enum
import functools
import itertools
import threading

import numpy
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from ntops._runtime import INTERPRETED
from ntops.host import memory, replay
from ntops.host.watch import Watch, known

# Enough for what a model calls again and again; after so many kinds of one function's calls it starts over.
LIMIT = 4096
# Of each function so many kinds of calls are tried in turn, before a call is looked up by all that tells it apart.
RECENT = 8

_included, _excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
_NUMBERS = {int, bool, str, type(None), torch.dtype}
_memory = []
_describers = {}
_numbers = itertools.count()
_constants = {}


class _Local(threading.local):
    recording = None


_local = _Local()


class _Recording:
    def __init__(self):
        self.allocations = []
        self.drawn = []
        self.launches = []
        self.written = []


def repeatable(function=None, *, state=None, recorded=not INTERPRETED):
    """A decorator for public functions whose calls can be recorded.

    :param state: A function without arguments that returns what else a call depends on, such as torch's precision.
    :param recorded: Whether calls are; interpreted ones are not, since the interpreter looks at every launch.
    """
    if function is None:
        return functools.partial(repeatable, state=state, recorded=recorded)

    function = _of_python(function)

    if not recorded:
        return function

    # Recordings by what tells calls apart, and ``False`` for kinds of calls that cannot be repeated.
    kinds, recent, watched = {}, [], set()
    _memory.extend((watched, recent, kinds))

    @functools.wraps(function)
    def call(*args, **kwargs):
        # A tangent is nothing that a tensor's geometry tells; asked for here without a call, since each call comes by.
        if _local.recording is not None or forward_ad._current_level >= 0:
            return function(*args, **kwargs)

        for again in recent:
            if (result := again(args, kwargs)) is not None:
                return result

        # A kernel goes to the current device, and all of a call's tensors are on one. Modes of torch decide what is
        # allocated.
        modes = (_included().raw_repr(), _excluded().raw_repr())
        context = (*kwargs, state() if state else None, replay.current_device(), *modes)
        values = (*args, *kwargs.values())
        # With out= it matters which memory is whose, and how large it is.
        plain = (not kwargs or kwargs.get("out") is None) and not memory.is_hidden()
        described = _describe(values, context) if plain else None

        if described is None:
            return function(*args, **kwargs)

        key, tensors, pointers = described
        found = kinds.get(key)

        if found and (result := found.repeat(tensors, pointers)) is not None:
            if found.again is None:
                found.tell(tensors, args, kwargs)

            if found.again and found.again not in recent:
                recent[:] = (found.again, *recent[: RECENT - 1])

            return result

        if found is not None:
            return function(*args, **kwargs)

        structure = _structure(values, context)
        watch = None if structure in watched else Watch()
        versions = [_version(tensor) for tensor in tensors]
        _local.recording = recording = _Recording()

        try:
            with watch or contextlib.nullcontext():
                result = function(*args, **kwargs)
        finally:
            _local.recording = None

        if not _is_whole(recording, watch, tensors, versions):
            found = False
        else:
            watched.add(structure)
            found = replay.write(recording, (*_constants.values(),), tensors, result, state) if tensors else None

        if found is not None:
            if len(kinds) >= LIMIT:
                kinds.clear()

            kinds[key] = found

        return result

    return call


def _of_python(function):
    """The function, given Python's numbers for NumPy's, which wrap, are no ``bool`` and have dtypes of their own."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        if any(isinstance(value, numpy.generic) for value in (*args, *kwargs.values())):
            args = [_python(value) for value in args]
            kwargs = {name: _python(value) for name, value in kwargs.items()}

        return function(*args, **kwargs)

    return call


def _python(value):
    return value.item() if isinstance(value, numpy.generic) else value


def _structure(values, context):
    """All of a call that decides what it asks torch for, as opposed to how large that is."""
    return context, *(
        (value.dtype, value.ndim, value.is_contiguous())
        if isinstance(value, torch.Tensor)
        else type(value)
        if type(value) in (int, float) or type(value) in replay.SHAPES
        else value
        for value in values
    )


def _is_whole(recording, watch, tensors, versions):
    """Whether a recording has all that its call did, as far as torch can tell.

    :param watch: What was seen of the call, or ``None``.
    :param versions: Of the call's tensors before it.
    """
    if watch is not None and (watch.others or watch.launched > len(recording.launches)):
        return False

    # Views have the version counter of what they are views of.
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
    """Forget all recorded calls: kernels are to be chosen anew."""
    for one in _memory:
        one.clear()


def empty(shape, strides, dtype, device):
    """``torch.empty_strided`` for the results and the working memory of a recorded call."""
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)

    if _local.recording is not None:
        _local.recording.allocations.append(tensor)

    return tensor


def drawn(device):
    """A random number, int64 and 0-d, from torch's generator of the device: on the device, so that nothing waits for
    it, and drawn anew by each repetition and each replay of a captured graph."""
    tensor = empty((), (), torch.int64, device)

    with known():
        tensor.random_()

    if _local.recording is not None:
        _local.recording.drawn.append(tensor)

    return tensor


def constant(value, device):
    """A float32 tensor of one element that stays where it is, for arguments that a caller left out."""
    key = (value, device)

    if key not in _constants:
        with known():
            _constants[key] = torch.full((1,), value, dtype=torch.float32, device=device)

    return _constants[key]


def launch(kernel, grid, options, *args):
    """Launch a kernel of Triton, and record it where the call is recorded.

    Stages for which there is no shared memory are left out: Triton says so before it launches.

    :param grid: Three numbers of programs, or fewer.
    :param options: What Triton's launch takes by keyword; no parameter of the kernel.
    :raises TypeError: ``args`` are not one for each parameter.
    :raises NotImplementedError: A tensor has no memory, since a mode of torch made it.
    """
    # What is recorded is launched with these alone.
    if isinstance(kernel, JITFunction) and len(args) != len(kernel.arg_names):
        raise TypeError(f"{len(args)} arguments for the {len(kernel.arg_names)} parameters of {kernel.__name__}")

    # Arguments were checked; what a mode made of them, or allocated, was not.
    if memory.is_watched():
        tensors = (getattr(arg, "base", arg) for arg in args)

        if any(isinstance(one, torch.Tensor) and not _is_there(one) for one in tensors):
            raise NotImplementedError("a mode of torch is active under which tensors have no memory for kernels")

    while True:
        try:
            compiled = kernel[grid](*args, **options)
            break
        except OutOfResources:
            if options.get("num_stages", 1) == 1:
                raise

            options = options | {"num_stages": options["num_stages"] - 1}

    if _local.recording is not None:
        # An autotuned kernel may be another one next time.
        repeated = compiled if isinstance(kernel, JITFunction) else None
        _local.recording.launches.append((repeated, (*grid, 1, 1)[:3], args))


def _is_there(tensor):
    return memory.is_ordinary(tensor) and not memory.is_missing(tensor)


def written(tensor):
    """Say that a kernel writes to an argument: its version counter moves, as torch's own functions move it, so that
    autograd knows; it moves in each repetition, too."""
    increment_version(tensor)

    if _local.recording is not None:
        _local.recording.written.append(tensor)


def prevent():
    """Say that the call depends on what memory holds, so that it must not be recorded."""
    if _local.recording is not None:
        _local.recording.launches.append((None, (1, 1, 1), ()))


@contextlib.contextmanager
def unrecorded():
    """A context of work that is no part of the call that is recorded."""
    outer, _local.recording = _local.recording, None

    try:
        with known():
            yield
    finally:
        _local.recording = outer


def _describe(values, context):
    """All of a call that decides what it launches, its tensors and their addresses; ``None`` if it is not recorded.

    :param context: What decides besides its arguments.
    """
    kinds = tuple(map(type, values))
    describe = _describers.get(kinds) or _describers.setdefault(kinds, _describer(kinds))

    try:
        return describe(values, context)
    except RuntimeError:
        # Sparse and nested tensors have no strides or no address; the function itself refuses them.
        return None


def _describer(kinds):
    """The function ``(values, context) -> (key, tensors, pointers)`` for arguments of these types.

    Written out as source, as the repetition is. Calls of arguments of other types are told apart by a number.
    """
    scope = {
        "grad": torch.is_grad_enabled,
        "default_dtype": torch.get_default_dtype,
        "types": type,
        "int_only": replay.INT,
    }
    lines, key, places = [], [str(next(_numbers))], []

    for place, kind in enumerate(kinds):
        name = f"value{place}"

        if kind in replay.TENSORS:
            lines += [
                f"if {name}.is_neg() or {name}.requires_grad and grad(): return None",
                f"pointer{place} = {name}.data_ptr()",
            ]
            key += [
                f"{name}.dtype",
                f"{name}.shape",
                f"{name}.stride()",
                f"{name}.get_device()",
                f"pointer{place} & 15",
            ]
            # Which arguments are the same memory tells them apart where the recording is made.
            key += [f"pointer{place} == pointer{other}" for other in places]
            places.append(place)
        elif kind is float:
            # Zeros of both signs are equal as keys.
            key.append(f"{name} or str({name})")
        elif kind in replay.SHAPES:
            lines.append(f"if {{*map(types, {name})}} != int_only: return None")
            key.append(f"(*{name},)")
        elif kind in _NUMBERS or issubclass(kind, enum.Enum):
            key.append(name)
        else:
            return lambda values, context: None

    tensors, pointers = (replay.listed(name, places) for name in ("value", "pointer"))
    lines = [
        *([f"{replay.listed('value', range(len(kinds)))}= values"] if kinds else []),
        *lines,
        # Functional tensors among others have no memory, and freed ones no more.
        *([f"if not ({' and '.join(f'pointer{place}' for place in places)}): return None"] if places else []),
        f"return ({', '.join(key)}, default_dtype(), context), ({tensors}), ({pointers})",
    ]
    return replay.function("describe(values, context)", lines, scope)
