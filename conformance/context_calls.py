"""Make a call in another context: of fake tensors, which have no memory, compiled, or from several threads.

Loaded by its path into the judged process, so it needs torch and nothing else. One file: all contexts copy operands and
put them in the place of others alike. torch's compiler, which takes seconds to import, is imported where it is needed.
"""

import contextlib
import functools
import gc
import importlib.util
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch

FAKE, COMPILED, THREADS = "fake", "compiled", "threads"
STOPS = 4
"""The most lines at which a thread stops while another one makes a whole call."""
SWITCHES = 2000
"""The first lines of a call after each of which the other thread runs."""
PATIENCE, LOOKS = 0.05, 10
"""Seconds between two looks at a thread, and the looks in a row for which it has to sleep before it is taken to wait
for a lock that the other one holds. One look is not enough: a machine may stop the whole process for longer."""


def within(context, function, others=None):
    """Return a function that makes the call of ``function`` in a context.

    :param context: ``kind``, one of those above, and what its function takes. Of another kind it is the function
        itself.
    :param others: Further kinds, as ``dispatcher_calls.KINDS``.
    """
    how = dict(context)
    kind = how.pop("kind")
    if others and kind in others:
        tools = SimpleNamespace(operands=operands, replaced=replaced, copied=copied)
        return without_collector()(others[kind](function, tools, **how))
    if kind not in _KINDS:
        return function
    return without_collector()(_KINDS[kind](function, **how))


