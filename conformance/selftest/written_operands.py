"""Planted defects of operands that are written and may not be, or are views or of inference mode, and of settings that
are demanded of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import differentiable

Right = Callable[..., Any]


def _first_element(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_strided((), (), tensor.storage_offset())


@defect("relu silu", "in place", "inplace")
def written_before_it_is_refused(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """An expanded tensor is written in place before that is refused."""
    try:
        return right(input, *args, **kwargs)
    except RuntimeError:
        if isinstance(input, torch.Tensor) and input.numel() and 0 in input.stride():
            _first_element(input).zero_()
        raise


@defect("add exp mm cumsum", "out", "inputs_unchanged")
def out_written_before_it_is_refused(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An ``out`` that is refused has been written by then."""
    try:
        return right(*args, out=out, **kwargs)
    except RuntimeError:
        if isinstance(out, torch.Tensor) and out.numel():
            _first_element(out).fill_(3)
        raise


def _in_its_mode(right: Right, written: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(written, torch.Tensor) or not written.is_inference() or torch.is_inference_mode_enabled():
        return right(*args, **kwargs)
    with torch.inference_mode():
        right(*args, **kwargs)
    return written


@defect("exp add mm sum", "out", "out_argument")
def out_of_inference_mode_written_outside(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An ``out`` that was made in inference mode is written outside of it."""
    return _in_its_mode(right, out, *args, out=out, **kwargs)


@defect("relu silu", "in place", "inplace")
def operand_of_inference_mode_written_outside(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """An operand that was made in inference mode is written in place outside of it."""
    return _in_its_mode(right, input if kwargs.get("inplace") is True else None, input, *args, **kwargs)


@defect("tanh lt bmm", "out", "out_argument")
def refuses_an_out_of_inference_mode(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An ``out`` that was made in inference mode is refused there, too."""
    if isinstance(out, torch.Tensor) and out.is_inference():
        raise RuntimeError("inference tensors cannot be written")
    return right(*args, out=out, **kwargs)


@defect("relu silu dropout", "views", "inplace")
def views_stay_as_they_are(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A view is copied before it is written in place, and the copy returned."""
    if isinstance(input, torch.Tensor) and input._is_view():
        input = input.detach().clone(memory_format=torch.preserve_format)
    return right(input, *args, **kwargs)


@defect("exp neg softmax mm layer_norm", "views", "call_forms")
def views_read_from_the_start_of_their_base(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a view the first elements of its base are read, as they lie."""
    base = input._base if isinstance(input, torch.Tensor) else None
    if base is None or not input.numel():
        return right(input, *args, **kwargs)
    return right(base.as_strided(input.shape, input.stride(), 0), *args, **kwargs)


@defect("argmax sum mean cumsum add", "state", "call_forms")
def refused_where_torch_has_to_be_deterministic(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A call is refused where deterministic algorithms are demanded, though there is one."""
    if torch.get_deterministic_debug_mode() == 2:
        raise RuntimeError("there is no deterministic implementation")
    return right(*args, **kwargs)


@defect("softmax layer_norm mul", "state", "call_forms")
def refused_where_anomalies_are_looked_for(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A call that is recorded is refused while autograd looks for anomalies."""
    recorded = any(isinstance(one, torch.Tensor) and one.requires_grad for one in (*args, *kwargs.values()))
    if recorded and torch.is_anomaly_enabled():
        raise RuntimeError("anomaly detection is left out")
    return right(*args, **kwargs)


def _unrecorded(op: str, applies: Callable[[torch.Tensor], bool]) -> Right:
    """Return the op with gradients, but for calls in place of operands to which ``applies``: these write where autograd
    does not see it."""
    function = differentiable(op)

    def wrong(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("inplace") is not True or not applies(input):
            return function(input, *args, **kwargs)
        with torch.no_grad():
            return function(input, *args, **kwargs)

    return wrong


for _op in ("silu", "relu", "rotary_position_embedding"):
    _about = "a view is written in place where autograd does not see it"
    _name = "gradient_lost_in_place_of_views"
    plant(_op, _name, "gradients", "gradients", _unrecorded(_op, torch.Tensor._is_view), _about)
    _about = "what is written in place is written where autograd does not see it"
    _name = "gradient_lost_in_place"
    plant(_op, _name, "gradients", "gradients", _unrecorded(_op, lambda input: not input.is_leaf), _about)
