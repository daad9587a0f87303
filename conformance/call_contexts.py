"""Contexts of a call: operands of another kind, and modes and threads around it.

Copied into the ``repro_<id>.py`` scripts of failures, so it needs torch and nothing else.
"""

import contextlib
import enum
import inspect
import os
import warnings

import torch

PARAMETERS, NEGATED, WIDE, OWN = "parameters", "negated", "default dtype float64", "own variants"
TRAINING, TOGETHER, ADJACENT = "training", "one storage", "one behind another"
COLUMNS, ROWS = "columns of one tensor", "rows in turns"
LEAVES, UPDATED = "leaves that are written", "parameters that are written"
INFERENCE, DETERMINISTIC, THREADS = "inference mode", "deterministic algorithms", "three threads"
KEPT = "operands of inference mode"
STRICT = "warnings are errors"
VIEWS, ENTIRE, FOREIGN = "views of other tensors", "all of inference mode", "written ones of inference mode"
ALONE, ANOMALIES = "deterministic algorithms or errors", "anomaly detection"
"""In these forms operands that are only read differ: floating-point ones are ``torch.nn.Parameter``, without gradient
mode; or they are negated lazily; or they require a gradient; or all lie in one storage, the last one first, with a gap
between them or none, or as parts of one tensor, side by side, the last one first, or in turns, row by row; or the
written ones require a gradient as well, with gradient mode, where torch refuses that, or without, as in a step of an
optimizer; or they were made in inference mode, and the call is made outside of it; or so were the written ones alone,
where torch refuses that; or all operands, the written ones too, are views for autograd. Or the surroundings differ:
operands were made in inference mode, in which the call runs, those that are only read or all; the default dtype is
float64; causal variants are of the implementation's own enum; torch is set to be deterministic, and to warn or raise
where it cannot be, or to use three threads; a warning that a user would see is raised; operands require a gradient
while anomalies are looked for."""
OPERANDS = PARAMETERS, NEGATED, TRAINING, TOGETHER, ADJACENT, COLUMNS, ROWS, LEAVES, UPDATED, KEPT, VIEWS, FOREIGN
SURROUNDINGS = WIDE, INFERENCE, DETERMINISTIC, THREADS, STRICT, ENTIRE, ALONE, ANOMALIES
"""``OPERANDS`` are the forms whose operands differ, ``SURROUNDINGS`` those whose settings do."""
RECORDED = TRAINING, ANOMALIES
"""The forms whose operands require a gradient while it is recorded, which an implementation may refuse."""
SEEN = UserWarning, RuntimeWarning, FutureWarning
"""The warnings about a call that Python shows by default."""
APART = 48
"""Bytes between operands that lie in one storage."""

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_dressed(form):
    """Tell whether the form changes operands or surroundings."""
    return form in (OWN, *OPERANDS, *SURROUNDINGS)


@contextlib.contextmanager
def surroundings(form):
    """Set what a call of this form finds set, and restore it afterwards."""
    modes = {
        **dict.fromkeys((PARAMETERS, UPDATED), torch.no_grad),
        **dict.fromkeys((INFERENCE, ENTIRE), torch.inference_mode),
        ANOMALIES: _anomaly_detection,
    }
    before = torch.get_default_dtype(), torch.get_deterministic_debug_mode(), torch.get_num_threads()
    if form == WIDE:
        torch.set_default_dtype(torch.float64)
    if form in (DETERMINISTIC, ALONE):
        # torch.use_deterministic_algorithms imports torch's compiler, which takes seconds.
        torch.set_deterministic_debug_mode("warn" if form == DETERMINISTIC else "error")
    if form == THREADS:
        torch.set_num_threads(3)
    try:
        with modes.get(form, contextlib.nullcontext)(), warnings.catch_warnings():
            for category in SEEN if form == STRICT else ():
                warnings.simplefilter("error", category)
            if form == STRICT and os.environ.get("TRITON_INTERPRET") == "1":
                # NumPy computes for Triton's interpreter, and says of numbers what no compiled kernel does.
                warnings.filterwarnings("ignore", ".* encountered in ", RuntimeWarning)
            yield
    finally:
        if form == WIDE:
            torch.set_default_dtype(before[0])
        if form in (DETERMINISTIC, ALONE):
            torch.set_deterministic_debug_mode(before[1])
        if form == THREADS:
            torch.set_num_threads(before[2])


