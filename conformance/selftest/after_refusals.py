"""Planted defects of what a refused call leaves behind: what is set for the time of a call stays set where the call
raises, and the next one meets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant_state
from conformance.selftest.state import apart

Function = Callable[..., Any]
KIND = "state: refusals"
OPTIONAL = ("alpha", "beta", "eps", "weight", "bias", "approximate", "rounding_mode", "interleaved", "scale")
ALONG_DIMS = "softmax log_softmax amax argmax logsumexp sum mean"
WITH_OPTIONS = "add sub div addmm layer_norm rms_norm gelu rotary_position_embedding scaled_dot_product_attention"
SOME = "mul exp eq bitwise_and clamp mm bmm fused_gated_mlp dequantize_fp8"


def _during(changed: Callable[..., Any]) -> Callable[[Function], Function]:
    """``changed(right, *args, **kwargs)``: a call that begins while an earlier one seems to run."""

    def make(right: Function) -> Function:
        running = [False]

        def call(*args: Any, **kwargs: Any) -> Any:
            function = (lambda *a, **k: changed(right, *a, **k)) if running[0] else right
            running[0] = True
            result = function(*args, **kwargs)
            running[0] = False
            return result

        return call

    return make


def _last_dim(right: Function, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    if isinstance(input, torch.Tensor) and input.ndim > 1 and type(dim) is int and -input.ndim <= dim < input.ndim:
        dim = -1
    return right(input, dim, *args, **kwargs)


def _without_options(right: Function, *args: Any, **kwargs: Any) -> Any:
    return right(*args, **{name: value for name, value in kwargs.items() if name not in OPTIONAL})


def _end_missing(right: Function, *args: Any, **kwargs: Any) -> Any:
    result = right(*args, **kwargs)
    if apart(result, args, kwargs) and not of.written(args, kwargs):
        result.select(-1, -1).zero_() if result.ndim else result.zero_()
    return result


for _ops, _name, _changed, _about in (
    (ALONG_DIMS, "last_dim_after_refusal", _last_dim, "it is along the last dim"),
    (WITH_OPTIONS, "defaults_after_refusal", _without_options, "its options have their defaults"),
    (SOME, "end_missing_after_refusal", _end_missing, "the last elements of its rows are not written"),
):
    plant_state(_ops, _name, KIND, _during(_changed), f"a refused call leaves a flag, and of the next one {_about}")
