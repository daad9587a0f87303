"""``torch.nn.functional.cross_entropy``: of logits, and classes by index or by probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import call_contexts, features
from conformance.cases import Argument, Case, seed
from conformance.features import Features
from conformance.ops import _cross_entropy as oracle
from conformance.ops import _elementwise as elementwise
from conformance.ops import _images, _labels, _sizes, _words
from conformance.ops import _norms as norms
from conformance.ops._special_rows import MASKED
from conformance.spec import Batch, Benchmark, OpSpec
from strategies import dtypes as dtype_names
from strategies import layouts, models, shapes, tensors
from strategies.shapes import Shape
from strategies.specs import Special, TensorSpec
from strategies.values import LISTED

REDUCTIONS = ("mean", "sum", "none")
SMOOTHINGS = (0.1, 0.25, 1.0, 0.0, 0.1, -0.5, 1)
"""A smoothing below 0 is none."""
WEIGHTS = ("positive", "unit", "normal")
_LONGEST, _BYTES = 8, 256
"""The class indices of a list, which a target repeats; the numbers that a byte holds."""
_FEW_ROWS, _BANNED = 32, 3
"""The most rows of which each has classes of its own that are -inf, and the most of these."""
_FEW_SEQUENCES = (1, 2, 3)
"""Rows of a vocabulary, or images, of a large call."""
_FEWER = st.sampled_from((True, *(False,) * 7))
"""Draws whether a row has fewer classes than a vocabulary: they are the simplest draw, to which failures shrink."""


# --- legal calls -------------------------------------------------------------------------------------------------


@st.composite
def _no_weights(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """A batch of classes of which each has the weight 0: a mean of nothing."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in dtype_names.FLOATING]))
    rows, classes = draw(st.integers(1, 9)), draw(st.integers(2, 30))
    target, ignored = draw(indices((rows,), classes))
    kwargs = {"weight": TensorSpec((classes,), dtype, "zeros"), "ignore_index": ignored}
    kwargs["reduction"] = draw(st.sampled_from((None, "sum", "none")))
    if target.dtype != "uint8":
        kwargs["label_smoothing"] = draw(st.sampled_from((None, *SMOOTHINGS)))
    return elementwise.case("cross_entropy", (draw(tensors.tensors((rows, classes), dtype)), target), **kwargs)


@st.composite
def _wide(draw: st.DrawFn, half: str) -> Case:
    rows, classes = draw(st.integers(1, 9)), draw(st.integers(2, 300))
    target = draw(tensors.tensors((rows, classes), "float32", values=("unit", "positive"), specials=()))
    input = draw(tensors.tensors((rows, classes), half, specials=()))
    kwargs = {"reduction": draw(st.sampled_from((None, *REDUCTIONS)))}
    kwargs["label_smoothing"] = draw(st.sampled_from((None, *SMOOTHINGS)))
    return elementwise.case("cross_entropy", (input, target), **kwargs)


