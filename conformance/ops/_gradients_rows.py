"""Gradients of softmax and of the norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from conformance import bounds, float_formats
from conformance.ops._gradients import Gradients
from conformance.running import Running, exact
from conformance.spec import Call


def softmax(call: Call, dout: torch.Tensor) -> Gradients:
    """y (g - sum y g), y being the result, which may be stored."""
    input, dim = call.args[:2]
    dtype = dout.dtype
    with np.errstate(all="ignore"):
        x, g = (exact(tensor.reshape(tensor.shape or (1,)), dtype) for tensor in (input, dout))
        x, g = (one.laid(lambda array: np.moveaxis(array, dim, -1)) for one in (x, g))
        below = x.value.max(axis=-1, keepdims=True, initial=-np.inf) - x.value
        terms = np.exp(-below)
        value = terms / terms.sum(axis=-1, keepdims=True)
        # What is not finite, or was cast, spoils its row.
        error = bounds.softmax(value, below, dtype) + np.where(x.error.sum(-1, keepdims=True), np.inf, 0)
        # Of a subnormal number rounding changes more than the share that the bound has for it.
        error = error + float_formats.FORMATS[float_formats.compute_dtype(dtype)].subnormal / 2
        result = Running(value, error, dtype).computed().stored()
        # torch's CUDA stores the products before it adds them up.
        weighted = (g * result).stored()
        found = weighted - result * weighted.sum(-1, keepdims=True)
        return {0: found.laid(lambda array: np.moveaxis(array, -1, dim).reshape(input.shape))}


def layer_norm(call: Call, dout: torch.Tensor) -> Gradients:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given: dict[str, Any] = {"eps": 1e-5} | dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    return _placed(call, names, _norm(dout, centered=True, **given))


def rms_norm(call: Call, dout: torch.Tensor) -> Gradients:
    names = ("input", "normalized_shape", "weight", "eps")
    given: dict[str, Any] = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    if given.get("eps") is None:
        given["eps"] = torch.finfo(float_formats.compute_dtype(dout.dtype)).eps
    return _placed(call, names, _norm(dout, centered=False, **given))


def _placed(call: Call, names: Sequence[str], found: dict[str, Running]) -> Gradients:
    places = {name: place for place, name in enumerate(names[: len(call.args)])}
    return {places.get(name, name): gradient for name, gradient in found.items()}


def _norm(
    dout: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int] | int,
    eps: float,
    centered: bool,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> dict[str, Running]:
    normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    with np.errstate(all="ignore"):
        columns = math.prod(normalized_shape)
        rows = input.numel() // max(columns, 1)
        x, g = (exact(tensor.reshape(rows, columns), dout.dtype) for tensor in (input, dout))
        w = None if weight is None else exact(weight.reshape(-1), dout.dtype)
        found = norm(x, g, w, float(eps), centered)
    shapes = {"input": input.shape, "weight": normalized_shape, "bias": normalized_shape}
    given = {"input": input, "weight": weight, "bias": bias}
    return {
        name: gradient.laid(lambda array, name=name: array.reshape(tuple(shapes[name])))
        for name, gradient in found.items()
        if given[name] is not None
    }


def _size_of_differences(x: Running) -> np.ndarray:
    return np.abs(x.value) + np.abs(x.value).mean(1, keepdims=True)


def norm(x: Running, g: Running, w: Running | None, eps: float, centered: bool) -> dict[str, Running]:
    """Of rows r (gw - mean gw - n mean(n gw)), r being 1 / sqrt(mean d^2 + eps) and n = d r; of the weight sum(g n), of
    the bias sum(g). Without ``centered`` d is x and not x - mean x, and gw has no mean."""
    if not x.shape[1]:
        # Nothing has a mean.
        return {"input": x, "weight": g.sum(0), "bias": g.sum(0)}
    d = x
    if centered:
        size = _size_of_differences(x)
        spread = x.error + x.error.mean(1, keepdims=True)
        d = Running(x.value - x.value.mean(1, keepdims=True), bounds.difference(size, x.compute) + spread, x.dtype)
    scale = (d * d).mean(1, keepdims=True) + eps
    root = scale.applied(lambda v: 1 / np.sqrt(v), lambda value: bounds.ulps("rsqrt", value, x.dtype))
    normal = d * root
    weighted = g if w is None else g * w
    inner = weighted - normal * (weighted * normal).mean(1, keepdims=True)
    if centered:
        inner = inner - weighted.mean(1, keepdims=True)
    found = root * inner
    # What is multiplied with what first is anybody's choice, and none may leave the range on the way.
    form, size = float_formats.FORMATS[x.compute], np.abs(weighted.value)
    along = (size * np.abs(normal.value)).sum(1, keepdims=True)
    terms = x.shape[1] * size + size.sum(1, keepdims=True) + np.abs(normal.value) * along
    lost = ~(4 * np.maximum(root.value, 1) * terms <= form.max)
    error = found.error + 8 * form.subnormal * (1 + root.value) * (2 + np.abs(normal.value))
    # Of g w r, and of r^3 sum(g w x) times x, torch composes it.
    cube, total = root.value**3, size.sum(1, keepdims=True) * np.abs(x.value).max(1, keepdims=True, initial=0.0)
    lost |= ~(2 * np.maximum(cube, 1) * np.maximum(np.abs(x.value), 1) * total <= form.max)
    if centered:
        # That sum may be of numbers too small for all of their bits.
        error = error + 2 * form.subnormal * _size_of_differences(x) * (1 + cube)
    else:
        lost |= ~((math.ldexp(1.0, form.least) <= cube) & (cube <= form.max))
        error = error + form.subnormal * (1 + np.abs(x.value)) * (1 + cube)
    found = Running(found.value, np.where(lost, np.inf, error), x.dtype)
    return {"input": found, "weight": (g * normal).sum(0), "bias": g.sum(0)}
