"""A recorded call as source: what tells it from others, what it allocates and what it launches.

Written out as Python, with a line for each tensor to allocate and each kernel to launch, since interpreting a list of
them takes as long again.
"""

import copy
import functools

import torch
import triton
from torch.autograd.graph import increment_version
from triton import knobs

from ntops.host import memory

TENSORS = {torch.Tensor, torch.nn.Parameter}
SHAPES = {tuple, torch.Size, list}
INT = {int}
# So many sources are kept compiled; most calls differ from others in sizes and numbers alone.
SOURCES = 4096

# What torch.cuda.current_device and Triton call in the end; a torch without CUDA lacks them.
current_device = getattr(torch._C, "_cuda_getDevice", lambda: None)
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: None)
# What torch's own compiler checks its inputs and allocates with, in one go and past the dispatcher: layer_norm takes
# 7.9 us of an H200's host so (torch's own takes 11.0), and 13.3 us where each tensor is asked for all that counts.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_TensorGuards = getattr(_guards, "TensorGuards", None)
_empty_cuda = getattr(_guards, "_empty_strided_cuda", None)


def function(signature, lines, scope):
    """The function of these lines; sizes and numbers are in its scope, so that many calls share the same source."""
    exec(_compiled(f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)), scope)
    return scope[signature.partition("(")[0]]


@functools.lru_cache(SOURCES)
def _compiled(source):
    return compile(source, "<a recorded call>", "exec")


class Recorded:
    """A recorded call.

    ``repeat(tensors, pointers)`` repeats it for arguments that are known to be like its own, ``again(args, kwargs)``
    for any; both return ``None``, and have launched nothing, where a call has to be made anew.
    """

    __slots__ = ("_tell", "again", "repeat")

    def __init__(self, repeat, tell):
        self.repeat = repeat
        self.again = None
        self._tell = tell

    def tell(self, tensors, args, kwargs):
        """Have ``again``, or ``False`` where torch cannot tell at once whether a call is like this one, which it is.

        Not before the call came again: of a number that is another one in each call there are kinds without end.
        """
        self.again = self._tell(tensors, args, kwargs) or False


def write(recording, constants, tensors, result, state):
    """The call as a :class:`Recorded`; ``None`` where it cannot be repeated.

    :param recording: What the call allocated, launched and wrote to.
    :param constants: The tensors that stay where they are.
    :param tensors: The call's arguments that are tensors.
    :param state: The function that says what else the call depends on, or ``None``.
    """
    sources = [*tensors, *recording.allocations]
    device = current_device()
    results = result if isinstance(result, tuple) else (result,)
    places = [place for one in results for place, source in enumerate(sources) if source is one]
    moved = [next((p for p, source in enumerate(sources) if source is one), None) for one in recording.written]

    if (
        not recording.launches
        or len(places) != len(results)
        or None in moved
        or any(tensor.get_device() != device for tensor in tensors)
    ):
        return None

    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    scope = {"runtime": knobs.runtime, "stream_of": current_stream, "enter": enter, "leave": leave}
    scope |= {"entered": getattr(enter, "calls", enter), "left": getattr(leave, "calls", leave)}
    scope |= {"empty": torch.empty_strided, "empty_cuda": _empty_cuda}
    # Where a profiler wants to hear of launches, Triton launches, and tells it.
    before = [
        "if entered or left or runtime.launch_enter_hook is not enter or runtime.launch_exit_hook is not leave:",
        "    return None",
    ]
    after = [f"stream = stream_of({device})"]

    for number, (compiled, grid, values) in enumerate(recording.launches):
        if compiled is None:
            return None

        written = [_written(value, sources, constants, scope) for value in (*grid, *values)]

        if None in written:
            return None

        scope[f"run{number}"], flags = _launcher(compiled.run)
        scope |= {f"function{number}": compiled.function, f"metadata{number}": compiled.packed_metadata}
        leading = (*written[:3], "stream", f"function{number}", *flags, f"metadata{number}", None, None, None)
        after.append(f"run{number}({', '.join(map(str, (*leading, *written[3:])))})")

    scope["increment_version"] = increment_version
    after += [f"increment_version(tensor{place})" for place in moved]
    after.append(f"return {', '.join(f'tensor{place}' for place in places)}")
    unpacked = [f"{listed(name, range(len(tensors)))}= {name}s" for name in ("tensor", "pointer")]
    allocated = _allocated(recording, len(tensors), scope)
    repeat = function("repeat(tensors, pointers)", [*before, *unpacked, *allocated, *after], scope)
    allocated = _allocated(recording, len(tensors), scope, direct=True)
    return Recorded(repeat, functools.partial(_again, [*before, *allocated, *after], state, scope))


