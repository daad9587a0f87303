"""The state of the process that a call must leave unchanged: generators, modes and flags of torch, their like in Python
and NumPy, and the functions that benchmarks measure and seed with.

Loaded by its path into the judged process, so it needs torch and nothing else. One file: all of it is one table,
``STATE``, and what reads and sets its rows.
"""

import contextlib
import decimal
import gc
import inspect
import locale
import logging
import os
import random
import signal
import sys
import threading
import time
import timeit
import types
import warnings

import numpy as np
import torch
import torch.testing

_SMALLEST = sys.float_info.min


def _generators(device):
    states = [torch.default_generator.get_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return tuple(bytes(state.numpy()) for state in states)


def _set_generators(states, device):
    first, *rest = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states)
    torch.default_generator.set_state(first)
    for state in rest:
        torch.cuda.set_rng_state(state, device)


def _of_numpy(device):
    state = np.random.get_state(legacy=False)  # noqa: NPY002  (the generator that everybody shares)
    assert isinstance(state, dict)
    inner = state.pop("state")
    return inner["key"].tobytes(), inner["pos"], state


def _set_of_numpy(state, device):
    key, position, rest = state
    inner = {"key": np.frombuffer(key, np.uint32), "pos": position}
    np.random.set_state({**rest, "state": inner})  # noqa: NPY002


_CUDNN = ("allow_tf32", "benchmark", "deterministic", "enabled")
_MKLDNN = tuple(name for name in ("enabled", "deterministic") if hasattr(torch.backends.mkldnn, name))
_MATMUL = (
    "allow_tf32",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)
_MATMUL = tuple(name for name in _MATMUL if hasattr(torch.backends.cuda.matmul, name))
_PRECISIONS = (
    ("generic", "all"),
    *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)
"""The backends and operations for which torch keeps a precision of float32, in versions that do."""
_AUTOCAST = ("cpu", "cuda")
_ATTENTION = {
    "flash_sdp": torch._C._get_flash_sdp_enabled,
    "mem_efficient_sdp": torch._C._get_mem_efficient_sdp_enabled,
    "math_sdp": torch._C._get_math_sdp_enabled,
    "cudnn_sdp": torch._C._get_cudnn_sdp_enabled,
    "reduction in half": torch._C._get_math_sdp_allow_fp16_bf16_reduction,
}


def _flags(owner, names):
    """Return functions that read and set the flags of one of torch's backends."""

    def get(device):
        return {name: getattr(owner, name) for name in names}

    def put(state, device):
        for name, value in state.items():
            setattr(owner, name, value)

    return get, put


_FUNCTIONS = (
    *((torch, name) for name in ("manual_seed", "seed", "empty", "empty_like", "equal", "allclose", "isclose", "eq")),
    *((torch.Tensor, name) for name in vars(torch.Tensor) if callable(getattr(torch.Tensor, name))),
    *((torch.Tensor, name) for name in ("cpu", "clone", "equal", "allclose", "isclose", "data_ptr")),
    *((torch.cuda, name) for name in ("synchronize", "manual_seed", "manual_seed_all", "Event", "Stream")),
    *((module, name) for module in (time, timeit, random) for name in vars(module) if callable(getattr(module, name))),
    (torch.testing, "assert_close"),
)
"""The functions by which others seed, compare and measure."""


_LAST_FUNCTIONS = [], {}
"""The functions when they were last looked at, and what was said of them: each call is surrounded by two looks."""


def _functions(device):
    global _LAST_FUNCTIONS
    present = [getattr(owner, name) for owner, name in _FUNCTIONS]
    if present != _LAST_FUNCTIONS[0]:
        names = (f"{owner.__name__}.{name}" for owner, name in _FUNCTIONS)
        _LAST_FUNCTIONS = present, dict(zip(names, map(_unwrapped, present), strict=True))
    return _LAST_FUNCTIONS[1]


def _unwrapped(function):
    # torch wraps some of its own functions when torch._dynamo is imported.
    return inspect.unwrap(function) if hasattr(function, "__wrapped__") else function


