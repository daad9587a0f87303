"""The judged process: it makes calls from data, and holds torch and the implementation, but no reference, no oracle and
no verdict. One file: ``conformance.forkserver`` loads it by its path, and it imports nothing of the harness.

The judge sends operands as bytes and arguments as JSON, and gets the outcome of the call back in the same form. It
makes its own calls, of torch's functions, with ``perform`` too.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import importlib
import importlib.util
import json
import os
import socket
import struct
import sys
import time
import traceback
import types
import warnings
from pathlib import Path

import torch


def _beside(name):
    """Load the module in a file beside this one: as part of the package, or by its path where this file was loaded
    so."""
    if __package__:
        return importlib.import_module(f"{__package__}.{name}")
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    # Not entered in sys.modules, where the implementation would see it.
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


guards, call_contexts, context_calls, gradient_calls, mode_calls = map(
    _beside, ("guards", "call_contexts", "context_calls", "gradient_calls", "mode_calls")
)
argument_calls, dispatcher_calls, gpu_calls, kind_calls, process_state, sequence_staging = map(
    _beside, ("argument_calls", "dispatcher_calls", "gpu_calls", "kind_calls", "process_state", "sequence_staging")
)
code_comparisons, code_numbers, code_paths, far_memory, process_limits, random_calls = map(
    _beside, ("code_comparisons", "code_numbers", "code_paths", "far_memory", "process_limits", "random_calls")
)

_CONTEXTS = {
    **argument_calls.KINDS,
    **dispatcher_calls.KINDS,
    **gpu_calls.KINDS,
    **kind_calls.KINDS,
    **gradient_calls.CONTEXTS,
    **random_calls.KINDS,
}

# --- messages ----------------------------------------------------------------------------------------------------

MOST_HEADER = 2**24
"""The most bytes of JSON in a message."""
DECLARED = ("conformance_claims", "conformance_left_out")
"""Attributes of an implementation that the judge reads."""
_LENGTH = struct.Struct("<Q")
_KNOWN = -1
"""This size says that the other end holds the blob already."""
_MILLISECONDS = 1000
"""The most for which a thread of autograd may hold an operand after the backward pass."""
_CYCLES = 2
"""The most calls in a chain, each of which may be held by a cycle of its own."""
_PARTS = 64
"""The most buffers that are sent at once: fewer than any system's limit."""


def send(link, header, blobs=(), known=()):
    """Send a JSON object and memory.

    :param blobs: Buffers of bytes; the header says how long each is.
    :param known: bytearrays that the other end holds. A blob that equals the one of its number is not sent again.
    """
    views = [memoryview(blob).cast("B") if len(blob) else memoryview(b"") for blob in blobs]
    again = [number < len(known) and held(known[number], blob) for number, blob in enumerate(blobs)]
    sizes = [_KNOWN if same else len(view) for same, view in zip(again, views, strict=True)]
    head = json.dumps({**header, "sizes": sizes}).encode()
    new = (view for same, view in zip(again, views, strict=True) if not same)
    left = [memoryview(_LENGTH.pack(len(head)) + head), *new]
    # All at once: each part that comes alone wakes the other process.
    while left:
        sent = link.sendmsg(left[:_PARTS])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def held(known, blob):
    """Tell whether a bytearray is the blob, or equals it."""
    # Comparing with any buffer is as fast as reading memory.
    return known is blob or known == blob


def receive(stream, most=2**62, known=()):
    """Return the next message: its header, and its blobs.

    :param stream: The result of ``makefile("rb")`` of the socket.
    :param most: The most bytes of blobs that are taken.
    :param known: The blobs that the other end need not send again.

    Raises EOFError where the other end is closed, ValueError where the message is not of that form.
    """
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    if length > MOST_HEADER:
        raise ValueError(f"a message of {length} bytes")
    header = json.loads(_exactly(stream, length))
    sizes = header.get("sizes") if isinstance(header, dict) else None
    if not isinstance(sizes, list) or not all(type(size) is int and size >= _KNOWN for size in sizes):
        raise ValueError("a message whose blobs have no lengths")
    if sum(sizes) > most:
        raise ValueError("a message whose blobs are too long")
    if any(size == _KNOWN for size in sizes[len(known) :]):
        raise ValueError("a message of blobs that nobody has sent")
    return header, [known[number] if size == _KNOWN else _exactly(stream, size) for number, size in enumerate(sizes)]


def _exactly(stream, size):
    data = bytearray(size)
    if stream.readinto(data) < size:
        raise EOFError("the other end is closed")
    return data


# --- arguments ---------------------------------------------------------------------------------------------------


def tensor_of(blob, described):
    """Return a CPU tensor over the bytes of its whole storage, as ``describe_tensor`` says."""
    dtype = getattr(torch, described["dtype"])
    storage = torch.frombuffer(blob, dtype=torch.uint8) if len(blob) else torch.empty(0, dtype=torch.uint8)
    empty = torch.empty(0, dtype=dtype)
    return empty.set_(storage.untyped_storage(), described["offset"], described["shape"], described["strides"])


def describe_tensor(tensor, offset=None):
    """Return dtype and place in the storage, as JSON has them."""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "offset": tensor.storage_offset() if offset is None else offset,
    }


