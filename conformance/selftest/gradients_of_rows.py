"""What the backward passes of softmax and the norms get wrong."""

from __future__ import annotations

from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.differentiable import Gradients, Step, backward, first_operand


def _softmax(step: Step, total: Any) -> Gradients:
    result, dout = step.result.double(), step.dout.double()
    return [result * (dout - total(result * dout))]


@backward("softmax", "formula")
def sum_missing(step: Step) -> Gradients:
    return _softmax(step, lambda terms: 0.0)


@backward("softmax", "dims")
def sum_over_last(step: Step) -> Gradients:
    """The sum is over the last dim, whichever was asked for."""
    return _softmax(step, lambda terms: terms.sum(-1, keepdim=True) if terms.ndim else terms)


@backward("softmax", "sums")
def sum_of_full_blocks(step: Step) -> Gradients:
    """The sum leaves out what lies past the last full block of 32."""
    dim = step.args[1]

    def total(terms: torch.Tensor) -> torch.Tensor:
        if not terms.ndim:
            return terms
        size = terms.shape[dim]
        return terms.narrow(dim, 0, size // 32 * 32 if size > 32 else size).sum(dim, keepdim=True)

    return _softmax(step, total)


def _norm_terms(step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """What is weighed, normalized and scaled by, and the normalized dims."""
    x, shape = first_operand(step), step.args[1]
    dims = tuple(range(-len(shape), 0))
    named = {**dict(zip(("input", "shape", "weight", "bias"), step.args, strict=False)), **step.kwargs}
    centered = x - x.mean(dims, keepdim=True) if step.op == "layer_norm" else x
    eps = named.get("eps")
    eps = (1e-5 if step.op == "layer_norm" else torch.finfo(torch.float32).eps) if eps is None else float(eps)
    root = (centered.square().mean(dims, keepdim=True) + eps).rsqrt()
    weight = named.get("weight")
    slopes = step.dout.double() if weight is None else step.dout.double() * weight.detach().double()
    return slopes, centered * root, root, dims


@backward("layer_norm rms_norm", "formula")
def no_projection(step: Step) -> Gradients:
    """The scale is taken for a constant."""
    slopes, _, root, _ = _norm_terms(step)
    return step.changed(step.gradients(), 0, lambda one: (root * slopes).reshape(one.shape))


@backward("layer_norm", "formula")
def no_mean(step: Step) -> Gradients:
    """The mean is taken for a constant."""
    slopes, normal, root, dims = _norm_terms(step)
    found = root * (slopes - normal * (slopes * normal).mean(dims, keepdim=True))
    return step.changed(step.gradients(), 0, lambda one: found)


@backward("layer_norm rms_norm", "formula")
def weight_forgotten(step: Step) -> Gradients:
    """The input's gradient is that without a weight."""
    weight = step.argument("weight")
    if weight is None:
        return step.gradients()
    place = step.places.index("weight")
    ones = [torch.ones_like(one) if n == place else one for n, one in enumerate(step.operands)]
    return step.only(0, step.gradients(operands=ones))


@backward("layer_norm rms_norm", "formula")
def weight_of_raw_rows(step: Step) -> Gradients:
    """The weight's gradient is made of rows that are not normalized."""
    dims = tuple(range(first_operand(step).ndim - len(step.args[1])))
    terms = step.dout.double() * first_operand(step)
    return step.changed(step.gradients(), "weight", lambda one: terms.sum(dims) if dims else terms)


@backward("layer_norm rms_norm", "sums")
def half_accumulation_of_weight(step: Step) -> Gradients:
    """The weight's gradient is accumulated in the half type, row after row."""
    if step.result.dtype not in of.HALF or not step.result.numel():
        return step.gradients()
    _, normal, _, _ = _norm_terms(step)
    terms = (step.dout.double() * normal).to(step.result.dtype).flatten(0, -len(step.args[1]) - 1)

    def accumulated(one: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(one.shape, dtype=step.result.dtype)
        for row in terms:
            total = total + row
        return total.double()

    return step.changed(step.gradients(), "weight", accumulated) if terms.ndim > len(step.args[1]) else step.gradients()


@backward("layer_norm", "needs")
def bias_without_gradient(step: Step) -> Gradients:
    return step.changed(step.gradients(), "bias", torch.zeros_like)


@backward("layer_norm rms_norm", "needs")
def weight_without_gradient(step: Step) -> Gradients:
    return step.changed(step.gradients(), "weight", torch.zeros_like)