def _set_functions(state, device):
    for owner, name in _FUNCTIONS:
        function = state[f"{owner.__name__}.{name}"]
        if _unwrapped(getattr(owner, name)) != function:
            # As a bound method it would answer for the class's subclasses, too.
            is_of_class = isinstance(function, types.MethodType) and function.__self__ is owner
            setattr(owner, name, classmethod(function.__func__) if is_of_class else function)


def _environment(device):
    # Without decoding each variable, which takes most of the time of a look at the surroundings.
    return dict(vars(os.environ)["_data"])


def _set_environment(state, device):
    os.environ.clear()
    os.environ.update({os.environ.decodekey(key): os.environ.decodevalue(value) for key, value in state.items()})


_STACKS = {
    "dispatch": (
        torch._C._len_torch_dispatch_stack,
        torch._C._get_dispatch_stack_at,
        lambda: torch._C._pop_torch_dispatch_stack(None),
        torch._C._push_on_torch_dispatch_stack,
    ),
    "function": (
        torch._C._len_torch_function_stack,
        torch._C._get_function_stack_at,
        torch._C._pop_torch_function_stack,
        torch._C._push_on_torch_function_stack,
    ),
}


def _modes(device):
    """Return the modes that are entered, and the default device, which is one of them."""
    entered = {kind: tuple(at(place) for place in range(length())) for kind, (length, at, _, _) in _STACKS.items()}
    return entered | {"default device": getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)}


def _set_modes(state, device):
    torch._GLOBAL_DEVICE_CONTEXT.device_context = state["default device"]
    for kind, (length, _, pop, push) in _STACKS.items():
        while length():
            pop()
        for mode in state[kind]:
            push(mode)


def _autocast(device):
    found = {name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _AUTOCAST}
    return found | {"cache": torch.is_autocast_cache_enabled()}


def _set_autocast(state, device):
    for name in _AUTOCAST:
        torch.set_autocast_enabled(name, state[name][0])
        torch.set_autocast_dtype(name, state[name][1])
    torch.set_autocast_cache_enabled(state["cache"])


def _attention(device):
    return {name: get() for name, get in _ATTENTION.items()}


def _set_attention(state, device):
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(state["reduction in half"])
    for name in state.keys() - {"reduction in half"}:
        getattr(torch.backends.cuda, f"enable_{name}")(state[name])


def _precisions(device):
    get = getattr(torch._C, "_get_fp32_precision_getter", None)
    found = {} if get is None else {".".join(which): get(*which) for which in _PRECISIONS}
    # torch's older function, given its former value, sets "ieee" for products where nothing was set.
    return {name: "none" if name.endswith("matmul") and was == "ieee" else was for name, was in found.items()}


def _set_precisions(state, device):
    for which in _PRECISIONS:
        torch._C._set_fp32_precision_setter(*which, state[".".join(which)])


_guards = []


def _set_inference(state):
    # Ends when its guard does: never.
    _guards.append(torch._C._InferenceMode(state))


def _collector():
    return {"enabled": gc.isenabled(), "threshold": gc.get_threshold()}


def _set_collector(state):
    (gc.enable if state["enabled"] else gc.disable)()
    gc.set_threshold(*state["threshold"])


def _decimal():
    context = decimal.getcontext()
    return context.prec, context.rounding


def _set_decimal(state):
    decimal.getcontext().prec, decimal.getcontext().rounding = state


def _filters(device):
    return tuple(warnings.filters)


def _set_filters(state, device):
    vars(warnings)["filters"] = [*state]


def _simple(get, put):
    """Return functions for ``STATE`` that read and set state which one function gives and another takes."""
    return (lambda device: get()), (lambda state, device: put(state))


def _printing(device):
    return vars(torch._tensor_str.PRINT_OPTS).copy(), np.get_printoptions()


def _set_printing(state, device):
    vars(torch._tensor_str.PRINT_OPTS).update(state[0])
    np.set_printoptions(**state[1])


_SIGNALS = {
    name: getattr(signal, f"SIG{name}")
    for name in ("INT", "TERM", "ALRM", "CHLD", "HUP", "PIPE", "USR1", "USR2", "ABRT", "FPE", "SEGV")
    if hasattr(signal, f"SIG{name}")
}
"""Those that programs handle; to look at all takes a fifth of a millisecond."""


