"""Gradients of dropout, by the mask of the same call, of rotations, and of the norm before one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.ops._gradients import Gradients
from conformance.ops._gradients_rows import norm
from conformance.running import Running, exact
from conformance.spec import Call


def dropout(call: Call, dout: torch.Tensor) -> Gradients:
    """g / (1 - p) where the call kept an element, and 0 where it did not: which is seen where the element times 0 is
    another number."""
    input, p, training = _dropout(*call.args, **call.kwargs)
    with np.errstate(all="ignore"):
        g = exact(dout, dout.dtype)
        if not training or p == 0:
            return {0: g}
        if p == 1:
            return {0: Running(np.zeros(g.shape), np.where(np.isfinite(g.error), 0.0, np.inf), g.dtype)}
        assert isinstance(call.result, torch.Tensor)
        x, result = (one.detach().cpu().double().numpy() for one in (input, call.result))
        # A scale of float32 that is multiplied with is rounded before.
        scaled = g * (Running(np.ones(()), np.zeros(()), g.dtype) / (1 - p))
        found = scaled.where(result != 0)
        told = np.isfinite(x) & np.isfinite(result) & (x != 0) & (np.abs(x) / (1 - p) >= 2.0**-14)
        # torch multiplies by the mask: what is not finite times 0 is NaN.
        told &= np.isfinite(g.error) | (result != 0)
        return {0: Running(found.value, np.where(told, found.error, np.inf), g.dtype)}


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> tuple[Any, ...]:
    return input, float(p), training


def rotation(call: Call, dout: torch.Tensor) -> Gradients:
    """g0 cos + g1 sin and g1 cos - g0 sin; of the tables sums over batch and heads, 0 beyond the length."""
    input, sin_table, cos_table, interleaved = _rotation(*call.args, **call.kwargs)
    with np.errstate(all="ignore"):
        g, x, sin, cos = (exact(one, dout.dtype) for one in (dout, input, sin_table, cos_table))
        length = input.shape[1]
        found, tables = _rotated_back(g, x, *(_rows(one, length) for one in (sin, cos)), interleaved)
        sines, cosines = (_padded(one, table) for one, table in zip(tables, (sin_table, cos_table), strict=True))
        return {0: found, 1: sines, 2: cosines}


def _padded(rows: Running, table: torch.Tensor) -> Running:
    """Append zeros for the rows of a table past the length."""
    return rows.laid(lambda array: np.pad(array, ((0, table.shape[0] - len(array)), (0, 0))))


def _rotation(
    input: torch.Tensor,
    sin_table: torch.Tensor,
    cos_table: torch.Tensor,
    interleaved: bool = True,
    inplace: bool = False,
) -> tuple[Any, ...]:
    return input, sin_table, cos_table, interleaved


def _rows(table: Running, length: int) -> Running:
    return table.laid(lambda array: array[:length, None])


def _pairs(one: Running, interleaved: bool) -> tuple[Running, Running]:
    half = one.shape[-1] // 2
    if interleaved:
        return one.laid(lambda array: array[..., 0::2]), one.laid(lambda array: array[..., 1::2])
    return one.laid(lambda array: array[..., :half]), one.laid(lambda array: array[..., half:])


def _joined(first: Running, second: Running, interleaved: bool) -> Running:
    """The first and second elements of pairs in their places."""
    parts = (
        np.stack(both, axis=-1 if interleaved else -2).reshape(*first.shape[:-1], -1)
        if first.value.size
        else np.zeros((*first.shape[:-1], 2 * first.shape[-1]))
        for both in ((first.value, second.value), (first.error, second.error))
    )
    return Running(*parts, first.dtype)


def _rotated_back(
    g: Running, x: Running, sin: Running, cos: Running, interleaved: bool
) -> tuple[Running, tuple[Running, Running]]:
    (g0, g1), (x0, x1) = _pairs(g, interleaved), _pairs(x, interleaved)
    found = _joined(g0 * cos + g1 * sin, g1 * cos - g0 * sin, interleaved)
    return found, (_added(g1 * x0, -(g0 * x1)), _added(g0 * x0, g1 * x1))


def _added(one: Running, other: Running) -> Running:
    """Return the sum of both over batch and heads: terms of the one may be added before or after those of the other,
    and what leaves the range in one order is not judged."""
    value, error = (np.concatenate(both) for both in ((one.value, other.value), (one.error, other.error)))
    return Running(value, error, one.dtype).sum((0, 2))


def norm_and_rotation(call: Call, dout: torch.Tensor) -> Gradients:
    """Those of the rotation, and then of the norm. A table that says each number twice may have its gradient in either
    place: it is not judged."""
    x, weight, cos, sin, eps, interleaved, head_dim = _norm_and_rotation(*call.args, **call.kwargs)
    size = cos.shape[1] if head_dim is None else int(head_dim)
    with np.errstate(all="ignore"):
        length, columns = x.shape[1:]
        heads, tables = (*x.shape[:2], columns // size, size), []
        for table in (cos, sin):
            whole = exact(table, dout.dtype)
            if table.shape[1] == size:
                whole = _pairs(whole, interleaved)[0]
            tables.append(_rows(whole, length))
        rows = exact(x.reshape(x.shape[0] * length, columns), dout.dtype)
        g = exact(dout.reshape(heads), dout.dtype)
        w = exact(weight, dout.dtype)
        root = ((rows * rows).mean(1, keepdims=True) + float(eps)).applied(
            lambda v: 1 / np.sqrt(v), lambda value: 2 * np.spacing(value.astype(np.float32)).astype(float)
        )
        normal = (rows * root * w).laid(lambda array: array.reshape(heads))
        back, (sines, cosines) = _rotated_back(g, normal, tables[1], tables[0], interleaved)
        found = norm(rows, back.laid(lambda array: array.reshape(rows.shape)), w, float(eps), centered=False)
        result: dict[int | str, Running] = {
            0: found["input"].laid(lambda array: array.reshape(x.shape)),
            1: found["weight"],
        }
        if cos.shape[1] != size:
            result |= {2: _padded(cosines, cos), 3: _padded(sines, sin)}
        return result


def _norm_and_rotation(
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    head_dim: int | None = None,
) -> tuple[Any, ...]:
    return x, weight, cos, sin, eps, interleaved, head_dim
