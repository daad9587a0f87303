"""Generate a recorded call as Python source: the check that a call is like it, its allocations and its launches.

The source has a line for each allocation and each launch, since interpreting a list of them takes as long again.
"""

import copy
import functools

import torch
import triton
from torch.autograd import profiler
from torch.autograd.graph import increment_version
from triton import knobs

from ntops.launch import tracing, virtual_tensors

TENSORS = {torch.Tensor, torch.nn.Parameter}
SHAPES = {tuple, torch.Size, list}
INT = {int}
# This many sources stay compiled; most calls differ from others only in sizes and numbers.
SOURCES = 4096

# The functions that torch.cuda.current_device and Triton call in the end. A torch without CUDA lacks them; without a
# GPU they raise, and kernels may be compiled there all the same.
_gpu = torch.cuda.is_available()
current_device = torch._C._cuda_getDevice if _gpu else lambda: None
current_stream = torch._C._cuda_getCurrentRawStream if _gpu else lambda device: None
# torch's own compiler checks inputs and allocates with these functions, all at once and without the dispatcher:
# layer_norm takes 7.9 us of an H200's host so (torch's own takes 11.0), and 13.3 us if each tensor is checked by
# itself.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_TensorGuards = getattr(_guards, "TensorGuards", None)
_empty_cuda = getattr(_guards, "_empty_strided_cuda", None)

SEEDS = 2**63 - 1
"""The bound of seeds on every way to a kernel, so that one state of torch's generator always gives the same mask."""


def function(signature, lines, scope):
    """Return the function of these lines; sizes and numbers are in its scope, so that many calls share one source."""
    exec(_compiled(f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)), scope)
    return scope[signature.partition("(")[0]]


@functools.lru_cache(SOURCES)
def _compiled(source):
    return compile(source, "<a recorded call>", "exec")


class Recorded:
    """A recorded call.

    ``repeat(tensors, pointers)`` repeats it for arguments that are known to be like its own, ``again(args, kwargs)``
    for any arguments; both return ``None``, without having launched anything, if the call has to be made anew.
    """

    __slots__ = ("_tell", "again", "repeat")

    def __init__(self, repeat, tell):
        self.repeat = repeat
        self.again = None
        self._tell = tell

    def tell(self, tensors, args, kwargs):
        """Set ``again`` for a call that is like this one; ``False`` if torch cannot check all tensors at once.

        This waits until the call is repeated: a number that changes with each call makes endlessly many kinds.
        """
        self.again = self._tell(tensors, args, kwargs) or False


def write(recording, constants, tensors, result, state, out=None):
    """Return the call as a :class:`Recorded`, or ``None`` if it cannot be repeated.

    :param recording: The call's allocations, launches and writes.
    :param constants: The tensors that keep their addresses.
    :param tensors: The tensors among the call's arguments.
    :param result: A tensor, or a tuple of tensors and ``None``; what is allocated here may be returned as a view.
    :param state: The function that says what else the call depends on, or ``None``.
    :param out: The tensor of ``tensors`` that the caller gave as ``out=``, or ``None``.
    """
    sources = [*tensors, *recording.allocations]
    device = current_device()
    results = result if isinstance(result, tuple) else (result,)
    moved = [_place(one, sources) for one in recording.written]

    # ``repeat`` returns None for a call that has to be made anew.
    if result is None or not recording.launches or None in moved:
        return None

    if any(tensor.get_device() != device for tensor in tensors):
        return None

    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    scope: dict[str, object] = {"runtime": knobs.runtime, "stream_of": current_stream, "enter": enter, "leave": leave}
    scope |= {"entered": getattr(enter, "calls", enter), "left": getattr(leave, "calls", leave)}
    scope |= {"empty": torch.empty_strided, "empty_cuda": _empty_cuda}
    # If a profiler wants to see launches, Triton launches and reports them.
    before = [
        "if entered or left or runtime.launch_enter_hook is not enter or runtime.launch_exit_hook is not leave:",
        "    return None",
    ]
    listens = "True" if tracing.NVTX else "profiler._is_profiler_enabled"
    scope |= {"profiler": profiler, "begin": tracing.begin, "end": tracing.end}
    scope["configurations"] = ", ".join(recording.configurations)
    after = [f"span = begin(configurations) if {listens} else None", f"stream = stream_of({device})"]

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

    after.append("if span is not None: end(span)")
    scope["increment_version"] = increment_version
    after += [f"increment_version(tensor{place})" for place in moved]
    returned = [_returned(one, sources, len(tensors), scope) for one in results]

    if "" in returned:
        return None

    after.append(f"return {', '.join(returned)}")
    unpacked = [f"{listed(name, range(len(tensors)))}= {name}s" for name in ("tensor", "pointer")]
    apart = _apart(tensors, out)
    allocated = _allocated(recording, len(tensors), scope)
    repeat = function("repeat(tensors, pointers)", [*before, *unpacked, *apart, *allocated, *after], scope)
    allocated = _allocated(recording, len(tensors), scope, direct=True)
    return Recorded(repeat, functools.partial(_again, [*before, *apart, *allocated, *after], state, scope))