def _handlers():
    return {name: signal.getsignal(number) for name, number in _SIGNALS.items()}


def _set_handlers(state):
    now = _handlers()
    for name, handler in state.items():
        # None: it was not Python that set it.
        if now[name] != handler is not None:
            signal.signal(_SIGNALS[name], handler)


def _set_hooks(state):
    sys.excepthook, sys.unraisablehook, threading.excepthook = state


def _set_root_logger(state):
    logging.root.setLevel(state[0])
    logging.root.handlers[:] = state[1]


_STREAMS = ("stdin", "stdout", "stderr")
GENERATORS = "torch's random generators"
FUNCTIONS = "functions of torch, time and random"
IMPORTS = ("warnings.filters", "the environment", "sys.path")
"""The state that a first call changes where it imports modules."""

STATE = {
    GENERATORS: (_generators, _set_generators),
    "Python's random generator": _simple(random.getstate, random.setstate),
    "NumPy's random generator": (_of_numpy, _set_of_numpy),
    "torch's inference mode": _simple(torch.is_inference_mode_enabled, _set_inference),
    "torch's gradient mode": _simple(torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's default dtype": _simple(torch.get_default_dtype, torch.set_default_dtype),
    "torch's float32 matmul precision": _simple(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's precisions of float32": (_precisions, _set_precisions),
    "torch's deterministic algorithms": _simple(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "torch.utils.deterministic": _flags(torch.utils.deterministic, ("fill_uninitialized_memory",)),
    "autocast": (_autocast, _set_autocast),
    "torch's backends of attention": (_attention, _set_attention),
    "torch's repetition of warnings": _simple(torch.is_warn_always_enabled, torch.set_warn_always),
    "torch's search for anomalies": _simple(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda state: torch.set_anomaly_enabled(*state),
    ),
    "torch's threads of gradients": _simple(torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
    "torch.backends.cudnn": _flags(torch.backends.cudnn, _CUDNN),
    "torch.backends.cuda.matmul": _flags(torch.backends.cuda.matmul, _MATMUL),
    "how torch shares memory": _simple(
        torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    ),
    "torch's fast path of multi-head attention": _simple(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
    ),
    "torch's number of threads": _simple(torch.get_num_threads, torch.set_num_threads),
    "modes of torch": (_modes, _set_modes),
    "torch.backends.mkldnn": _flags(torch.backends.mkldnn, _MKLDNN),
    "flushing of subnormal numbers": _simple(
        lambda: _SMALLEST / 2 == 0 or float(np.float64(_SMALLEST) / 2) == 0, torch.set_flush_denormal
    ),
    "NumPy's handling of errors": _simple(np.geterr, lambda state: np.seterr(**state)),
    FUNCTIONS: (_functions, _set_functions),
    "warnings.filters": (_filters, _set_filters),
    "the environment": (_environment, _set_environment),
    "the working folder": _simple(os.getcwd, os.chdir),
    "sys.path": _simple(lambda: [*sys.path], lambda state: sys.path.__setitem__(slice(None), state)),
    "the recursion limit": _simple(sys.getrecursionlimit, sys.setrecursionlimit),
    "handlers of signals": _simple(_handlers, _set_handlers),
    "hooks for exceptions": _simple(lambda: (sys.excepthook, sys.unraisablehook, threading.excepthook), _set_hooks),
    "the trace function": _simple(sys.gettrace, sys.settrace),
    "the profile function": _simple(sys.getprofile, sys.setprofile),
    "the garbage collector": _simple(_collector, _set_collector),
    "the interval between threads": _simple(sys.getswitchinterval, sys.setswitchinterval),
    "the locale": _simple(
        lambda: locale.setlocale(locale.LC_ALL), lambda state: locale.setlocale(locale.LC_ALL, state)
    ),
    "the context of decimal": _simple(_decimal, _set_decimal),
    "how tensors and arrays are printed": (_printing, _set_printing),
    "the root logger": _simple(lambda: (logging.root.level, (*logging.root.handlers,)), _set_root_logger),
    "what logging leaves out": _simple(lambda: logging.root.manager.disable, logging.disable),
    "the standard streams": _simple(
        lambda: {name: getattr(sys, name) for name in _STREAMS}, lambda state: vars(sys).update(state)
    ),
}
"""Map names of state to two functions: one reads it from the device, one sets it from the state and the device."""

if hasattr(os, "sched_getaffinity"):
    STATE["the cores of this thread"] = _simple(
        lambda: os.sched_getaffinity(0), lambda state: os.sched_setaffinity(0, state)
    )

ON_CUDA = {
    "the current GPU": _simple(torch.cuda.current_device, torch.cuda.set_device),
    "the current stream": (torch.cuda.current_stream, lambda state, device: torch.cuda.set_stream(state)),
}


NUMERIC = (
    GENERATORS,
    "Python's random generator",
    "NumPy's random generator",
    "torch's inference mode",
    "torch's gradient mode",
    "torch's default dtype",
    "torch's float32 matmul precision",
    "torch's precisions of float32",
    "torch's deterministic algorithms",
    "torch.utils.deterministic",
    "autocast",
    "torch's backends of attention",
    "torch.backends.cudnn",
    "torch.backends.cuda.matmul",
    "torch.backends.mkldnn",
    "torch's number of threads",
    "modes of torch",
    "flushing of subnormal numbers",
    "NumPy's handling of errors",
)
"""The state that a user's results depend on: an import may change other things, for its own."""

QUICK = (
    "torch's gradient mode",
    "torch's default dtype",
    "torch's float32 matmul precision",
    "torch's deterministic algorithms",
    "autocast",
)
"""The state that is quick to read, and that a call which raises may leave as it is inside of the call."""


def _watched(device):
    return STATE | ON_CUDA if device.type == "cuda" else STATE


_AT_FIRST = {FUNCTIONS: _functions(None)}
"""The functions that the import of an implementation may replace, as they were before."""


def note(device, names=None):
    """Return the state as it is now or was at first, and how many modules there are.

    ``names``: the state to look at; None: all.
    """
    watched = _watched(device)
    wanted = (name for name in watched if name not in _AT_FIRST) if names is None else names
    return {name: watched[name][0](device) for name in wanted} | _AT_FIRST, len(sys.modules)


def restore(noted, device, names=None):
    """Restore the state that is not as it was noted; return the names of what has changed.

    ``names``: the state to look at; None: all.
    """
    state, modules = noted
    imported = len(sys.modules) != modules
    changed = []
    for name, (get, put) in _watched(device).items():
        if names is not None and name not in names:
            continue
        try:
            now = get(device)
        except RuntimeError as error:
            # Precisions that an old and a new function set differently.
            now = f"what cannot be read: {str(error)[:40]}"
        if now == state[name] or (imported and name in IMPORTS):
            continue
        changed.append(f"{name}{_told(state[name], now)}")
        put(state[name], device)
    return changed


@contextlib.contextmanager
def other(device):
    """Enter a context in which much is set otherwise than by default, so that a call that sets the default again
    shows."""
    noted = note(device)
    try:
        for kind in dict.fromkeys((*_AUTOCAST, device.type)):
            torch.set_autocast_enabled(kind, True)
        torch.set_autocast_cache_enabled(False)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.set_deterministic_debug_mode("warn")
        torch._C._set_deterministic_fill_uninitialized_memory(False)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cudnn.deterministic = True
        torch.set_anomaly_enabled(True, False)
        torch.set_num_threads(noted[0]["torch's number of threads"] + 1)
        gc.disable()
        gc.set_threshold(600, 9, 9)
        sys.setswitchinterval(0.004)
        sys.setrecursionlimit(sys.getrecursionlimit() + 100)
        decimal.getcontext().prec += 1
        np.seterr(over="ignore", invalid="ignore")
        yield
    finally:
        restore(noted, device)


def _told(was, now):
    if isinstance(was, dict) and isinstance(now, dict):
        found = sorted(str(key) for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        return f" ({', '.join(found[:5])})"
    short = f" (from {was} to {now})"
    return short if len(short) < 80 else ""
