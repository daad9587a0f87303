"""The oracle of cross entropy, and its gradients: torch's formula (aten/src/ATen/native/LossNLL.cpp) in float64, on
``log_softmax`` with its bound, the rest by running error analysis."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from conformance import bounds, cases, float_formats
from conformance import oracle as oracles
from conformance.cases import Case
from conformance.ops import _expectations as expectations
from conformance.ops import log_softmax
from conformance.running import Running, exact
from conformance.spec import Call, Expected

NAMES = (
    "input",
    "target",
    "weight",
    "size_average",
    "ignore_index",
    "reduce",
    "reduction",
    "label_smoothing",
)
_REFUSES_BY_DTYPE = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"
_DEFAULTS = {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean"}
Number = Any
"""A ``Running``, or an array in float64, in which infinities and NaN go on."""


def other_indices(dtype: str) -> tuple[str, ...]:
    """Return dtypes that class indices may not have beside logits of a dtype.

    torch 2.11 finds no kernel for them on CUDA, a NotImplementedError; 2.13 asks for the dtype by name, a RuntimeError,
    which is what counts here. So older versions are not asked.
    """
    return ("int32", "int8", "bool", dtype) if _REFUSES_BY_DTYPE else ()


def named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, or of a case, by name."""
    return {**_DEFAULTS, "label_smoothing": 0.0, **dict(zip(NAMES, args, strict=False)), **kwargs}


def reduction(given: Mapping[str, Any]) -> str:
    """Return the reduction that the arguments ask for, deprecated ones among them."""
    average, reduces = given["size_average"], given["reduce"]
    if average is None and reduces is None:
        return given["reduction"]
    if not (reduces is None or reduces):
        return "none"
    return "mean" if average is None or average else "sum"


def operands(case: Case) -> tuple[Any, ...]:
    return cases.operands(case)


class Loss:
    """A call's numbers: rows of classes, in the last dim."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]):
        given = named(args, kwargs)
        self.input, self.target, self.weight = given["input"], given["target"], given["weight"]
        self.reduction = reduction(given)
        smoothing = max(float(given["label_smoothing"]), 0.0)
        self.is_index = self.input.shape != self.target.shape
        self.dim = min(self.input.ndim - 1, 1)
        self.classes = self.input.shape[self.dim]
        self.dtype = self.input.dtype
        if not self.is_index:
            self.dtype = torch.promote_types(self.dtype, self.target.dtype)
            if self.weight is not None:
                self.dtype = torch.promote_types(self.dtype, self.weight.dtype)
        self.kept, self.share = 1 - smoothing, smoothing / max(self.classes, 1)
        self.smoothed = smoothing > 0
        self.shape = (*self.input.shape[: self.dim], *self.input.shape[self.dim + 1 :])
        if self.is_index:
            label = self.target.cpu().long().reshape(self.shape).numpy()
            self.ignored = label == given["ignore_index"]
            self.label = np.where(self.ignored, 0, label)

    def rows(self, tensor: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
        """Return the elements as float64, the classes last."""
        return np.moveaxis(oracles.operand(tensor, dtype), self.dim, -1)

    def log_shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``log_softmax`` of the rows, and its bound."""
        value, _, bound = log_softmax.values(self.rows(self.input, self.input.dtype), self.dtype)
        return value, bound

    def number(self, value: float) -> Running:
        """Return a number of the formula, rounded to the compute dtype."""
        array = np.array(value)
        return Running(array, float_formats.rounding(array, float_formats.compute_dtype(self.dtype)), self.dtype)

    def picked(self, one: Number) -> Number:
        """Return the element of each row at its class index."""
        place = self.label[..., None]
        return _laid(
            one,
            lambda array: np.take_along_axis(np.broadcast_to(array, (*self.shape, self.classes)), place, -1)[..., 0],
        )

    def probabilities(self) -> tuple[np.ndarray, Running]:
        """Return the smoothed probabilities, plainly and with their rounding."""
        y = self.rows(self.target, self.target.dtype)
        # A probability may be weighted first, which may leave the range.
        weights = np.abs(_weights(self)[0])
        weighted = np.abs(y * weights)
        known = np.isfinite(y) & oracles.in_range(weighted, self.dtype) & np.isfinite(weighted)
        form = float_formats.FORMATS[float_formats.compute_dtype(self.dtype)]
        # A weighted probability may be subnormal, and lose bits, or vanish, in float64 here too.
        faint = np.where(weighted < 2.0**form.least, form.subnormal / np.maximum(weights, 1e-30), 0.0)
        running = Running(y, np.where(known, np.where((y != 0) & (weights > 0), faint, 0.0), np.inf), self.dtype)
        if not self.smoothed:
            return y, running
        return y * self.kept + self.share, running * self.number(self.kept) + self.number(self.share)