def _wide_probabilities(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    """Logits of half types, and probabilities in float32, as mixed precision leaves them."""
    halves = [name for name in dtypes if name in dtype_names.HALF]
    return _wide(halves[0]) if halves and "float32" in dtypes else st.nothing()


@st.composite
def _ruled_out(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """Classes of the probability 0 whose logits are -inf: torch multiplies the two, which gives NaN."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in dtype_names.FLOATING]))
    rows, classes = draw(st.integers(2, 9)), draw(st.integers(2, 30))
    place, several = draw(st.integers(0, rows * classes - 1)), draw(st.integers(1, 2))
    ruled_out = Special(place, "-inf", several)
    input = TensorSpec((rows, classes), dtype, "normal", draw(tensors.SEEDS), specials=(ruled_out,))
    target = TensorSpec((rows, classes), dtype, "positive", draw(tensors.SEEDS), specials=(Special(place, "0"),))
    smoothing = draw(st.sampled_from((None, 0.1)))
    return elementwise.case("cross_entropy", (input, target), reduction="none", label_smoothing=smoothing)


@st.composite
def _segmented(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """The pixels of images, the words of a conversation, or rows of labels of 8 bits, each of a class."""
    pairs = draw(st.sampled_from((_images.labelled, _labels.prompted, _labels.of_bytes)))
    pair = draw(pairs(draw(dtype_names.dtypes([one for one in dtypes if one in dtype_names.FLOATING]))))
    return elementwise.case("cross_entropy", pair, reduction=draw(st.sampled_from((None, *REDUCTIONS))))


@st.composite
def _first_words_banned(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """Rows of a vocabulary of which the first words, a tile of them or several, may not be said."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in dtype_names.FLOATING]))
    banned = MASKED[0] if dtype == "float64" else draw(st.sampled_from(MASKED))
    rows = 1 if dtype == "float64" else draw(st.integers(1, 3))
    classes = banned + draw(st.integers(2, 300))
    words = [draw(st.integers(banned, classes - 1)) for _ in range(rows)]
    mask = Special(draw(st.integers(0, rows - 1)) * classes, "-inf", banned)
    input = TensorSpec((rows, classes), dtype, "normal", draw(tensors.SEEDS), specials=(mask,))
    reduction = draw(st.sampled_from((None, *REDUCTIONS, "none")))
    return elementwise.case("cross_entropy", (input, TensorSpec((rows,), "int64", listed(words))), reduction=reduction)


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in dtype_names.FLOATING]))
    shape = draw(_large_shapes(dtype == "float64", elements) if elements else _shapes(dtype == "float64"))
    input = draw(tensors.tensors(shape, dtype))
    if (recipe := draw(norms.RECIPES)) is not None:
        input = TensorSpec(shape, dtype, recipe, input.seed, input.layout)
    classes = shape[min(len(shape) - 1, 1)]
    kwargs: dict[str, Argument] = {}
    if draw(st.integers(0, 3)) == 3:
        target, is_index = draw(tensors.tensors(shape, dtype, values=("unit", "positive", "one_hot", "flags"))), False
        kwargs["ignore_index"] = draw(st.sampled_from((None, None, None, -1)))
    else:
        target, kwargs["ignore_index"] = draw(indices(_rows(shape), classes))
        is_index = True
    if draw(st.integers(0, 2)):
        kwargs["weight"] = weight = draw(tensors.tensors((classes,), dtype, values=WEIGHTS, specials=()))
        if weight.seed % 4 == 0 and classes > 1:
            # Classes that do not count, though label smoothing gives their rows losses of others.
            kwargs["weight"] = replace(weight, specials=(Special(0, "0", classes // 2),))
    smoothing = draw(st.one_of(st.none(), st.sampled_from(SMOOTHINGS)))
    if is_index and target.dtype == "uint8" and "weight" in kwargs:
        # torch's mean of these takes no uint8.
        smoothing = None
    kwargs["label_smoothing"] = smoothing
    if draw(st.integers(0, 5)) == 5:
        kwargs |= {name: draw(st.sampled_from((None, True, False))) for name in ("size_average", "reduce")}
    else:
        kwargs["reduction"] = draw(st.sampled_from((None, *REDUCTIONS, "none")))
    if oracle.reduction(oracle.named((), {name: one for name, one in kwargs.items() if one is not None})) != "none":
        # One loss that is not finite hides all others.
        keeps = draw(st.integers(0, 3)) == 3
        input, target = (one if keeps else replace(one, specials=()) for one in (input, target))
    if is_index and len(shape) == 2 and shape[0] <= _FEW_ROWS and draw(st.booleans()):
        input = draw(_banned(input, target))
    return elementwise.case("cross_entropy", (input, target), **kwargs)


@st.composite
def _banned(draw: st.DrawFn, input: TensorSpec, target: TensorSpec) -> TensorSpec:
    """The logits with -inf for a few classes of each row that are no target, as models have it for words that they may
    not say."""
    rows, classes = input.shape
    targets = {int(number) for number in target.values.removeprefix(LISTED).split(",")}
    first = draw(st.sampled_from((0, classes - 1, classes // 2, classes // 3)))
    run = next((n for n, place in enumerate(range(first, min(first + _BANNED, classes))) if place in targets), _BANNED)
    run = min(run, classes - first)
    specials = tuple(Special(row * classes + first, "-inf", run) for row in range(rows)) if run else ()
    return replace(input, specials=specials)


@cache
def _shapes(small: bool) -> st.SearchStrategy[Shape]:
    """Rows, long ones too; a single row; classes of pixels."""
    budget = _sizes.FLOAT64_ELEMENTS if small else _sizes.ELEMENTS
    rows = shapes.reductions(min_size=1, max_rows=_sizes.ROWS, max_columns=_sizes.COLUMNS, budget=budget)
    row = shapes.shapes(1, 1, min_size=1, budget=budget)
    ranks = st.sampled_from((4, 3, 5))
    pixels = ranks.flatmap(lambda rank: shapes.shapes(rank, rank, min_size=1, budget=budget))
    # Of which each dim shows.
    images = ranks.flatmap(lambda rank: shapes.shapes(rank, rank, min_size=2, max_size=40, budget=budget))
    empty = st.sampled_from(((0, 5), (2, 3, 0), (0, 3, 2, 2)))
    # More rows than are added up at once, and rows that are walked tile by tile.
    many = st.sampled_from(((17000, 2), (2, 3, 8500)))
    long = st.tuples(st.integers(1, 2), st.sampled_from(_sizes.LONG_COLUMNS))
    found = (rows, rows, rows, rows, row, row, pixels, pixels, images, images, empty, *(() if small else (long, many)))
    return st.integers(0, len(found) - 1).flatmap(found.__getitem__)


@st.composite
def _large_shapes(draw: st.DrawFn, small: bool, elements: int) -> Shape:
    """Few rows of a vocabulary, or many rows or pixels of few classes; of float64, which is dear, a long row or two."""
    kind = draw(st.sampled_from((*("vocabulary",) * 4, "rows", "pixels", "pixels")))
    if small:
        rows = draw(st.integers(1, 2))
        return rows, draw(shapes.near(min(elements, _sizes.FLOAT64_ROWS) // rows))
    if kind == "vocabulary":
        classes = draw(st.sampled_from([size for size in models.VOCABULARIES if size <= elements] or [elements]))
        # Losses are judged whole.
        most = min(elements, _sizes.WHOLE // 2) // classes
        rows = draw(st.sampled_from([rows for rows in _FEW_SEQUENCES if rows <= most] or [1]))
        return rows, draw(st.integers(1, classes)) if draw(_FEWER) else classes
    classes = draw(st.integers(2, 8))
    rows = draw(shapes.near(min(elements, _sizes.LARGE_LOSSES) // classes))
    return (rows, classes) if kind == "rows" else (draw(st.sampled_from(_FEW_SEQUENCES)), classes, rows)


def _rows(shape: Shape) -> Shape:
    return () if len(shape) == 1 else (shape[0], *shape[2:])


@st.composite
def indices(draw: st.DrawFn, shape: Shape, classes: int, least: int = 1) -> tuple[TensorSpec, int | None]:
    """At least so many class indices, which are repeated; the index that is ignored, if it is not the default."""
    ignored = draw(st.sampled_from((None, None, None, -1, 0, classes - 1, classes, 255)))
    left_out = -100 if ignored is None else ignored
    is_short = left_out >= 0 and max(left_out, classes) < _BYTES and len(shape) < 2
    dtype = "uint8" if is_short and draw(st.booleans()) else "int64"
    one = st.integers(0, classes - 1)
    number = st.one_of(one, one, st.sampled_from((0, classes - 1, classes // 2)), st.just(left_out))
    kind = draw(st.sampled_from(("some", "some", "some", "some", "all")))
    numbers = [left_out] if kind == "all" else draw(st.lists(number, min_size=least, max_size=_LONGEST))
    layout, seed = layouts.draw_layout(draw, shape, layouts.CLASSES), draw(tensors.SEEDS)
    # torch takes bytes for one dim of indices: of many classes they name the first ones.
    if len(shape) < 2 and seed % 4 == 0 and min(numbers) >= 0:
        dtype, numbers = "uint8", [number % _BYTES for number in numbers]
    return TensorSpec(shape, dtype, listed(numbers), seed, layout), ignored


def with_classes(case: Case, target: Argument, classes: int, ignored: int | None) -> Case:
    """The case; where its target lists an index that is no class and not ignored, with a class: such a one stops a
    GPU for good."""
    if not isinstance(target, TensorSpec) or not target.values.startswith(LISTED) or not classes:
        return case
    left_out = -100 if ignored is None else ignored
    numbers = [int(number) for number in target.values.removeprefix(LISTED).split(",")]
    legal = [number if number == left_out else number % classes for number in numbers]
    changed = replace(target, values=listed(legal), specials=())
    args = tuple(changed if one is target else one for one in case.args)
    kwargs = {name: changed if one is target else one for name, one in case.kwargs.items()}
    return case if changed == target else replace(case, args=args, kwargs=kwargs, digests=())


def defined(case: Case) -> Case:
    """The case, with indices of classes."""
    given = oracle.named(case.args, case.kwargs)
    shape = elementwise.meta(given["input"], oracle.operands(case)).shape
    return with_classes(case, given["target"], shape[min(len(shape) - 1, 1)] if shape else 0, given["ignore_index"])


def listed(numbers: Sequence[int]) -> str:
    return LISTED + ",".join(map(str, numbers))


# --- refused calls -----------------------------------------------------------------------------------------------


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    floats = [name for name in dtypes if name in dtype_names.FLOATING]
    dtype = draw(dtype_names.dtypes(floats))
    input = draw(tensors.tensors((3, 5), dtype))
    target = TensorSpec((3,), "int64", listed((4, 0, 2)))
    args: tuple[Argument, ...] = (input, target)
    kwargs: dict[str, Argument] = {}
    kinds = ("weight", "weight dtype", "target", "target dtype", "pixels", "probabilities", "ignored", "whole", "none")
    kinds = kinds if oracle.other_indices(dtype) else tuple(kind for kind in kinds if kind != "target dtype")
    match draw(st.sampled_from((*kinds, "reduction", "smoothing", "types", "numbers"))):
        case "weight":
            wrong = draw(st.sampled_from(((4,), (), (1, 5), (3, 5))))
            args = (input, draw(st.sampled_from((target, TensorSpec((3, 5), dtype, "unit")))))
            kwargs["weight"] = TensorSpec(wrong, dtype, "positive")
        case "weight dtype":
            other = draw(dtype_names.dtypes([name for name in dtype_names.FLOATING if name != dtype]))
            kwargs["weight"] = TensorSpec((5,), draw(st.sampled_from((other, "int64"))))
        case "target":
            wrong = draw(st.sampled_from(((2,), (4,), (), (3, 1), (1, 3), (3, 5, 1))))
            args = (input, TensorSpec(wrong, "int64", listed((1,))))
        case "target dtype":
            args = (input, TensorSpec((3,), draw(st.sampled_from(oracle.other_indices(dtype))), "zeros"))
        case "pixels":
            wrong = draw(st.sampled_from(((2,), (2, 3), (3, 4), (2, 4, 1), (2, 1))))
            args = (TensorSpec((2, 5, 4), dtype), TensorSpec(wrong, "int64", listed((1,))))
        case "probabilities":
            args = (input, TensorSpec((3, 5), draw(st.sampled_from(("int64", "bool"))), "zeros"))
        case "ignored":
            args, kwargs["ignore_index"] = (input, TensorSpec((3, 5), dtype, "unit")), draw(st.integers(0, 5))
        case "whole":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            args = (TensorSpec((3, 5), whole), target)
        case "none":
            args = (TensorSpec((), dtype), target)
        case "reduction":
            kwargs["reduction"] = draw(_words.wrong(("none", "mean", "sum"), ("avg", 1)))
        case "smoothing":
            kwargs["label_smoothing"] = draw(st.sampled_from((1.5, 2, 100.0)))
        case "types":
            place, wrong_type = draw(st.integers(0, 2)), draw(st.sampled_from((2, 1.5, "x", (1, 2))))
            args = (*args[:place], wrong_type, *args[place + 1 :])
        case "numbers":
            name = draw(st.sampled_from(("ignore_index", "label_smoothing")))
            wrongs = (1.0, True, "x", (1,)) if name == "ignore_index" else ("x", (1, 2))
            kwargs[name] = draw(st.sampled_from(wrongs))
    return Case(op="cross_entropy", args=args, kwargs=kwargs)


# --- what follows from a call ------------------------------------------------------------------------------------


def takes(case: Case) -> bool:
    """Tell whether class indices are those that were drawn: of others torch's GPU stops the process. torch warns of
    deprecated arguments, so that warnings are no errors then."""
    if case.form == call_contexts.STRICT and {"size_average", "reduce"} & {*case.kwargs}:
        return False
    return are_drawn(case.args[1])


def are_drawn(target: Argument) -> bool:
    """Tell whether targets are probabilities, or those class indices that were drawn."""
    if not isinstance(target, TensorSpec) or dtype_names.is_floating(target.dtype):
        return True
    return target.values.startswith(LISTED) and not target.specials


def constants(case: Case) -> tuple[int, ...]:
    """The weight of class indices."""
    target = case.args[1]
    return (2,) if isinstance(target, TensorSpec) and not dtype_names.is_floating(target.dtype) else ()


def batch(case: Case) -> Batch | None:
    """Any dim of the losses of rows."""
    given = oracle.named(case.args, case.kwargs)
    input, target = given["input"], given["target"]
    if oracle.reduction(given) != "none" or len(input.shape) == 1:
        return None
    rows = _rows(input.shape)
    dim = elementwise.chosen(seed(case), [dim for dim, size in enumerate(rows) if size > 1])
    if dim is None:
        return None
    own = dim + (dim > 0)
    others = [None] * (len(oracle.operands(case)) - 2)
    return Batch(rows[dim], (own, own if target.shape == input.shape else dim, *others), dim)


def features_of(case: Case) -> Features:
    """The arguments, by name, and the features of the targets."""
    given = oracle.named(case.args, case.kwargs)
    found = features_of_targets(given) | {"reduction": (oracle.reduction(given),)}
    legacy = given["size_average"] is not None or given["reduce"] is not None
    found["legacy arguments"] = ("given" if legacy else "none",)
    if isinstance(given["input"], TensorSpec):
        found |= features.tensor("input", given["input"])
    return found


def features_of_targets(given: Mapping[str, Any]) -> Features:
    """The kind of targets, the share of those that are ignored, the weight and the smoothing, of arguments by name."""
    target, weight, smoothing = given["target"], given["weight"], given["label_smoothing"]
    found: Features = {"weight": (features.kind(weight),)}
    found["smoothing"] = ("none" if not smoothing > 0 else "all" if smoothing == 1 else "some",)
    if isinstance(weight, TensorSpec):
        found["weight strides"] = _strides(weight)
    if isinstance(target, TensorSpec):
        is_index = not dtype_names.is_floating(target.dtype)
        found["target"] = ("classes" if is_index else "probabilities",)
        found["target strides"] = _strides(target)
        if is_index and target.values.startswith(LISTED):
            numbers = [int(number) for number in target.values.removeprefix(LISTED).split(",")]
            ignored = -100 if given["ignore_index"] is None else given["ignore_index"]
            left_out = [number == ignored for number in numbers]
            found["ignored"] = ("all" if all(left_out) else "some" if any(left_out) else "none",)
    return found


def _strides(spec: TensorSpec) -> tuple[str]:
    """Return the class of the strides by which a kernel reads single elements."""
    return ("contiguous" if features.layout(spec) == "contiguous" else "others",)


def benchmark_targets(rows: int, classes: int) -> TensorSpec:
    """Class indices all over the classes."""
    numbers = [(7919 * place) % classes for place in range(64)]
    return TensorSpec((rows,), "int64", listed(numbers))


def _benchmark(rows: int, classes: int) -> Benchmark:
    args = (TensorSpec((rows, classes), "bfloat16"), benchmark_targets(rows, classes))
    case = Case(op="cross_entropy", args=args)
    # Of each logit a comparison, a subtraction, an exponential and an addition.
    return Benchmark(case, bytes=2 * rows * classes + 8 * rows, flops=4 * rows * classes)


SPEC = OpSpec(
    name="cross_entropy",
    reference=torch.nn.functional.cross_entropy,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, elements),
    scenes=_first_words_banned,
    apart=(_no_weights, _wide_probabilities, _ruled_out, _segmented, _labels.many_words),
    refused=refused,
    dtypes=dtype_names.FLOATING,
    defined=defined,
    takes=takes,
    constants=constants,
    batch=batch,
    features=features_of,
    expected=oracle.expected,
    gradients=oracle.gradient,
    trained=(0,),
    benchmarks=tuple(_benchmark(*shape) for shape in ((8192, 32000), (8192, 152064), (1, 4096))),
)
