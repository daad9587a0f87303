"""What the backward passes of single operators get wrong."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.ops._reductions import reduced
from conformance.selftest import attention
from conformance.selftest import families as of
from conformance.selftest.differentiable import Gradients, Step, backward


def _input(step: Step, slope: torch.Tensor) -> Gradients:
    """That of the only operand, given the derivative."""
    return [step.dout.double() * slope]


def _x(step: Step) -> torch.Tensor:
    return step.operands[0].detach().to(step.result.dtype).double()


# --- elementwise -------------------------------------------------------------------------------------------------


@backward("add sub", "formula")
def alpha_forgotten(step: Step) -> Gradients:
    return step.gradients(alpha=None)


@backward("sub", "formula")
def sign_forgotten(step: Step) -> Gradients:
    return step.changed(step.gradients(), 1, torch.neg)


@backward("mul", "formula")
def factors_swapped(step: Step) -> Gradients:
    """Each factor gets the product with itself."""
    if len(step.operands) != 2 or step.operands[0].shape != step.operands[1].shape:
        return step.gradients()
    return [step.dout.double() * one.to(step.result.dtype).double() for one in step.operands]


@backward("div", "formula")
def divisor_not_squared(step: Step) -> Gradients:
    divisor = step.argument(1)
    found = step.gradients()
    if divisor is None or divisor.shape != step.result.shape:
        return found
    return step.changed(found, 1, lambda one: one * divisor.to(step.result.dtype).double())


@backward("div", "formula")
def rounded_quotient_has_gradient(step: Step) -> Gradients:
    """Rounded quotients have the gradient of quotients."""
    return step.gradients(rounding_mode=None)


@backward("pow", "formula")
def power_of_zero(step: Step) -> Gradients:
    """0 to a power has NaN for the gradient of the exponent."""
    base = step.args[0]
    zero = torch.as_tensor(base) == 0
    found = step.gradients()
    if not zero.any() or len(step.operands) != 2 or step.operands[0].shape != step.operands[1].shape:
        return found
    return step.changed(found, 1, lambda one: one.masked_fill(zero, math.nan))


@backward("pow", "formula")
def exponent_for_next(step: Step) -> Gradients:
    """The base's gradient has the power itself, and not the next lower one."""
    base = step.argument(0)
    if base is None or base.shape != step.result.shape:
        return step.gradients()
    return step.changed(step.gradients(), 0, lambda one: one * base.to(step.result.dtype).double())


@backward("clamp", "formula")
def ends_left_out(step: Step) -> Gradients:
    """An element that equals a bound has no gradient."""
    found = step.gradients()
    same = step.result == step.operands[0]
    for name in (1, 2, "min", "max"):
        bound = step.args[name] if isinstance(name, int) and name < len(step.args) else step.kwargs.get(str(name))
        if bound is not None:
            same = same & (step.result != torch.as_tensor(bound).to(step.result.dtype))
    return step.changed(found, 0, lambda one: one * same if one.shape == same.shape else one)


@backward("clamp", "needs")
def bounds_without_gradient(step: Step) -> Gradients:
    found = step.gradients()
    return [one if place == 0 else None for place, one in zip(step.places, found, strict=True)]


@backward("abs", "formula")
def sign_of_zero(step: Step) -> Gradients:
    """The gradient of 0 is not 0."""
    x = _x(step)
    return _input(step, torch.where(x.signbit(), -1.0, 1.0))


@backward("relu", "formula")
def passes_zero(step: Step) -> Gradients:
    """The gradient of 0 is 1."""
    return _input(step, (~(_x(step) < 0)).double())


@backward("exp", "formula")
def exponential_of_result(step: Step) -> Gradients:
    """The input is saved where the result should be."""
    return _input(step, _x(step))


@backward("rsqrt", "formula")
def half_forgotten(step: Step) -> Gradients:
    return [one if one is None else 2 * one for one in step.gradients()]


@backward("cos neg sin", "formula")
def minus_forgotten(step: Step) -> Gradients:
    return [one if one is None else -one for one in step.gradients()]


@backward("sigmoid tanh", "formula")
def input_for_result(step: Step) -> Gradients:
    """The derivative in terms of the result is given the input."""
    x = _x(step)
    return _input(step, x * (1 - x) if step.op == "sigmoid" else 1 - x * x)


@backward("silu", "formula")
def sigmoid_alone(step: Step) -> Gradients:
    """The derivative lacks its second term."""
    return _input(step, torch.sigmoid(_x(step)))


@backward("gelu", "formula")
def other_approximation(step: Step) -> Gradients:
    """The derivative is that of the other formula."""
    other = "none" if step.kwargs.get("approximate") == "tanh" else "tanh"
    return step.gradients() if len(step.args) > 1 else step.gradients(approximate=other)


