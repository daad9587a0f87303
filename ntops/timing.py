"""Time calls so that neither drift nor the timed implementation can change the figure.

Import this before the implementation: this module binds the functions of torch that the clock needs, so that later
replacements have no effect. Functions that are compared are timed in turn, in a new order each round, so that a chip
that warms up slows all of them alike and the ratio of a pair stays.

On CUDA each timed call goes through one stream as

    delay | new contents for the inputs | caches flushed | event | the call | event

The delay keeps the device busy while the host enqueues everything, so no launch is waited for between the events. New
contents come after it: work that the call puts on another stream, where it can begin at once, reads the old contents
and gives a wrong result, which ``check`` sees; a result remembered by its inputs is wrong as well. After the last event
the clock waits for the whole device, and adds the time of work that was still running. Finally, calls are repeated back
to back from an idle device to an idle device by the wall clock; if that takes longer than the events said, it counts.
"""

import dataclasses
import random
import time

import numpy as np
import torch

_clock = time.perf_counter
_sum = torch.sum
_empty = torch.empty
_full = torch.full
# The classes and functions of torch's C++ part, bound here because torch.cuda.Event and others can be replaced.
_Event = torch._C._CudaEventBase
_synchronize = getattr(torch._C, "_cuda_synchronize", torch.cuda.synchronize)
_sleep = torch.cuda._sleep
_current_stream = torch.cuda.current_stream

CHECKED = 3
"""The number of rounds of each function, drawn at random, whose results are checked."""
IDLE = 25e-6
"""Seconds within which an idle device must be found idle, beyond what that usually takes on this machine."""
EXCESS = 1.25
"""The allowed ratio of back-to-back time to event time: a chip under full load lowers its clock."""
BACK_TO_BACK = 4e-3
"""Seconds for which calls are repeated back to back, approximately."""


class TimingError(ValueError):
    """A measurement that must not be used. The message names the function and the reason."""


@dataclasses.dataclass
class Times:
    """The times of one function.

    ``seconds`` has one figure for each round; functions timed together have their rounds in the same order. ``clock``
    is "events", or "wall" (on a CPU; or if events did not see all the work, which ``note`` says).
    """

    seconds: list
    clock: str
    note: str = ""

    @property
    def median(self):
        """Seconds."""
        return float(np.median(self.seconds))


def bootstrap(statistic, *samples, paired=False, level=0.95, resamples=1000, seed=0):
    """Return ``(low, high)``, the percentile bootstrap interval of ``statistic(*samples)``.

    ``statistic`` takes arrays of resamples, one in each row, and returns one figure for each row. Draws are independent
    or, if ``paired``, at the same places. Efron & Tibshirani, An Introduction to the Bootstrap, 1993.
    """
    generator = np.random.default_rng(seed)
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples]
    drawn, places = [], None
    for array in arrays:
        if places is None or not paired:
            places = generator.integers(0, array.size, (resamples, array.size))
        drawn.append(array[places])
    found = np.quantile(statistic(*drawn), ((1 - level) / 2, (1 + level) / 2))

    return float(found[0]), float(found[1])


def median_interval(seconds, **options):
    """Return ``(low, high)`` of the median of ``seconds``."""
    return bootstrap(lambda drawn: np.median(drawn, axis=1), seconds, **options)


def ratio(ours, other, **options):
    """Return ``(ratio, low, high)``: how many times as fast ``ours`` is as ``other``, by their medians.

    The interval resamples rounds in pairs, so that drift that slows both does not widen it.
    """

    def quotient(ours, other):
        return np.median(other, axis=-1) / np.median(ours, axis=-1)

    paired = len(ours) == len(other)

    return float(quotient(ours, other)), *bootstrap(quotient, ours, other, paired=paired, **options)


def interleaved(functions, inputs, refresh, check, *, seconds=0.1, rounds=(20, 200), seed=None):
    """Time functions with the same arguments against each other, and return ``{name: Times}``.

    Args:
        functions: ``{name: function}``.
        inputs: ``[(args, kwargs), ...]``, used in turn; together larger than the L2 cache where that is possible.
        refresh: ``refresh(args, kwargs)`` writes new contents into the tensors, on the current stream.
        check: ``check(name, result, args, kwargs)`` raises if the result is not that of these inputs. Called for
            ``CHECKED`` rounds of each function.
        seconds: about how long each function is timed, without what happens around it.
        rounds: the least and the largest number of rounds.
        seed: of the order of functions and of the rounds that are checked; None is unpredictable.

    Raises:
        TimingError: a result that could be computed after the clock has stopped.
    """
    chance = random.Random(seed)
    timer = _Device(refresh) if _on_cuda(inputs) else _Wall(refresh)
    estimate = {name: timer.warm(name, function, inputs) for name, function in functions.items()}
    least, most = rounds
    count = int(min(max(seconds / max(*estimate.values(), 1e-7), least), most))
    checked = {name: {count - 1, *chance.sample(range(count), min(CHECKED, count))} for name in functions}
    taken = {name: [] for name in functions}
    for number in range(count):
        for name in chance.sample(list(functions), len(functions)):
            args, kwargs = chance.choice(inputs)
            elapsed, result = timer.time(functions[name], args, kwargs)
            taken[name].append(elapsed)
            if number in checked[name]:
                _plain(name, result)
                check(name, result, args, kwargs)
            del result

    return {name: timer.whole(functions[name], inputs, taken[name]) for name in functions}


