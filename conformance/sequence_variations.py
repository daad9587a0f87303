"""Variations of a call for sequences: each changes one thing that a cache may forget to look at."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import msgspec

from conformance import case_files, cases
from conformance.case_changes import (
    changed,
    each_filled,
    each_operand,
    is_listed,
    laid,
    named_arguments,
    with_layout,
    with_operand,
    with_size,
    with_sizes,
)
from conformance.cases import Argument, Case, DType, Variant
from conformance.sequences import reseeded
from conformance.spec import parameters, registry
from strategies.dtypes import is_floating
from strategies.specs import CONTIGUOUS, NORMAL, Layout, Special, TensorSpec
from strategies.values import LISTED

WIDE = 1 << 14
"""The most elements of the operands of a large call, for what is only kept of long rows, large weights and many
tokens."""
NUMBERS = ("other", "exponent", "min", "max", "alpha", "beta", "eps", "scale", "p")
"""Parameters that take numbers: True, 1 and 1.0 are one key of a dict, but not the same to torch."""
SWITCHES = ("interleaved", "training", "is_causal")
WORDS = {
    "rounding_mode": ("floor", "trunc"),
    "approximate": ("none", "tanh"),
    "activation": ("silu", "gelu"),
    "granularity": ("row", "block"),
    "causal_variant": (Variant("UPPER_LEFT"), Variant("LOWER_RIGHT")),
    "dtype": (DType("float32"), DType("float16"), DType("float8_e5m2"), DType("float8_e4m3fn")),
    "out_dtype": (DType("float16"), DType("bfloat16")),
}
OF_WORDS = {"gelu": ("approximate",), "fused_gated_mlp": ("activation",)}
"""For each operator, the arguments that default to the first of their words."""
OPTIONAL = (*WORDS, "alpha", "beta", "eps", "scale", "p", "dtype")
"""Arguments that a call can do without."""

Variation = Callable[[Case, int], Case]
"""A function that makes another case; the int chooses among several."""


def vary(variation: Variation, case: Case, number: int) -> Case:
    """Return a variation of a case; the case itself where there is none."""
    try:
        varied = registry()[case.op].defined(variation(case, number))
        case_files.validate(varied, max_elements=8 * WIDE)
        if not cases.operands(varied):
            return case
    # An impossible recipe or layout, or no case.
    except ValueError:
        return case
    return varied


# --- variations ----------------------------------------------------------------------------------------------------


def same(case: Case, number: int) -> Case:
    """Change nothing."""
    return case


def contents(case: Case, number: int) -> Case:
    """Give the operands other contents."""
    by = 1 + number % 3
    return each_operand(reseeded(case, by), lambda spec: _earlier(spec, by) if is_listed(spec) else spec)


def _earlier(spec: TensorSpec, by: int) -> TensorSpec:
    """Lower listed whole numbers by so many, to 0 at the least."""
    numbers = spec.values.removeprefix(LISTED).split(",")
    if is_floating(spec.dtype) or not all(number.isdecimal() for number in numbers):
        return spec
    return msgspec.structs.replace(spec, values=LISTED + ",".join(str(max(int(number) - by, 0)) for number in numbers))


def one(case: Case, number: int) -> Case:
    """Give one operand other contents."""
    return with_operand(case, number, lambda spec: msgspec.structs.replace(spec, seed=(spec.seed + 1) % 2**64))


def dtype(case: Case, number: int) -> Case:
    """Put another dtype in the place of the first operand's, wherever it occurs."""
    known = [one for one in registry()[case.op].dtypes if one != cases.dtype_of(case)]
    if not known:
        return case
    was, wanted = cases.dtype_of(case), known[number % len(known)]

    def other(spec: TensorSpec) -> TensorSpec:
        if spec.dtype != was:
            return spec
        try:
            return msgspec.structs.replace(spec, dtype=wanted)
        except ValueError:
            return msgspec.structs.replace(spec, dtype=wanted, values=NORMAL, specials=())

    return each_operand(case, other)


def offset(case: Case, number: int) -> Case:
    """Let one operand begin one element later in its storage, which aligns it to less."""
    return with_operand(case, number, lambda spec: laid(spec, offset=spec.layout.offset + 1))