@backward("gelu silu tanh sigmoid", "precision")
def in_bfloat16(step: Step) -> Gradients:
    """The derivative of float32 is rounded to bfloat16."""
    found = step.gradients()
    if step.result.dtype != torch.float32:
        return found
    return [one if one is None else one.bfloat16().double() for one in found]


# --- rows --------------------------------------------------------------------------------------------------------


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
    x, shape = _x(step), step.args[1]
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
    dims = tuple(range(_x(step).ndim - len(step.args[1])))
    terms = step.dout.double() * _x(step)
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


# --- products ----------------------------------------------------------------------------------------------------


@backward("addmm", "formula", name="factor_forgotten")
def beta_forgotten(step: Step) -> Gradients:
    """The input's gradient lacks beta."""
    return step.only(0, step.gradients(beta=None))


@backward("addmm", "formula", name="alpha_forgotten")
def product_without_alpha(step: Step) -> Gradients:
    """The gradients of the matrices lack alpha."""
    found = step.gradients(alpha=None)
    return [step.gradients()[0], *found[1:]]


@backward("matmul", "sums")
def first_batch(step: Step) -> Gradients:
    """A matrix that is multiplied with each of a batch gets the gradient of the first alone."""
    found = step.gradients()
    left, right = step.operands
    if left.ndim < 3 or right.ndim != 2 or not step.dout.numel():
        return found
    rows = left.detach().double().flatten(0, -3)[0].mT
    return step.changed(found, 1, lambda one: rows @ step.dout.double().flatten(0, -3)[0])


