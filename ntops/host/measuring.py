"""Measuring a call's configurations at its first call, for who sets ``max_num_configs``.

Candidates are configurations that the library knows to be right for the call. They write scratch memory, so that what
the caller sees is written once, by the launch that follows.
"""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any

import torch

from ntops._runtime import INTERPRETED
from ntops.host import configuration, repetition
from ntops.host.launch import on_device
from ntops.torch import utils

SECONDS = 0.005
ROUNDS = (5, 30)
"""How long each candidate is timed, and in how many rounds."""
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
    """The fastest of the first ``max_num_configs`` configurations of a call, measured once; or the library's choice.

    It is the library's choice under the interpreter, where a configuration is fixed, while a CUDA graph is captured,
    and where there is no memory for a second output.

    :param key: What the choice depends on: the kernel and what of the call decides which configurations are right.
    :param chosen: The library's choice, the first candidate.
    :param others: Gives other configurations that are right for the call, the most promising first.
    :param launch: ``launch(output, chosen=options)`` runs the call with a configuration and writes ``output`` alone.
    :param output: What the call writes; here only its geometry counts.
    """
    limit = utils.get_default_max_num_configs() or 1

    if limit == 1 or configuration.is_fixed() or (INTERPRETED and _assumed is None):
        return chosen

    key = (key, limit, utils.get_default_num_warps(), utils.get_default_num_stages(), output.device)

    # One thread at a time, so that none slows down what another one times.
    with _lock:
        if _assumed is None and key in _known:
            return _known[key]

        found = dict.fromkeys(map(_as_set, itertools.chain([chosen], others())))
        candidates = list(itertools.islice(found, limit))

        if _assumed is not None:
            return candidates[_assumed % len(candidates)]

        with on_device(output.device):
            if output.is_cuda and torch.cuda.is_current_stream_capturing():
                # Recorded, the call would never be measured.
                repetition.prevent()
                return chosen

            _known[key] = _measured(candidates, launch, output) if len(candidates) > 1 else candidates[0]

        return _known[key]


@contextlib.contextmanager
def assumed(number: int) -> Generator[None]:
    """A context in which the ``number``-th candidate (counted round) is taken for the fastest, and nothing is measured;
    for tests, also under the interpreter. It holds for all threads."""
    global _assumed
    outer, _assumed = _assumed, number
    # A call that is repeated chooses nothing.
    repetition.forget()

    try:
        yield
    finally:
        _assumed = outer
        repetition.forget()


def _as_set(options):
    """The configuration with the user's warps and stages; candidates that differ in those alone are one."""
    values = {"num_warps": utils.get_default_num_warps(), "num_stages": utils.get_default_num_stages()}
    changed = {name: value for name, value in values.items() if value is not None and hasattr(options, name)}
    return dataclasses.replace(options, **changed) if changed else options


def _measured(candidates, launch, output):
    # Only who measures waits for this import.
    from ntops import timing

    with repetition.unrecorded():
        try:
            scratch = _like(output)
            working = [options for options in candidates if _runs(launch, options, scratch)]

            if len(working) < 2:
                # Where nothing works, the library's choice says why.
                return (working or candidates)[0]

            functions = {str(place): _function(launch, options) for place, options in enumerate(working)}
            times = timing.interleaved(
                functions, [((scratch,), {})], _nothing, _nothing, seconds=SECONDS, rounds=ROUNDS, seed=0
            )
        except torch.OutOfMemoryError:
            return candidates[0]

    return working[int(min(times, key=lambda place: times[place].median))]


def _like(tensor):
    """New memory of a tensor's geometry, alignment included."""
    offset = tensor.data_ptr() % 16 // tensor.element_size()
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = torch.empty(offset + extent, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride(), offset)


def _runs(launch, options, scratch):
    """Whether a candidate compiles: what takes too much of the GPU is no candidate."""
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
    """Contents stay, and results are those of configurations that are right."""
