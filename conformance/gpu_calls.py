"""Make a call in another context of a GPU: captured in a CUDA graph, on two streams at once, or on another device.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import contextlib

import torch

GRAPH, STREAM, DEVICE = "graph", "stream", "device"
CYCLES = 30_000_000
"""Streams are busy for so many cycles before the calls on them: longer than the host takes to make these (15 ms)."""
ROUNDS = 6
"""The calls on each of the two streams."""
BLOCKS = (512, 4096, 65536, 1 << 20, 1 << 22)
"""Bytes of allocations that take over freed memory, ``AT_ONCE`` of each."""
AT_ONCE, POISON = 8, 0xC7


def _graph(function, tools):
    """Let the call be captured in a CUDA graph, which then is replayed three times: with the contents of the operands,
    with others, and with the first ones again. Before each, freed memory is overwritten, in the graph's pool and beside
    it, and the results as well.

    The call returns the results of the last replay, and after them those of the first and of the second.
    """

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        contents, others = tools.copied(given), tools.copied(given, other=True)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # The first calls of a kind may compile, and measure.
            for _ in range(2):
                function(*args, **kwargs)
                _fill(given, contents)
        torch.cuda.synchronize()
        graph, freed = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                value = function(*args, **kwargs)
        except BaseException:
            # Torch's generator takes itself for captured until a capture ends well.
            with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
                pass
            raise
        with torch.cuda.graph(freed, pool=graph.pool(), stream=stream):
            _overwritten()
        results, replayed = _listed(value), []
        fresh = [one for one in results if not _shares(one, given)]
        with torch.cuda.stream(stream):
            for number, copies in enumerate((contents, others, contents)):
                _fill(given, copies)
                for one in fresh:
                    _bytes(one).fill_(POISON)
                freed.replay()
                _overwritten()
                graph.replay()
                if number < 2:
                    replayed += [one.clone() for one in results]
        torch.cuda.synchronize()
        return (*results, *replayed)

    return call


def _stream(function, tools):
    """Let the call be made ``ROUNDS`` times on each of two streams in turn, on operands of their own, those of the
    second with other contents. Both streams are busy when the calls are made, and only then get the contents. A third
    stream reads the last results, after an event that follows the calls.

    The call returns the last results of the first stream, and after them all others of the first and of the second.
    """

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        contents = tools.copied(given), tools.copied(given, other=True)
        # The first call of a kind may compile, which takes longer than the streams are busy.
        first, named = tools.replaced(args, kwargs, given, tools.copied(given))
        function(*first, **named)
        streams, reader = (torch.cuda.Stream(), torch.cuda.Stream()), torch.cuda.Stream()
        # What an early read finds is the contents of the other stream.
        own = [tools.copied(one) for one in reversed(contents)]
        results, kept = [[], []], []
        torch.cuda.synchronize()
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(CYCLES)
        for number in range(ROUNDS):
            for which, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    _fill(own[which], contents[which])
                    found, named = tools.replaced(args, kwargs, given, own[which])
                    value = _listed(function(*found, **named))
                    # Memory that the call freed is taken over by work of this stream.
                    _overwritten()
                    last = number == ROUNDS - 1
                    kept += value
                    results[which].append(value if last else [one.clone() for one in value])
        for which, stream in enumerate(streams):
            reader.wait_stream(stream)
            with torch.cuda.stream(reader):
                results[which][-1] = [one.clone() for one in results[which][-1]]
                if not which:
                    _fill(given, own[0])
        torch.cuda.synchronize()
        *others, last = results[0]
        return (*last, *(one for found in (*others, *results[1]) for one in found))

    return call


def _device(function, tools):
    """Let the call be made with operands on a device that is not the current one, and bring back what it did.

    The call returns copies of its results. Raises RuntimeError: a result is not where the operands are, or another
    device is current afterwards.
    """

    def call(*args, **kwargs):
        given, here = tools.operands(args, kwargs), torch.cuda.current_device()
        there = torch.device("cuda", (here + 1) % torch.cuda.device_count())
        own = _moved(given, there)
        found, named = tools.replaced(args, kwargs, given, own)
        value = _listed(function(*found, **named))
        if torch.cuda.current_device() != here:
            raise RuntimeError(f"after the call device {torch.cuda.current_device()} is current, before it {here}")
        for one in value:
            if isinstance(one, torch.Tensor) and one.device != there:
                raise RuntimeError(f"a result is on {one.device}, the operands are on {there}")
        torch.cuda.synchronize(there)
        _fill(given, own)
        return tuple(one.to(given[0].device) if isinstance(one, torch.Tensor) else one for one in value)

    return call


def _moved(tensors, device):
    """Return copies of the tensors on another device, that share memory as these do."""
    storages = {}

    def one(tensor):
        key = tensor.untyped_storage()._cdata
        if key not in storages:
            storages[key] = _bytes(tensor).to(device)
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        return empty.set_(storages[key].untyped_storage(), *place)

    return [one(tensor) for tensor in tensors]


def _listed(value):
    return list(value) if isinstance(value, tuple | list) else [value]


def _bytes(tensor):
    """Return the memory of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _fill(tensors, copies):
    """Give tensors the contents of copies, in all of their storages."""
    for one, copy in zip(tensors, copies, strict=True):
        memory, source = _bytes(one), _bytes(copy)
        # A call may have resized an operand.
        if len(memory) == len(source):
            memory.copy_(source)


def _shares(tensor, others):
    return any(tensor.untyped_storage()._cdata == one.untyped_storage()._cdata for one in others)


def _overwritten():
    """Overwrite memory that is free on the current stream."""
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in BLOCKS for _ in range(AT_ONCE)]
    for one in blocks:
        one.fill_(POISON)


KINDS = {GRAPH: _graph, STREAM: _stream, DEVICE: _device}
