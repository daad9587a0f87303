"""``torch.nn.functional.gelu(input, approximate="none")``: input times the normal distribution function of input.

With ``approximate="tanh"`` the distribution function is (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (D. Hendrycks
and K. Gimpel, Gaussian Error Linear Units, arXiv:1606.08415).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, float_formats, semantics
from conformance.cases import Case
from conformance.ops import _activation, _unary, _words
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.spec import Call, Expected
from strategies import tensors

_FAR = 40
"""From here on, on either side, the distribution function is 0 or 1 to more than float64's range."""
_CUBIC = 0.044715


def by_erf(x: np.ndarray) -> np.ndarray:
    """In float64; inf at inf, NaN at -inf, as on CUDA."""
    return 0.5 * x * torch.special.erfc(torch.from_numpy(np.asarray(x * -math.sqrt(0.5)))).numpy()


def by_tanh(x: np.ndarray) -> np.ndarray:
    """In float64; inf at inf, NaN at -inf."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + _CUBIC * x * x * x)))


def precise_by_erf(x: mpmath.mpf) -> mpmath.mpf:
    return _far(x) if abs(x) > _FAR else x / 2 * mpmath.erfc(-x / mpmath.sqrt(2))


def precise_by_tanh(x: mpmath.mpf) -> mpmath.mpf:
    if abs(x) > _FAR:
        return _far(x)
    return x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)))


def _far(x: mpmath.mpf) -> mpmath.mpf:
    return x if x > 0 else mpmath.mpf(0)


FORMULAS = {"none": (by_erf, precise_by_erf), "tanh": (by_tanh, precise_by_tanh)}


def refused(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    wrong = _words.wrong(("none", "tanh"), ("erf", 1, True, None))
    small = tensors.tensors((3,), dtypes)
    return st.builds(lambda x, name: Case(op="gelu", args=(x,), kwargs={"approximate": name}), small, wrong)


def expected(call: Call) -> Expected:
    approximate, dtype = call.kwargs.get("approximate", "none"), call.args[0].dtype
    x, value, low = _unary.value_of(call.args[0], dtype, *FORMULAS[approximate])
    found = expectations.within(call, value, bounds.gelu(x, approximate, dtype), dtype, low=low, signed_zero=True)
    if approximate == "tanh" or not semantics.of_cpu():
        return found
    # torch's CPU multiplies with 1 + erf before it halves, which overflows, and its erf of infinity is NaN.
    overflows = np.isfinite(x) & (x > torch.finfo(float_formats.compute_dtype(dtype)).max / 2)
    doubled = np.where(overflows, np.inf, np.where(x == np.inf, np.nan, value))
    return dataclasses.replace(found, also=(torch.from_numpy(doubled),))


SPEC = _activation.spec(
    "gelu",
    expected,
    gradients.of_input(gradients.gelu, "approximate"),
    keywords={"approximate": (None, "none", "tanh", "tanh")},
    refused=refused,
    # Two products, a distribution function and an addition.
    flops=4,
)
