"""Classify a case: the features that coverage counts, singly and in pairs.

A feature is written ``group=class``. A case has at most one feature of a group, except special values, of which several
may be planted, and broadcasting, with one for each two operands. Most groups follow from the arguments; an OpSpec names
others of its own (``OpSpec.features``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping

from conformance.cases import Argument, Case, DType, Ints, NonFinite, Same, Variant, View
from strategies import layouts, shapes
from strategies.specs import TensorSpec

Features = dict[str, tuple[str, ...]]
"""The classes of a case, by group."""

ORDINALS = ("1st", "2nd", "3rd", "4th", "5th")

RANKS = ("0", "1", "2", "3", "4", "5")
LAYOUTS = tuple(name for name in layouts.CLASSES if name != "channels_last")
SIZES = ("empty", "one", "to 64", "to 1024", "more")
"""Classes of the number of elements: none, one, within the smallest blocks, within one large block, over several of any
size."""
REACH = "reach"
REACHES = {"to 2^12": 2**12, "to 2^16": 2**16, "to 2^20": 2**20, "to 2^24": 2**24, "to 2^31": 2**31}
"""Classes of the elements of a large tensor, by the limit of a kernel or its grid that they reach. Counted, but not in
pairs: few cases are large."""
ROWS = ("1", "power", "power - 1", "power + 1", "other")
"""Classes of the last dim: on the edges of blocks, or not."""
VALUES = {
    "normal": "plain", "integers": "plain", "uniform": "plain", "positive": "plain", "unit": "plain", "ties": "plain",
    "zeros": "few", "constant": "few", "one_hot": "few", "level": "few", "flags": "few",
    "ascending": "ordered", "descending": "ordered",
    "normal_small": "scaled", "normal_large": "scaled", "large_mean": "scaled", "uneven": "scaled",
    "near_overflow": "extreme", "subnormal": "extreme", "every_exponent": "extreme",
    "normal_tiny": "scaled", "rising": "ordered", "steep": "ordered", "first_large": "scaled", "cancelling": "scaled",
    "powers": "scaled", "shifted": "scaled",
    "magnitudes": "plain", "bytes": "plain",
    "masked": "mask", "prefix": "mask", "late": "mask", "causal": "mask", "window": "mask", "slopes": "ordered",
    "partly_plain": "plain", "sure": "scaled",
    "halves": "repeated", "neighbours": "repeated",
}  # fmt: skip
"""The class of each recipe of values."""
SPECIALS = {
    "nan": "nan", "-nan": "nan", "snan": "nan", "full nan": "nan", "inf": "inf", "-inf": "inf", "-0": "tiny",
    "tiny": "tiny", "-tiny": "tiny", "max": "extreme", "min": "extreme", "masked out": "extreme",
}  # fmt: skip
"""The class of each special value that is planted; planted numbers have none."""

BROADCASTS = ("equal", *shapes.PATTERNS, "other")
"""The ways in which the shapes of two operands broadcast."""

FLAGS = ("inplace", "interleaved", "training")
"""Arguments that are switches; elsewhere a bool is a number."""


def of_arguments(case: Case) -> Features:
    """Return the features that follow from the arguments alone."""
    return of({**dict(zip(ORDINALS, case.args, strict=False)), **case.kwargs})


def of(arguments: Mapping[str, Argument]) -> Features:
    """Return the features of arguments by name; ``out`` is one group, since nothing is read of it."""
    found: Features = {}
    for name, argument in arguments.items():
        if name == "out":
            found["out"] = (_out(argument),)
            continue
        found[name] = (str(argument) if name in FLAGS else kind(argument),)
        if isinstance(argument, TensorSpec):
            found |= tensor(name, argument)
    return found


def elementwise(case: Case) -> Features:
    """Return the features of the arguments, and how their shapes broadcast."""
    return {**of_arguments(case), **broadcast(case)}


def broadcast(case: Case) -> Features:
    """Return how each two tensors among the operands broadcast; no feature where there are fewer, or they do not."""
    operands: list[Argument] = [*case.args, *(value for name, value in case.kwargs.items() if name != "out")]
    found: list[shapes.Shape] = []
    for one in operands:
        spec = case.args[0] if isinstance(one, Same) else one
        if isinstance(spec, TensorSpec):
            found.append(spec.shape)
    try:
        classes = {shapes.pattern_of(*pair) for pair in itertools.combinations(found, 2)}
    except ValueError:
        return {}
    return {"broadcast": tuple(one for one in BROADCASTS if one in classes)} if classes else {}


def names(found: Features) -> list[str]:
    """Return the features as they are written."""
    return [f"{group}={one}" for group, classes in found.items() for one in classes]


def kind(argument: Argument) -> str:
    """Return the kind of an argument: a tensor, a sort of number, or the word itself."""
    match argument:
        case TensorSpec():
            return "tensor"
        case Same() | View():
            return "same tensor"
        case NonFinite():
            return "not finite"
        case float() if not math.isfinite(argument):
            return "not finite"
        case bool():
            return "bool"
        case int() if argument < 0:
            return "negative int"
        case DType(name) | Variant(name):
            return name
        case tuple(sizes) | Ints(sizes):
            return f"{len(sizes)} dims"
        case str():
            return argument
    return type(argument).__name__


def tensor(name: str, spec: TensorSpec, without: Collection[str] = ()) -> Features:
    """Return the features of one operand; ``without``: those that follow from others."""
    elements = math.prod(spec.shape)
    found: Features = {
        f"{name} dtype": (spec.dtype,),
        f"{name} rank": (str(len(spec.shape)),),
        f"{name} size": (size(elements),),
        f"{name} layout": (layout(spec),),
    }
    if elements > 1024:
        found[f"{name} {REACH}"] = (reach(elements),)
    if elements and spec.shape:
        found[f"{name} row"] = (row(spec.shape[-1]),)
    if elements and spec.values in VALUES:
        found[f"{name} values"] = (VALUES[spec.values],)
        found[f"{name} specials"] = specials(spec)
    for what in without:
        found.pop(f"{name} {what}", None)
    return found


def layout(spec: TensorSpec) -> str:
    """Return the class of the layout; channels-last is one of the permuted."""
    found = layouts.layout_class(spec.layout, spec.shape)
    return "permuted" if found == "channels_last" else found


def specials(spec: TensorSpec) -> tuple[str, ...]:
    """Return the classes of the special values that are planted, or "none"."""
    return tuple(dict.fromkeys(SPECIALS[s.value] for s in spec.specials if s.value in SPECIALS)) or ("none",)


def size(elements: int) -> str:
    """Return the class of a number of elements."""
    if elements < 2:
        return SIZES[elements]
    return SIZES[2 if elements <= 64 else 3 if elements <= 1024 else 4]


def reach(elements: int) -> str:
    """Return the class of a large number of elements."""
    return next((name for name, most in REACHES.items() if elements <= most), "beyond 2^31")


def paired(feature: str) -> bool:
    """Tell whether coverage asks for pairs of a feature with all others."""
    return not feature.partition("=")[0].endswith(REACH)


def row(size: int) -> str:
    """Return the class of the size of a dim, at least 1."""
    if size == 1:
        return "1"
    for off, name in ((0, "power"), (1, "power - 1"), (-1, "power + 1")):
        if (size + off).bit_count() == 1:
            return name
    return "other"


def _out(argument: Argument) -> str:
    if not isinstance(argument, TensorSpec):
        return kind(argument)
    if math.prod(argument.shape) == 0:
        return "empty"
    return "contiguous" if layouts.layout_class(argument.layout, argument.shape) == "contiguous" else "strided"