@contextlib.contextmanager
def without_collector():
    """Let calls run without Python's collector of cycles: it takes a third of the time in which torch's compiler is
    imported, and what it calls, wherever a thread happens to be, are lines of that thread as any others."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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


def _threads(function, seed):
    """Let two threads make the call at once, the second with other contents, on operands of their own, several times.
    They run one after the other; in turns, line by line; the same with the first a few lines ahead; and, for up to
    ``STOPS`` lines of the first, the second makes its whole call there. Return the results of all calls, those of the
    first before those of the second, and last, in bytes, a line of text for each two calls: where the first stopped.

    :param seed: Chooses how many lines ahead.
    """

    def call(*args, **kwargs):
        given = operands(args, kwargs)

        def both(hands_over):
            turns = _Turns(hands_over)
            pair = [replaced(args, kwargs, given, copied(given, other)) for other in (False, True)]
            return turns, turns.run([functools.partial(function, *args, **kwargs) for args, kwargs in pair])

        # Without a stop, which tells how many lines there are.
        turns, found = both(lambda thread, lines: False)
        lines, places = turns.lines[0], ["it had ended"]
        for lead in (1, 2 + seed % 7) if lines else ():
            # The first thread is so many lines ahead.
            turns, values = both(lambda thread, line, lead=lead: line <= SWITCHES and (thread == 1 or line >= lead))
            found, places = [*found, *values], [*places, f"each line, {lead - 1} lines ahead of the other one"]
        cuts = range(1, lines + 1) if lines <= STOPS else [lines * (2 * n + 1) // (2 * STOPS) for n in range(STOPS)]
        for cut in cuts:
            turns, values = both(lambda thread, line, cut=cut: thread == 0 and line == cut)
            found, places = [*found, *values], [*places, turns.places[0] if turns.places else "it had ended"]
        text = torch.frombuffer(bytearray("\n".join(places).encode()), dtype=torch.uint8)
        return (*(one for value in found for one in (value if isinstance(value, tuple) else (value,))), text)

    return call


class _Turns:
    """Two threads, of which one runs at a time. The first begins; who ends lets the other go on.

    Only lines of the implementation count: not those of torch, NumPy and the standard library, and nothing below calls
    of Triton or of an import. Triton's interpreter has one state for all threads.

    :param hands_over: Tells whether the thread of a number lets the other one run before its line of a number, counted
        from 1.
    """

    def __init__(self, hands_over):
        self.lines = [0, 0]
        """The lines that each thread has come to."""
        self.places = []
        """The lines at which threads handed over, as ``file:line``."""
        self._hands_over = hands_over
        self._turn, self._ended = 0, [False, False]
        self._changed = threading.Condition()
        self._threads, self._frames = [], [0, 0]

    @without_collector()
    def run(self, functions):
        """Call the two functions, each in a thread of its own, and return their values. Raises what one of them raises,
        when both have ended."""
        values, errors = [None, None], [None, None]
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def work(me):
            with self._changed:
                self._wait(me)
            # Modes and the current device are a thread's own.
            if device is not None:
                torch.cuda.set_device(device)
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                sys.settrace(self._tracer(me))
                try:
                    values[me] = functions[me]()
                # Raised again where both threads have ended.
                except BaseException as error:  # noqa: BLE001
                    errors[me] = error
                finally:
                    sys.settrace(None)
            with self._changed:
                self._ended[me], self._turn = True, 1 - me
                self._changed.notify_all()

        self._threads = [threading.Thread(target=work, args=(me,), daemon=True) for me in (0, 1)]
        for one in self._threads:
            one.start()
        for one in self._threads:
            one.join()
        for error in errors:
            if error is not None:
                raise error
        return values

    def _wait(self, me):
        """Wait for the turn, and take it if the other thread seems to wait for this one: it does nothing and sleeps.
        What takes long, or gets no time of a busy machine, keeps its turn."""
        looks, signs = 0, self._signs(1 - me)
        while self._turn != me and not self._ended[1 - me]:
            self._changed.wait(PATIENCE)
            # The signs after the state: what has been read may have let the other thread go on.
            sleeps, seen, signs = _sleeps(self._threads[1 - me]), signs, self._signs(1 - me)
            looks = looks + 1 if sleeps and seen == signs else 0
            if self._turn != me and looks == LOOKS:
                # From now on each thread runs to its end.
                self._turn, self._hands_over = me, lambda thread, lines: False

    def _signs(self, thread):
        """Return what changes while a thread does anything: its time on a processor, or where that is not known the
        frames that it has entered."""
        ident, clock = self._threads[thread].ident, getattr(time, "pthread_getcpuclockid", None)
        known = clock is not None and ident is not None and not self._ended[thread]
        return self._frames[thread], self.lines[thread], time.clock_gettime_ns(clock(ident)) if known else 0

    def _line(self, me, frame):
        self.lines[me] += 1
        if self._hands_over(me, self.lines[me]) and not self._ended[1 - me]:
            with self._changed:
                self.places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                self._turn = 1 - me
                self._changed.notify_all()
        if self._turn != me:
            with self._changed:
                self._wait(me)

    def _tracer(self, me):
        """Return the function that Python calls for each new frame of a thread."""

        def kind_of(frame):
            self._frames[me] += 1
            return _kind(frame.f_code.co_filename)

        def step(frame, event, _):
            if event == "line":
                self._line(me, frame)
            return step

        return tracer(kind_of, step)


def tracer(kind_of, step, opcodes=False):
    """Return the function that Python calls for each new frame of a thread, as ``sys.settrace`` takes it.

    :param kind_of: Returns the kind of each frame, as ``_kind`` that of a file.
    :param step: Called for what happens in frames of the implementation's own code.
    :param opcodes: Whether it is called for instructions, and not for lines.
    """
    hidden = 0

    def enter(frame, event, _):
        nonlocal hidden
        # A generator may have been begun where it was not hidden.
        frame.f_trace = None
        # Most frames are those of an interpreter of kernels.
        if hidden or (kind := kind_of(frame)) == "other":
            return None
        if kind == "hidden":
            frame.f_trace_lines = False
            hidden += 1
            return leave
        frame.f_trace_lines, frame.f_trace_opcodes = not opcodes, opcodes
        return step

    def leave(frame, event, _):
        nonlocal hidden
        if event == "return":
            hidden -= 1
        return leave

    return enter


def _sleeps(thread):
    """Tell whether a thread sleeps, as the system has it; True where that is not known."""
    try:
        state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    except OSError:
        return True
    return state.rpartition(")")[2].split()[0] == "S"


@functools.cache
def _kind(file):
    """Tell whether lines of a file are the implementation's "own", those of "other" libraries, or "hidden" with all
    that they call."""
    if file.startswith(("<frozen importlib", *_folders("triton"))):
        return "hidden"
    if file.startswith(("<frozen", *_folders("torch", "numpy"))):
        return "other"
    standard = file.startswith(sysconfig.get_path("stdlib"))
    return "other" if standard and not file.startswith((*_SITES,)) else "own"


_SITES = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}


def _folders(*packages):
    found = [importlib.util.find_spec(name) for name in packages]
    return [one.submodule_search_locations[0] + "/" for one in found if one and one.submodule_search_locations]


def copied(tensors, other=False):
    """Return copies of the tensors that share memory as these do. ``other``: with the elements of each storage in
    reverse order, and floating-point ones negated; but integers and bools as they are where the storage holds more than
    the tensor, which may be no index."""
    storages = {}

    def one(tensor):
        key = tensor.untyped_storage()._cdata
        if key not in storages:
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()
            floating = tensor.dtype.is_floating_point
            if other and (floating or len(memory) == tensor.numel() * tensor.itemsize):
                words = memory[: len(memory) // tensor.itemsize * tensor.itemsize].view(-1, tensor.itemsize)
                words.copy_(words.flip(0))
                # The sign is the highest bit of the last byte.
                words[:, -1].bitwise_xor_(128 if floating else 0)
            storages[key] = memory
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storages[key].untyped_storage(), *place)

    return [one(tensor) for tensor in tensors]


_KINDS = {FAKE: _fake, COMPILED: _compiled, THREADS: _threads}