@contextlib.contextmanager
def _anomaly_detection():
    """Let autograd note where each of its nodes was made, as torch.autograd.detect_anomaly does after a warning."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(True)
    try:
        yield
    finally:
        torch.set_anomaly_enabled(*before)


def own(function, value):
    """Return a causal variant as the member of the enum in the function's module; other values, or without an enum, as
    they are."""
    if type(value).__name__ != "CausalVariant":
        return value
    for found in [*getattr(inspect.unwrap(function), "__globals__", {}).values()]:
        is_enum = isinstance(found, enum.EnumMeta) and found is not type(value)
        if is_enum and {one.name for one in type(value)} <= {*found.__members__}:
            return found[value.name]
    return value


def kept(form, writes, inplace):
    """Return the numbers of the operands that stay as they are: the written ones; but an in-place call may write a
    lazily negated one."""
    return [] if form == NEGATED and inplace else writes


def dressed(form, operands, writes):
    """Return the operands as the call gets them: tensors of the same storage.

    :param writes: The numbers of the operands that the call writes.
    """
    if form == PARAMETERS:
        # Where torch takes a number, it takes a tensor without dims only if that requires no gradient.
        return [
            torch.nn.Parameter(one) if one.ndim and one.is_floating_point() and number not in writes else one
            for number, one in enumerate(operands)
        ]
    if form == NEGATED:
        return [one if number in writes else negated(one) for number, one in enumerate(operands)]
    if form in RECORDED:
        return [
            one.detach().requires_grad_() if one.is_floating_point() and number not in writes else one
            for number, one in enumerate(operands)
        ]
    if form in (LEAVES, UPDATED):
        return [one.detach().requires_grad_() if one.is_floating_point() else one for one in operands]
    if form in (TOGETHER, ADJACENT):
        return together(operands, writes, APART if form == TOGETHER else 0)
    if form in (COLUMNS, ROWS):
        return parts(operands, writes, form == COLUMNS)
    if form in (INFERENCE, KEPT, FOREIGN, ENTIRE):
        # Whether operands that are only read are made anew, and whether written ones are.
        made = {FOREIGN: (False, True), ENTIRE: (True, True)}.get(form, (True, False))
        with torch.inference_mode():
            return [_seen_anew(one) if made[number in writes] else one for number, one in enumerate(operands)]
    if form == VIEWS:
        return [_part(one) for one in operands]
    return list(operands)


def _part(tensor):
    """Return the tensor as a view of one that holds its whole storage."""
    storage = tensor.untyped_storage()
    whole = _empty(tensor).set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _seen_anew(tensor):
    """Return another tensor of the same memory, of the mode in which it is made and without a gradient."""
    place = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    return _empty(tensor).set_(*place)


def together(operands, writes, apart):
    """Return the operands in one storage, the last one first, but for those that the call writes. Those that are
    ``apart`` are aligned as they were, others as their elements are."""
    given, begin = list(operands), 0
    places = {}
    for number in sorted({*range(len(given))} - {*writes}, reverse=True):
        first, last = _extent(given[number], apart)
        unit = 64 if apart else given[number].itemsize
        begin = -(-begin // unit) * unit
        places[number] = begin, first, last
        begin += last - first + apart
    if not places:
        return given
    memory = torch.zeros(begin, dtype=torch.uint8, device=given[min(places)].device)
    for number, (start, first, last) in places.items():
        one = given[number]
        memory[start : start + last - first] = _bytes_of(one)[first:last]
        place = (start - first) // one.itemsize + one.storage_offset()
        given[number] = _empty(one).set_(memory.untyped_storage(), place, one.shape, one.stride())
    return given


def parts(operands, writes, columns):
    """Return the operands, of which contiguous ones that fit beside each other are parts of one tensor: of its columns,
    the last one first, as halves are after a swap, which has one more row that is not used where their number is odd;
    or of its rows, which come in turns, as gate and up projections are merged."""
    given, alike = list(operands), {}
    for number, one in enumerate(given):
        # Of others the order of dims in memory would be another one, and that of the result.
        if number not in writes and one.ndim > 1 and one.is_contiguous():
            alike.setdefault((one.dtype, one.shape[:-1] if columns else one.shape), []).append(number)
    for (dtype, _), numbers in alike.items():
        if len(numbers) < 2:
            continue
        several = [_exact(given[number]) for number in (reversed(numbers) if columns else numbers)]
        whole = torch.cat(several, -1) if columns else torch.stack(several, -2)
        if columns and whole.ndim > 2 and whole.shape[-2] % 2:
            whole = torch.cat([whole, whole[..., :1, :]], -2)[..., :-1, :]
        place, memory = 0, whole.untyped_storage()
        for number in reversed(numbers) if columns else numbers:
            strides = whole.stride() if columns else (*whole.stride()[:-2], whole.stride(-1))
            given[number] = torch.empty(0, dtype=dtype, device=whole.device).set_(
                memory, place, given[number].shape, strides
            )
            place += given[number].shape[-1]
    return given


def _extent(tensor, whole):
    """Return where the bytes of a tensor begin in its storage, and where they end, or those of the ``whole``
    storage."""
    if whole:
        return 0, tensor.untyped_storage().nbytes()
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.storage_offset() * tensor.itemsize
    return first, first + (last + 1) * tensor.itemsize


def _bytes_of(tensor):
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _exact(tensor):
    """Return a tensor of which a copy has the same bytes: on CUDA one of bools has bytes of 0 and 1 alone."""
    return tensor.detach().view(torch.uint8) if tensor.dtype is torch.bool else tensor.detach()


def _empty(like):
    return torch.empty(0, dtype=like.dtype, device=like.device)


LARGER = "in a storage larger than itself"
"""A trait of operands too, but judged only for results: what a user saves or keeps with such a result is more than it
shows."""


def traits(tensor):
    """Return the names of a tensor's traits: of inference mode, negated or conjugated lazily, a parameter, one that
    requires a gradient, or a part of a larger storage."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    found = {
        "an inference tensor": tensor.is_inference(),
        "negated lazily": tensor.is_neg(),
        "conjugated": tensor.is_conj(),
        "a parameter": type(tensor) is torch.nn.Parameter,
        "one that requires a gradient": tensor.requires_grad,
        LARGER: bool(tensor.numel()) and tensor.untyped_storage().nbytes() > (last + 1) * tensor.itemsize,
    }
    return [name for name, is_so in found.items() if is_so]


