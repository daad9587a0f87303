"""Calls that come again: a function called on tensors of the same geometry launches the same kernels.

What the host works out -- checks, promotion, strides, which kernel -- follows from dtypes, shapes, strides, alignment
and numbers, never from what memory holds. The first call of a kind is recorded: what it allocates and what it launches.
A call like it does that and nothing else. A call that does anything more on the device (a cast, a copy) is not
recorded, since what it launches refers to memory that is neither an argument nor allocated here.
"""

import contextlib
import enum
import functools
import itertools
import threading

import torch
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from ntops._runtime import INTERPRETED
from ntops.host import replay

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


def repeatable(function=None, *, state=None, recorded=not INTERPRETED):
    """A decorator for public functions whose calls can be recorded.

    :param state: A function without arguments that returns what else a call depends on, such as torch's precision.
    :param recorded: Whether calls are; interpreted ones are not, since the interpreter looks at every launch.
    """
    if function is None:
        return functools.partial(repeatable, state=state, recorded=recorded)

    if not recorded:
        return function

    known, recent = {}, []
    _memory.extend((recent, known))

    @functools.wraps(function)
    def call(*args, **kwargs):
        if _local.recording is None:
            for again in recent:
                if (result := again(args, kwargs)) is not None:
                    return result

        # A kernel goes to the current device, and all of a call's tensors are on one. Modes of torch decide what is
        # allocated.
        modes = (_included().raw_repr(), _excluded().raw_repr())
        context = (*kwargs, state() if state else None, replay.current_device(), *modes)
        # With out= it matters which memory is whose, and how large it is.
        plain = _local.recording is None and (not kwargs or kwargs.get("out") is None)
        described = _describe((*args, *kwargs.values()), context) if plain else None

        if described is None:
            return function(*args, **kwargs)

        key, tensors, pointers = described
        found = known.get(key)

        if found is not None and (result := found.repeat(tensors, pointers)) is not None:
            if found.again is None:
                found.tell(tensors, args, kwargs)

            if found.again and found.again not in recent:
                recent[:] = (found.again, *recent[: RECENT - 1])

            return result

        _local.recording = recording = _Recording()

        try:
            result = function(*args, **kwargs)
        finally:
            _local.recording = None

        if found is None and tensors:
            found = replay.write(recording, (*_constants.values(),), tensors, result, state)

            if found is not None:
                if len(known) >= LIMIT:
                    known.clear()

                known[key] = found

        return result

    return call


def forget():
    """Forget all recorded calls: kernels are to be chosen anew."""
    for known in _memory:
        known.clear()


def empty(shape, strides, dtype, device):
    """``torch.empty_strided`` for the results and the working memory of a recorded call."""
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)

    if _local.recording is not None:
        _local.recording.allocations.append(tensor)

    return tensor


def drawn(device):
    """A random number, int64 and 0-d, from torch's generator of the device: on the device, so that nothing waits for
    it, and drawn anew by each repetition and each replay of a captured graph."""
    tensor = empty((), (), torch.int64, device).random_()

    if _local.recording is not None:
        _local.recording.drawn.append(tensor)

    return tensor


def constant(value, device):
    """A float32 tensor of one element that stays where it is, for arguments that a caller left out."""
    key = (value, device)

    if key not in _constants:
        _constants[key] = torch.full((1,), value, dtype=torch.float32, device=device)

    return _constants[key]


def launch(kernel, grid, options, *args):
    """Launch a kernel of Triton, and record it where the call is recorded.

    Stages for which there is no shared memory are left out: Triton says so before it launches.

    :param grid: Three numbers of programs, or fewer.
    :param options: What Triton's launch takes by keyword; no parameter of the kernel.
    :raises TypeError: ``args`` are not one for each parameter.
    """
    # What is recorded is launched with these alone.
    if isinstance(kernel, JITFunction) and len(args) != len(kernel.arg_names):
        raise TypeError(f"{len(args)} arguments for the {len(kernel.arg_names)} parameters of {kernel.__name__}")

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
        known = compiled if isinstance(kernel, JITFunction) else None
        _local.recording.launches.append((known, (*grid, 1, 1)[:3], args))


def prevent():
    """Say that the call depends on what memory holds, so that it must not be recorded."""
    if _local.recording is not None:
        _local.recording.launches.append((None, (1, 1, 1), ()))


@contextlib.contextmanager
def unrecorded():
    """A context whose allocations and launches are no part of the call that is recorded."""
    outer, _local.recording = _local.recording, None

    try:
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
        f"return ({', '.join(key)}, default_dtype(), context), ({tensors}), ({pointers})",
    ]
    return replay.function("describe(values, context)", lines, scope)
