"""Make calls once, and again as a process of a user does in the course of time.

``plain_calls`` writes this text behind the lines that import the implementation. It needs torch and nothing else.
"""

import hashlib
import os
import sys
import threading
import time

import torch

EVALUATED, TRAINED = "evaluated", "trained"
OFTEN, AT_ONCE, MORE, LATER = "often", "at once", "more", "later"
MANY, LEAST, SHOWN = 700, 520, 1 << 25
"""The most calls of one case in a row; the least, of compiled code and results that are small; and the most bytes of
results that are kept until the last call."""
WORKERS, TOGETHER, THREADS = 4, 8, 12
"""Threads of Python that make so many calls at once, and the least threads of torch that are many."""
MONTH = 30 * 86400
"""The seconds by which clocks are put forward."""
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


def run(provider, given, made, seconds):
    """Make the calls of the file ``given``. Write the outcomes to the file ``made``, and to ``made.again`` those that
    have other bits when the calls are made again.

    :param seconds: For how long a call is repeated.
    """
    # The harness wrote it.
    listed = torch.load(given, weights_only=False)
    calls = [(getattr(provider, name), args, kwargs) for name, args, kwargs, _, _ in listed]
    places = [place for place, (_, _, _, repeats, _) in enumerate(listed) if repeats]
    trained = {place: wanted for place, (_, _, _, _, wanted) in enumerate(listed) if wanted}
    # Some as in a process that begins in a region of autocast: what these calls leave behind is of its dtype.
    begun = places[1::2]
    for place in begun:
        _in_autocast(*calls[place])
    # As a process that evaluates before it trains: what these calls leave behind is of inference mode.
    with torch.inference_mode():
        evaluated = {place: _outcome(*calls[place]) for place in trained if place not in begun}
    outcomes = [_outcome(*call) for call in calls]
    torch.save(outcomes, made)
    first = [_bits(one) for one in outcomes]
    del outcomes

    def others(make, places=places):
        """Return the outcomes of ``make`` for these places that differ from the first ones."""
        found = {place: make(place) for place in places}
        return {place: outcome for place, outcome in found.items() if _bits(outcome) != first[place]}

    def again(place):
        return _outcome(*calls[place])

    found = {EVALUATED: others(evaluated.pop, list(evaluated))}
    found[TRAINED] = others(lambda place: in_training(*calls[place], trained[place]), trained)
    found[OFTEN] = others(lambda place: _often(*calls[place], seconds))
    # Triton's interpreter has one state for all threads.
    if not _is_interpreted():
        found[AT_ONCE] = _at_once(calls, places, first)
    threads = torch.get_num_threads()
    torch.set_num_threads(many_threads())
    found[MORE] = others(again)
    torch.set_num_threads(threads)
    _put_forward()
    found[LATER] = others(again)
    torch.save(found, f"{made}.again")


def many_threads():
    """Return a number of torch's threads that few processes have: more than there are now."""
    return max(THREADS, torch.get_num_threads() + 4)


def _is_interpreted():
    return "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1"


def _outcome(function, args, kwargs):
    try:
        return function(*args, **kwargs)
    # The implementation is somebody else's code.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