def order(case: Case, number: int) -> Case:
    """Store the dims of one operand in reverse."""
    return with_operand(
        case, number, lambda spec: with_layout(spec, Layout(order=tuple(reversed(range(len(spec.shape))))))
    )


def steps(case: Case, number: int) -> Case:
    """Make one operand every other element of a larger one."""
    return with_operand(case, number, lambda spec: with_layout(spec, Layout(steps=(1,) * (len(spec.shape) - 1) + (2,))))


def contiguous(case: Case, number: int) -> Case:
    """Make all operands contiguous."""
    return each_operand(case, lambda spec: with_layout(spec, CONTIGUOUS))


TWINS = (1, 1.0, True, 0.0, -0.0, 0, -1, -2, 1, 1.0, -1.0, False)
"""Numbers of which several are equal, or have one hash."""


def twin(case: Case, number: int) -> Case:
    """Put one of ``TWINS`` where a number may stand, in the place of a number or of a tensor."""
    name = _added(case, number)
    if name:
        return msgspec.structs.replace(case, kwargs={**case.kwargs, name: TWINS[number]})
    return changed(case, lambda name, value: TWINS[number] if name in NUMBERS and value is not None else value)


def _added(case: Case, number: int) -> str:
    """Return the name of a number that the op takes by name; empty where it has none."""
    names = {"add": ("alpha",), "sub": ("alpha",), "addmm": ("alpha", "beta")}.get(case.op, ())
    return names[number % len(names)] if names and number % 3 else ""


def word(case: Case, number: int) -> Case:
    """Choose another word, or the other position of a switch."""

    def other(name: str, value: Argument) -> Argument:
        if name in SWITCHES and isinstance(value, bool):
            return not value
        words = WORDS.get(name, ())
        return words[(words.index(value) + 1) % len(words)] if value in words else value

    for name in OF_WORDS.get(case.op, ()):
        if name not in case.kwargs and parameters(case.op).index(name) >= len(case.args):
            case = msgspec.structs.replace(case, kwargs={**case.kwargs, name: WORDS[name][0]})
    return changed(case, other)


def causal(case: Case, number: int) -> Case:
    """Drop mask and scale, and make the call causal in each of two ways, in turn; only of ops that have a switch for
    it."""
    if "is_causal" not in parameters(case.op) or "present_key" in case.kwargs:
        return case
    kwargs = {name: value for name, value in case.kwargs.items() if name not in ("attn_mask", "scale")}
    kwargs |= {"is_causal": True, "causal_variant": WORDS["causal_variant"][number % 2]}
    return msgspec.structs.replace(case, kwargs=kwargs, digests=())


CACHED = 8
"""The rows of a KV cache to which some are appended."""


def decoding(case: Case, number: int) -> Case:
    """Append one row to a KV cache, behind as many as the number says; only of ops that have one, given as positions,
    and calls without one."""
    if "present_key_slot" not in parameters(case.op) or "present_key" in named_arguments(case):
        return case
    operands = [one for one in case.args[:3] if isinstance(one, TensorSpec) and len(one.shape) > 2]
    shapes = [one.shape for one in operands]
    # The batches of a cache are not broadcast.
    if len(shapes) < 3 or len({shape[:-3] for shape in shapes}) > 1 or shapes[1][:-1] != shapes[2][:-1]:
        return case

    def rows(spec: TensorSpec, count: int) -> TensorSpec:
        return with_layout(msgspec.structs.replace(spec, shape=(*spec.shape[:-2], count, spec.shape[-1])), CONTIGUOUS)

    slot, caches = number % CACHED, [rows(one, CACHED) for one in operands[1:]]
    kwargs = {name: value for name, value in case.kwargs.items() if name in ("scale", "enable_gqa")}
    kwargs |= {"present_key": caches[0], "present_value": caches[1]}
    kwargs |= {"present_key_slot": slot, "present_value_slot": slot}
    args = tuple(rows(one, 1) for one in operands)
    return reseeded(msgspec.structs.replace(case, args=args, kwargs=kwargs, digests=()), number)


