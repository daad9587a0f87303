"""The clock of the benchmarks: what it measures, and what it does not let pass."""

from __future__ import annotations

import math
import statistics
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from ntops import timing

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="streams and events need a CUDA GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRIES = 9
"""Of what other processes disturb that use the GPU, where tests run in parallel; what counts is their median."""


def sets(size=64, count=2):
    return [((torch.randn(size, size, device=DEVICE),), {}) for _ in range(count)]


def refresh(args, kwargs):
    args[0].normal_()


def check(name, result, args, kwargs):
    torch.testing.assert_close(result, args[0] * 2)


def double(x):
    return x * 2


def measured(function, theirs=double, **options):
    functions = {"theirs": theirs, "ours": function}
    return timing.interleaved(functions, sets(), refresh, check, seconds=0.01, rounds=(10, 20), **options)


def test_rounds_of_functions_timed_together_are_paired_and_positive():
    times = measured(double)
    assert len(times["ours"].seconds) == len(times["theirs"].seconds) >= 10
    assert min(times["ours"].seconds) > 0
    assert times["ours"].clock == ("events" if DEVICE == "cuda" else "wall")


def test_a_result_remembered_by_the_identity_of_its_input_is_refused():
    remembered = {}

    def cached(x):
        return remembered.setdefault(id(x), x * 2)

    with pytest.raises(AssertionError, match="not close"):
        measured(cached)


def test_a_result_that_can_still_be_computed_is_refused():
    class Later(torch.Tensor):
        pass

    with pytest.raises(timing.TimingError, match="Later"):
        measured(lambda x: (x * 2).as_subclass(Later))


def test_the_clock_is_bound_when_the_module_is_imported(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(torch.cuda, "Event", None)
    monkeypatch.setattr(torch.cuda, "synchronize", None)
    assert measured(double)["ours"].median > 0


def test_host_time_is_the_callers(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing, "_clock", lambda: now[0])

    def takes(seconds):
        def function(x):
            now[0] += seconds
            return x

        return function

    times = timing.host({"slow": takes(0.5), "fast": takes(0.125)}, sets(), calls=5, groups=4)
    assert times["slow"].seconds == [0.5] * 4
    assert times["fast"].seconds == [0.125] * 4


def test_a_ratio_over_one_is_faster():
    median, low, high = timing.ratio([1.0, 1.1, 0.9] * 10, [2.0, 2.2, 1.8] * 10)
    assert median == pytest.approx(2.0)
    assert low == pytest.approx(high) == pytest.approx(2.0)


def test_a_ratio_is_that_of_the_medians_beside_it():
    """A process that was slow for some rounds, of one function in the first half and of the other in the second."""
    ours = [6.0] * 5 + [7.2] * 3 + [8.8] * 7
    other = [8.8] * 8 + [7.2] * 7
    found, low, high = timing.ratio(ours, other)
    assert found == pytest.approx(np.median(other) / np.median(ours))
    assert low <= found <= high
    assert timing.ratio([1.0, 2.0, 3.0], [4.0])[0] == 2.0


def test_what_slows_both_leaves_the_interval_of_a_ratio_narrow():
    drift = np.random.default_rng(0).uniform(1.0, 3.0, 60)
    assert timing.ratio(drift, 2 * drift) == pytest.approx((2.0, 2.0, 2.0))


def test_the_bootstrap_interval_covers_the_median_as_often_as_it_says():
    generator = np.random.default_rng(0)
    found = [timing.median_interval(generator.exponential(1.0, 60), resamples=400, seed=n) for n in range(200)]
    covered = sum(low <= np.log(2) <= high for low, high in found)
    assert 180 <= covered <= 199


@pytest.mark.parametrize(
    ("waited", "counted"),
    [((3e-6, 3e-6), 0), ((90e-6, 90e-6), 0), ((90e-6, 3e-6), 90e-6), ((90e-6, 40e-6), 90e-6)],
    ids=["an idle device", "a busy host", "work that is left", "both"],
)
def test_what_is_left_after_the_event_counts_and_a_busy_host_does_not(waited, counted, monkeypatch):
    """By the calls that wait for the device: after the event, and once more."""

    class Event:
        record = synchronize = lambda self, *stream: None

        def elapsed_time(self, other):
            return 1e3 * 69e-6

    now, left = [0.0], list(waited)

    def wait():
        now[0] += left.pop(0)

    device = object.__new__(timing._Device)
    device.refresh, device.stream, device.cache, device.flushed = lambda *call: None, None, None, None
    device.delay = device.cycles = 0
    device.idle = 3e-6 + timing.IDLE
    for name, function in {
        "_clock": lambda: now[0],
        "_synchronize": wait,
        "_sleep": lambda cycles: None,
        "_sum": lambda *args, **kwargs: None,
        "_Event": lambda **kwargs: Event(),
    }.items():
        monkeypatch.setattr(timing, name, function)
    seconds, result = device.time(double, (2,), {})
    assert (seconds, result) == (pytest.approx(69e-6 + counted), 4)
    assert not left


@CUDA
@pytest.mark.parametrize("late", [False, True])
def test_work_on_another_stream_is_counted_or_refused(late):
    side = torch.cuda.Stream()
    matrix = torch.randn(2048, 2048, device="cuda")

    def hidden(x):
        if late:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(10):
                matrix @ matrix
            return x * 2

    def shown(x):
        for _ in range(10):
            matrix @ matrix
        return x * 2

    def ratio():
        try:
            times = measured(hidden, theirs=shown)
        except AssertionError:  # It read the inputs before they were there.
            return math.inf
        return times["ours"].median / times["theirs"].median

    # What is not counted is nine tenths and more of the time; what a busy machine disturbs is less than half.
    assert statistics.median(ratio() for _ in range(TRIES)) > 0.5


@CUDA
def test_the_time_of_a_device_bound_call_holds_no_launch():
    x = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")

    def ratio():
        """To the time between two ends of copies that the device has before it, one after the other."""
        copy = timing.interleaved(
            {"copy": torch.clone},
            [((x,), {})],
            lambda args, kwargs: args[0].random_(),
            lambda *ignored: None,
            seconds=0.01,
        )["copy"]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
        for end in ends:
            x.clone()
            end.record()
        torch.cuda.synchronize()
        return copy.median * 1e3 / statistics.median(before.elapsed_time(end) for before, end in pairwise(ends))

    assert statistics.median(ratio() for _ in range(TRIES)) == pytest.approx(1, rel=0.15)
