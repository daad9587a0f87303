"""``torch.nn.functional.linear_cross_entropy(input, linear_weight, target, *, ...)``: the cross entropy of a linear
layer's logits, as torch 2.13 has it; before, it is composed of the two functions that define it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn import functional

from conformance.cases import Argument, Case, seed
from conformance.features import Features, kind, tensor
from conformance.ops import _cross_entropy as losses
from conformance.ops import _elementwise as elementwise
from conformance.ops import _linear_cross_entropy as oracle
from conformance.ops import _products as products
from conformance.ops import _sizes, _words, cross_entropy
from conformance.ops._special_rows import MASKED
from conformance.spec import Batch, Benchmark, OpSpec
from strategies import dtypes as dtype_names
from strategies import models, shapes, tensors
from strategies.shapes import Shape
from strategies.specs import Special, TensorSpec

REDUCTIONS = cross_entropy.REDUCTIONS
_OF_TORCH: Callable[..., torch.Tensor] | None = getattr(functional, "linear_cross_entropy", None)


# --- the function, of torch's operators --------------------------------------------------------------------------


def composed(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    *,
    linear_bias: torch.Tensor | None = None,
    ignore_index: int | None = None,
    **others: Any,
) -> torch.Tensor:
    """Compute the function as torch 2.13 composes it.

    :param others: Further arguments of ``cross_entropy``.
    :raises RuntimeError: Shapes do not fit; an ``ignore_index`` with probabilities.
    """
    rows, layer = input.shape[:-1], linear_weight.shape[:-1]
    wrong = not 1 <= input.dim() <= 2 or linear_weight.dim() < 2 or input.shape[-1] != linear_weight.shape[-1]
    if wrong or (linear_bias is not None and linear_bias.shape != layer) or (len(layer) > 1 and not rows):
        raise RuntimeError("these shapes make no logits")
    if ignore_index is not None and target.shape == (*rows, *layer):
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    flat = linear_weight.reshape(math.prod(layer), linear_weight.shape[-1])
    bias = None if linear_bias is None else linear_bias.reshape(math.prod(layer))
    logits = functional.linear(input, flat, bias).reshape(*rows, *layer)
    ignored = -100 if ignore_index is None else ignore_index
    return functional.cross_entropy(logits, target, ignore_index=ignored, **others)


def linear_cross_entropy(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    *,
    linear_bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Call torch's function without its ``options``, or where torch lacks it ``composed``, after asking for tensors.

    :raises TypeError: An operand is none.
    """
    optional = (one for one in (linear_bias, weight) if one is not None)
    for one in (input, linear_weight, target, *optional):
        # torch finds that they have no dims.
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"operands are tensors, and not {type(one).__name__}")
    return (_OF_TORCH or composed)(
        input,
        linear_weight,
        target,
        linear_bias=linear_bias,
        weight=weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


_CHUNKS = (257, 300, 513, 530)
"""Rows or classes of which a chunk does not hold all."""


# --- legal calls -------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], scenes: bool = False) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in dtype_names.FLOATING]))
    rows, terms, classes = draw(_sizes_of(dtype == "float64"))
    if scenes and dtype != "float64":
        # More rows than a chunk of any implementation has, the last of which is not full.
        rows, terms, classes = (
            draw(st.sampled_from((1030, 1100, 2100))),
            draw(st.integers(1, 6)),
            draw(st.integers(2, 7)),
        )
    # At the scale that keeps logits near 1, or of any values.
    values = draw(st.sampled_from(("normal_small", "uniform", "normal", None)))
    match draw(st.sampled_from(("rows", "rows", "rows", "rows", "row", "pixels"))):
        case "row":
            batch, others = (), ()
        case "pixels":
            others = draw(st.sampled_from(((2,), (3,), (1,), (2, 2), (1, 3))))
            batch, classes = (-(-rows // math.prod(others)),), classes if rows else 2
            classes = max(classes // math.prod(others), 1) if classes else 0
        case _:
            batch, others = (rows,), ()
    input = draw(tensors.tensors((*batch, terms), dtype))
    linear_weight = draw(tensors.tensors((classes, *others, terms), dtype, values=values))
    kwargs: dict[str, Argument] = {}
    shape = (*batch, classes, *others)
    if not classes or draw(st.integers(0, 3)) == 3:
        target = draw(tensors.tensors(shape, dtype, values=("unit", "positive", "one_hot")))
        is_index = False
    else:
        # Of several chunks of rows, those of each are others.
        least = 5 if math.prod(batch) >= min(_CHUNKS) else 1
        target, kwargs["ignore_index"] = draw(cross_entropy.indices((*batch, *others), classes, least))
        is_index = True
    if draw(st.booleans()):
        kwargs["linear_bias"] = draw(tensors.tensors((classes, *others), dtype))
    if draw(st.integers(0, 2)) == 2:
        kwargs["weight"] = draw(tensors.tensors((classes,), dtype, values=cross_entropy.WEIGHTS, specials=()))
    smoothing = draw(st.one_of(st.none(), st.sampled_from(cross_entropy.SMOOTHINGS)))
    if is_index and target.dtype == "uint8" and "weight" in kwargs:
        # torch's mean of these takes no uint8.
        smoothing = None
    kwargs["label_smoothing"] = smoothing
    kwargs["reduction"] = draw(st.sampled_from((None, *REDUCTIONS, "none")))
    return elementwise.case("linear_cross_entropy", (input, linear_weight, target), **kwargs)


def _large(elements: int) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls with the vocabularies of models, of few rows and terms."""

    def calls(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        # In float64 the oracle evaluates each logit in extended precision.
        names = [name for name in dtypes if name in dtype_names.FLOATING and name != "float64"]
        return _of_vocabularies(names, elements) if names else st.nothing()

    return calls


@st.composite
def _of_vocabularies(draw: st.DrawFn, dtypes: Sequence[str], elements: int) -> Case:
    dtype = draw(dtype_names.dtypes(dtypes))
    terms, rows = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    classes = draw(models.widths(models.VOCABULARIES, elements // 8))
    target, ignored = draw(cross_entropy.indices((rows,), classes))
    input = draw(tensors.tensors((rows, terms), dtype, specials=()))
    linear_weight = draw(tensors.tensors((classes, terms), dtype, values=("normal", "uniform"), specials=()))
    kwargs: dict[str, Argument] = {"ignore_index": ignored, "reduction": draw(st.sampled_from((None, "none", "sum")))}
    if draw(st.booleans()):
        kwargs["linear_bias"] = draw(tensors.tensors((classes,), dtype, specials=()))
    return elementwise.case("linear_cross_entropy", (input, linear_weight, target), **kwargs)


@st.composite
def _first_words_banned(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """A vocabulary of which the first words, a tile of them, may not be said: their bias is -inf."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in dtype_names.FLOATING]))
    rows, terms, classes = draw(st.integers(1, 3)), draw(st.integers(1, 6)), MASKED[0] + draw(st.integers(2, 300))
    words = [draw(st.integers(MASKED[0], classes - 1)) for _ in range(rows)]
    input, weight = (TensorSpec((size, terms), dtype, seed=draw(tensors.SEEDS)) for size in (rows, classes))
    bias = TensorSpec((classes,), dtype, seed=draw(tensors.SEEDS), specials=(Special(0, "-inf", MASKED[0]),))
    target = TensorSpec((rows,), "int64", cross_entropy.listed(words))
    reduction = draw(st.sampled_from((None, *REDUCTIONS, "none")))
    return elementwise.case("linear_cross_entropy", (input, weight, target), linear_bias=bias, reduction=reduction)


@st.composite
def _sizes_of(draw: st.DrawFn, small: bool) -> tuple[int, int, int]:
    """Rows, terms and classes: those of a product; several chunks of rows, of classes or of both; rows of which a tile
    does not hold all classes, and many of them; none."""
    few = shapes.sizes(1, 12)
    kinds = ("product", "product", "product", "rows", "classes", "both", "long", "empty")
    match draw(st.sampled_from(kinds)):
        case "rows":
            return draw(st.sampled_from(_CHUNKS)), draw(few), draw(shapes.sizes(2, 12))
        case "classes":
            return draw(few), draw(few), draw(st.sampled_from(_CHUNKS))
        case "both" if not small:
            return draw(st.sampled_from(_CHUNKS)), draw(shapes.sizes(1, 4)), draw(st.sampled_from(_CHUNKS))
        case "long" if not small:
            return draw(st.integers(1, 3)), draw(few), draw(st.sampled_from((1025, 4097, *_sizes.LONG_COLUMNS)))
        case "empty":
            return draw(st.sampled_from(((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 2), (2, 0, 0))))
    rows, terms, classes = draw(products.sizes(small, modest=True))
    if small:
        # Each logit costs mpmath.
        rows = min(rows, max(_sizes.FLOAT64_ELEMENTS // max(classes, 1), 1))
    return rows, terms, max(classes, 1)


def defined(case: Case) -> Case:
    """The case, with indices of classes."""
    given = oracle.named(case.args, case.kwargs)
    shape = elementwise.meta(given["linear_weight"], oracle.operands(case)).shape
    return cross_entropy.with_classes(case, given["target"], shape[0] if shape else 0, given["ignore_index"])


# --- refused calls -----------------------------------------------------------------------------------------------


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    floats = [name for name in dtypes if name in dtype_names.FLOATING]
    dtype = draw(dtype_names.dtypes(floats))
    args: list[Argument] = [draw(tensors.tensors(shape, dtype)) for shape in ((3, 4), (5, 4))]
    args.append(TensorSpec((3,), "int64", cross_entropy.listed((4, 0, 2))))
    kwargs: dict[str, Argument] = {}

    def drawn(*options: Argument) -> Argument:
        return draw(st.sampled_from(options))

    def one_of(*options: Shape) -> Shape:
        return draw(st.sampled_from(options))

    kinds = ("input", "linear_weight", "inner", "bias", "bias dtype", "mixed", "row of pixels", "probabilities")
    others = ("target", "target dtype", "weight", "weight dtype", "reduction", "smoothing", "types", "numbers", "whole")
    match draw(st.sampled_from((*kinds, *others))):
        case "input":
            args[0] = TensorSpec(one_of((), (2, 3, 4), (1, 1, 3, 4)), dtype)
        case "linear_weight":
            args[1] = TensorSpec(one_of((), (4,)), dtype)
        case "inner":
            args[draw(st.integers(0, 1))] = TensorSpec(one_of((3, 5), (3, 3), (3, 1), (3, 0)), dtype)
        case "bias":
            kwargs["linear_bias"] = TensorSpec(one_of((4,), (1,), (), (3, 5), (1, 5), (5, 1)), dtype)
        case "bias dtype":
            other = draw(dtype_names.dtypes([name for name in dtype_names.FLOATING if name != dtype]))
            kwargs["linear_bias"] = TensorSpec((5,), other)
        case "mixed":
            other = draw(dtype_names.dtypes([name for name in dtype_names.FLOATING if name != dtype]))
            args[draw(st.integers(0, 1))] = TensorSpec((3, 4), other)
        case "row of pixels":
            args[:2] = [TensorSpec((4,), dtype), TensorSpec((5, 3, 4), dtype)]
        case "probabilities":
            args[2] = TensorSpec((3, 5), dtype, "unit")
            kwargs["ignore_index"] = draw(st.integers(-101, 5))
        case "target":
            wrong = one_of((2,), (4,), (), (3, 1), (1, 3), (3, 5, 1))
            args[2] = TensorSpec(wrong, "int64", cross_entropy.listed((1,)))
        case "target dtype":
            of_probabilities = TensorSpec((3, 5), draw(st.sampled_from(("int64", "bool"))), "zeros")
            args[2] = drawn(
                *(TensorSpec((3,), name, "zeros") for name in losses.other_indices(dtype)), of_probabilities
            )
        case "weight":
            kwargs["weight"] = TensorSpec(one_of((4,), (), (1, 5), (3, 5)), dtype, "positive")
        case "weight dtype":
            other = draw(dtype_names.dtypes([name for name in dtype_names.FLOATING if name != dtype]))
            kwargs["weight"] = TensorSpec((5,), draw(st.sampled_from((other, "int64"))))
        case "reduction":
            kwargs["reduction"] = draw(_words.wrong(("none", "mean", "sum"), ("avg", 1)))
        case "smoothing":
            kwargs["label_smoothing"] = drawn(1.5, 2, 100.0)
        case "types":
            name = draw(st.sampled_from((0, 1, 2, "linear_bias", "weight")))
            if isinstance(name, int):
                args[name] = drawn(2, 1.5, "x", (1, 2))
            else:
                kwargs[name] = drawn(2, 1.5, "x", (1, 2))
        case "numbers":
            name = draw(st.sampled_from(("ignore_index", "label_smoothing")))
            kwargs[name] = drawn(1.0, True, "x", (1,)) if name == "ignore_index" else drawn("x", (1, 2))
        case "whole":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            args[:2] = [TensorSpec((3, 4), whole), TensorSpec((5, 4), whole)]
    return Case(op="linear_cross_entropy", args=tuple(args), kwargs=kwargs)


# --- what follows from a call ------------------------------------------------------------------------------------


def takes(case: Case) -> bool:
    """Tell whether class indices are those that were drawn: of others torch's GPU stops the process."""
    return cross_entropy.are_drawn(case.args[2])


def constants(case: Case) -> tuple[int, ...]:
    """The weight of class indices: it comes last."""
    given, operands = oracle.named(case.args, case.kwargs), oracle.operands(case)
    is_index = isinstance(given["target"], TensorSpec) and not dtype_names.is_floating(given["target"].dtype)
    place = next((place for place, one in enumerate(operands) if one is given["weight"]), None)
    return () if place is None or not is_index else (place,)


def batch(case: Case) -> Batch | None:
    """The rows, and the dims of pixels."""
    given = oracle.named(case.args, case.kwargs)
    shape = oracle.logits_shape(given)
    if (given["reduction"] or "mean") != "none" or len(shape) == 1:
        return None
    rows = (shape[0], *shape[2:])
    dim = elementwise.chosen(seed(case), [dim for dim, size in enumerate(rows) if size > 1])
    if dim is None:
        return None
    is_index = given["target"].shape != shape
    of = {
        "input": None if dim else 0,
        "linear_weight": dim or None,
        "target": dim if is_index or not dim else dim + 1,
        "linear_bias": dim or None,
    }
    by_identity = {id(given[name]): along for name, along in of.items()}
    return Batch(rows[dim], tuple(by_identity.get(id(one)) for one in oracle.operands(case)), dim)


def features_of(case: Case) -> Features:
    """The arguments, by name, the kind of targets, the share of those that are ignored, and the smoothing."""
    given = oracle.named(case.args, case.kwargs)
    found = cross_entropy.features_of_targets(given)
    found |= {"reduction": (given["reduction"],), "linear_bias": (kind(given["linear_bias"]),)}
    for name in ("input", "linear_weight"):
        if isinstance(given[name], TensorSpec):
            found |= tensor(name, given[name])
    return found


def _benchmark(rows: int, terms: int, classes: int) -> Benchmark:
    args = (TensorSpec((rows, terms), "bfloat16"), TensorSpec((classes, terms), "bfloat16", "normal_small"))
    case = Case(op="linear_cross_entropy", args=(*args, cross_entropy.benchmark_targets(rows, classes)))
    # What a call must compute is its product; its logits need not be moved.
    return Benchmark(case, bytes=2 * terms * (rows + classes) + 8 * rows, flops=2 * rows * classes * terms)


SPEC = OpSpec(
    name="linear_cross_entropy",
    reference=linear_cross_entropy,
    cases=cases,
    large=_large,
    scenes=lambda dtypes: cases(dtypes, scenes=True),
    apart=(_first_words_banned,),
    refused=refused,
    dtypes=dtype_names.FLOATING,
    defined=defined,
    takes=takes,
    constants=constants,
    batch=batch,
    features=features_of,
    mixes=False,
    expected=oracle.expected,
    gradients=oracle.gradients,
    trained=(0, 1),
    # Llama 2 7B and 3 8B, and a small call, whose time is the host's.
    benchmarks=tuple(_benchmark(*sizes) for sizes in ((8192, 4096, 32000), (8192, 4096, 128256), (4, 64, 128))),
)