def _again(lines, state, scope, tensors, args, kwargs):
    told = _told(tensors, args, kwargs, state, scope)
    return told and function("again(args, kwargs)", [*told, *lines], scope)


def _allocated(recording, first, scope, direct=False):
    """The lines that allocate a call's tensors, ``direct`` where nothing but CUDA's allocator has to hear of it."""
    lines = []

    for place, tensor in enumerate(recording.allocations, first):
        scope |= {f"size{place}": tuple(tensor.shape), f"strides{place}": tensor.stride()}
        scope |= {f"dtype{place}": tensor.dtype, f"device{place}": tensor.device}
        anew = f"empty(size{place}, strides{place}, dtype=dtype{place}, device=device{place})"

        if direct and tensor.is_cuda and _empty_cuda:
            anew = f"empty_cuda(size{place}, strides{place}, dtype{place})"

        lines += [
            f"tensor{place} = {anew}",
            # Whoever replaces the allocator may give less alignment than kernels are compiled for.
            f"pointer{place} = tensor{place}.data_ptr()",
            f"if pointer{place} & 15: return None",
        ]
        lines += [f"tensor{place}.random_()" for one in recording.drawn if one is tensor]

    return lines


def _told(tensors, args, kwargs, state, scope):
    """The lines that tell whether a call is like this one and name its tensors and their addresses as the following
    lines do; ``None`` where torch cannot check tensors in one go, or something listens to what is allocated."""
    if _TensorGuards is None or memory.is_watched():
        return None

    values = (*args, *kwargs.values())
    places = {place: number for number, place in enumerate(p for p, v in enumerate(values) if type(v) in TENSORS)}
    names = [f"tensor{places[place]}" if place in places else f"value{place}" for place in range(len(values))]
    positional, named = ("".join(f"{name}, " for name in part) for part in (names[: len(args)], names[len(args) :]))
    scope |= {"named": (*kwargs,), "default_dtype": torch.get_default_dtype, "default": torch.get_default_dtype()}
    scope |= {"device_of": current_device, "state_of": state, "state": state and state(), "same": _same}
    # Of one that is given twice torch wants to hear once.
    first = [next(place for place, one in enumerate(tensors) if one is tensor) for tensor in tensors]
    once = [place for place, earlier in enumerate(first) if place == earlier]
    # Also where a tensor is, whether it needs a gradient, and torch's modes, but for that of fake tensors.
    guards = _TensorGuards(*(tensors[place] for place in once), dynamic_dims_sizes=None, dynamic_dims_strides=None)
    scope |= {"check": guards.check} | {f"type{place}": type(tensors[place]) for place in once}
    scope["modes"] = memory.dispatch_modes
    differs = ["modes()", f"len(args) != {len(args)}", "(*kwargs,) != named" if kwargs else "kwargs"]
    lines = [f"if {' or '.join(differs)}: return None"]
    lines += [f"{part}= {whole}" for part, whole in ((positional, "args"), (named, "kwargs.values()")) if part]
    # Asked for the strides of a nested tensor, which may be a plain torch.Tensor, the guard ends the process.
    differs = [f"type(tensor{place}) is not type{place} or tensor{place}.is_nested" for place in once]
    differs += [f"tensor{place} is not tensor{earlier}" for place, earlier in enumerate(first) if place != earlier]
    lines.append(f"if {' or '.join(differs)} or not check({listed('tensor', once)}): return None")
    differs = ["state_of() != state"] if state else []

    if torch.cuda.device_count() != 1:
        differs.append(f"device_of() != {current_device()}")

    if not all(tensor.is_floating_point() for tensor in tensors):
        # Floating-point results of integers are of that dtype.
        differs.append("default_dtype() is not default")

    if any(tensor.requires_grad for tensor in tensors):
        scope["grad"] = torch.is_grad_enabled
        differs.append("grad()")

    for place, value in enumerate(values):
        if place not in places:
            scope[f"known{place}"] = (*value,) if type(value) is list else value
            scope[f"kind{place}"] = type(value)
            unlike = f"not same(value{place}, kind{place}, known{place})"
            differs.append(f"value{place} is not known{place} and {unlike}")

    lines += [f"if {' or '.join(differs)}: return None"] if differs else []
    pointers = [tensor.data_ptr() for tensor in tensors]
    lines += [f"pointer{place} = tensor{place}.data_ptr()" for place in range(len(tensors))]
    differs = [f"(pointer{place} & 15) != {pointer & 15}" for place, pointer in enumerate(pointers)]

    if not any(pointer & 15 for pointer in pointers):
        differs = [f"({' | '.join(f'pointer{place}' for place in range(len(tensors)))}) & 15"]

    # Storage may be freed; no call is recorded that has none.
    differs.append(f"not ({' and '.join(f'pointer{place}' for place in range(len(tensors)))})")

    differs += [
        f"pointer{place} {'!=' if pointer == pointers[other] else '=='} pointer{other}"
        for place, pointer in enumerate(pointers)
        for other in range(place)
    ]
    lines.append(f"if {' or '.join(differs)}: return None")
    return lines