def decode(value, operands):
    """Return the argument that ``conformance.calls.encode`` has made data of."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "operand":
            return operands[content]
        case "view":
            base = operands[content["operand"]]
            offset = base.storage_offset() + content["offset"]
            return base.as_strided(content["shape"], content["strides"], offset)
        case "list":
            return [decode(item, operands) for item in content]
        case "tuple":
            return tuple(decode(item, operands) for item in content)
        case "size":
            return torch.Size(content)
        case "number":
            return torch.tensor(content[1], dtype=getattr(torch, content[0]))
        case "dtype":
            return getattr(torch, content)
        case "numpy":
            import numpy

            return getattr(numpy, content[0])(content[1])
        case "enum":
            return enum_member(content)
        case "int_enum":
            return int_enum_member(content)
        case "causal_variant":
            from torch.nn.attention.bias import CausalVariant

            return CausalVariant[content]
    raise ValueError(f"an argument of kind {kind!r}")


def enum_member(text):
    """Return the member of an enum of strings that equals a string, as users' options often are."""
    return enum.Enum("Option", {"CHOSEN": text}, type=str)(text)


def int_enum_member(number):
    """Return the member of an enum of ints that equals a number, as code has it that names its dims."""
    return enum.IntEnum("Axis", {"CHOSEN": number})(number)


# --- a call ------------------------------------------------------------------------------------------------------


class Made:
    """The outcome of a call: its operands afterwards, and a value or an exception."""

    def __init__(self, operands=(), value=None, error=None):
        self.operands, self.value, self.error = tuple(operands), value, error
        self.fresh = False
        """Whether it allocated memory that torch does not fill."""
        self.trespass = ""
        """The description of a write to a margin; empty: none."""
        self.fault = ""
        """The forbidden access to memory that the interpreter saw; empty: none."""
        self.moved = ()
        """For each operand, whether its version counter moved."""
        self.replaced = ()
        """For each operand, whether its storage is another one: not the same, resized."""
        self.state = []
        """The surroundings that it changed, which were restored."""
        self.configurations = []
        """The names of the configurations that the kernel could have had."""
        self.reached = ""
        """The last stage of a differentiated call: "forward" or "backward"; empty for other calls."""


READ_ONLY, SWAPPED, PARTS, INFERENCE, RETURNED = "read-only", "swapped", "parts", "inference", "returned"
"""Values of ``call["before"]`` with a function or branch of their own; the last three are for calls that write no
operand."""
FIXED = "fixed"
_APART = 64
"""Bytes of which two parts of one tensor are a multiple apart: allocators align to as many."""


def perform(function, inputs, call, device, offers=None, passed=(), stage=None):
    """Make one call of ``function``, whatever it does, on operands of its own.

    :param inputs: The operands, on the CPU, each in a storage of its own.
    :param call: ``args`` and ``kwargs`` as ``decode`` takes them; ``form`` of the call, as of ``dress``; ``written``,
        numbers of operands that the call is given to write; ``guard``, the arguments of ``guards.Guard``, or None;
        ``seed`` of torch's generators, or None; ``watch``, whether interpreted kernels are watched; ``observe``,
        whether configurations are asked for; ``configuration`` and ``setting``, the number of one to call it in, or
        None; ``state``, whether its surroundings are compared; ``other``, whether they are those of
        ``process_state.other``; ``before``, None, or "same" or "new" where a call with other contents is made before,
        on the same tensors or on others that lay where they lie, "behind" the version counter's back, by "swapped"
        ``.data``, on other "parts" of the same tensors, on the same of "inference" mode, or on what it has "returned";
        or "read-only" where there is none and what the call is not given to write lies in memory that may not be
        written, or in memory of "fixed" size, or as ``far_memory`` says; ``gradients``, None or
        what ``_differentiated`` takes; ``context``, None or what ``context_calls.within`` and
        ``mode_calls.surroundings`` take.
    :param offers: Has ``conformance_configurations`` and ``conformance_settings`` where they are known.
    :param passed: Classes of exceptions that are raised on.
    :param stage: The ``sequence_staging.Stage`` of the sequence that the call is part of; ``call["follow"]`` says how.
    """
    device = torch.device(device)
    if call["before"] == READ_ONLY:
        made = Made(
            tuple(
                _copy(tensor, device) if number in call["written"] else guards.read_only(tensor)
                for number, tensor in enumerate(inputs)
            )
        )
        _make(made, function, call, device, None, offers, passed)
        return made
    if call["before"] in _BEFORE:
        return _BEFORE[call["before"]](function, inputs, call, device, offers, passed)
    if call["before"]:
        return _again(function, inputs, call, device, offers, passed)
    guard = guards.Guard(device, *call["guard"]) if call["guard"] else None
    if stage is None:
        operands = tuple(
            _copy(tensor, device) if guard is None else guard.operand(tensor, number in call["written"])
            for number, tensor in enumerate(inputs)
        )
    else:
        operands = stage.operands(inputs, call["follow"], call["written"])
        function = stage.under(call["follow"]["settings"], function)
    made = Made(operands)
    _make(made, function, call, device, guard, offers, passed)
    if stage is not None:
        stage.made(made.operands, made.value, call["follow"])
        made.operands, made.value = stage.apart(made.operands, made.value, call["follow"])
    if guard is not None:
        made.fresh, made.trespass = guard.fresh, guard.trespass()
    return made


