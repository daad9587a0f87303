"""NVIDIA's libdevice functions, computed by NumPy and torch."""

import functools

import numpy as np
import torch

from ntops.interpreter import formats
from ntops.interpreter.elementary import flushing, rounded_once


def _torch(function):
    # torch has no type wider than float64.
    return rounded_once(lambda array: function(torch.from_numpy(array)).numpy(), widest=np.float64)


def _flag(function):
    return lambda *arrays: function(*arrays).astype(np.int32)


def _round_half_away(x):
    magnitude = np.floor(np.abs(x))
    magnitude = magnitude + (np.abs(x) - magnitude >= 0.5)

    return np.copysign(magnitude, x)


def _fast_quotient(x, y):
    """Divide as CUDA's fast division does: off by at most 2 ulp where |y| is at most 2^126; beyond, the reciprocal is
    flushed to 0 (CUDA C++ Programming Guide, Intrinsic Functions)."""
    beyond = (np.abs(y) > np.float32(2.0**126)) & np.isfinite(y)

    return np.where(beyond, x * np.float32(0), np.divide(x, y))


def _bits(reinterpreted):
    return lambda x: np.ascontiguousarray(x).view(reinterpreted)


# The keys are libdevice's names without the prefix; a final "f" or "d" that marks the type is dropped if needed.
_EXACT = {
    "abs": np.abs,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "div_rn": np.divide,
    "fabs": np.abs,
    "fast_fdivide": _fast_quotient,
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), np.nan, 0)).astype(x.dtype),
    "finite": _flag(np.isfinite),
    "floor": np.floor,
    "fmod": np.fmod,
    "isfinite": _flag(np.isfinite),
    "isinf": _flag(np.isinf),
    "isnan": _flag(np.isnan),
    "llabs": np.abs,
    "nearbyint": np.rint,
    "nextafter": np.nextafter,
    "rint": np.rint,
    "round": _round_half_away,
    "llrint": lambda x: np.rint(x).astype(np.int64),
    "llround": lambda x: _round_half_away(x).astype(np.int64),
    "saturate": lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(x.dtype),
    "signbit": _flag(np.signbit),
    "sqrt": np.sqrt,
    "trunc": np.trunc,
    "float_as_int": _bits(np.int32),
    "float_as_uint": _bits(np.uint32),
    "int_as_float": _bits(np.float32),
    "uint_as_float": _bits(np.float32),
    "double_as_longlong": _bits(np.int64),
    "longlong_as_double": _bits(np.float64),
}
# These are rounded once; libdevice's own results are within an ulp or so.
_APPROXIMATE = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cos": np.cos,
    "cosh": np.cosh,
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "exp": np.exp,
    "exp10": lambda x: np.power(10.0, x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fast_cos": np.cos,
    "fast_exp": np.exp,
    "fast_exp10": lambda x: np.power(10.0, x),
    "fast_fdivide": np.divide,
    "fast_log": np.log,
    "fast_log10": np.log10,
    "fast_log2": np.log2,
    "fast_pow": np.power,
    "fast_sin": np.sin,
    "fast_tan": np.tan,
    "hypot": np.hypot,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "pow": np.power,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "tan": np.tan,
    "tanh": np.tanh,
}
_OF_TORCH = {
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "lgamma": torch.lgamma,
    "normcdf": torch.special.ndtr,
}
# How each takes subnormal numbers; libdevice's log and exp keep them.
_FLUSHES_OPERANDS = {"erf", "expm1", "fast_fdivide", "fmod", "log1p", "rsqrt", "sin", "sqrt", "tanh"}
_FLUSHES_RESULTS = {"exp2", "fast_fdivide", "pow"}
_ROUND_TO_NEAREST = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def _find(name):
    if name in ("powi", "powif"):
        return rounded_once(np.power)

    for candidate in (name, name[:-1] if name[-1] in "fd" else name):
        flushed = functools.partial(
            flushing, operands=candidate in _FLUSHES_OPERANDS, results=candidate in _FLUSHES_RESULTS
        )

        if candidate in _EXACT:
            return flushed(_EXACT[candidate])

        if candidate in _APPROXIMATE:
            return flushed(rounded_once(_APPROXIMATE[candidate]))

        if candidate in _OF_TORCH:
            return flushed(_torch(_OF_TORCH[candidate]))

        if candidate.endswith("_rn") and candidate[1:-3] in _ROUND_TO_NEAREST:
            return _ROUND_TO_NEAREST[candidate[1:-3]]

    return None


@functools.cache
def _function(symbol):
    name = symbol.removeprefix("__nv_")
    found = formats.fma if name in ("fma", "fmaf", "fma_rn", "fmaf_rn") else _find(name)

    if found is None:
        raise NotImplementedError(
            f"ntops' interpreter has no {symbol}; libdevice functions that it has: "
            f"{', '.join(sorted([*_EXACT, *_APPROXIMATE, *_OF_TORCH]))}"
        )

    return found


erf = flushing(_torch(torch.erf), operands=True)


def call(symbol, arrays):
    """Call libdevice's ``symbol`` (such as ``__nv_powf``) on NumPy arrays of equal rank."""
    return _function(symbol)(*arrays)
