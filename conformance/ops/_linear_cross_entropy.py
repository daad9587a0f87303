"""The oracle of linear cross entropy, and its gradients: that of cross entropy, for logits that are off by the bound of
a product, and by a rounding to the dtype: torch defines the operator as a linear layer and a loss.

The logits x of a row may be off by e, and with them log_softmax(x)[j] = -log(sum(exp(x[i] - x[j]))): by no more than
e[j] + max(e), and by no more than the sum of p[i] (e[i] + e[j]) over the other classes i, where p are the shares; those
of the logits off by e are at most exp(2 max(e)) times as large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from conformance import cases, float_formats, oracle, product_bounds
from conformance.ops import _cross_entropy as losses
from conformance.ops import _products as products
from conformance.ops import log_softmax
from conformance.running import Running, exact
from conformance.spec import Call, Expected

NAMES = ("input", "linear_weight", "target")
_DEFAULTS = {"linear_bias": None, "weight": None, "reduction": "mean", "ignore_index": None, "label_smoothing": 0.0}


def named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, or of a case, by name."""
    return {**_DEFAULTS, **dict(zip(NAMES, args, strict=False)), **kwargs}


def logits_shape(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the logits of a call, or of a case."""
    return (*given["input"].shape[:-1], *given["linear_weight"].shape[:-1])


operands = cases.operands


class _Call:
    """A call's numbers."""

    def __init__(self, call: Call):
        self.given = named(call.args, call.kwargs)
        shape, x = logits_shape(self.given), self.given["input"]
        others = {name: self.given[name] for name in ("weight", "reduction", "label_smoothing")}
        ignored = -100 if self.given["ignore_index"] is None else self.given["ignore_index"]
        # Of the logits the shape and the dtype alone are read.
        logits = torch.empty(shape, dtype=x.dtype, device="meta")
        self.loss = losses.Loss((logits, self.given["target"]), {**others, "ignore_index": ignored})
        self.shape, self.dtype = shape, x.dtype

    @property
    def bias(self) -> torch.Tensor | None:
        return self.given["linear_bias"]

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the matrices whose product the logits are, with all columns of the weight."""
        left, right = (oracle.operand(self.given[name], self.dtype) for name in NAMES[:2])
        return _matrix(left), _matrix(right).T

    def logits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits, classes last, and their bound: 0 where they are infinite or NaN for certain, and infinite
        where they may be anything."""
        left, right = self.factors()
        found = products.product(left, right, self.dtype)
        value, terms = found.value, left.shape[-1]
        bound = product_bounds.product(value, found.magnitude, found.spread, terms, self.dtype, found.equal)
        bound = np.where(found.judged, bound, np.inf)
        if self.bias is not None:
            added = oracle.operand(self.bias, self.dtype).reshape(-1)
            value = value + added
            compute = float_formats.compute_dtype(self.dtype)
            bound = (
                bound
                + float_formats.rounding(np.abs(added), compute)
                + float_formats.rounding(np.abs(value) + bound, compute)
            )
        known = Running(value, np.where(np.isfinite(value), bound, np.inf), self.dtype).stored()
        bound = np.where(np.isfinite(value), known.error, np.where(found.judged, 0.0, np.inf))
        return self._rows(value), self._rows(bound)

    def _rows(self, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array.reshape(self.shape), self.loss.dim, -1)

    def log_shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``log_softmax`` of the rows, and its bound."""
        logits, off = self.logits()
        value, bound = log_softmax.plainly(logits, self.loss.dtype)
        # The bound grows with the logits, by no more than a few times what they are off.
        more = 8 * float_formats.FORMATS[float_formats.compute_dtype(self.loss.dtype)].unit * _largest(off)
        # In float64, too, it is computed in float64.
        bound = (bound + more) * (2 if self.loss.dtype == torch.float64 else 1) + moved(value, off)
        doubtful = np.isinf(_largest(off))
        return np.where(doubtful, 0.0, value), np.where(doubtful, np.inf, bound)


def _matrix(array: np.ndarray) -> np.ndarray:
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _largest(off: np.ndarray) -> np.ndarray:
    return off.max(-1, keepdims=True)


def moved(value: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Bound the error of ``log_softmax``, of this value, for logits that are off by as much."""
    largest = _largest(off)
    shares = np.where(np.isfinite(value), np.exp(value), 0.0)
    weighted = np.where(shares > 0, shares * off, 0.0)
    is_first = np.arange(value.shape[-1]) == shares.argmax(-1)[..., None]

    def others(terms: np.ndarray) -> np.ndarray:
        """Return the sum of the other classes' terms, with nothing lost beside the largest share."""
        rest = np.where(is_first, 0.0, terms).sum(-1, keepdims=True)
        return np.where(is_first, rest, np.abs(terms.sum(-1, keepdims=True) - terms))

    close = np.exp(2 * np.minimum(largest, 350.0)) * (others(weighted) + off * others(shares))
    return np.where(np.isfinite(value), np.minimum(off + largest, close), 0.0)


def expected(call: Call) -> Expected:
    made = _Call(call)
    with np.errstate(all="ignore"):
        return losses.expected_of(call, made.loss, made.log_shares)


def gradients(call: Call, dout: torch.Tensor) -> dict[int | str, Running]:
    """Those of the logits, which may be stored, times the other factor; their sums over rows for the bias."""
    made = _Call(call)
    given, loss = made.given, made.loss
    places = {name: place for place, name in enumerate(NAMES[: len(call.args)])}
    if not loss.input.numel():
        tensors = {name: one for name, one in given.items() if isinstance(one, torch.Tensor)}
        return {places.get(name, name): exact(torch.zeros(one.shape), dout.dtype) for name, one in tensors.items()}
    with np.errstate(all="ignore"):
        value, bound = made.log_shares()
        found = losses.gradients_of(loss, value, bound, dout)
        rows = math.prod(made.shape[: loss.dim])
        flow = found.pop("input").stored()
        flow = flow.laid(lambda array: array.reshape(rows, -1))
        flow = Running(flow.value, flow.error, made.dtype)
        x, weight = (exact(given[name], made.dtype) for name in ("input", "linear_weight"))
        x, weight = x.laid(_matrix), weight.laid(_matrix)
        shapes = {name: tuple(given[name].shape) for name in ("input", "linear_weight")}
        found["input"] = (flow @ weight).laid(lambda array: array.reshape(shapes["input"]))
        found["linear_weight"] = (flow.mT @ x).laid(lambda array: array.reshape(shapes["linear_weight"]))
        if made.bias is not None:
            shape = tuple(made.bias.shape)
            found["linear_bias"] = flow.sum(0).laid(lambda array: array.reshape(shape))
    return {places.get(name, name): one for name, one in found.items()}