def _in_autocast(function, args, kwargs):
    args, kwargs = _copied(args, kwargs)
    devices = (one.device.type for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    with torch.autocast(next(devices, "cpu"), dtype=torch.bfloat16):
        _outcome(function, args, kwargs)


def _bits(outcome):
    """Return what can be compared with that of another outcome: shapes, dtypes, and digests of bytes."""
    results = outcome if isinstance(outcome, tuple | list) else [outcome]
    return [_bits_of_one(one) if isinstance(one, torch.Tensor) else type(one) for one in results]


def _bits_of_one(tensor):
    # A tensor of one element is contiguous with any strides.
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    whole = whole.reshape(-1).view(torch.uint8)
    return tensor.shape, tensor.dtype, hashlib.blake2b(whole.numpy()).digest()


def in_training(function, args, kwargs, wanted):
    """Make a call with arguments that require gradients, and its backward pass. Return the result, or a message where
    either raises or the result does not know its operands.

    :param wanted: The places and names of these arguments.
    """
    args, kwargs = _copied(args, kwargs)
    for key in wanted:
        (args[key] if isinstance(key, int) else kwargs[key]).requires_grad_()

    def call():
        value = function(*args, **kwargs)
        if not value.requires_grad:
            return "The result does not know its operands"
        value.backward(torch.ones_like(value))
        return value.detach()

    return _outcome(call, (), {})


def _often(function, args, kwargs, seconds):
    """Make a call many times with other contents of its operands, then with their own. Return the last outcome, or a
    message where an earlier result changed."""
    # Of tensors that no call has seen yet.
    args, kwargs = _copied(args, kwargs)
    operands = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    # Indices have to stay what they are.
    rows = [_words(one) for one in {id(one): one for one in operands if one.is_floating_point()}.values()]
    first, given = [words.clone() for words in rows], {one.untyped_storage()._cdata for one in operands}
    kept, size, end = [], 0, time.monotonic() + seconds
    least = 0 if _is_interpreted() else LEAST
    for number in range(MANY):
        for words in rows:
            words.copy_(words.roll(1, 0))
        value = _outcome(function, args, kwargs)
        results = value if isinstance(value, tuple | list) else [value]
        # A result may be an operand, whose contents change.
        own = [one for one in results if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in given]
        size += sum(one.nbytes for one in own)
        if size <= SHOWN:
            kept.append((own, _bits(own)))
        late = time.monotonic() - end
        if late > 0 and (number >= least or size > SHOWN or late > 3 * seconds):
            break
    changed = any(_bits(value) != bits for value, bits in kept)
    # Twice the same, then all but one element of its own, and then that one, too.
    _outcome(function, args, kwargs)
    for words, right in zip(rows, first, strict=True):
        place = slice(len(words) // 2, len(words) // 2 + 1)
        other = words[place].clone()
        words.copy_(right)
        words[place] = other
    _outcome(function, args, kwargs)
    for words, right in zip(rows, first, strict=True):
        words.copy_(right)
    # Most often changes leave a trace; those by way of NumPy do not.
    if sum(map(len, rows)) % 3:
        torch.autograd.graph.increment_version(operands)
    told = f"Changed: a result of one of {len(kept)} calls is another one after the last of them"
    return told if changed else _outcome(function, args, kwargs)


def _words(tensor):
    """Return the elements of all of a tensor's storage, as rows of bytes: some dtypes cannot be copied otherwise."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.itemsize * tensor.itemsize
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (count,), (1,))
    return memory.view(-1, tensor.itemsize)


def _at_once(calls, places, first):
    """Let several threads make the same calls at once, each on operands of its own; return the outcomes that differ."""
    found, interval = {}, sys.getswitchinterval()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def work(begin, own):
        if device is not None:
            torch.cuda.set_device(device)
        begin.wait()
        for place, (args, kwargs) in own.items():
            outcome = _outcome(calls[place][0], args, kwargs)
            if _bits(outcome) != first[place]:
                found.setdefault(place, outcome)

    sys.setswitchinterval(1e-5)
    for start in range(0, len(places), TOGETHER):
        some, begin = places[start : start + TOGETHER], threading.Barrier(WORKERS)
        copies = [{place: _copied(*calls[place][1:]) for place in some} for _ in range(WORKERS)]
        threads = [threading.Thread(target=work, args=(begin, own)) for own in copies]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    sys.setswitchinterval(interval)
    return found


def _copied(args, kwargs):
    """Return arguments with copies of the tensors, each once, as they lie in storages of their own."""
    copies = {}

    def one(value):
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        if storage._cdata not in copies:
            copies[storage._cdata] = storage.clone()
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(copies[storage._cdata], value.storage_offset(), value.shape, value.stride())

    return [one(value) for value in args], {name: one(value) for name, value in kwargs.items()}


def _put_forward():
    """Put clocks forward, as they are for who looks a month later."""

    def later(clock, by):
        return lambda: clock() + by

    for name in CLOCKS:
        setattr(time, name, later(getattr(time, name), MONTH))
        setattr(time, f"{name}_ns", later(getattr(time, f"{name}_ns"), MONTH * 10**9))
