"""What attention is to give: the oracle and its bound."""

from __future__ import annotations

import copy

import mpmath
import numpy as np
import torch

from conformance import bounds, oracle, product_bounds
from conformance.ops._attention import HALF, Arguments, Part, parts, standard_scale
from conformance.spec import Call, Expected


def expected(call: Call) -> Expected:
    """float64 from the definition, float64 operands by mpmath. What is not finite in keys and values that a row leaves
    out, or all but leaves out, is not judged, nor are scores beyond the range of the compute dtype."""
    # Copied as one, so that a view of the cache stays one: the call's own operands are still to be compared.
    args, kwargs = copy.deepcopy((call.args, dict(call.kwargs)))
    arguments = Arguments(*args, **kwargs)
    query, dtype = arguments.query, arguments.query.dtype
    dim, scale = query.shape[-1], arguments.scale
    scale = standard_scale(dim) if scale is None else float(oracle.operand(scale, dtype))
    shape = (*query.shape[:-1], arguments.value.shape[-1])
    value, low, bound, judged = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.ones(shape, bool)
    with np.errstate(all="ignore"):
        for part in parts(arguments):
            place = part.batch
            value[place], low[place], bound[place], judged[place] = _attend(part, scale, arguments.enable_gqa)
    rest = torch.from_numpy(low) if dtype == torch.float64 else None
    return Expected(torch.from_numpy(value), torch.from_numpy(bound), torch.from_numpy(judged), rest)


