"""Compare a tensor with the oracle's answer, and name its worst element."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import torch

from conformance import float_formats
from conformance.spec import Expected


class Comparison(msgspec.Struct, frozen=True):
    """The verdict on one output tensor and its worst element: the one that uses the largest share of what is allowed.

    ``share`` is error / allowed: 0 where the output is the oracle's value, over 1 where it fails, infinite where
    nothing is allowed (exact ops, NaN or infinity in the wrong place). ``index`` is None where nothing was judged.
    """

    passed: bool
    share: float = 0.0
    index: tuple[int, ...] | None = None
    ours: float | int | bool | None = None
    oracle: float | int | bool | None = None
    error: float = 0.0
    allowed: float = 0.0
    ulps: float = 0.0
    """The largest error of a judged element in units in the last place of the output dtype, at the oracle's value."""
    rounded: float | None = None
    """The number that the oracle is rounded to, where the output is another one although it is within the bound."""
    judged: int = 0
    """Elements judged."""
    failed: int = 0
    """Elements outside the bound."""
    reason: str = ""
    """Why the tensors could not be compared at all (another shape or dtype), else empty."""


def compare(output: torch.Tensor, expected: Expected) -> Comparison:
    """Judge ``output`` (any device and strides) against the oracle.

    An element passes when it is NaN where the oracle is NaN; the same infinity where the oracle is infinite; an
    infinity or a finite number where the oracle lies within the bound of the point where rounding overflows; and
    otherwise when ``|output - oracle| <= ulp / 2 + bound``, ulp being that of the output dtype at the oracle's value,
    and it is one of the numbers in ``rounded``, where there are any.
    Without a bound every element must be equal (any NaN equals any NaN). The sign of a zero counts only where
    ``signed_zero`` says so and the oracle is exactly zero. What is equal to ``instead``, or to one of ``also``, passes
    too. Elements outside ``judged`` are not looked at.
    """
    value = expected.value
    if tuple(output.shape) != tuple(value.shape):
        return Comparison(False, math.inf, reason=f"shape {tuple(output.shape)} instead of {tuple(value.shape)}")
    output = output.detach().cpu()
    if expected.bound is None:
        if output.dtype != value.dtype:
            return Comparison(False, math.inf, reason=f"dtype {output.dtype} instead of {value.dtype}")
        share, error, allowed = _exact(output, value, expected.signed_zero)
    elif output.dtype not in float_formats.FORMATS:
        return Comparison(False, math.inf, reason=f"dtype {output.dtype} instead of a floating-point one")
    else:
        with np.errstate(all="ignore"):
            share, error, allowed = _within(output, expected)
            misrounded = _misrounded(output, expected) & (share <= 1)
            share[misrounded] = math.inf
        if expected.instead is not None:
            instead = ~_flat(kept(output, expected)[0])
            share[instead] = error[instead] = 0.0
    for other in expected.also:
        right = ~differs(output.double(), other)
        if expected.signed_zero:
            right &= (value != 0) | (output.signbit() == value.signbit())
        right = _flat(right)
        share[right] = error[right] = 0.0
    return _worst(output, expected, share, error, allowed)


def kept(output: torch.Tensor, expected: Expected) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where an output differs from the other allowed value, ``instead``, and where a difference would show."""
    other = expected.instead
    assert other is not None
    return differs(output.detach().cpu().double(), other), differs(expected.value, other)


def differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Tell for each element whether it differs; NaN is equal to NaN."""
    return (one != other) & ~(one.isnan() & other.isnan())