def _same(value, kind, known):
    """Whether an argument that is no tensor is the recorded one, by what ``repetition._describer`` looks at."""
    if type(value) is not kind or value != known:
        return kind is list and type(value) is list and {*map(type, value)} == INT and (*value,) == known

    if kind is float:
        # Zeros of both signs are equal.
        return bool(value) or str(value) == str(known)

    return kind not in SHAPES or {*map(type, value)} == INT


def listed(name, places):
    """The elements of a tuple, of names with these numbers."""
    return "".join(f"{name}{place}, " for place in places)


def _written(arg, sources, constants, scope):
    """An argument of a kernel as source: an address in terms of the call's tensors, or a name for what stays the same.

    ``None`` if it is a tensor of which that cannot be told.
    """
    if hasattr(arg, "block_shape"):
        # A tensor descriptor: as it was, of other memory. That of this call is not kept alive.
        base = _written(arg.base, sources, constants, scope)
        name = f"descriptor{len(scope)}"
        scope[name] = functools.partial(_described, _described(arg, 0))
        return None if base is None else f"{name}({base})"

    if not isinstance(arg, torch.Tensor) or any(arg.data_ptr() == one.data_ptr() for one in constants):
        name = f"constant{len(scope)}"
        scope[name] = arg.data_ptr() if isinstance(arg, torch.Tensor) else arg
        return name

    found = _source(arg, sources)
    return None if found is None else f"pointer{found[0]} + {found[1]}" if found[1] else f"pointer{found[0]}"


class _Memory:
    """What a tensor descriptor asks of a tensor when it is launched."""

    def __init__(self, pointer):
        self._pointer = pointer

    def data_ptr(self):
        return self._pointer


def _described(descriptor, pointer):
    """A copy of a tensor descriptor, of Triton or of Gluon, for other memory."""
    described = copy.copy(descriptor)
    described.base = _Memory(pointer)
    return described


def _source(arg, sources):
    """Which source a kernel's argument is a view of, and how many bytes into it; ``None`` if that is not clear."""
    pointer = arg.data_ptr()

    for place, source in enumerate(sources):
        if source.data_ptr() == pointer:
            return place, 0

    storage = arg.untyped_storage().data_ptr()
    owners = {s.data_ptr(): place for place, s in enumerate(sources) if s.untyped_storage().data_ptr() == storage}

    if len(owners) != 1:
        return None

    (start, place), *_ = owners.items()
    return place, pointer - start


def _launcher(run):
    """What launches a compiled kernel, and what it takes between the function and the metadata.

    Triton's own launcher is a Python function around one in C, to which it adds scratch memory; most kernels need none.
    It is left out in the one version that this was measured with (0.5 us of 4.1 us on an H200's host).
    """
    if triton.__version__ == "3.6.0" and not getattr(run, "global_scratch_size", 1) and not run.profile_scratch_size:
        return run.launch, (run.launch_cooperative_grid, run.launch_pdl, None, None)

    return run, ()