def _laid(one: Number, move: Callable[[np.ndarray], np.ndarray]) -> Number:
    return one.laid(move) if isinstance(one, Running) else move(one)


def _where(one: Number, mask: np.ndarray) -> Number:
    return one.where(mask) if isinstance(one, Running) else np.where(mask, one, 0.0)


def _added(one: Number) -> Number:
    """Return the sum of all elements."""
    return one.sum(tuple(range(len(one.shape))))


def _reduced(
    loss: Loss, log_shares: Number, probabilities: Number, weights: Number, kept: Number, share: Number
) -> Number:
    """Compute the loss from ``log_softmax``, in torch's steps."""
    if not loss.is_index:
        rows = -(log_shares * probabilities * weights).sum(-1)
        if loss.reduction == "none":
            return rows
        total = _added(rows)
        return total / float(max(np.prod(loss.shape), 1)) if loss.reduction == "mean" else total
    own = loss.picked(weights)
    of_targets = _where(-(loss.picked(log_shares) * own), ~loss.ignored)
    terms = [of_targets]
    if loss.smoothed:
        terms.append(_where(-(log_shares * weights).sum(-1), ~loss.ignored))
    if loss.reduction != "none":
        terms = [_added(one) for one in terms]
    if loss.reduction == "mean":
        divisor = _added(_where(own, ~loss.ignored))
        terms = [one / divisor for one in terms]
    return terms[1] * share + terms[0] * kept if loss.smoothed else terms[0]


def _weights(loss: Loss) -> tuple[np.ndarray, Running]:
    """Return the weight of each class, plainly and as an operand; 1 where there is none."""
    ones = np.ones(loss.classes)
    w = ones if loss.weight is None else oracles.operand(loss.weight, loss.weight.dtype).reshape(-1)
    return w, Running(w, np.where(np.isfinite(w), 0.0, np.inf), loss.dtype)


def _in_range(loss: Loss, terms: np.ndarray) -> np.ndarray:
    """Tell of each loss whether the finite ones of its terms stay within the range of the compute dtype."""
    finite = np.where(np.isfinite(terms), terms, 0.0)
    total = loss.picked(finite) if loss.is_index and not loss.smoothed else finite.sum(-1)
    total = 2 * (total if loss.reduction == "none" else total.sum())
    return oracles.in_range(total, loss.dtype) & np.isfinite(total)


def _of_any(loss: Loss, terms: np.ndarray) -> np.ndarray:
    """Tell of each loss whether any of its terms is one of these."""
    rows = loss.picked(terms) if loss.is_index and not loss.smoothed else terms.any(axis=-1)
    rows = rows & ~loss.ignored if loss.is_index else rows
    return np.asarray(rows if loss.reduction == "none" else rows.any())


def expected(call: Call) -> Expected:
    loss = Loss(call.args, call.kwargs)
    with np.errstate(all="ignore"):
        return expected_of(call, loss, loss.log_shares)


def expected_of(call: Call, loss: Loss, log_shares: Callable[[], tuple[np.ndarray, np.ndarray]]) -> Expected:
    """The answer for logits whose ``log_softmax`` is given, with its bound."""
    shape = loss.shape if loss.reduction == "none" else ()
    if not loss.input.numel():
        empty = torch.nan if loss.reduction == "mean" else 0.0
        return expectations.exactly(call, torch.full(shape, empty, dtype=loss.dtype))
    with np.errstate(all="ignore"):
        value, bound = log_shares()
        y, running_y = (None, None) if loss.is_index else loss.probabilities()
        w, running_w = _weights(loss)
        plain = np.asarray(_reduced(loss, value, y, w, loss.kept, loss.share))
        running = Running(value, np.where(np.isfinite(value), bound, np.inf), loss.dtype)
        is_result = loss.reduction == "none" and loss.is_index and loss.weight is None and not loss.smoothed
        running = running if is_result else running.computed()
        numbers = loss.number(loss.kept), loss.number(loss.share)
        found = _reduced(loss, running, running_y, running_w, *numbers)
        terms = np.abs(value * w * (1.0 if y is None else y))
        # What overflows in float64 itself has no sum; what infinite factors make of what may be 0 is anybody's.
        plainly = np.isfinite(terms) | ~np.isfinite(value)
        # A share beyond the range is infinite, and NaN times a probability or a weight of 0.
        beyond = np.isfinite(value) & ~oracles.in_range(np.abs(value), loss.dtype)
        within = _in_range(loss, terms) & ~_of_any(loss, beyond)
        if y is not None:
            plainly |= ~np.isfinite(y) & ~(np.isinf(y) & (np.abs(value) <= bound))
            # A probability may meet its share before the weight, which may be small.
            unweighted = np.abs(value * y)
            plainly &= np.isfinite(unweighted) | ~np.isfinite(value) | ~np.isfinite(y)
            within &= _in_range(loss, unweighted)
            # Weighted first, it may vanish, and 0 times an infinite share is NaN.
            subnormal = float_formats.FORMATS[float_formats.compute_dtype(loss.dtype)].subnormal
            plainly &= np.isfinite(value) | (np.abs(y * w) >= subnormal) | (y == 0) | (w == 0)
        within &= bool(plainly.all() and np.isfinite(w).all())
    # What is NaN in float64 is so for its operands, and what is infinite, unless a term may be infinite, too, of any
    # sign; the rest is judged where its error is known.
    known = np.isfinite(found.error)
    error = np.where(known, found.error, 0.0) * (2 if loss.dtype == torch.float64 else 1)
    judged = (known | np.isnan(plain) | np.isinf(plain) & ~_of_any(loss, np.isfinite(value) & np.isinf(bound))) & within
    return expectations.within(
        call, plain.reshape(shape), error.reshape(shape), loss.dtype, judged=judged.reshape(shape)
    )