def dim(case: Case, number: int) -> Case:
    """Choose another dim, or normalize one dim more or less, then without parameters of their shape."""
    known = parameters(case.op)
    if not case.args or not isinstance(case.args[0], TensorSpec) or len(case.args[0].shape) < 2:
        return case
    shape, names = case.args[0].shape, known[: len(case.args)]
    if "normalized_shape" in names and isinstance(old := case.args[1], tuple | int):
        dims = len(old) % len(shape) + 1 if isinstance(old, tuple) else 2
        kwargs = {name: value for name, value in case.kwargs.items() if not isinstance(value, TensorSpec)}
        return msgspec.structs.replace(case, args=(case.args[0], shape[-dims:]), kwargs=kwargs, digests=())

    def other(name: str, value: Argument) -> Argument:
        return (value + 1) % len(shape) if name == "dim" and type(value) is int else value

    return changed(case, other)


def from_end(case: Case, number: int) -> Case:
    """Choose the last dim or the one before it, counted from the end: Python's hash of -1 is that of -2."""
    if not case.args or not isinstance(case.args[0], TensorSpec) or len(case.args[0].shape) < 2:
        return case
    return changed(case, lambda name, value: -1 - number % 2 if name == "dim" and type(value) is int else value)


def sibling(case: Case, number: int) -> Case:
    """Choose another operator that takes arguments of the same names, on the same operands, without what is
    optional."""
    wanted = parameters(case.op, required=True)
    known = [op for op in registry() if op != case.op and parameters(op, required=True) == wanted]
    if not known or len(case.args) < len(wanted):
        return case
    return msgspec.structs.replace(case, op=known[number % len(known)], args=case.args[: len(wanted)], kwargs={})


def without(case: Case, number: int) -> Case:
    """Leave out an optional argument."""
    known = [name for name in case.kwargs if name in OPTIONAL]
    if not known:
        return case
    left = known[number % len(known)]
    return msgspec.structs.replace(case, kwargs={name: v for name, v in case.kwargs.items() if name != left})


def larger(case: Case, number: int) -> Case:
    """Give the batch another size: one, one less, one more, twice as many."""
    batch = registry()[case.op].batch(case)
    return case if batch is None else in_batch(case, (1, batch.size - 1, batch.size + 1, 2 * batch.size)[number % 4])


def fresh(case: Case, number: int) -> Case:
    """Draw ordinary numbers, of float32 where floats are drawn, in a batch of a size that no other variation has."""
    batch, known = registry()[case.op].batch(case), registry()[case.op].dtypes
    case = plain(case if batch is None else in_batch(case, (2 + number % 2) * batch.size + 3), number)
    if is_floating(cases.dtype_of(case)) and cases.dtype_of(case) != "float32" and "float32" in known:
        others = [name for name in known if name != cases.dtype_of(case)]
        case = dtype(case, others.index("float32"))
    return case


def fresh_size(case: Case, number: int) -> Case:
    """Give the batch, or where there is none the largest size, a size that no other variation has."""
    batch, specs = registry()[case.op].batch(case), cases.operands(case)
    if batch is not None:
        return in_batch(case, 4 * batch.size + 16 + number)
    largest = max((size for spec in specs for size in spec.shape), default=0)
    return case if any(map(is_listed, specs)) else with_size(case, largest, 4 * largest + 16 + number)


def in_batch(case: Case, size: int) -> Case:
    """Give the batch, which the case has, another size."""
    batch = registry()[case.op].batch(case)
    assert batch is not None
    along = iter(batch.operands)

    def other(spec: TensorSpec) -> TensorSpec:
        dim = next(along, None)
        if dim is None:
            return spec
        return msgspec.structs.replace(spec, shape=(*spec.shape[:dim], size, *spec.shape[dim + 1 :]))

    return each_operand(case, other)


