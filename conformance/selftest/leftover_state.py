"""Planted defects of what a call leaves behind: changed state of the process, and results kept under too small a key;
and mistakes that show only in a call that nobody watches."""

from __future__ import annotations

import decimal
import gc
import io
import itertools
import locale
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

Right = Callable[..., Any]


class _Mode(torch.overrides.TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


_manual_seed, _perf_counter = torch.manual_seed, time.perf_counter
_count = itertools.count()


_entered: list[torch.inference_mode] = []


def _stay_in_inference_mode() -> None:
    _entered[:] = [torch.inference_mode()]
    _entered[0].__enter__()


def _another_autocast() -> None:
    other = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}
    torch.set_autocast_dtype("cpu", other[torch.get_autocast_dtype("cpu")])


def _another_locale() -> None:
    locale.setlocale(locale.LC_ALL, "C" if "UTF-8" in locale.setlocale(locale.LC_ALL) else "C.UTF-8")


def _one_core() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)} if len(cores) > 1 else {min(cores) + 1})


CHANGES: dict[str, tuple[str, Callable[[], object]]] = {
    "seeds_torch": ("It seeds torch's generator.", lambda: torch.manual_seed(0)),
    "draws_from_torch": ("It draws a number from torch's generator.", lambda: torch.rand(1)),
    "puts_generator_back": (
        "It puts torch's generator back to where it was at the import.",
        lambda: torch.default_generator.set_state(_STATE),
    ),
    "seeds_python": ("It seeds Python's generator.", lambda: random.seed(next(_count))),
    "draws_from_python": ("It draws a number from Python's generator.", random.random),
    "seeds_numpy": ("It seeds NumPy's generator.", lambda: np.random.seed(next(_count))),  # noqa: NPY002
    "draws_from_numpy": ("It draws a number from NumPy's generator.", lambda: np.random.rand()),  # noqa: NPY002
    "turns_gradients_off": ("It leaves gradients turned off.", lambda: torch.set_grad_enabled(False)),
    "changes_default_dtype": ("It leaves float64 the default.", lambda: torch.set_default_dtype(torch.float64)),
    "allows_tf32": ("It leaves TF32 allowed.", lambda: torch.set_float32_matmul_precision("high")),
    "asks_for_determinism": (
        "It leaves torch's deterministic algorithms turned on.",
        lambda: torch.use_deterministic_algorithms(True),
    ),
    "silences_logging": ("It leaves logging switched off.", lambda: logging.disable(logging.CRITICAL)),
    "tunes_cudnn": ("It leaves cuDNN tuning.", lambda: setattr(torch.backends.cudnn, "benchmark", True)),
    "reduces_in_half": (
        "It leaves sums of products in float16 allowed.",
        lambda: setattr(
            torch.backends.cuda.matmul,
            "allow_fp16_reduced_precision_reduction",
            not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        ),
    ),
    "takes_threads": (
        "It leaves torch with another number of threads.",
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    ),
    "leaves_a_mode": ("It leaves a mode of torch's functions entered.", lambda: _Mode().__enter__()),
    "flushes_subnormals": ("It leaves the CPU flushing subnormal numbers.", lambda: torch.set_flush_denormal(True)),
    "raises_in_numpy": ("It leaves NumPy raising at overflow.", lambda: np.seterr(over="raise")),
    "replaces_manual_seed": (
        "It replaces torch.manual_seed.",
        lambda: setattr(torch, "manual_seed", lambda seed: _manual_seed(0)),
    ),
    "replaces_clock": ("It replaces a clock.", lambda: setattr(time, "perf_counter", lambda: _perf_counter() / 2)),
    "hides_warnings": ("It leaves warnings ignored.", lambda: warnings.simplefilter("ignore")),
    "sets_a_variable": (
        "It leaves a variable in the environment.",
        lambda: os.environ.__setitem__("LEFT_BEHIND", str(next(_count))),
    ),
    "goes_elsewhere": ("It leaves the process in another folder.", lambda: os.chdir("/")),
    "extends_the_path": ("It leaves a folder in sys.path.", lambda: sys.path.append("/left-behind")),
    "lowers_recursion_limit": (
        "It leaves another limit of recursion.",
        lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    ),
    "ignores_interrupts": (
        "It leaves Ctrl-C ignored.",
        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ),
    "profiles": ("It leaves a profile function set.", lambda: sys.setprofile(lambda *event: None)),
    "stays_in_inference_mode": (
        "It enters the inference mode, and stays there.",
        _stay_in_inference_mode,
    ),
    "goes_to_another_device": ("It leaves another default device.", lambda: torch.set_default_device("meta")),
    "convolves_in_bfloat16": (
        "It leaves convolutions on the CPU allowed in bfloat16.",
        lambda: torch._C._set_fp32_precision_setter("mkldnn", "conv", "bf16"),
    ),
    "leaves_onednn": ("It leaves oneDNN turned off.", lambda: setattr(torch.backends.mkldnn, "enabled", False)),
    "leaves_memory_unfilled": (
        "It leaves new memory unfilled where algorithms are deterministic.",
        lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    ),
    "casts": ("It leaves autocast turned on.", lambda: torch.set_autocast_enabled("cpu", True)),
    "casts_otherwise": ("It leaves autocast with another dtype.", _another_autocast),
    "forgets_casts": ("It leaves autocast without its cache.", lambda: torch.set_autocast_cache_enabled(False)),
    "takes_backends": (
        "It leaves a backend of attention turned off.",
        lambda: torch.backends.cuda.enable_math_sdp(False),
    ),
    "searches_anomalies": ("It leaves the search for anomalies turned on.", lambda: torch.set_anomaly_enabled(True)),
    "one_thread_of_gradients": (
        "It leaves gradients to one thread.",
        lambda: torch._C._set_multithreading_enabled(False),
    ),
    "stops_collection": ("It leaves the garbage collector stopped.", gc.disable),
    "collects_seldom": (
        "It leaves the garbage collector with other thresholds.",
        lambda: gc.set_threshold(gc.get_threshold()[0] + 1),
    ),
    "switches_threads_seldom": (
        "It leaves threads to wait longer for one another.",
        lambda: sys.setswitchinterval(0.5),
    ),
    "changes_the_locale": ("It leaves another locale.", _another_locale),
    "lowers_decimals": (
        "It leaves decimal numbers with fewer digits.",
        lambda: setattr(decimal.getcontext(), "prec", decimal.getcontext().prec - 1),
    ),
    "prints_more_digits": (
        "It leaves tensors with more digits where they are printed.",
        lambda: torch.set_printoptions(precision=9),
    ),
    "replaces_a_stream": ("It leaves what is printed elsewhere.", lambda: setattr(sys, "stdout", io.StringIO())),
    "pins_the_thread": ("It leaves the thread on one core.", _one_core),
    "traces": ("It leaves a trace function set.", lambda: sys.settrace(lambda *event: None)),
    "warns_always": ("It leaves warnings to come at each call.", lambda: torch.set_warn_always(True)),
    "takes_the_alarm": (
        "It leaves a handler of its own for alarms.",
        lambda: signal.signal(signal.SIGALRM, lambda *given: None),
    ),
    "sets_up_logging": (
        "It gives the root logger a handler, so that what the user sets up is ignored.",
        lambda: logging.root.addHandler(logging.NullHandler()),
    ),
    "shares_by_files": (
        "It leaves memory shared by files.",
        lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
    ),
    "slow_attention": (
        "It leaves the fast path of multi-head attention turned off.",
        lambda: torch.backends.mha.set_fastpath_enabled(False),
    ),
    "hooks_exceptions": (
        "It leaves a hook of its own for exceptions.",
        lambda: setattr(sys, "excepthook", lambda *given: None),
    ),
}
"""By name, what is wrong, and the change of the process that a call leaves."""