def _in_any_order(*factors: Running) -> Running:
    """Return the product of three, each step stored; of any error where two of them leave the range, which the third
    may bring back."""
    first, second, third = factors
    pairs = (np.abs(one.value * other.value) for one, other in itertools.combinations(factors, 2))
    most = functools.reduce(np.maximum, pairs)
    found = ((first * second).stored() * third).stored()
    return Running(
        found.value, np.where(most <= float_formats.FORMATS[found.dtype].max, found.error, np.inf), found.dtype
    )


def gradient(call: Call, dout: torch.Tensor) -> dict[int | str, Running]:
    """Of ``log_softmax`` l with the gradient G: G - exp(l) sum(G); of probabilities, weight times -l. torch may store
    each of these."""
    loss = Loss(call.args, call.kwargs)
    places = {name: place for place, name in enumerate(NAMES[: len(call.args)])}
    if not loss.input.numel():
        tensors = {"input": loss.input, "target": loss.target, "weight": loss.weight}
        return {
            places.get(name, name): exact(torch.zeros(one.shape), dout.dtype)
            for name, one in tensors.items()
            if isinstance(one, torch.Tensor)
        }
    with np.errstate(all="ignore"):
        value, bound = loss.log_shares()
        # What was cast spoils its row, as what is not finite does.
        x = exact(loss.input, loss.dtype).laid(lambda array: np.moveaxis(array, loss.dim, -1))
        found = gradients_of(loss, value, np.where(x.error.any(-1, keepdims=True), np.inf, bound), dout)
    return {places.get(name, name): one for name, one in found.items()}


def gradients_of(loss: Loss, value: np.ndarray, bound: np.ndarray, dout: torch.Tensor) -> dict[str, Running]:
    """The gradients by name, of the logits as that of ``input``, from ``log_softmax`` of the rows and its bound; what
    is not finite spoils its row."""
    known = np.isfinite(value).all(-1, keepdims=True)
    shares = Running(value, np.where(known, bound, np.inf), loss.dtype).computed().stored()
    powers = shares.applied(np.exp, lambda value: bounds.ulps("exp", value, loss.dtype))
    _, weights = _weights(loss)
    slope = exact(dout, loss.dtype).laid(lambda array: np.broadcast_to(array, loss.shape)[..., None])
    numbers = loss.number(loss.kept), loss.number(loss.share)

    def back(one: Running) -> Running:
        return one.laid(lambda array: np.moveaxis(array, -1, loss.dim))

    if not loss.is_index:
        if loss.reduction == "mean":
            slope = (slope / float(np.prod(loss.shape))).stored()
        _, y = loss.probabilities()
        flow, of_target = -_in_any_order(slope, weights, y.stored()), -_in_any_order(slope, weights, shares)
        of_target = (of_target * numbers[0]).stored() if loss.smoothed else of_target
        of_weight = -_in_any_order(slope, y.stored(), shares)
        rows = tuple(range(len(loss.shape)))
        return {
            "input": back(flow - powers * flow.sum(-1, keepdims=True)),
            "target": back(of_target),
            "weight": of_weight.sum(rows) if rows else of_weight,
        }
    if loss.reduction == "mean":
        divisor = _added(loss.picked(weights).where(~loss.ignored))
        slope = (slope / divisor).stored()
    is_own = loss.label[..., None] == np.arange(loss.classes)
    flow = -(slope * weights).stored()
    if loss.smoothed:
        flow = ((flow * numbers[0]).stored().where(is_own) + (flow * numbers[1]).stored()).stored()
    else:
        flow = flow.where(is_own)
    flow = flow.where(np.broadcast_to(~loss.ignored[..., None], flow.shape))
    return {"input": back(flow - powers * flow.sum(-1, keepdims=True))}