def new_paths(function, inputs, call, device, passed=()):
    """Make one call, as ``perform`` does. Return to how many places of the code it came that no such call had come to
    before, and what was compared on the way, as of ``code_comparisons``. ``call["differentiate"]``: with the backward
    pass, of a call that writes no operand."""
    counted = []
    compared = code_comparisons.of(function, code_numbers.functions)
    if call["differentiate"] and not call["written"] and not call["kwargs"].get("inplace"):
        function = code_paths.differentiated(function)
    function = code_paths.traced(function, context_calls, code_numbers.OTHERS, counted, vars(code_comparisons))
    with compared:
        perform(function, inputs, call, device, passed=passed)
    return sum(counted), compared.found


def _again(function, inputs, call, device, offers, passed):
    """Perform a call without margins, on operands that an earlier call had with other contents."""
    before = _turned(inputs)
    made = Made()
    for contents in (before, inputs):
        if len(made.operands) == len(contents) and all(map(_alike, made.operands, contents)):
            operands = tuple(map(_rewritten, made.operands, contents))
            if call["before"] != "behind":
                # Changes by way of NumPy or ``.data`` leave no trace.
                torch.autograd.graph.increment_version(operands)
            if call["before"] == "new":
                # As allocators do, which give freed memory out first.
                operands = tuple(guards.over(x.untyped_storage(), x, x.storage_offset()) for x in operands)
        else:
            operands = tuple(_copy(tensor, device) for tensor in contents)
        made = Made(operands)
        _make(made, function, call, device, None, offers, passed)
    return made


def _turned(inputs):
    """Return copies of CPU tensors with other contents."""
    before = tuple(_copy(tensor, torch.device("cpu")) for tensor in inputs)
    for tensor in before:
        _turn(tensor)
    return before


def _parts(function, inputs, call, device, offers, passed):
    """Perform a call on parts of tensors of which an earlier call had other parts, as the layers of a model have whose
    weights are stacked."""
    pairs = [_both(*pair, device) for pair in zip(_turned(inputs), inputs, strict=True)]
    for operands in zip(*pairs, strict=True):
        made = Made(operands)
        _make(made, function, call, device, None, offers, passed)
    parts = {}
    for number, tensor in enumerate(inputs):
        size = len(guards.memory_of(tensor))
        parts[number] = _step(size), size
    made.operands, made.value = sequence_staging.in_own_storages(made.operands, made.value, parts)
    return made