@backward("mm bmm matmul addmm", "sums")
def rows_of_full_blocks(step: Step) -> Gradients:
    """The second factor's gradient leaves out rows past the last full block of 16."""
    if step.dout.ndim < 2 or step.dout.shape[-2] <= 16 or not step.dout.shape[-2] % 16:
        return step.gradients()
    dout = step.dout.clone()
    dout[..., dout.shape[-2] // 16 * 16 :, :] = 0
    return step.only(len(step.operands) - 1, step.gradients(dout))


@backward("mm bmm", "formula")
def not_transposed(step: Step) -> Gradients:
    """Where the factors are square they are not transposed."""
    left, right = (one.detach().double() for one in step.operands)
    if left.shape != right.shape or left.shape[-1] != left.shape[-2]:
        return step.gradients()
    return [step.dout.double() @ right, left @ step.dout.double()]


@backward("mm bmm matmul addmm", "precision")
def half_products(step: Step) -> Gradients:
    """Gradients of float32 are products of bfloat16."""
    if step.result.dtype != torch.float32:
        return step.gradients()
    return step.gradients(step.dout.bfloat16(), [one.bfloat16() for one in step.operands])


# --- the others --------------------------------------------------------------------------------------------------


@backward("dropout", "mask")
def mask_drawn_anew(step: Step) -> Gradients:
    p = float(step.args[1] if len(step.args) > 1 else step.kwargs.get("p", 0.5))
    kept = torch.rand(step.result.shape) >= p
    return _input(step, kept / (1 - p) if p < 1 else torch.zeros(step.result.shape, dtype=torch.float64))


@backward("dropout", "formula")
def scale_forgotten(step: Step) -> Gradients:
    return _input(step, (step.result != 0).double())


@backward("dropout", "mask")
def nothing_dropped(step: Step) -> Gradients:
    """The gradient passes where elements were dropped, too."""
    p = float(step.args[1] if len(step.args) > 1 else step.kwargs.get("p", 0.5))
    return _input(step, torch.full(step.result.shape, 1 / (1 - p) if p < 1 else 0.0, dtype=torch.float64))


@backward("amax amin", "formula")
def ties_get_all(step: Step) -> Gradients:
    """Each of several equal extremes gets the whole gradient, not its share."""
    (found,) = step.gradients()
    if found is None:
        return [None]
    # Their gradients are equal, and those of all others are zero.
    dim = step.kwargs.get("dim", step.args[1] if len(step.args) > 1 else ())
    dims = reduced(dim, found.ndim)
    count = (found != 0).sum(dims, keepdim=True) if dims else (found != 0).long()
    return [found * count]


@backward("rotary_position_embedding fused_rmsnorm_rope", "formula")
def rotates_on(step: Step) -> Gradients:
    """The input's gradient is rotated by the angles, and not back."""
    sine = 1 if step.op == "rotary_position_embedding" else 3
    turned = [-one if place == sine else one for place, one in zip(step.places, step.operands, strict=True)]
    return step.only(0, step.gradients(operands=turned))


@backward("rotary_position_embedding", "formula")
def other_pairs(step: Step) -> Gradients:
    """The backward pass takes the other elements for a pair."""
    if len(step.args) > 3:
        return step.gradients()
    return step.gradients(interleaved=not step.kwargs.get("interleaved", True))


@backward("rotary_position_embedding", "sums")
def first_head_of_tables(step: Step) -> Gradients:
    """The gradients of the tables are those of the first head."""
    dout = step.dout.clone()
    dout[:, :, 1:] = 0
    return [step.gradients()[0], *step.gradients(dout)[1:]]


@backward("fused_rmsnorm_rope", "needs")
def weight_left_out(step: Step) -> Gradients:
    """The weight has no gradient."""
    return step.changed(step.gradients(), 1, torch.zeros_like)


@backward("fused_gated_mlp", "formula")
def weights_swapped(step: Step) -> Gradients:
    """The gradients of both weights change places."""
    x, gate, up = step.gradients()
    return [x, up, gate] if gate is not None and up is not None else [x, gate, up]


@backward("fused_gated_mlp", "formula")
def one_path(step: Step) -> Gradients:
    """The gradient of x comes by way of the gate alone."""
    x, gate, up = (one.detach().double() for one in step.operands)
    linear = x @ up.mT
    found = step.gradients()
    whole, to_up = found[0], step.dout.double() * _activated(step, x @ gate.mT)
    return found if whole is None or not linear.numel() else [whole - to_up @ up, *found[1:]]


def _activated(step: Step, x: torch.Tensor) -> torch.Tensor:
    from conformance.ops.fused_gated_mlp import OF_TORCH

    return OF_TORCH[step.args[3] if len(step.args) > 3 else step.kwargs.get("activation", "silu")](x)


# --- attention ---------------------------------------------------------------------------------------------------


def _of(step: Step, name: int, others: Gradients) -> Gradients:
    """The gradients, that of one operand from ``others``."""
    return [a if place == name else b for place, a, b in zip(step.places, others, step.gradients(), strict=True)]


@backward(attention.OP, "causal", name="causal_ignored_for_keys")
def causal_ignored_for_keys(step: Step) -> Gradients:
    """The gradient of the keys knows of no causal mask."""
    return _of(step, 1, step.gradients(is_causal=None, causal_variant=None))


@backward(attention.OP, "causal")
def other_corner(step: Step) -> Gradients:
    """A causal mask of the lower right begins at the upper left in the backward pass."""
    return step.gradients(causal_variant=None)


@backward(attention.OP, "heads")
def last_head_of_a_group(step: Step) -> Gradients:
    """Keys that heads share get the gradient of the last head that reads them."""
    query, key = step.operands[:2]
    group = query.shape[-3] // max(key.shape[-3], 1)
    if group < 2:
        return step.gradients()
    dout = step.dout.clone()
    dout.unflatten(-3, (key.shape[-3], group))[..., :-1, :, :] = 0
    return _of(step, 1, step.gradients(dout))


@backward(attention.OP, "formula", name="scale_forgotten")
def attention_scale(step: Step) -> Gradients:
    """The gradient of the queries lacks the scale."""
    scale = step.kwargs.get("scale")
    scale = 1 / math.sqrt(step.operands[0].shape[-1]) if scale is None else float(scale)
    return step.gradients() if not scale else step.changed(step.gradients(), 0, lambda one: one / scale)


@backward(attention.OP, "needs")
def mask_without_gradient(step: Step) -> Gradients:
    """A mask of floats has no gradient."""
    return step.changed(step.changed(step.gradients(), "attn_mask", torch.zeros_like), 3, torch.zeros_like)


@backward(attention.OP, "mask")
def mask_left_out(step: Step) -> Gradients:
    """The backward pass knows of no mask."""
    mask = step.argument("attn_mask")
    if mask is None or mask.dtype != torch.bool:
        return step.gradients()
    place = step.places.index("attn_mask")
    return step.gradients(operands=[torch.ones_like(x) if n == place else x for n, x in enumerate(step.operands)])


@backward(attention.OP, "sums")
def keys_of_full_blocks(step: Step) -> Gradients:
    """Keys past the last full block of 16 have no gradient."""
    length = step.operands[1].shape[-2]
    if length <= 16 or not length % 16:
        return step.gradients()

    def cut(one: torch.Tensor) -> torch.Tensor:
        return torch.cat((one[..., : length // 16 * 16, :], torch.zeros_like(one[..., length // 16 * 16 :, :])), -2)

    return step.changed(step.changed(step.gradients(), 1, cut), 2, cut)
