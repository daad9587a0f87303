"""Measure a call's configurations at its first call, if the user sets ``max_num_configs``.

Candidates are configurations that the library knows to be right for the call. They write scratch memory, so that the
caller's output is written once, by the launch that follows.
"""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any

import torch

from ntops._runtime import INTERPRETED
from ntops.launch import configuration, recorder, settings
from ntops.launch.devices import on_device

SECONDS = 0.005
ROUNDS = (5, 30)
"""``SECONDS`` for which each candidate is timed, and the least and the largest number of rounds."""
_lock = threading.RLock()
_known: dict[Hashable, Any] = {}
_assumed: int | None = None


def fastest(
    key: Hashable,
    chosen: Any,
    others: Callable[[], Iterable[Any]],
    launch: Callable[..., None],
    output: torch.Tensor,
) -> Any:
    """Return the fastest of a call's first ``max_num_configs`` configurations, measured once, or the library's choice.

    The result is the library's choice under the interpreter, with a fixed configuration, during a CUDA graph capture,
    and without memory for a second output.

    :param key: The kernel and the properties of the call on which the choice depends.
    :param chosen: The library's choice, the first candidate.
    :param others: Returns other configurations that are right for the call, the most promising first.
    :param launch: ``launch(output, chosen=options)`` runs the call with a configuration and writes ``output`` alone.
    :param output: The tensor that the call writes; only its geometry counts here.
    """
    limit = settings.get_default_max_num_configs() or 1

    if limit == 1 or configuration.is_fixed() or (INTERPRETED and _assumed is None):
        return chosen

    key = (key, limit, settings.get_default_num_warps(), settings.get_default_num_stages(), output.device)

    # Measure in one thread at a time, so that none slows down another's timing.
    with _lock:
        if _assumed is None and key in _known:
            return _known[key]

        found = dict.fromkeys(map(_as_set, itertools.chain([chosen], others())))
        candidates = list(itertools.islice(found, limit))

        if _assumed is not None:
            return candidates[_assumed % len(candidates)]

        with on_device(output.device):
            if output.is_cuda and torch.cuda.is_current_stream_capturing():
                # A recorded call would never be measured.
                recorder.prevent()
                return chosen

            _known[key] = _measured(candidates, launch, output) if len(candidates) > 1 else candidates[0]

        return _known[key]


@contextlib.contextmanager
def assumed(number: int) -> Generator[None]:
    """Return a context that takes the ``number``-th candidate (modulo their number) for the fastest without measuring;
    for tests, also under the interpreter. It holds for all threads."""
    global _assumed
    outer, _assumed = _assumed, number
    # A repeated call chooses nothing.
    recorder.forget()

    try:
        yield
    finally:
        _assumed = outer
        recorder.forget()


def _as_set(options):
    """Return the configuration with the user's warps and stages; candidates that differ only in these become equal."""
    values = {"num_warps": settings.get_default_num_warps(), "num_stages": settings.get_default_num_stages()}
    changed = {name: value for name, value in values.items() if value is not None and hasattr(options, name)}
    return dataclasses.replace(options, **changed) if changed else options


def _measured(candidates, launch, output):
    # Import here, so that only users who measure pay for it.
    from ntops import timing

    with recorder.unrecorded():
        try:
            scratch = _like(output)
            working = [options for options in candidates if _runs(launch, options, scratch)]

            if len(working) < 2:
                # If no candidate works, the library's choice raises the error.
                return (working or candidates)[0]

            functions = {str(place): _function(launch, options) for place, options in enumerate(working)}
            times = timing.interleaved(
                functions, [((scratch,), {})], _nothing, _nothing, seconds=SECONDS, rounds=ROUNDS, seed=0
            )
        except torch.OutOfMemoryError:
            return candidates[0]

    return working[int(min(times, key=lambda place: times[place].median))]


def _like(tensor):
    """Allocate memory with a tensor's geometry, alignment included."""
    offset = tensor.data_ptr() % 16 // tensor.element_size()
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = torch.empty(offset + extent, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride(), offset)


def _runs(launch, options, scratch):
    """Tell whether a candidate compiles: one that takes too much of the GPU does not."""
    try:
        launch(scratch, chosen=options)
        return True
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001  (compilers and drivers raise what they like)
        return False


def _function(launch, options):
    def run(scratch):
        launch(scratch, chosen=options)
        return scratch

    return run


def _nothing(*ignored):
    """Do nothing: contents stay, and results are right for any candidate."""
