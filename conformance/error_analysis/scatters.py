"""Rules of sums and extremes into the places that indices name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.error_analysis.functions import real
from conformance.error_analysis.moves import move
from conformance.error_analysis.pairs import NoRule, Pair, made, pair_of, plain, settled, unit
from conformance.float_formats import FORMATS, compute_dtype

Into = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Adds the second tensor into places of the first, or takes extremes or averages there."""


def _accumulated(into: Into, input: Pair, source: Any, count: Into | None = None) -> Pair:
    """Return the sums of ``into``: the errors of the terms, and sqrt(K) + 1 unit roundoffs of the sum of magnitudes,
    in whatever order K terms of a place are added.

    :param count: Adds as ``into`` does, where that averages.
    """
    a, b = settled(input), pair_of(source, input.dtype)
    value, size = into(real(a), real(b)), into(real(a).abs(), real(b).abs())
    terms = (count or into)(torch.ones_like(real(a)), torch.ones_like(real(b)))
    growth = torch.where(terms > 1, 1 + terms.sqrt(), 0.0)
    error = into(a.error, b.error) + growth * unit(a.dtype) * size
    whole = size * (terms if count else 1)
    overflows = value.isfinite() & (whole > FORMATS[compute_dtype(a.dtype)].max)
    unsure = into(a.unsure.double(), b.unsure.double().broadcast_to(b.value.shape)) > 0
    return made(value, error.nan_to_num(nan=0.0), unsure | overflows, a.dtype)


def index_add(func: Any, input: Pair, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    if not input.dtype.is_floating_point:
        return Pair(func(input.value, dim, plain(index), source.value, alpha=alpha), None, None, input.dtype)
    source = source if alpha == 1 else source * alpha
    return _accumulated(lambda a, b: a.index_add(dim, plain(index), b), input, source)


def index_put(func: Any, input: Pair, indices: Any, values: Any, accumulate: bool = False, *rest: Any) -> Any:
    if not accumulate or not input.dtype.is_floating_point:
        return move(torch.ops.aten.index_put.default, input, indices, values, accumulate)
    places = plain(indices)
    return _accumulated(lambda a, b: torch.ops.aten.index_put(a, places, b, True), input, values)


def scatter_add(func: Any, input: Pair, dim: int, index: Any, source: Pair) -> Any:
    return scatter_reduce(func, input, dim, index, source, "sum")


def scatter_reduce(
    func: Any, input: Pair, dim: int, index: Any, source: Pair, reduce: str, *, include_self: bool = True
) -> Any:
    """Apply the rule of sums and averages by place; of extremes, the largest error of all that may be it."""

    def by(how: str) -> Into:
        return lambda a, b: a.scatter_reduce(dim, plain(index), b, how, include_self=include_self)

    if not input.dtype.is_floating_point:
        return Pair(by(reduce)(input.value, source.value), None, None, input.dtype)
    if reduce in ("sum", "mean"):
        return _accumulated(by(reduce), input, source, by("sum") if reduce == "mean" else None)
    if reduce == "prod":
        raise NoRule("no bound can be derived: scatter_reduce of products has no rule. Give a bound")
    a, b = settled(input), settled(source)
    unsure = by("amax")(a.unsure.double(), b.unsure.double()) > 0
    return made(by(reduce)(real(a), real(b)), by("amax")(a.error, b.error), unsure, a.dtype)


RULES = {
    "index_add": index_add,
    "index_put": index_put,
    "_index_put_impl": index_put,
    "scatter_add": scatter_add,
    "scatter_reduce": scatter_reduce,
}