def host(functions, inputs, *, calls=100, groups=15, seed=None):
    """Measure the host seconds of each call of small functions, timed in turn; return ``{name: Times}``, one figure for
    each group.

    The device is idle when a group of calls begins, and is not waited for until the group ends, so this is the time
    that the caller's thread pays; for work of more than a few microseconds the device's time counts.
    """
    chance = random.Random(seed)
    on_cuda = _on_cuda(inputs)
    taken = {name: [] for name in functions}
    for number in range(groups + 1):
        for name in chance.sample(list(functions), len(functions)):
            function, (args, kwargs) = functions[name], inputs[number % len(inputs)]
            if on_cuda:
                _synchronize()
            start = _clock()
            for _ in range(calls):
                function(*args, **kwargs)
            elapsed = _clock() - start
            if number:  # The first group warms up.
                taken[name].append(elapsed / calls)
    if on_cuda:
        _synchronize()

    return {name: Times(seconds, "wall") for name, seconds in taken.items()}


def _on_cuda(inputs):
    return any(tensor.is_cuda for args, kwargs in inputs for tensor in _tensors((*args, *kwargs.values())))


def _tensors(values):
    return [value for value in values if isinstance(value, torch.Tensor)]


def _plain(name, result):
    """Refuse a result that could still be computed when it is read."""
    for value in result if isinstance(result, tuple) else (result,):
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            raise TimingError(f"{name} returned {type(value).__name__}, which need not hold its result yet")


class _Wall:
    """Time calls on the CPU by the wall clock."""

    def __init__(self, refresh):
        self.refresh = refresh

    def warm(self, name, function, inputs):
        args, kwargs = inputs[0]
        _plain(name, function(*args, **kwargs))

        return self.time(function, args, kwargs)[0]

    def time(self, function, args, kwargs):
        self.refresh(args, kwargs)
        start = _clock()
        result = function(*args, **kwargs)

        return _clock() - start, result

    def whole(self, function, inputs, taken):
        return Times(taken, "wall")


class _Device:
    """Time calls on a CUDA device by events."""

    def __init__(self, refresh):
        self.refresh = refresh
        self.stream = _current_stream()
        # The flush reads and does not write, so that the timed call does not pay for writing back the cache.
        size = torch.cuda.get_device_properties(self.stream.device).L2_cache_size
        self.cache = _full((3 * size // 4,), 1.0, device=self.stream.device)
        self.flushed = _empty((), device=self.stream.device)
        start, stop = self._event(), self._event()
        for cycles in (1_000, 2_000_000):
            start.record(self.stream)
            _sleep(cycles)
            stop.record(self.stream)
            stop.synchronize()
        self.cycles = 2_000_000 / (start.elapsed_time(stop) / 1e3)
        self.delay = 150e-6
        found = []
        for _ in range(20):
            begun = _clock()
            _synchronize()
            found.append(_clock() - begun)
        self.idle = float(np.median(found)) + IDLE

    def _event(self):
        return _Event(enable_timing=True, blocking=False, interprocess=False)

    def warm(self, name, function, inputs):
        """Compile, raise the clocks, and measure the host's time of a call. Return the device's seconds,
        approximately."""
        for args, kwargs in inputs:
            _plain(name, function(*args, **kwargs))
        _synchronize()
        begun = _clock()
        while True:
            args, kwargs = inputs[0]
            start = _clock()
            function(*args, **kwargs)
            enqueued = _clock() - start
            _synchronize()
            taken = _clock() - start
            if _clock() - begun > 0.03:
                break
        self.delay = max(self.delay, 2 * enqueued + 150e-6)

        return taken

    def time(self, function, args, kwargs):
        start, stop = self._event(), self._event()
        _sleep(int(self.delay * self.cycles))
        self.refresh(args, kwargs)
        _sum(self.cache, dim=0, out=self.flushed)
        start.record(self.stream)
        result = function(*args, **kwargs)
        stop.record(self.stream)
        stop.synchronize()
        stopped = _clock()
        _synchronize()
        left = _clock() - stopped
        # Measure again with an idle device: a busy host takes longer than usual.
        begun = _clock()
        _synchronize()
        idle = max(self.idle, _clock() - begun + IDLE)

        return start.elapsed_time(stop) / 1e3 + (left if left > idle else 0.0), result

    def whole(self, function, inputs, taken):
        """Return the events' figures, unless calls back to back take longer than these and the host's time explain."""
        median = float(np.median(taken))
        count = int(min(max(BACK_TO_BACK / max(median, 1e-6), 5), 100))
        found = []
        for _ in range(3):
            _synchronize()
            start = _clock()
            for number in range(count):
                args, kwargs = inputs[number % len(inputs)]
                function(*args, **kwargs)
            enqueued = _clock() - start
            _synchronize()
            found.append(((_clock() - start) / count, enqueued / count))
        # Host and device work in parallel, so the slower one decides the time of calls back to back.
        span, host_share = min(found)
        if span <= EXCESS * max(median, host_share) + self.idle / count:
            return Times(taken, "events")
        note = f"events saw {median * 1e6:.1f} us of a call, but calls back to back take {span * 1e6:.1f} us each"
        return Times([span for span, _ in found], "wall", note)