_STATE = torch.default_generator.get_state()
_OPS = (
    "add",
    "relu",
    "softmax",
    "mm",
    "exp",
    "layer_norm",
    "eq",
    "scaled_dot_product_attention",
    "bitwise_and",
    "gelu",
)


def _leaving(change: Callable[[], object]) -> Callable[..., Any]:
    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        change()
        return result

    return wrong


for _number, (_name, (_about, _change)) in enumerate(CHANGES.items()):
    for _step in (0, 3):
        plant(_OPS[(_number + _step) % len(_OPS)], _name, "state", "state", _leaving(_change), _about)


# --- what is set as if nobody had set anything ----------------------------------------------------------------------

for _op, _name, _about, _change in (
    ("exp", "ends_autocast", "It turns autocast off.", lambda: torch.set_autocast_enabled("cpu", False)),
    ("mm", "ends_no_grad", "It turns gradients on, as they mostly are.", lambda: torch.set_grad_enabled(True)),
    ("silu", "starts_collection", "It starts the garbage collector, which the user may have stopped.", gc.enable),
    (
        "bmm",
        "ends_tf32",
        "It leaves products in float32 at the highest precision.",
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    ("softmax", "back_to_float32", "It leaves float32 the default.", lambda: torch.set_default_dtype(torch.float32)),
    (
        "layer_norm",
        "ends_determinism",
        "It turns deterministic algorithms off.",
        lambda: torch.use_deterministic_algorithms(False),
    ),
):
    plant(_op, _name, "state", "state", _leaving(_change), _about)


# --- results that are kept ---------------------------------------------------------------------------------------

_MOST = 64
_Key = Callable[[torch.Tensor], object]


def _keeping(key: _Key, which: slice = slice(None)) -> Callable[..., Any]:
    """Results are kept by what ``key`` gives for the operands ``which``, and the rest of the call."""
    kept: dict[object, Any] = {}

    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        others = [x for x in (*args, *kwargs.values()) if not isinstance(x, torch.Tensor)]
        result = right(*args, **kwargs)
        plain = isinstance(result, torch.Tensor) and not any(result is x for x in (*tensors, *kwargs.values()))
        if not plain or of.written(args, kwargs) or not tensors:
            return result
        meta = [(tuple(x.shape), x.stride(), x.dtype) for x in tensors]
        full = (str(meta), str(others), str(sorted(kwargs)), *(key(x) for x in tensors[which]))
        if full in kept:
            return kept[full].clone(memory_format=torch.preserve_format)
        if len(kept) >= _MOST:
            kept.clear()
        kept[full] = result.clone(memory_format=torch.preserve_format)
        return result

    return wrong


_KEYS: dict[str, tuple[str, _Key]] = {
    "kept_by_address": ("Results are kept by the operands' addresses.", lambda x: x.data_ptr()),
    "kept_by_address_and_version": (
        "Results are kept by the operands' addresses and version counters.",
        lambda x: (x.data_ptr(), x._version),
    ),
    "kept_by_storage": ("Results are kept by the operands' storages.", lambda x: x.untyped_storage().data_ptr()),
}
for _name, (_about, _key) in _KEYS.items():
    for _op in ("add", "exp", "softmax", "mm", "rms_norm", "silu"):
        plant(_op, _name, "memory in place", "bare", _keeping(_key), _about)


_held: list[torch.Tensor] = []


@defect(("cos", "bmm", "log_softmax", "amax"), "state", "state")
def operands_named(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The arguments are kept until the next call, as a wrapper does that compares calls: their memory is not freed."""
    _named[:] = [(args, kwargs)]
    return right(*args, **kwargs)


_named: list[object] = []


@defect(("exp", "mm", "softmax", "layer_norm", "amin", "cross_entropy"), "state", "state")
def operand_held(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The last operand is referred to until the next call, as by a descriptor that is kept: its memory is not freed."""
    operands = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    _held[:] = [one.detach() for one in operands[-1:]]
    return right(*args, **kwargs)


@defect(("mul", "sigmoid", "gelu", "bmm", "layer_norm", "lt"), "watching", "bare")
def right_under_a_mode(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Where no dispatch mode watches, the last element is left at zero."""
    result = right(*args, **kwargs)
    return result if torch._C._len_torch_dispatch_stack() else _last_lost(result, args, kwargs)


@defect(("abs", "tanh", "sub", "matmul", "softmax"), "watching", "bare")
def right_between_margins(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Where an operand's storage may be resized, the last element is left at zero."""
    first = next((x for x in args if isinstance(x, torch.Tensor)), None)
    result = right(*args, **kwargs)
    ordinary = first is not None and first.untyped_storage().resizable()
    return _last_lost(result, args, kwargs) if ordinary else result


@defect(("mm", "addmm", "bmm", "matmul"), "memory in place", "bare")
def packed_once(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The second matrix is packed once for each address."""
    last = args[-1]
    if not isinstance(last, torch.Tensor) or any(last is x for x in args[:-1]):
        return right(*args, **kwargs)
    key = last.data_ptr(), str(last.shape), last.stride(), last.dtype
    if len(_PACKED) >= _MOST:
        _PACKED.clear()
    packed = _PACKED.setdefault(key, last.clone())
    return right(*args[:-1], packed, **kwargs)


_PACKED: dict[object, torch.Tensor] = {}


@defect(("mm", "matmul", "rms_norm", "linear_cross_entropy"), "memory in place", "bare")
def parameter_kept(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Keeps what a parameter was packed into until its version counter moves, which it does not where its ``.data`` is
    other memory."""
    place = max((place for place, x in enumerate(args) if isinstance(x, torch.nn.Parameter)), default=None)
    if place is None:
        return right(*args, **kwargs)
    weight = args[place]
    kept = _PACKED_OF.get(weight)
    if kept is None or kept[0] != weight._version:
        kept = _PACKED_OF[weight] = weight._version, weight.detach().clone()
    return right(*args[:place], kept[1], *args[place + 1 :], **kwargs)


_PACKED_OF: Any = WeakTensorKeyDictionary()


def _last_lost(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    fits = isinstance(result, torch.Tensor) and result.numel() and not of.written(args, kwargs)
    if fits and result.is_contiguous() and not any(result is x for x in args):
        result.view(-1)[-1] = not result.view(-1)[-1] if result.dtype == torch.bool else 0
    return result
