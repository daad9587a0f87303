"""Running error analysis: arrays in float64, and a bound on how far a computation in a dtype may be from them.

Each operation adds its own rounding to the errors of its operands (N. J. Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 3.3). Sums and products of matrices have the bound of ``product_bounds.product``.

Of the bound, half an ulp of the result included, torch 2.13 on the CPU uses at most, for float32 (17,000 drawn cases of
23 operators, two seeds): exp 0.36, sin 0.37, cos 0.47, rsqrt 0.67, sigmoid 0.36, tanh 0.49, silu 0.44, gelu 0.57,
products 0.69, layer_norm 0.50, dropout 0.66. Where the last step is one rounding (add, mul, div, a cast), and for half
types, it uses all of it. What goes beyond it is in ``deviations``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance import float_formats, product_bounds
from conformance.spec import Expected


@dataclasses.dataclass(frozen=True)
class Running:
    """A computed array. Where ``error`` is infinite nothing is said of an element: it is not finite, or depends on one
    that is not, or may leave the range of the compute dtype."""

    value: np.ndarray
    """In float64, and finite."""
    error: np.ndarray
    """The largest distance of a computation from ``value``."""
    dtype: torch.dtype
    """The dtype of the call's result: half types are computed in float32, and may be rounded where ``stored`` says
    so."""

    def __post_init__(self) -> None:
        value, error = np.broadcast_arrays(self.value, self.error)
        known = np.abs(value) + error <= float_formats.FORMATS[self.compute].max
        object.__setattr__(self, "value", np.where(np.isfinite(value), value, 0.0))
        object.__setattr__(self, "error", np.where(known, error, np.inf))

    @property
    def compute(self) -> torch.dtype:
        """The compute dtype."""
        return float_formats.compute_dtype(self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def mT(self) -> Running:
        return self.laid(lambda array: np.swapaxes(array, -1, -2))

    def laid(self, move: Callable[[np.ndarray], np.ndarray]) -> Running:
        """Return the same elements, some of them or each several times, in another shape."""
        return Running(move(self.value), move(self.error), self.dtype)

    def _rounded(self, value: np.ndarray, error: np.ndarray) -> Running:
        error = _known(error)
        return Running(value, error + float_formats.rounding(np.abs(value) + error, self.compute), self.dtype)

    def _of(self, other: Running | float) -> Running:
        return other if isinstance(other, Running) else Running(np.asarray(float(other)), np.zeros(()), self.dtype)

    def __neg__(self) -> Running:
        return Running(-self.value, self.error, self.dtype)

    def __add__(self, other: Running | float) -> Running:
        other = self._of(other)
        return self._rounded(self.value + other.value, self.error + other.error)

    __radd__ = __add__

    def __sub__(self, other: Running | float) -> Running:
        return self + -self._of(other)

    def __rsub__(self, other: float) -> Running:
        return self._of(other) - self

    def __mul__(self, other: Running | float) -> Running:
        other = self._of(other)
        return self._rounded(self.value * other.value, _off(self, other, np.multiply))

    __rmul__ = __mul__

    def __truediv__(self, other: Running | float) -> Running:
        other = self._of(other)
        value, least = self.value / other.value, np.abs(other.value) - other.error
        error = (self.error + np.abs(value) * other.error) / np.where(least > 0, least, 0.0)
        return self._rounded(value, error)

    def __matmul__(self, other: Running) -> Running:
        return self.times(other)

    def times(self, other: Running, sums: int = 1) -> Running:
        """Return the product of matrices. ``sums``: the number of such products that are added up afterwards, perhaps
        as one."""
        value = self.value @ other.value
        magnitude = product_bounds.aligned(self.value, self.dtype) @ product_bounds.aligned(other.value, self.dtype)
        tf32 = product_bounds.uses_tf32(self.dtype)
        spread = product_bounds.tf32_spread(self.value, other.value) if tf32 else np.zeros(())
        equal = product_bounds.equal_terms(self.value, other.value, value)
        bound = product_bounds.product(value, magnitude, spread, self.shape[-1] * sums, self.dtype, equal)
        error = _off(self, other, np.matmul) + np.where(
            magnitude <= float_formats.FORMATS[self.compute].max, bound, np.inf
        )
        return Running(value, _known(error), self.dtype)

    def sum(self, axes: int | tuple[int, ...], keepdims: bool = False) -> Running:
        """Return the sum over axes, in any order."""
        axes = axes if isinstance(axes, tuple) else (axes,)
        terms = math.prod(self.shape[axis] for axis in axes)
        value, magnitude, error = (
            array.sum(axis=axes, keepdims=keepdims) for array in (self.value, np.abs(self.value), self.error)
        )
        if terms > 1:
            # In this dtype itself no product is rounded, and none takes TF32.
            unit = float_formats.FORMATS[self.compute].unit
            walk = product_bounds.PRODUCT_WALK * math.sqrt(terms) * magnitude
            error = error + unit * (walk + product_bounds.PRODUCT_DRIFT * terms * np.abs(value))
        return Running(value, np.where(magnitude <= float_formats.FORMATS[self.compute].max, error, np.inf), self.dtype)

    def cumulated(self) -> Running:
        """Return the cumulative sum along the last dim, in any grouping."""
        value, magnitude, error = (np.cumsum(array, -1) for array in (self.value, np.abs(self.value), self.error))
        error = error + product_bounds.cumulative(value, magnitude, self.dtype)
        return Running(value, np.where(magnitude <= float_formats.FORMATS[self.compute].max, error, np.inf), self.dtype)

    def mean(self, axes: int | tuple[int, ...], keepdims: bool = False) -> Running:
        """Return the mean over axes."""
        axes = axes if isinstance(axes, tuple) else (axes,)
        return self.sum(axes, keepdims) / float(max(math.prod(self.shape[axis] for axis in axes), 1))

    def applied(self, function: Callable[[np.ndarray], np.ndarray], own: Any) -> Running:
        """Apply a function to each element, monotonic as far as the errors reach; ``own``: the function's own error at
        a value."""
        value = function(self.value)
        ends = (np.abs(function(self.value + sign * self.error) - value) for sign in (1, -1))
        error = np.where(self.error == 0, 0.0, np.maximum(*ends)) + own(value)
        # Elements with an infinite error may be NaN.
        error = np.where(np.isinf(self.error), np.inf, error)
        return Running(value, _known(error), self.dtype)

    def where(self, mask: np.ndarray) -> Running:
        """Return the same, 0 outside of a mask."""
        return Running(np.where(mask, self.value, 0.0), np.where(mask, self.error, 0.0), self.dtype)

    def computed(self) -> Running:
        """Return the same, whose error leaves out the rounding to the compute dtype, as ``bounds`` do, with it."""
        return Running(self.value, self.error + float_formats.rounding(self.value, self.compute), self.dtype)

    def stored(self) -> Running:
        """Return the same, which may have been rounded to the dtype of the call's result."""
        return self if self.dtype == self.compute else self.cast(self.dtype)

    def cast(self, dtype: torch.dtype) -> Running:
        """Return the same, which may have been rounded to a dtype."""
        reach = np.abs(self.value) + self.error
        error = np.where(reach <= float_formats.FORMATS[dtype].max, self.error, np.inf)
        rounding = float_formats.rounding(reach, dtype)
        # A number of that dtype, such as a gradient that is passed on, stays as it is.
        same = (self.error == 0) & (torch.from_numpy(np.array(self.value)).to(dtype).double().numpy() == self.value)
        rounding = np.where(same, float_formats.rounding(np.zeros(()), dtype), rounding)
        return Running(self.value, error + rounding, dtype)

    def summed_to(self, shape: tuple[int, ...]) -> Running:
        """Return the sum over the dims along which a tensor of ``shape`` was broadcast, each term stored."""
        missing = len(self.shape) - len(shape)
        axes = tuple(
            axis for axis, size in enumerate(self.shape) if axis < missing or (shape[axis - missing] == 1 and size != 1)
        )
        return self.stored().sum(axes).laid(lambda array: array.reshape(shape)) if axes else self

    def expected(self, output: torch.dtype) -> Expected:
        """Return the answer for a gradient of dtype ``output``."""
        # torch computes it in the dtype of the result, and then casts.
        result = self if output == self.dtype else self.stored()
        known = np.isfinite(result.error)
        error = np.where(known, result.error, 0.0)
        if self.dtype == torch.float64:
            # The values themselves were computed in float64.
            error = 2 * error
        error = error + float_formats.stored(result.value, self.compute, output)
        # The number that is rounded last may lie beyond a power of two, where numbers are further apart.
        error = (
            error
            + (float_formats.ulp(np.abs(result.value) + error, output) - float_formats.ulp(result.value, output)) / 2
        )
        value, bound, judged = (torch.from_numpy(np.array(array)) for array in (result.value, error, known))
        return Expected(value, bound, judged)


def exact(tensor: torch.Tensor, dtype: torch.dtype) -> Running:
    """Return an operand of a call with a result of ``dtype``, to which it may be rounded first."""
    given = tensor.detach().cpu()
    value = given.to(dtype).double().numpy()
    with np.errstate(invalid="ignore"):
        return Running(value, _known(np.abs(given.double().numpy() - value)), dtype)


def number(value: bool | int | float, dtype: torch.dtype) -> Running:
    """Return a Python number beside such an operand, which may be rounded to the dtype or to the compute dtype."""
    wide = torch.tensor(value, dtype=torch.float64).to(float_formats.compute_dtype(dtype))
    return exact(wide, dtype)


def _known(error: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(error), np.inf, error)


def _off(a: Running, b: Running, product: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the error of a product of these, without its own rounding."""
    found = 0.0
    # An exact factor adds nothing, whatever the other one is.
    if a.error.any():
        found = found + product(a.error, np.abs(b.value) + b.error)
    if b.error.any():
        found = found + product(np.abs(a.value), b.error)
    return _known(np.asarray(found))