def undressed(form, operands, given, value):
    """Return the result of a call in a form, with the plain operands in place of those that it was given, and take the
    form out of their storages."""
    for operand, one in zip(operands, given, strict=True):
        if form == VIEWS and one._version != _part(operand)._version:
            # The counter is that of the tensor of which it is a view.
            torch.autograd.graph.increment_version(operand)
        if one.is_neg() and not operand.is_neg():
            _turn(operand)
        moved = one.untyped_storage()._cdata != operand.untyped_storage()._cdata and one.shape == operand.shape
        if moved and form in (COLUMNS, ROWS):
            # It lies otherwise, and its first element stands for any that was written.
            # Cloned, since a dim of one element may have any stride.
            words = (_exact(x).reshape(-1, 1).clone(memory_format=torch.contiguous_format) for x in (one, operand))
            if not torch.equal(*(x.view(torch.uint8) for x in words)):
                _bytes_of(operand)[operand.storage_offset() * operand.itemsize] ^= 1
        elif moved:
            # Copied back, so that a write to an operand that is only read shows.
            start = (one.storage_offset() - operand.storage_offset()) * one.itemsize
            first, last = _extent(operand, form != ADJACENT)
            _bytes_of(operand)[first:last] = _bytes_of(one)[start + first : start + last]
    results = [
        next((operand for operand, other in zip(operands, given, strict=True) if one is other), _plain(form, one))
        for one in (value if isinstance(value, tuple) else (value,))
    ]
    return tuple(results) if isinstance(value, tuple) else results[0]


def _plain(form, value):
    """Return a result without the traits of its form: what it knows of gradients, or its inference mode."""
    if type(value) is torch.Tensor and form in RECORDED and value.requires_grad:
        return value.detach()
    if type(value) is torch.Tensor and form in (INFERENCE, ENTIRE) and value.is_inference() and not value.is_neg():
        return _seen_anew(value)
    return value


def negated(tensor):
    """Return a lazily negated view of the tensor, with the elements of its storage negated; the tensor itself where
    several elements lie at one address, or the dtype has no negation."""
    strides = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0
    for stride, size in strides:
        if stride <= reach:
            return tensor
        reach += stride * (size - 1)
    if tensor.dtype == torch.bool or (tensor.is_floating_point() and tensor.itemsize == 1):
        return tensor
    _turn(tensor)
    return torch._neg_view(tensor)


def _turn(tensor):
    """Negate all elements, NaN too, without moving the version counter."""
    tensor = tensor.data
    if tensor.is_floating_point():
        word = _WORDS[tensor.itemsize]
        tensor.view(word).bitwise_xor_(torch.iinfo(word).min)
    else:
        tensor.neg_()