def _exact(output: torch.Tensor, value: torch.Tensor, signed_zero: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    wrong = output != value
    if value.dtype.is_floating_point:
        wrong &= ~(output.isnan() & value.isnan())
        if signed_zero:
            wrong |= (value == 0) & (output.signbit() != value.signbit())
    share = np.where(_flat(wrong), math.inf, 0.0)
    # Doubles do not hold every int64; the error is for people, the verdict is above.
    with np.errstate(invalid="ignore"):
        error = np.abs(_flat(output.double()) - _flat(value.double())) if wrong.any() else np.zeros(share.shape)
    return share, error, np.zeros(share.shape)


def _within(output: torch.Tensor, expected: Expected) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    form = float_formats.FORMATS[output.dtype]
    ours, value = _flat(output.double()), _flat(expected.value)
    bound = _flat(
        (expected.bound if expected.bound is not None else torch.zeros(())).broadcast_to(expected.value.shape)
    )
    low = None if expected.low is None else _flat(expected.low)

    ulp = float_formats.ulp(value, output.dtype)
    error = ours - value if low is None else (ours - value) - low
    error = np.abs(error)
    # Twice both sides: half a step of float64's subnormals is no float64.
    share = 2 * error / (ulp + 2 * bound)
    share[error == 0] = 0.0

    special = ~(np.isfinite(ours) & np.isfinite(value))
    if special.any():
        share[special], error[special] = _special(
            ours[special], value[special], bound[special], 0.0 if low is None else low[special], form
        )
    if expected.signed_zero:
        zero = (value == 0) & (ours == 0) & (np.signbit(value) != np.signbit(ours))
        share[zero if low is None else zero & (low == 0)] = math.inf
    # No comparison with NaN is true: an oracle whose bound is undefined must not let anything pass.
    share[np.isnan(share)] = math.inf
    return share, error, ulp / 2 + bound


def _misrounded(output: torch.Tensor, expected: Expected) -> np.ndarray:
    """Tell for each element whether the output is none of the numbers that the oracle may be rounded to; the sign of a
    zero counts where it is judged."""
    ours, found = output.double(), torch.zeros(output.shape, dtype=torch.bool)
    for number in expected.rounded:
        right = (ours == number) | (ours.isnan() & number.isnan())
        if expected.signed_zero:
            right &= (number != 0) | (ours.signbit() == number.signbit())
        found |= right
    return _flat(~found) if expected.rounded else np.zeros(output.numel(), bool)


def _flat(tensor: torch.Tensor) -> np.ndarray:
    # A gradient may be negated lazily.
    return tensor.resolve_neg().reshape(-1).numpy()


def _special(
    ours: np.ndarray, value: np.ndarray, bound: np.ndarray, low: np.ndarray | float, form: float_formats.Format
) -> tuple[np.ndarray, np.ndarray]:
    """Return share and error where the output or the oracle is NaN or infinite."""
    # The distance of the oracle from the point where rounding to nearest gives that infinity (NaN in a format without
    # any).
    last = math.ldexp(1.0, math.frexp(form.max)[1] - 1) * 2.0 ** (1 - form.precision)
    sign = np.where(np.signbit(ours), -1.0, 1.0) if form.infinite else np.where(np.signbit(value), -1.0, 1.0)
    short = (form.max - sign * value) - sign * low + last / 2
    overflows = np.where(short <= 0, 0.0, np.where(short <= bound, short / bound, math.inf))
    if form.infinite:
        same = (np.isnan(ours) & np.isnan(value)) | (ours == value)
        overflown = np.isinf(ours) & np.isfinite(value)
    else:
        same = np.isnan(ours) & ~np.isfinite(value)
        overflown = np.isnan(ours) & np.isfinite(value)
    share = np.where(same, 0.0, np.where(overflown, overflows, math.inf))
    return share, np.where(share == 0, 0.0, np.where(overflown & (share <= 1), short, math.inf))


def _worst(
    output: torch.Tensor, expected: Expected, share: np.ndarray, error: np.ndarray, allowed: np.ndarray
) -> Comparison:
    judged = share.size
    if expected.judged is not None:
        mask = _flat(expected.judged.broadcast_to(output.shape))
        share, judged = np.where(mask, share, -1.0), int(mask.sum())
    if not judged:
        return Comparison(True)
    place = int(np.argmax(share))
    ulps = 0.0
    if expected.bound is not None:
        with np.errstate(all="ignore"):
            found = error / float_formats.ulp(_flat(expected.value), output.dtype)
        # A NaN or infinity in its right place is no error.
        ulps = float(
            np.max(np.where((share < 0) | (error == 0), 0.0, np.nan_to_num(found, nan=math.inf, posinf=math.inf)))
        )
    failed = int((share > 1).sum())
    index = tuple(int(i) for i in np.unravel_index(place, output.shape))
    misrounded = bool(expected.rounded) and math.isinf(share[place]) and error[place] <= allowed[place]
    return Comparison(
        passed=not failed,
        share=float(share[place]),
        index=index,
        ours=output[index].item(),
        oracle=expected.value[index].item(),
        error=float(error[place]),
        allowed=float(allowed[place]),
        ulps=ulps,
        rounded=expected.rounded[0][index].item() if misrounded else None,
        judged=judged,
        failed=failed,
    )
