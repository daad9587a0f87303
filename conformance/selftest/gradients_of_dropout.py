"""What the backward pass of dropout gets wrong."""

from __future__ import annotations

import torch

from conformance.selftest import families as of
from conformance.selftest.differentiable import Gradients, Step, backward, input_gradient

WORD = 32
"""The elements whose mask one word holds."""


def _p(step: Step) -> float:
    return float(step.args[1] if len(step.args) > 1 else step.kwargs.get("p", 0.5))


def _scale(step: Step) -> float:
    p = _p(step)
    return 1 / (1 - p) if p < 1 else 0.0


def _kept(step: Step) -> torch.Tensor:
    return (step.result != 0).double()


@backward("dropout", "mask")
def mask_drawn_anew(step: Step) -> Gradients:
    kept = torch.rand(step.result.shape) >= _p(step)
    return input_gradient(step, kept * _scale(step))


@backward("dropout", "mask")
def nothing_dropped(step: Step) -> Gradients:
    """The gradient passes where elements were dropped, too."""
    return input_gradient(step, torch.full(step.result.shape, _scale(step), dtype=torch.float64))


@backward("dropout", "mask")
def mask_in_order_of_memory(step: Step) -> Gradients:
    """The mask is read as it lies, though the result's dims lie in another order than the gradient's."""
    return input_gradient(step, of.dense(_kept_as_it_lies(step)) * _scale(step))


def _kept_as_it_lies(step: Step) -> torch.Tensor:
    kept = torch.empty_strided(step.result.shape, step.result.stride(), dtype=torch.float64)
    return kept.copy_(_kept(step))


@backward("dropout", "mask")
def mask_of_the_next(step: Step) -> Gradients:
    """Each element has the mask of the next one, as of an offset that was already advanced."""
    return input_gradient(step, _kept(step).flatten().roll(-1).view(step.result.shape) * _scale(step))


@backward("dropout", "mask")
def last_word_of_the_mask(step: Step) -> Gradients:
    """The mask is kept in words of 32 elements, and the last one, if it is not full, drops all."""
    kept = _kept(step).flatten()
    if kept.numel() > WORD:
        kept[kept.numel() // WORD * WORD :] = 0
    return input_gradient(step, kept.view(step.result.shape) * _scale(step))


@backward("dropout", "mask")
def mask_of_first_row(step: Step) -> Gradients:
    """All rows have the mask of the first one."""
    kept = _kept(step)
    if kept.ndim > 1 and kept.numel():
        kept = kept.flatten(0, -2)[:1].expand(kept.flatten(0, -2).shape).reshape(kept.shape)
    return input_gradient(step, kept * _scale(step))


@backward("dropout", "formula")
def scale_forgotten(step: Step) -> Gradients:
    return input_gradient(step, _kept(step))


@backward("dropout", "formula")
def scaled_twice(step: Step) -> Gradients:
    """The gradient, which was scaled with the mask, is scaled again."""
    return input_gradient(step, _kept(step) * _scale(step) ** 2)


@backward("dropout", "formula")
def scaled_by_p(step: Step) -> Gradients:
    """The scale is 1 / p."""
    return input_gradient(step, _kept(step) * (1 / _p(step) if _p(step) else 1))


@backward("dropout", "trap")
def nan_where_all_is_dropped(step: Step) -> Gradients:
    """A p of 1 has the scale inf, and inf times 0 is NaN."""
    return input_gradient(
        step, torch.full_like(_kept(step), torch.nan) if _p(step) == 1 else _kept(step) * _scale(step)
    )


@backward("dropout", "precision")
def scale_in_half(step: Step) -> Gradients:
    """The scale of float32 is rounded to bfloat16."""
    if step.result.dtype != torch.float32:
        return step.gradients()
    return input_gradient(step, _kept(step) * torch.tensor(_scale(step)).bfloat16().double())