def _step(size):
    """Return how many bytes apart two parts of so many bytes lie."""
    return -(-size // _APART) * _APART


def _both(first, second, device):
    """Return two tensors that lie alike in their storages as views of one tensor on the device."""
    memory = [guards.memory_of(tensor) for tensor in (first, second)]
    step = _step(len(memory[0]))
    whole = torch.zeros(2 * step, dtype=torch.uint8)
    for place, part in enumerate(memory):
        whole[place * step : place * step + len(part)] = part
    base = torch.empty(0, dtype=first.dtype, device=device)
    base.set_(whole.to(device).untyped_storage(), 0, (2 * step // first.itemsize,), (1,))
    starts = (place * step // first.itemsize + first.storage_offset() for place in range(2))
    return [base.as_strided(first.shape, first.stride(), start) for start in starts]


def _of_inference(function, inputs, call, device, offers, passed):
    """Perform a call in inference mode, on tensors of that mode that an earlier call had with other contents: they
    have no version that moves when they are changed in place."""
    call = call | {"form": call_contexts.INFERENCE}
    first = Made(tuple(_copy(tensor, device) for tensor in _turned(inputs)))
    given = call_contexts.dressed(call["form"], first.operands, ())
    _make(first, function, call, device, None, offers, passed, given)
    made = Made(tuple(map(_rewritten, first.operands, inputs)))
    _make(made, function, call, device, None, offers, passed, given)
    return made


def _swapped(function, inputs, call, device, offers, passed):
    """Perform a call on the tensors of an earlier call with other contents, whose ``.data`` was exchanged since, as who
    loads weights does it: the version counter does not move. What is only read of floats are parameters."""
    call, before = call | {"form": call_contexts.PARAMETERS}, _turned(inputs)
    first = Made(tuple(_copy(tensor, device) for tensor in before))
    given = call_contexts.dressed(call["form"], first.operands, call["written"])
    _make(first, function, call, device, None, offers, passed, given)
    new = [_copy(tensor, device) for tensor in inputs]
    for one, tensor in zip(given, new, strict=True):
        one.data = tensor
    pairs = zip(given, first.operands, new, strict=True)
    made = Made(tuple(one if one is operand else tensor for one, operand, tensor in pairs))
    _make(made, function, call, device, None, offers, passed, given)
    return made


def _of_results(function, inputs, call, device, offers, passed):
    """Perform a call on tensors that the function has returned, in place of dense operands of the shape and dtype of
    its result: they get the contents of these."""
    operands = [_copy(tensor, device) for tensor in inputs]
    for number, tensor in enumerate(inputs):
        first = Made(tuple(_copy(one, device) for one in inputs))
        _make(first, function, call, device, None, offers, passed)
        result = first.value
        is_plain = type(result) is torch.Tensor and result.dtype == tensor.dtype and _has_storage(result)
        if is_plain and _alike(result, tensor):
            operands[number] = _rewritten(result, tensor)
    made = Made(tuple(operands))
    _make(made, function, call, device, None, offers, passed)
    return made


def _fixed(function, inputs, call, device, offers, passed):
    """Perform a call on operands whose memory is somebody else's, as that of a NumPy array, which torch does not
    resize. On a GPU they are ordinary ones."""
    made = Made(tuple(_copy(one, device) if device.type == "cuda" else guards.foreign(one) for one in inputs))
    _make(made, function, call, device, None, offers, passed)
    if made.error is not None:
        # torch gives a tensor its new shape before it finds that there is no memory for it.
        pairs = zip(made.operands, inputs, strict=True)
        made.operands = tuple(guards.over(x.untyped_storage(), was, was.storage_offset()) for x, was in pairs)
    return made


def _far(function, inputs, call, device, offers, passed):
    """Perform a call one of whose operands lies far away, as ``far_memory`` says."""
    near = tuple(_copy(tensor, device) for tensor in inputs)
    # A view is of its operand as it lay.
    views = {*_viewed([*call["args"], *call["kwargs"].values()])}
    operands, number = far_memory.laid(near, inputs, call["before"], call["seed"] or 0, views)
    made = Made(operands)
    _make(made, function, call, device, None, offers, passed)
    if number is not None:
        back = far_memory.brought_back(made.operands[number], inputs[number])
        made.operands, made.value = sequence_staging.exchanged(made.operands, made.value, {number: back})
        value = made.value
        made.value = tuple(map(far_memory.narrow, value)) if type(value) is tuple else far_memory.narrow(value)
        del operands, value
        if made.error is not None and device.type == "cuda":
            # Its frames hold the operand.
            traceback.clear_frames(made.error.__traceback__)
            gc.collect()
    far_memory.free(device)
    return made


def _viewed(arguments):
    """Yield the numbers of the operands of which arguments, as ``decode`` takes them, are views."""
    for one in arguments:
        for kind, content in one.items() if isinstance(one, dict) else ():
            if kind == "view":
                yield content["operand"]
            elif kind in ("list", "tuple"):
                yield from _viewed(content)


_BEFORE = {SWAPPED: _swapped, PARTS: _parts, INFERENCE: _of_inference, RETURNED: _of_results, FIXED: _fixed}
_BEFORE |= dict.fromkeys((far_memory.FAR_OFFSET, far_memory.FAR_ROWS), _far)


def _turn(tensor):
    """Change the contents of a CPU tensor to numbers that it holds already: reverse its storage, if it is of floats."""
    if tensor.dtype.is_floating_point:
        memory = guards.memory_of(tensor)
        words = memory[: len(memory) // tensor.itemsize * tensor.itemsize].view(-1, tensor.itemsize)
        words.copy_(words.flip(0))


def _rewritten(operand, tensor):
    """Give an operand the contents of a CPU tensor in place, in all of its storage, and return it."""
    guards.memory_of(operand).copy_(guards.memory_of(tensor))
    return operand


def _alike(operand, tensor):
    """Tell whether an operand lies in its storage as a CPU tensor does: a call may have resized it."""
    sizes = (one.untyped_storage().nbytes() for one in (operand, tensor))
    places = ((one.shape, one.stride(), one.storage_offset()) for one in (operand, tensor))
    return len(set(places)) == 1 and len(set(sizes)) == 1


def _make(made, function, call, device, guard, offers, passed, given=None):
    """Call the function, and note the outcome in ``made``.

    :param given: The operands as the call gets them; None: as its form dresses them.
    """
    wish = call["gradients"]
    if given is None:
        stay = call_contexts.kept(call["form"], call["written"], bool(call["kwargs"].get("inplace")))
        # The result's gradient may be that of an operand, in its memory.
        stay = stay if wish is None else [*stay, wish["dout"]]
        given = call_contexts.dressed(call["form"], made.operands, stay)
    args, kwargs = _arguments(call, given)
    before = None
    if wish is not None:
        made.reached = "forward"
        given = [
            gradient_calls.leaf(one, wish["origin"]) if n in (*wish["wanted"], *wish["unasked"]) else one
            for n, one in enumerate(given)
        ]
        args, kwargs = _arguments(call, [gradient_calls.operand(one, wish["origin"]) for one in given])
    if wish is not None and wish["kind"] == "in place":
        # torch writes to no leaf.
        first, base = gradient_calls.to_be_written(args[0], wish["view"])
        args, kwargs = [first, *args[1:]], {**kwargs, "inplace": True}
        before = first.grad_fn if base is None else base.grad_fn, first._version, base
    if call["form"] == call_contexts.OWN:
        kwargs = {name: call_contexts.own(function, value) for name, value in kwargs.items()}
    if call["context"] is not None:
        function = context_calls.within(call["context"], function, _CONTEXTS)
    lists = {name: list(value) for name, value in [*enumerate(args), *kwargs.items()] if type(value) is list}
    versions = [operand._version for operand in made.operands]
    storages = [operand.untyped_storage() for operand in made.operands]
    holders = _holders(storages, given)
    try:
        # The watch is the innermost: it sees what was allocated, and not how it is guarded.
        with (
            # torch warns of every ``out`` that it resizes, and here that is wanted.
            warnings.catch_warnings(record=True),
            call_contexts.surroundings(call["form"]),
            process_state.other(device) if call["other"] else contextlib.nullcontext(),
            mode_calls.surroundings(call["context"], device),
            _offered(offers, "conformance_settings", call["op"], call["setting"], call["setting"] is not None),
        ):
            if call["seed"] is not None:
                _seed(call["seed"], device)
            observed = call["observe"] or call["configuration"] is not None
            with (
                guard or contextlib.nullcontext(),
                _watch(call["watch"], given, [given[n] for n in call["written"]]) as watcher,
                _offered(offers, "conformance_configurations", call["op"], call["configuration"], observed) as names,
            ):
                # Where nobody asks what a call has changed, the next one finds it as it was all the same.
                state = None if call["state"] else process_state.QUICK
                noted = process_state.note(device, state)
                try:
                    if wish is not None and wish["evaluated"] in gradient_calls.BEFORE:
                        make = gradient_calls.BEFORE[wish["evaluated"]]
                        earlier = make(function, functools.partial(_arguments, call), given, wish)
                        made.reached = "backward"
                        earlier()
                        made.reached = "forward"
                        # It holds the operands.
                        del earlier
                        versions = [operand._version for operand in made.operands]
                    elif wish is not None and wish["evaluated"]:
                        with gradient_calls.EVALUATED[wish["evaluated"]]():
                            function(*args, **kwargs)
                    forward = function if wish is None else gradient_calls.SAVED[wish["saved"]](function)
                    made.value = forward(*args, **kwargs)
                    if wish is not None:
                        # A checkpointed call is made once more with them.
                        if wish["saved"] != "checkpoint":
                            _reuse(args, kwargs, given, wish["reused"])
                        again = functools.partial(_called, function, call)
                        made.value = _differentiated(made, given, wish, again, before, device)
                finally:
                    changed = process_state.restore(noted, device, state)
                    # Of gradients it is what the backward pass changes.
                    made.state += changed if call["state"] and wish is None else []
                if watcher is not None:
                    watcher.check_written(made.value)
            made.configurations = [str(name) for name in names]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    # The implementation is somebody else's code: anything that it raises is a finding, never a crash of the run.
    except BaseException as raised:
        if isinstance(raised, passed):
            raise
        made.value, made.error = None, raised
        made.fault = said(raised) if _is_memory_fault(raised) else ""
    made.value = call_contexts.undressed(call["form"], made.operands, given, made.value)
    if wish is not None:
        gradient_calls.forget(given)
    # What is written in place has the graph for as long as it lives.
    looked = call["state"] if wish is None else before is None
    kept = _kept(made, storages, given, holders, wish is not None) if made.error is None and looked else []
    if wish is not None:
        made.state = (*made.state, *kept)
    elif call["state"]:
        attributes = [f"the attributes of operand {n}" for n, one in enumerate(given) if vars(one)]
        now = {**dict(enumerate(args)), **kwargs}
        changed = [f"the caller's list, argument {name}" for name, was in lists.items() if now[name] != was]
        made.state = (*made.state, *attributes, *changed, *kept)
    made.moved = tuple(operand._version != was for operand, was in zip(made.operands, versions, strict=True))
    now = [operand.untyped_storage() for operand in made.operands]
    made.replaced = tuple(one._cdata != was._cdata for one, was in zip(now, storages, strict=True))


def _holders(storages, given):
    """Return how many tensors hold each storage, and how many names and others each tensor."""
    counts = [torch._C._storage_Use_Count(storage._cdata) for storage in storages]
    return list(zip(counts, map(sys.getrefcount, given), strict=True))


def _kept(made, storages, given, holders, differentiated):
    """Name the operands that more names refer to than before the call, or whose memory more tensors hold, if no result
    is one of them: it is not freed when the caller lets go."""
    results = made.value if isinstance(made.value, tuple | list) else [made.value]
    shown = {one.untyped_storage()._cdata for one in results if type(one) is torch.Tensor and _has_storage(one)}

    def more():
        pairs = enumerate(zip(_holders(storages, given), holders, strict=True))
        found = [number for number, (now, was) in pairs if now[0] > was[0] or now[1] > was[1]]
        return [number for number in found if storages[number]._cdata not in shown]

    if more():
        # What lies in a cycle is freed some time; of a chain of calls, what the last one holds comes first.
        for _ in range(_CYCLES):
            gc.collect()
        # Autograd's thread for a GPU lets go of what it worked on some time after the backward pass has returned.
        for _ in range(_MILLISECONDS if differentiated and any(one.is_cuda for one in given) else 0):
            if not more():
                break
            time.sleep(0.001)
    return [f"the references to operand {n}, more than before" for n in more()]


def _has_storage(tensor):
    return tensor.layout is torch.strided and not tensor.is_nested


def _arguments(call, operands):
    """Return ``(args, kwargs)`` of a call with these operands."""
    args = [decode(value, operands) for value in call["args"]]
    return args, {name: decode(value, operands) for name, value in call["kwargs"].items()}


def _reuse(args, kwargs, given, numbers):
    """Empty the lists that a caller has passed, and change the 0-d tensors that are no operands but numbers, if
    ``numbers`` is true: they are its own again."""
    # Of a call in place the first argument is a copy.
    operands = [one for one in (*given, *args[:1]) if isinstance(one, torch.Tensor)]
    memory = {one.untyped_storage()._cdata for one in operands}
    for value in (*args, *kwargs.values()):
        if type(value) is list:
            value.clear()
        elif (
            numbers
            and isinstance(value, torch.Tensor)
            and not value.ndim
            and value.untyped_storage()._cdata not in memory
        ):
            value.copy_(~value if value.dtype == torch.bool else value * 3 + 7)


def _called(function, call, operands, options=None):
    """Make the call with other operands, and other ``options`` if they are given, as its ``args`` and ``kwargs``."""
    args, kwargs = _arguments(call if options is None else options, operands)
    return function(*args, **kwargs)


def _differentiated(made, given, wish, again, before, device):
    """Return the result, as ``made`` has it, and after it the gradient of each operand of ``wish["wanted"]`` for the
    result's gradient, operand ``wish["dout"]``, and what ``gradient_calls`` returns for ``wish["kind"]`` after these.
    Return the result alone where it knows nothing of gradients.

    ``wish["overwritten"]``: the number of an operand, or -1 for the result, that is changed in place in between.
    ``wish["settings"]``: what the user has set by then, as ``sequence_staging.applied`` takes it.
    ``wish["beside"]``: None, or the ``args`` and ``kwargs`` of a call with other options that is made in between.
    ``wish["place"]``: the operand that is like the result, or None.
    ``made.state`` has what the backward pass changes of its surroundings.

    :param again: Makes the call with other operands, and other options.
    :param before: The node of the operand of a call in place, its version, both before that, and the tensor of which it
        is a view, whose node it is then; None: of none. If the call writes it, it has another node after, or autograd
        does not know of the call.
    """
    value = made.value
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    if before is not None:
        node, version, base = before
        if (value if base is None else base).grad_fn is node and value._version != version:
            return value.detach()
        # What autograd knows of the whole, as who uses that finds it.
        value = value if base is None else gradient_calls.part_of(base)
    result = value.detach()
    if wish["overwritten"] is not None:
        result = result.clone()
        changed = value if wish["overwritten"] < 0 else given[wish["overwritten"]]
        # torch writes no tensor of which it is sure that several elements have one address; of strided ones it is not.
        if torch._debug_has_internal_overlap(changed) != 1:
            with torch.no_grad():
                # Not by a sum alone, which a softmax would not notice. The first index is one of any tensor.
                changed.mul_(-2).add_(1) if changed.is_floating_point() else changed.zero_()
    made.reached, wanted, dout = "backward", [given[n] for n in wish["wanted"]], given[wish["dout"]]
    kind = gradient_calls.KINDS.get(wish["kind"], gradient_calls.plain)
    added_up = wanted if wish["origin"] == "parameter" and wish["kind"] != "accumulated" else ()
    for one in added_up:
        one.grad = torch.full_like(one, gradient_calls.ADDED_UP)

    def copies():
        """Return -2 times the operands, with gradients wanted as of these."""
        # Of the other sign alone squares would be the same.
        found = [one.detach() * -2 if one.is_floating_point() else one for one in given]
        return [one.requires_grad_() if n in wish["wanted"] else one for n, one in enumerate(found)]

    def other():
        """Make the call with such copies, and return its result and the operands that have a gradient."""
        own = copies()
        return again(own), [own[n] for n in wish["wanted"]]

    def beside():
        """Make the call with such copies and other options, or its own where there are no others; return its result,
        None if it raises."""
        with contextlib.suppress(Exception):
            return again(copies(), wish["beside"])

    calls = types.SimpleNamespace(again=again, other=other, beside=beside, given=given, place=wish["place"])
    if wish["kind"] == "shared":
        # Freed while its graph lives; what is made first takes its place.
        result, made.value, value = result.clone(), None, [value, *(copies() for _ in range(gradient_calls.FREED))]

    with sequence_staging.applied(wish["settings"], everything=False), mode_calls.left(device):
        # Another draw, after which the state is not that of the call.
        torch.rand((), device=device)
        noted = process_state.note(device)
        try:
            return result, *kind(value, wanted, dout, calls)
        finally:
            changed = process_state.restore(noted, device)
            # Calls in between may be random.
            others = wish["kind"] in ("between", "shared")
            made.state += [one for one in changed if not (others and one.startswith(process_state.GENERATORS))]
            if any(one.grad is None or bool((one.grad != gradient_calls.ADDED_UP).any()) for one in added_up):
                made.state += ["the .grad of a parameter, for which nobody asked"]


@contextlib.contextmanager
def _offered(offers, name, op, number, wanted):
    """Enter the context of this name that the implementation offers, and yield its list; an empty one where there is
    none."""
    found = getattr(offers, name, None) if wanted else None
    if found is None:
        yield ()
    else:
        with found(op, number) as names:
            yield names


def _interpreter():
    """Return the interpreter that runs Triton kernels in this process; None where nothing has installed it."""
    # Not imported here: importing ntops chooses between interpreted and compiled, for the implementation to do.
    found = sys.modules.get("ntops.interpreter")
    return found if found is not None and found.installed() else None


def _watch(wanted, operands, written):
    found = _interpreter() if wanted else None
    return contextlib.nullcontext() if found is None else found.watch(operands, written)


def _is_memory_fault(error):
    found = _interpreter()
    return found is not None and isinstance(error, found.MemoryFault)


def _seed(seed, device):
    if device.type == "cpu":
        # torch.manual_seed also notes the stack for each kind of device that is not there: half a millisecond a call.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _copy(tensor, device):
    """Return the same tensor in a storage of its own on the device: not a view of another, so that it may be
    resized."""
    # As bytes: torch copies bools as truth values.
    storage = guards.memory_of(tensor).to(device, copy=True)
    result = torch.empty(0, dtype=tensor.dtype, device=device)
    return result.set_(storage.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


# --- what came of it, as data ------------------------------------------------------------------------------------


def describe(made, inputs):
    """Return the outcome of a call as JSON, and memory: of operands their storages, of results what they show.

    Tensors that share a storage are told by its number. Margins are left out.
    """
    blobs, numbers, bases = [], {}, []

    def operand(tensor, given):
        storage, margin = tensor.untyped_storage(), max(0, tensor.storage_offset() - given.storage_offset())
        key = _key(storage)
        if key not in numbers:
            whole = guards.memory_of(tensor).cpu()
            last = len(whole) - margin * tensor.itemsize
            # torch may have moved the operand, out of sight of the margins.
            if last < (tensor.storage_offset() + _extent(tensor)) * tensor.itemsize:
                margin, last = 0, len(whole)
            numbers[key] = len(blobs)
            blobs.append(_bytes(whole[margin * tensor.itemsize : last]))
            bases.append(margin * tensor.itemsize)
        number = numbers[key]
        return describe_tensor(tensor, tensor.storage_offset() - bases[number] // tensor.itemsize) | {"storage": number}

    def result(value):
        same = next((number for number, one in enumerate(made.operands) if one is value), None)
        if same is not None:
            return {"operand": same}
        if (which := _foreign(value)) is not None:
            return {"foreign": which}
        if value._is_zerotensor():
            # Autograd may give zeros that have no memory.
            value = torch.zeros_like(value)
        about = {
            "device": str(value.device),
            "place": _key(value.untyped_storage()),
            "traits": call_contexts.traits(value),
        }
        plain = value.detach().resolve_conj().resolve_neg()
        if (number := numbers.get(about["place"])) is not None and plain.data_ptr() == value.data_ptr():
            size = plain.itemsize
            if bases[number] % size == 0:
                offset = plain.storage_offset() - bases[number] // size
                if offset >= 0 and (offset + _extent(plain)) * size <= len(blobs[number]):
                    return {"tensor": describe_tensor(plain, offset) | about | {"storage": number, "shared": True}}
        begin = plain.storage_offset() * plain.itemsize
        shown = guards.memory_of(plain)[begin : begin + _extent(plain) * plain.itemsize]
        # One of meta has no bytes.
        blobs.append(_bytes(torch.zeros(shown.shape, dtype=shown.dtype) if shown.is_meta else shown.cpu()))
        return {"tensor": describe_tensor(plain, 0) | about | {"storage": len(blobs) - 1, "shared": False}}

    described = {
        "operands": [operand(*pair) for pair in zip(made.operands, inputs, strict=True)],
        "value": None,
        "error": None if made.error is None else _described_error(made.error),
        "fresh": made.fresh,
        "state": made.state,
        "trespass": made.trespass,
        "fault": made.fault,
        "moved": list(made.moved),
        "replaced": list(made.replaced),
        "configurations": list(made.configurations),
        "reached": made.reached,
    }
    if made.error is None:
        many = isinstance(made.value, tuple | list)
        kind = "list" if isinstance(made.value, list) else "tuple" if many else "one"
        described["value"] = {kind: [result(value) for value in (made.value if many else [made.value])]}
    return described, blobs


def _key(storage):
    """Return a number that identifies a storage among those that are there at the same time."""
    return storage.data_ptr() or storage._cdata


def _extent(tensor):
    """Return the number of elements from the first to the last that it shows."""
    if not tensor.numel():
        return 0
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1


def _bytes(memory):
    return memory.contiguous().numpy().data if memory.numel() else b""


def _foreign(value):
    """Say what a value is that is not a plain tensor with memory of its own; None where it is one."""
    if value is None:
        return "None"
    kind = type(value)
    if not issubclass(kind, torch.Tensor):
        return f"an object of type {_text(kind.__name__)}"
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return f"an object of type {_text(kind.__name__)}, a subclass of torch.Tensor"
    if value.requires_grad or vars(value):
        return "a tensor that requires grad" if value.requires_grad else "a tensor with attributes of its own"
    if value.layout is not torch.strided or value.is_quantized:
        return f"a tensor of layout {value.layout}"
    if value.device.type not in ("cpu", "cuda"):
        return f"a tensor on device {value.device}"
    return None


def _described_error(error):
    classes = [{"module": _text(one.__module__), "name": _text(one.__name__)} for one in type(error).__mro__]
    return {"classes": classes, "text": said(error)}


def said(error):
    """Return the text of an exception, whatever it holds and whatever str() of it does."""
    try:
        return _text(str(error))
    except BaseException as again:  # noqa: BLE001  (somebody else's code)
        return f"(its text cannot be had: str() of it raises {_text(type(again).__name__)})"


def named(error):
    """Return the class of an exception and its text."""
    return f"{type(error).__name__}: {said(error)}"


def _text(value):
    """Return a text that can be sent and printed, whatever it holds."""
    plain = str.__str__(value) if isinstance(value, str) else "?"
    return plain.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


# --- the process -------------------------------------------------------------------------------------------------


class _Server:
    """Answers the judge. ``provider``: the imported implementation."""

    def __init__(self, provider, device):
        self.provider, self.device = provider, device
        code_numbers.note_tables()
        self.kept = []
        """Values returned for the case that is judged now: while they live, nothing else has their memory."""
        self.stage = None
        """The stage of the sequence that is judged now."""
        self.sent = []
        """The memory of the operands of the last call, as the judge sent it."""

    def answer(self, asked, blobs):
        """Return the reply to one request: a header and blobs."""
        if asked["ask"] == "settings":
            return {"names": self._settings(asked["op"])}, ()
        if asked["ask"] == "numbers":
            function = getattr(self.provider, asked["op"])
            return {"numbers": code_numbers.of(function), "rows": code_numbers.rows(function)}, ()
        if asked["ask"] == "lost":
            return {"lost": _lost(self.device)}, ()
        if asked["ask"] == "forget":
            self.kept.clear()
            self.stage = None
            return {}, ()
        if asked["ask"] == "follow":
            self.stage = sequence_staging.Stage(self.device, asked["memory"], gradient_calls.of_factors)
            return {}, ()
        if asked["ask"] == "kept":
            try:
                return self._kept()
            except RuntimeError:
                # After a backward pass the gradients may be out of reach.
                if not (lost := _lost(self.device)):
                    raise
                return {"lost": lost}, ()
        if asked["ask"] == "forget paths":
            code_paths.forget()
            return {}, ()
        self.sent = blobs
        inputs = [tensor_of(blob, described) for blob, described in zip(blobs, asked["operands"], strict=True)]
        stage, function = self.stage if asked.get("follow") else None, getattr(self.provider, asked["op"])
        try:
            if asked["ask"] == "paths":
                places, compared = new_paths(function, inputs, asked, self.device)
                return {"paths": places, "compared": compared, "lost": _lost(self.device)}, ()
            made = perform(function, inputs, asked, self.device, self.provider, stage=stage)
            if stage is None and not asked["before"]:
                self.kept.append(made.value)
            return describe(made, inputs)
        except RuntimeError:
            # The results of a call on a GPU may be out of reach.
            if not (lost := _lost(self.device)):
                raise
            return {"lost": lost}, ()

    def _kept(self):
        kept = self.stage.kept() if self.stage is not None else []
        told, blobs = [], []
        for call, what, index, one in kept:
            told.append({"call": call, "what": what, "index": index})
            if isinstance(one, Exception):
                told[-1]["raised"] = named(one)
                continue
            tensor = one.detach().cpu().clone(memory_format=torch.contiguous_format)
            told[-1]["tensor"] = describe_tensor(tensor, 0)
            blobs.append(_bytes(guards.bits(tensor)))
        return {"kept": told}, blobs

    def _settings(self, op):
        try:
            with _offered(self.provider, "conformance_settings", op, None, True) as names:
                return [str(name) for name in names]
        # The implementation is somebody else's code.
        except Exception as error:  # noqa: BLE001
            return {"failed": named(error)}


def _lost(device):
    """Return the error that the GPU's context is stuck with (an illegal address, say); empty where it can go on."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            return said(error).partition("\n")[0]
    return ""


def main(descriptor):
    """Import the implementation that is named over the socket ``descriptor``, then make calls until its other end is
    closed."""
    os.set_inheritable(descriptor, False)
    process_limits.prepare()
    link = socket.socket(fileno=descriptor)
    stream = link.makefile("rb")
    with contextlib.suppress(EOFError, ConnectionError):
        setup, _ = receive(stream)
        device = torch.device(setup["device"])
        if device.type == "cpu":
            os.environ.setdefault("TRITON_INTERPRET", "1")
            process_limits.limit_memory()
        else:
            torch.cuda.set_device(device)
        noted = process_state.note(device)
        provider, problem = load(setup["implementation"])
        # Calls find the state of a user who has set nothing.
        changed = process_state.restore(noted, device, process_state.NUMERIC)
        if problem:
            send(link, {"problem": problem})
            _end()
        provides = [op for op in setup["ops"] if callable(getattr(provider, op, None))]
        send(
            link,
            {"provides": provides, "declared": declared(provider), "kernels": _kernels(device), "changed": changed},
        )
        server = _Server(provider, device)
        while True:
            header, blobs = receive(stream, known=server.sent)
            send(link, *server.answer(header, blobs), known=server.sent)
    _end()


def _end():
    # Skips the work of a normal exit: libraries that lost their GPU can hang there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def load(name):
    """Return ``(provider, problem)``: a module, or ``module:object``; or why there is none, for people."""
    module_name, _, path = name.partition(":")
    try:
        provider = import_named(module_name)
    # Importing runs somebody else's code: whatever stops it is for the user to read, not a crash of the harness.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        kind = _text(type(error).__name__)
        return None, f"implementation {name!r}: importing {module_name!r} failed: {kind}: {said(error)}"
    for attribute in filter(None, path.split(".")):
        try:
            provider = getattr(provider, attribute)
        except AttributeError:
            return None, f"implementation {name!r}: {module_name} has no {path!r}"
    return provider, ""


def import_named(name):
    """Import the module of a name, or of a file ``*.py``: that is imported by the name of the file, from its folder."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {name}")
    # Last, so that what lies beside the file hides no module of others.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.import_module(path.stem)
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise ImportError(f"another module is called {path.stem!r}: give {name} another name")
    return module


def declared(provider):
    """Return the declarations of an implementation, as JSON has them, for the judge to look at. A text where one is no
    mapping."""
    return {name: _plain(getattr(provider, name)) for name in DECLARED if hasattr(provider, name)}


def _plain(mapping):
    try:
        return {
            _text(key): _text(value) if isinstance(value, str) else [*map(_text, value)]
            for key, value in mapping.items()
        }
    except (AttributeError, TypeError):
        return "no mapping"


def _kernels(device):
    """Return how Triton's kernels run here: by our interpreter, by Triton's own, or (empty) compiled, if there are
    any."""
    if _interpreter() is not None:
        return "vectorised"
    return "interpreted" if device.type == "cpu" and "triton" in sys.modules else ""