def _place(tensor, sources):
    return next((place for place, source in enumerate(sources) if source is tensor), None)


def _returned(result, sources, first, scope):
    """Return a result as source: a tensor of the call, a view of one that it allocated, or ``None``; "" if it is
    neither.

    :param first: The number of the first of ``sources`` that the call allocated.
    """
    place = None if result is None else _place(result, sources)

    if result is None or place is not None:
        return "None" if result is None else f"tensor{place}"

    found = _source(result, sources[first:])

    if found is None or sources[first + found[0]].dtype is not result.dtype:
        return ""

    view = f"view{len(scope)}"
    scope[view] = tuple(result.shape), result.stride(), result.storage_offset()
    return f"tensor{first + found[0]}.as_strided(*{view})"


def _again(lines, state, scope, tensors, args, kwargs):
    told = _told(tensors, args, kwargs, state, scope)
    return told and function("again(args, kwargs)", [*told, *lines], scope)


def _apart(tensors, out):
    """Return the lines that check whether the memory of ``out`` overlaps another tensor's. The key of a call already
    tells whether the two are the same memory."""
    if out is None:
        return []

    extents = [
        tensor.element_size() * (1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)))
        for tensor in tensors
    ]
    place = next(place for place, tensor in enumerate(tensors) if tensor is out)
    overlaps = [
        f"-{extents[place]} < pointer{place} - pointer{other} < {extents[other]} and pointer{place} != pointer{other}"
        for other, tensor in enumerate(tensors)
        if tensor is not out
    ]
    return [f"if {' or '.join(overlaps)}: return None"] if overlaps else []


def _allocated(recording, first, scope, direct=False):
    """Return the lines that allocate a call's tensors; ``direct`` calls CUDA's allocator, if nothing else must see
    it."""
    lines = []

    for place, tensor in enumerate(recording.allocations, first):
        scope |= {f"size{place}": tuple(tensor.shape), f"strides{place}": tensor.stride()}
        scope |= {f"dtype{place}": tensor.dtype, f"device{place}": tensor.device}
        anew = f"empty(size{place}, strides{place}, dtype=dtype{place}, device=device{place})"

        if direct and tensor.is_cuda and _empty_cuda:
            anew = f"empty_cuda(size{place}, strides{place}, dtype{place})"

        lines += [
            f"tensor{place} = {anew}",
            # A replaced allocator may give less alignment than kernels are compiled for.
            f"pointer{place} = tensor{place}.data_ptr()",
            f"if pointer{place} & 15: return None",
        ]
        lines += [f"tensor{place}.random_({SEEDS})" for one in recording.drawn if one is tensor]

    return lines


