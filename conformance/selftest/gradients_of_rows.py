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


@backward("softmax", "precision")
def half_sum(step: Step) -> Gradients:
    """The sum of half types is accumulated in the half type."""
    if step.result.dtype not in of.HALF or step.result.numel() > 1 << 14 or not step.result.ndim:
        return step.gradients()
    dim = step.args[1]

    def total(terms: torch.Tensor) -> torch.Tensor:
        found = torch.zeros((), dtype=step.result.dtype)
        for one in terms.to(step.result.dtype).split(1, dim):
            found = found + one
        return found.double()

    return _softmax(step, total)


@backward("softmax log_softmax", "dims")
def sum_over_the_tensor(step: Step) -> Gradients:
    """The sum is over all rows."""
    if step.op == "softmax":
        return _softmax(step, lambda terms: terms.sum())
    return _log_softmax(step, lambda terms: terms.sum())


@backward("softmax log_softmax", "dtype")
def rounded_to_operand(step: Step) -> Gradients:
    """Where a wider dtype was asked for, the result's gradient is rounded to the operand's first."""
    return step.gradients(step.dout.to(step.operands[0].dtype))


def _log_softmax(step: Step, total: Any) -> Gradients:
    dout = step.dout.double()
    return [dout - step.result.double().exp() * total(dout)]


@backward("log_softmax", "formula")
def passed_on(step: Step) -> Gradients:
    """The gradient passes as it is."""
    return [step.dout.double()]


@backward("log_softmax", "formula")
def result_for_shares(step: Step) -> Gradients:
    """Logarithms are taken for shares."""
    dim = step.args[1]
    dout = step.dout.double()
    return [dout - step.result.double() * (dout.sum(dim, keepdim=True) if dout.ndim else dout)]


@backward("log_softmax", "formula", name="sum_missing")
def log_sum_missing(step: Step) -> Gradients:
    """The gradient is that of softmax: each share is subtracted, and not its part of the sum."""
    return _log_softmax(step, lambda terms: 1.0)


@backward("log_softmax", "dims", name="sum_over_last")
def log_sum_over_last(step: Step) -> Gradients:
    """The sum is over the last dim, whichever was asked for."""
    return _log_softmax(step, lambda terms: terms.sum(-1, keepdim=True) if terms.ndim else terms)


@backward("log_softmax", "sums", name="sum_of_full_blocks")
def log_sum_of_full_blocks(step: Step) -> Gradients:
    """The sum leaves out what lies past the last full block of 32."""
    dim = step.args[1]

    def total(terms: torch.Tensor) -> torch.Tensor:
        size = terms.shape[dim] if terms.ndim else 1
        return terms.narrow(dim, 0, size // 32 * 32).sum(dim, keepdim=True) if size > 32 else _sum(terms, dim)

    return _log_softmax(step, total)


def _sum(terms: torch.Tensor, dim: int) -> torch.Tensor:
    return terms.sum(dim, keepdim=True) if terms.ndim else terms


@backward("log_softmax", "precision")
def shares_in_bfloat16(step: Step) -> Gradients:
    """Shares of float32 are rounded to bfloat16."""
    if step.result.dtype != torch.float32:
        return step.gradients()
    dout = step.dout.double()
    return [dout - step.result.double().exp().bfloat16().double() * _sum(dout, step.args[1])]


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


@backward("layer_norm rms_norm", "formula")
def usual_eps(step: Step) -> Gradients:
    """The backward pass has the default epsilon, whatever the call says."""
    named = (step.op == "layer_norm" and len(step.args) < 5) or len(step.args) < 4
    return step.gradients(eps=None) if named else step.gradients()


@backward("layer_norm rms_norm", "dims")
def means_over_last_dim(step: Step) -> Gradients:
    """Of several normalized dims the means of the backward pass are over the last."""
    slopes, normal, root, _ = _norm_terms(step)
    found = slopes - normal * (slopes * normal).mean(-1, keepdim=True)
    if step.op == "layer_norm":
        found = found - slopes.mean(-1, keepdim=True)
    return step.changed(step.gradients(), 0, lambda one: root * found)


@backward("layer_norm rms_norm", "sums")
def rows_of_full_blocks(step: Step) -> Gradients:
    """The gradients of weight and bias leave out rows past the last full block of 16."""
    rank = step.result.ndim - len(step.args[1])
    rows = step.dout.shape[:rank].numel()
    if rows <= 16 or not rows % 16:
        return step.gradients()
    dout = step.dout.clone().contiguous()
    dout.view(rows, -1)[rows // 16 * 16 :] = 0
    return [step.gradients()[0], *step.gradients(dout)[1:]]


@backward("layer_norm rms_norm", "precision")
def rows_in_half(step: Step) -> Gradients:
    """The weight's gradient is a sum of rows that were normalized in the half type."""
    if step.result.dtype not in of.HALF or step.result.ndim == len(step.args[1]):
        return step.gradients()
    _, normal, _, _ = _norm_terms(step)
    terms = step.dout.double() * normal.to(step.result.dtype).double()
    dims = tuple(range(step.result.ndim - len(step.args[1])))
    return step.changed(step.gradients(), "weight", lambda one: terms.sum(dims))


@backward("rms_norm layer_norm softmax gelu mul", "layout")
def gradient_in_the_order_of_memory(step: Step) -> Gradients:
    """The gradient of the result is read in the order of the first operand's dims in memory."""
    first, dout = step.operands[0], step.dout
    if first.ndim < 3 or first.shape != dout.shape:
        return step.gradients()
    order = sorted(range(first.ndim), key=lambda dim: -first.stride(dim))
    return step.gradients(dout.permute(order).reshape(dout.shape))