def resized(case: Case, number: int) -> Case:
    """Give one of the sizes another value, wherever operands have it: one more, half of it, or one more than twice."""
    specs = cases.operands(case)
    known = sorted({size for spec in specs for size in spec.shape if size > 1}, reverse=True)
    if not known or any(map(is_listed, specs)):
        return case
    was = known[number % len(known)]
    return with_size(case, was, (was + 1, 2 * was + 1, max(was // 2, 1))[number // len(known) % 3])


def equal(case: Case, number: int) -> Case:
    """Make one of two sizes the other, smaller one, wherever operands have it, or all the smallest one: dims are often
    mixed up only where they are equal."""
    specs = cases.operands(case)
    sizes = sorted({size for spec in specs for size in spec.shape if size > 1}, reverse=True)
    pairs = [*itertools.combinations(sizes, 2)]
    if not pairs or any(map(is_listed, specs)):
        return case
    if number % 2:
        return functools.reduce(lambda one, size: with_size(one, size, sizes[-1]), sizes[:-1], case)
    return with_size(case, *pairs[number // 2 % len(pairs)])


def regrouped(case: Case, number: int) -> Case:
    """Exchange two neighbouring sizes of the first operand, or double one and halve the other, wherever they are."""
    specs = cases.operands(case)
    pairs = [pair for pair in itertools.pairwise(specs[0].shape) if len({*pair}) == 2] if specs else []
    if not pairs or any(map(is_listed, specs)):
        return case
    first, second = pairs[number // 2 % len(pairs)]
    if number % 2 or (first % 2 and second % 2):
        return with_sizes(case, {first: second, second: first})
    halved, doubled = (second, first) if second % 2 == 0 else (first, second)
    return with_sizes(case, {halved: halved // 2, doubled: 2 * doubled})


def turned(case: Case, number: int) -> Case:
    """Reverse all shapes: as many elements, in as many dims."""
    return each_operand(
        case, lambda spec: with_layout(msgspec.structs.replace(spec, shape=spec.shape[::-1]), CONTIGUOUS)
    )


def flat(case: Case, number: int) -> Case:
    """Flatten all operands to one dim: as many elements."""
    return each_operand(
        case, lambda spec: msgspec.structs.replace(spec, shape=(math.prod(spec.shape),), layout=CONTIGUOUS)
    )


def plain(case: Case, number: int) -> Case:
    """Draw ordinary numbers, without special values."""
    return each_filled(case, lambda spec: msgspec.structs.replace(spec, values=NORMAL, specials=()))


def whole(case: Case, number: int) -> Case:
    """Draw small whole numbers: others are sure to change a result, and now and then two are equal."""
    return each_filled(case, lambda spec: msgspec.structs.replace(spec, values="integers", specials=()))


def zeros(case: Case, number: int) -> Case:
    """Fill operands with zeros, whose bits are those of other dtypes."""
    return each_filled(case, lambda spec: msgspec.structs.replace(spec, values="zeros", specials=()))


def negative_zeros(case: Case, number: int) -> Case:
    """Fill operands with negative zeros, which are equal to ``zeros``."""
    return each_filled(zeros(case, number), lambda spec: _filled(spec, "-0") if is_floating(spec.dtype) else spec)


def _filled(spec: TensorSpec, value: str) -> TensorSpec:
    return msgspec.structs.replace(spec, specials=(Special(0, value, 1),))


CLOSE = (0.7, 0.7000004, 0.70000000000004)
"""Numbers that a text of six digits, or float32, does not tell apart."""


def close(case: Case, number: int) -> Case:
    """Put one of ``CLOSE`` where a number may stand, as ``twin`` does, in the second half of calls by name."""
    value, name = CLOSE[number % len(CLOSE)], _added(case, 1)
    if name and number >= len(CLOSE):
        return msgspec.structs.replace(case, kwargs={**case.kwargs, name: value})
    return changed(case, lambda name, old: value if name in NUMBERS and old is not None else old)


def one_hot(case: Case, number: int) -> Case:
    """Fill operands with zeros but for a one, somewhere: contents of one sum."""
    return each_filled(case, lambda spec: msgspec.structs.replace(spec, values="one_hot", specials=(), seed=number))


def tail(case: Case, number: int) -> Case:
    """Change the last element of each operand."""

    def other(spec: TensorSpec) -> TensorSpec:
        last = Special(max(math.prod(spec.shape) - 1, 0), ("max", "min")[number % 2])
        return msgspec.structs.replace(spec, specials=(*spec.specials[:2], last))

    return each_operand(case, other)


VARIATIONS: dict[str, Variation] = {
    variation.__name__: variation
    for variation in (same, contents, one, dtype, offset, order, steps, contiguous, twin, word, without)
}
VARIATIONS |= {
    variation.__name__: variation
    for variation in (larger, resized, turned, flat, plain, whole, zeros, one_hot, tail, dim, causal, sibling, fresh)
}
VARIATIONS |= {
    variation.__name__: variation for variation in (negative_zeros, close, equal, decoding, from_end, regrouped)
}