def _attend(part: Part, scale: float, grouped: bool) -> tuple[np.ndarray, ...]:
    """Value, the rest of it, bound, and where it is judged."""
    dtype = part.query.dtype
    q, k, v = (oracle.operand(x, dtype) for x in (part.query, part.key, part.value))
    if grouped:
        k, v = (np.repeat(x, q.shape[-3] // max(x.shape[-3], 1), axis=-3) for x in (k, v))
    k, v = (np.broadcast_to(x, (*q.shape[:-2], *x.shape[-2:])) for x in (k, v))
    added, allowed = _mask(part, (*q.shape[:-1], k.shape[-2]))
    nan_score, other_score = (
        is_so(q).any(-1, keepdims=True) | np.swapaxes(is_so(k).any(-1, keepdims=True), -1, -2)
        for is_so in (np.isnan, np.isinf)
    )
    finite_q = np.isfinite(q).all(-1, keepdims=True)
    q, k, finite_v = (np.where(np.isfinite(x), x, 0.0) for x in (q, k, v))
    transposed = np.swapaxes(k, -1, -2)
    score = (q @ transposed) * scale
    size = product_bounds.aligned(q, dtype) @ product_bounds.aligned(transposed, dtype)
    weight, low = _weights(np.where(allowed, score + added, -np.inf)), np.zeros(())
    value = weight @ finite_v
    if dtype == torch.float64:
        value, low = _exactly(q, k, finite_v, scale, np.where(allowed, added, -np.inf))
    magnitude, plain = product_bounds.aligned(finite_v, dtype), np.where(allowed, np.abs(added), 0.0)
    weighted = weight @ magnitude
    spread = product_bounds.tf32_spread(q, transposed) if product_bounds.uses_tf32(dtype) else np.zeros(())
    sums = bounds.Attended(
        value,
        weighted,
        _spread(weight, finite_v, dtype),
        allowed.astype(float) @ np.abs(finite_v),
        _largest(allowed, size * abs(scale)),
        (weight * plain) @ magnitude + weighted * (weight * plain).sum(-1, keepdims=True),
        _largest(allowed, product_bounds.TF32_BIAS * np.abs(score) + product_bounds.TF32_WALK * spread * abs(scale)),
        product_bounds.equal_terms(weight, finite_v, value, bounds.ATTENTION_EQUAL, allowed.sum(-1, keepdims=True)),
    )
    bound = bounds.attention(sums, k.shape[-2], q.shape[-1], dtype)
    # Twice, since scores may be kept in units of log 2.
    in_range = _fits(2 * size, dtype) & _fits(2 * size * scale, dtype) & ~other_score
    # Queries may be scaled before the product, or both by the root of the scale.
    scaled = [_fits(2 * max(abs(scale), 1.0) * np.abs(x), dtype).all(-1, keepdims=True) for x in (q, k)]
    in_range &= scaled[0] & np.swapaxes(scaled[1], -1, -2)
    # What a mask hides may still be added to it, and of a query without keys nothing is said but where it is finite.
    judged = (in_range & (allowed | ~nan_score)).all(-1, keepdims=True) & (allowed.any(-1, keepdims=True) | finite_q)
    judged = judged & _fits(2 * sums.total, dtype)
    off = bounds.score_error(size * abs(scale), plain, q.shape[-1], dtype)
    judged = judged & ~_doubtful(np.where(allowed, score + added, -np.inf), off, dtype)
    value = np.where((nan_score & allowed).any(-1, keepdims=True), np.nan, value)
    value, judged = _with_specials(value, judged, weight, v)
    return value, np.where(np.isfinite(value), low, 0.0), bound, judged


def _mask(part: Part, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What is added to the scores, and which keys take part."""
    added, allowed = np.zeros(shape), np.ones(shape, bool)
    if part.mask is not None and part.mask.dtype == torch.bool:
        allowed &= part.mask.numpy()
    elif part.mask is not None:
        added += part.mask.double().numpy()
        allowed &= added != -np.inf
    if part.offset is not None:
        allowed &= np.arange(shape[-1]) <= np.arange(shape[-2])[:, None] + part.offset
    return added, allowed


def _doubtful(score: np.ndarray, error: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Tell in which rows the weights of two keys are anybody's guess: their scores, each off by its error, may be so
    far off that a bound which grows with that says nothing. A mask of the least finite number for all keys makes all
    scores equal where the sum is rounded, and in exact numbers none."""
    top = score.max(-1, initial=-np.inf, keepdims=True)
    far = error + np.take_along_axis(error, score.argmax(-1)[..., None], -1) if score.size else error
    shares = score - np.where(np.isfinite(top), top, 0.0) + far > bounds.least_exponent(dtype)
    return (shares.sum(-1, keepdims=True) > 1) & (shares & (far > bounds.SCORE_FAR)).any(-1, keepdims=True)


def _weights(score: np.ndarray) -> np.ndarray:
    """Of each row, exp(score) over its sum; 0 where all are -inf."""
    top = score.max(-1, initial=-np.inf, keepdims=True)
    powers = np.exp(score - np.where(np.isfinite(top), top, 0.0))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1.0, total)


def _spread(weight: np.ndarray, v: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """sqrt(sum (p v)^2). Of half types also with keys whose weights round to one number as one term, if that is more:
    what their errors have in common adds up, and what they have not does not cancel. With TF32 at least what is lost
    where values are cut off, as in ``tf32_spread``; what weights lose together, the bound has."""
    each = np.sqrt(weight**2 @ v**2)
    if product_bounds.uses_tf32(dtype):
        return np.maximum(each, np.abs(weight @ (v - product_bounds.cut_off(v))) / product_bounds.TF32_WALK)
    if dtype not in HALF or not weight.size:
        return each
    top = weight.max(-1, keepdims=True)
    rounded = torch.from_numpy(weight / np.where(top == 0, 1.0, top)).to(dtype).double().numpy()
    found = np.zeros((*weight.shape[:-1], v.shape[-1]))
    for row in np.ndindex(weight.shape[:-1]):
        order = np.argsort(rounded[row], kind="stable")
        starts = np.flatnonzero(np.diff(rounded[row][order], prepend=-1.0))
        terms = weight[row][order, None] * v[row[:-1]][order]
        found[row] = np.sqrt((np.add.reduceat(terms, starts, axis=0) ** 2).sum(0))
    return np.maximum(found, each)


def _fits(size: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return np.isfinite(size) & oracle.in_range(size, dtype)


def _largest(allowed: np.ndarray, size: np.ndarray) -> np.ndarray:
    return np.where(allowed, size, 0.0).max(-1, initial=0.0, keepdims=True)


LEAST_WEIGHT = 2.0**-14
"""From here on a weight of float16 is normal, and its product with infinity is infinite for every implementation."""


def _with_specials(
    value: np.ndarray, judged: np.ndarray, weight: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """NaN and infinities of ``v`` in the result; not judged where the weight of one is small."""
    if np.isfinite(v).all():
        return value, np.broadcast_to(judged, value.shape)
    certain = (weight >= LEAST_WEIGHT).astype(float)
    nan, positive, negative = (certain @ one > 0 for one in (np.isnan(v), v == np.inf, v == -np.inf))
    found = np.select([nan | (positive & negative), positive, negative], [np.nan, np.inf, -np.inf], 0.0)
    value = np.where(np.isnan(value) | (found == 0), value, found)
    doubtful = (1 - certain) @ ~np.isfinite(v) > 0
    return value, judged & (~doubtful | np.isnan(value))


def _exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, added: np.ndarray) -> oracle.Double:
    """Of float64 operands, by mpmath, a row after the other; ``added`` is -inf where a key does not take part."""
    high, low = np.zeros((2, *q.shape[:-1], v.shape[-1]))

    def exact(array: np.ndarray) -> list[list[mpmath.mpf]]:
        return [[mpmath.mpf(x) for x in row] for row in array.tolist()]

    with mpmath.workprec(oracle.PRECISION):
        for batch in np.ndindex(q.shape[:-2]):
            keys, columns = exact(k[batch]), exact(v[batch].T)
            for row, query in enumerate(exact(q[batch])):
                # A NaN takes part.
                seen = [j for j in range(len(keys)) if added[(*batch, row, j)] != -np.inf]
                score = [mpmath.fdot(query, keys[j]) * scale + float(added[(*batch, row, j)]) for j in seen]
                top = max(score, default=mpmath.mpf(0))
                powers = [mpmath.exp(x - top) for x in score]
                total = mpmath.fsum(powers)
                for place, column in enumerate(columns if seen else ()):
                    found = mpmath.fdot(powers, [column[j] for j in seen]) / total
                    high[(*batch, row, place)], low[(*batch, row, place)] = oracle.to_double(found)
    return high, low
