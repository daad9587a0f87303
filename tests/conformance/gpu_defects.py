"""Mistakes of implementations that show in a CUDA graph, on streams or on another device alone.

Each is a function that makes a wrong implementation of a right one, ``right``, for operators with one result.
"""

from __future__ import annotations

import functools
import itertools

import torch

GRAPH, STREAM, DEVICE = {}, {}, {}


def planted(bank):
    def add(make):
        bank[make.__name__] = make
        return make

    return add


def tensors(args):
    return [one for one in args if isinstance(one, torch.Tensor)]


def captured():
    return torch.cuda.is_current_stream_capturing()


@planted(GRAPH)
def keeps_a_copy(right):
    """Packed operands are kept by address while a graph is captured, as a weight's would be."""
    copies = {}

    def call(*args):
        if captured():
            return right(*(copies.get(one.data_ptr(), one) if isinstance(one, torch.Tensor) else one for one in args))
        copies.clear()
        copies.update({one.data_ptr(): one.clone() for one in tensors(args)})
        return right(*args)

    return call


@planted(GRAPH)
def reads_a_number(right):
    """A number is read from memory on the host."""

    def call(*args):
        float(tensors(args)[0].flatten()[0])
        return right(*args)

    return call


@planted(GRAPH)
def waits(right):
    def call(*args):
        result = right(*args)
        torch.cuda.synchronize()
        return result

    return call


@planted(GRAPH)
def adds_to_zeros_of_the_host(right):
    """Sums are added to memory that is zeroed where no graph is captured, since it was zero after the last call."""
    memory = {}

    def call(*args):
        result = right(*args)
        total = memory.setdefault((result.shape, result.dtype), torch.zeros_like(result))
        if not captured():
            total.zero_()
        total.add_(result)
        return total.clone()

    return call


@planted(GRAPH)
def leaves_it_out(right):
    """Nothing is computed while a graph is captured."""

    def call(*args):
        result = right(*args)
        return torch.zeros_like(result) if captured() else result

    return call


@planted(GRAPH)
def frees_its_workspace(right):
    """The graph reads a table that was made before it, and is freed after it."""
    tables = []

    def call(*args):
        if not captured():
            tables[:] = [torch.ones_like(right(*args))]
            return right(*args)
        table = tables.pop()
        return right(*args) * table

    return call


@planted(GRAPH)
def a_stream_of_its_own(right):
    """Half of the work is on another stream, which is not joined."""
    streams = []

    def call(*args):
        if not streams:
            streams.append(torch.cuda.Stream())
        streams[0].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[0]):
            return right(*args)

    return call


@planted(GRAPH)
def result_of_the_first_call(right):
    """The result is written to memory that an earlier call returned."""
    memory = {}

    def call(*args):
        result = right(*args)
        if captured():
            return memory[result.shape]
        memory[result.shape] = result
        return result.clone()

    return call


@planted(STREAM)
def on_the_default_stream(right):
    def call(*args):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return right(*args)

    return call


@planted(STREAM)
def never_joined(right):
    """A stream of its own begins after the current one's work, but that one does not wait for it."""
    streams = []

    def call(*args):
        if not streams:
            streams.append(torch.cuda.Stream())
        streams[0].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[0]):
            torch.cuda._sleep(2_000_000)
            return right(*args)

    return call


@planted(STREAM)
def never_waits(right):
    """The current stream waits for one of its own, but not the other way round."""
    streams = []

    def call(*args):
        if not streams:
            streams.append(torch.cuda.Stream())
        with torch.cuda.stream(streams[0]):
            result = right(*args)
        torch.cuda.current_stream().wait_stream(streams[0])
        return result

    return call


@planted(STREAM)
def one_workspace(right):
    """All streams use one workspace, in which operands are packed."""
    memory = {}

    def call(*args):
        packed = []
        for number, one in enumerate(args):
            if isinstance(one, torch.Tensor):
                key = number, one.shape, one.dtype
                workspace = memory.setdefault(key, torch.empty_like(one))
                workspace.copy_(one)
                torch.cuda._sleep(200_000)
                packed.append(workspace)
            else:
                packed.append(one)
        return right(*packed)

    return call


@planted(STREAM)
def through_the_host(right):
    """The result goes through pinned memory, and nobody waits for the copy."""

    def call(*args):
        result = right(*args)
        host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        host.copy_(result, non_blocking=True)
        return host.clone().to(result.device)

    return call


@planted(STREAM)
def one_result_of_two(right):
    """Two results take turns, whatever stream they are for."""
    memory, turn = {}, itertools.count()

    def call(*args):
        result = right(*args)
        key = result.shape, next(turn) % 2
        memory.setdefault(key, torch.empty_like(result)).copy_(result)
        return memory[key]

    return call


@planted(STREAM)
def copies_early(right):
    """Operands are copied on a stream for copies, which waits for nothing."""
    streams = []

    def call(*args):
        if not streams:
            streams.append(torch.cuda.Stream())
        with torch.cuda.stream(streams[0]):
            early = [one.clone() if isinstance(one, torch.Tensor) else one for one in args]
        torch.cuda.current_stream().wait_stream(streams[0])
        return right(*early)

    return call


@planted(DEVICE)
def makes_it_current(right):
    def call(*args):
        torch.cuda.set_device(tensors(args)[0].device)
        return right(*args)

    return call


@planted(DEVICE)
def on_the_current_device(right):
    """The result is allocated on the current device."""

    def call(*args):
        result = right(*args)
        return torch.empty(result.shape, dtype=result.dtype, device="cuda").copy_(result)

    return call


@planted(DEVICE)
def constants_of_the_first_device(right):
    def call(*args):
        result = right(*args)
        return result * torch.ones(result.shape, device="cuda", dtype=result.dtype)

    return call


@planted(DEVICE)
def waits_for_the_current_device(right):
    """Work on a stream of the current device, for operands of another one."""

    def call(*args):
        operands = tensors(args)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            moved = [one.to(stream.device) if isinstance(one, torch.Tensor) else one for one in args]
            result = right(*moved)
        return result if result.device != operands[0].device else right(*args)

    return call


def same_mask(right):
    """Dropout whose seed is drawn on the host."""
    generator = torch.Generator().manual_seed(0)

    @functools.wraps(right)
    def call(input, p=0.5, training=True, inplace=False):
        if not training or not input.numel():
            return right(input, p, training, inplace)
        seed = int(torch.randint(2**31, (), generator=generator))
        places = torch.arange(input.numel(), device=input.device).reshape(input.shape)
        words = (places * 2654435761 + seed * 40503) % 2**32
        words = (words ^ (words >> 15)) * 2246822519 % 2**32
        kept = (words ^ (words >> 13)) % 65536 >= int(p * 65536)
        scaled = input / (1 - p) if p < 1 else input * 0
        return torch.where(kept, scaled, torch.zeros_like(scaled))

    return call
