"""Tests of what the judged code counts from call to call."""

from __future__ import annotations

import collections
from types import SimpleNamespace

import hypothesis
import pytest
import torch

from conformance import code_counts, drawing, profiles, sequence_search, sequences
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.session import Run
from conformance.spec import registry

CPU = torch.device("cpu")
SIZE = {("results", "pool"): 400}


def starts(op: str) -> list[Case]:
    return [case for case in drawing.drawn(registry()[op].cases(("float32",)), "starts", 10) if not case.kwargs]


def counted(function, op: str) -> list[tuple[Case, int]]:
    return code_counts.counted(starts(op), Implementation("own", SimpleNamespace(**{op: function}), {}), CPU)


def pooled():
    """The 401st result of a shape is where the first one was."""
    pools = collections.defaultdict[torch.Size, list[torch.Tensor]](list)

    def neg(input, *, out=None):
        result, pool = torch.neg(input, out=out), pools[input.shape]
        if out is None and len(pool) < SIZE["results", "pool"]:
            pool.append(result)
        elif out is None:
            result = pool[0].copy_(result)
        return result

    return neg


def tuned():
    """Of each shape the 600th call, and every 600th after that, is wrong."""
    calls = collections.Counter[torch.Size]()

    def neg(input, *, out=None):
        calls[input.shape] += 1
        return torch.neg(input, out=out) * (2 if calls[input.shape] % 600 == 0 else 1)

    return neg


@pytest.mark.parametrize(("make", "least"), [(pooled, 400), (tuned, 600)])
def test_what_is_counted_tells_how_often_to_call(make, least):
    found = counted(make(), "neg")
    assert found
    assert all(least <= times <= least + 4 for _, times in found)


def test_code_that_counts_nothing_is_called_no_oftener():
    def neg(input, *, out=None):
        return torch.neg(input, out=out) if input.numel() % 7 < 400 else -input

    assert counted(neg, "neg") == []


def test_what_a_sequence_has_no_room_for_is_left_out():
    calls = []

    def neg(input, *, out=None):
        calls.append(1)
        return torch.neg(input, out=out) * (1 if len(calls) < sequences.MAX_CALLS else 2)

    assert counted(neg, "neg") == []


def test_a_number_that_moves_away_is_never_met():
    calls = []

    def neg(input, *, out=None):
        calls.append(1)
        return torch.neg(input, out=out) * (2 if -len(calls) > 20 else 1)

    assert counted(neg, "neg") == []


@pytest.mark.parametrize("make", [pooled, tuned])
def test_the_sequences_of_ci_make_as_many_calls(make, tmp_path):
    own = Implementation("own", SimpleNamespace(neg=make()), {})
    settings = hypothesis.settings(profiles.PROFILES["ci"])
    run = Run(own, CPU, ("float32",), None, tmp_path, settings, 0, large=1 << 24)
    assert sequence_search.search(run, "neg").failed