def _told(tensors, args, kwargs, state, scope):
    """Return the lines that check whether a call is like this one, and that name its tensors and addresses for the
    lines that follow; ``None`` if torch cannot check all tensors at once, or something watches allocations."""
    if _TensorGuards is None or virtual_tensors.is_watched():
        return None

    values = (*args, *kwargs.values())
    places = {place: number for number, place in enumerate(p for p, v in enumerate(values) if type(v) in TENSORS)}
    names = [f"tensor{places[place]}" if place in places else f"value{place}" for place in range(len(values))]
    positional, named = ("".join(f"{name}, " for name in part) for part in (names[: len(args)], names[len(args) :]))
    scope |= {"named": (*kwargs,), "default_dtype": torch.get_default_dtype, "default": torch.get_default_dtype()}
    scope |= {"device_of": current_device, "state_of": state, "state": state and state(), "same": _same}
    # torch takes a tensor that is given twice only once.
    first = [next(place for place, one in enumerate(tensors) if one is tensor) for tensor in tensors]
    once = [place for place, earlier in enumerate(first) if place == earlier]
    # The guards also check devices, whether gradients are needed, and torch's modes except for fake tensors.
    guards = _TensorGuards(*(tensors[place] for place in once), dynamic_dims_sizes=None, dynamic_dims_strides=None)
    scope |= {"check": guards.check} | {f"type{place}": type(tensors[place]) for place in once}
    scope |= {"modes": virtual_tensors.dispatch_modes, "function_modes": virtual_tensors.function_modes}
    differs = [
        "modes()",
        "function_modes()",
        f"len(args) != {len(args)}",
        "(*kwargs,) != named" if kwargs else "kwargs",
    ]
    lines = [f"if {' or '.join(differs)}: return None"]
    lines += [f"{part}= {whole}" for part, whole in ((positional, "args"), (named, "kwargs.values()")) if part]
    # Asked for the strides of a nested tensor, which may be a plain torch.Tensor, the guard aborts the process.
    differs = [f"type(tensor{place}) is not type{place} or tensor{place}.is_nested" for place in once]
    differs += [f"tensor{place} is not tensor{earlier}" for place, earlier in enumerate(first) if place != earlier]
    lines.append(f"if {' or '.join(differs)} or not check({listed('tensor', once)}): return None")
    differs = ["state_of() != state"] if state else []

    if torch.cuda.device_count() > 1:
        differs.append(f"device_of() != {current_device()}")

    if not all(tensor.is_floating_point() for tensor in tensors):
        # Integers with floating-point results depend on the default dtype.
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

    # Storage may be freed meanwhile; no recorded call has a tensor without storage.
    differs.append(f"not ({' and '.join(f'pointer{place}' for place in range(len(tensors)))})")

    differs += [
        f"pointer{place} {'!=' if pointer == pointers[other] else '=='} pointer{other}"
        for place, pointer in enumerate(pointers)
        for other in range(place)
    ]
    lines.append(f"if {' or '.join(differs)}: return None")
    return lines


def _same(value, kind, known):
    """Tell whether an argument that is not a tensor equals the recorded one, by the rules of
    ``call_keys._describer``."""
    if type(value) is not kind or value != known:
        return kind is list and type(value) is list and {*map(type, value)} == INT and (*value,) == known

    if kind is float:
        # Zeros of both signs compare equal.
        return bool(value) or str(value) == str(known)

    return kind not in SHAPES or not value or {*map(type, value)} == INT


def listed(name, places):
    """Return the elements of a tuple as source: the name with each number."""
    return "".join(f"{name}{place}, " for place in places)


def _written(arg, sources, constants, scope):
    """Return a kernel's argument as source: an address relative to the call's tensors, or a name for a constant value.

    Return ``None`` for a tensor whose memory is none of these.
    """
    if hasattr(arg, "block_shape"):
        # A tensor descriptor keeps its shape for other memory, and does not keep the memory of this call alive.
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
    """The part of a tensor that a tensor descriptor uses at its launch."""

    def __init__(self, pointer):
        self._pointer = pointer

    def data_ptr(self):
        return self._pointer


def _described(descriptor, pointer):
    """Return a copy of a tensor descriptor, of Triton or of Gluon, for other memory."""
    described = copy.copy(descriptor)
    described.base = _Memory(pointer)
    return described


def _source(arg, sources):
    """Return the source of which a kernel's argument is a view, and the offset in bytes; ``None`` if that is not
    clear."""
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
    """Return the launcher of a compiled kernel, and the arguments that it takes between the function and the metadata.

    Triton's own launcher is a Python function around one in C, to which it adds scratch memory; most kernels need none.
    It is skipped in the one version for which this was measured (0.5 us of 4.1 us on an H200's host).
    """
    if triton.__version__ == "3.6.0" and not getattr(run, "global_scratch_size", 1) and not run.profile_scratch_size:
        return run.launch, (run.launch_cooperative_grid, run.launch_pdl, None, None)

    return run, ()
