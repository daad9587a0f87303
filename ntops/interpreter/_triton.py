"""The parts of Triton's internals that the interpreter uses; ``installation`` replaces some of them."""

import functools
import inspect
import os
import re
import sys
from importlib import metadata

KNOWN_VERSIONS = ("3.6.0", "3.7.1", "3.9.0")
_USUAL = "3.7.1"  # what CI has


def _check():
    if os.environ.get("TRITON_INTERPRET", "").lower() not in ("1", "true", "on", "yes", "y"):
        if "triton" in sys.modules:
            raise ImportError(_TOO_LATE)

        os.environ["TRITON_INTERPRET"] = "1"

    import triton

    if triton.__version__ not in KNOWN_VERSIONS:
        raise ImportError(
            f"without a CUDA device, kernels are interpreted, which works with Triton {', '.join(KNOWN_VERSIONS)}, and "
            f"this is {triton.__version__}: pip install triton=={_fitting_version()}"
        )

    from triton.runtime import interpreter

    if not isinstance(triton.language.sum, interpreter.InterpretedFunction):
        raise ImportError(_TOO_LATE)


def _fitting_version():
    """Return the known version that the installed torch requires, or the usual one if it requires none of them."""
    required = (re.match(r"triton==([\d.]+)", line) for line in metadata.requires("torch") or ())

    return next((found[1] for found in required if found and found[1] in KNOWN_VERSIONS), _USUAL)


_TOO_LATE = (
    "triton was imported before TRITON_INTERPRET=1 was set, so its own functions are compiled: import ntops (or call "
    "ntops.interpreter.install()) before triton, or set TRITON_INTERPRET=1 before Python starts"
)

_check()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton._C.libtriton import interpreter as native  # noqa: E402
from triton._C.libtriton import ir  # noqa: E402
from triton.language.semantic import TritonSemantic  # noqa: E402
from triton.runtime import interpreter as _interpreter  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402
from triton.runtime.jit import TensorWrapper, _normalize_ty, mangle_type  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from ntops.interpreter.handles import Handle  # noqa: E402

BaseBuilder = _interpreter.InterpreterBuilder
InterpretedFunction = _interpreter.InterpretedFunction

__all__ = [
    "BaseBuilder",
    "InterpretedFunction",
    "InterpreterError",
    "Libdevice",
    "TensorDescriptor",
    "TensorWrapper",
    "TritonSemantic",
    "builder",
    "call_function",
    "ir",
    "native",
    "scalar_tensor",
    "semantic",
    "tl",
    "triton",
]


def builder():
    """Return the builder that executes the operations of kernels."""
    return _interpreter.interpreter_builder


def semantic():
    """Return Triton's rules of types and shapes, on top of that builder."""
    return _interpreter.interpreter_semantic


def scalar_tensor(data, dtype):
    """Return a scalar for each program, as kernel code sees it."""
    return tl.tensor(Handle(data, dtype), dtype)


def call_function(function, arguments):
    """Call a ``@triton.jit`` function, such as a combine function, with values of kernel code."""
    return function(*arguments)


def annotated_type(annotation):
    """Return a parameter's annotation: ``"constexpr"``, the name of a type such as ``"i64"``, or ``""``."""
    if annotation is inspect.Parameter.empty or not annotation:
        return ""

    name = _normalize_ty(annotation)

    if "constexpr" in name:
        return "constexpr"

    try:
        tl.str_to_ty(name, None)
    except (KeyError, IndexError, ValueError):
        return ""  # An annotation of the author's own, which says nothing to Triton either.

    return name


def type_of(argument):
    """Return the type that the compiler would give an argument."""
    return type_named(mangle_type(argument))


@functools.cache
def type_named(name):
    """Return the type of an annotation such as ``"i64"``, always the same object for a name, since much is cached on
    it."""
    return tl.str_to_ty(name, None)


def is_constant(value):
    """Tell whether a global of a kernel is one of Triton's compile-time constants."""
    return isinstance(value, tl.constexpr)


# Functions whose result depends on their arguments alone (and on the program that calls).
_PURE = [
    "abs",
    "arange",
    "argmax",
    "argmin",
    "broadcast",
    "broadcast_to",
    "cast",
    "cat",
    "cdiv",
    "ceil",
    "clamp",
    "cos",
    "cumprod",
    "cumsum",
    "div_rn",
    "dot",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "fdiv",
    "flip",
    "floor",
    "fma",
    "full",
    "gather",
    "histogram",
    "interleave",
    "join",
    "log",
    "log2",
    "max",
    "maximum",
    "min",
    "minimum",
    "num_programs",
    "permute",
    "program_id",
    "ravel",
    "reshape",
    "rsqrt",
    "sigmoid",
    "sin",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "sqrt_rn",
    "sum",
    "swizzle2d",
    "topk",
    "trans",
    "umulhi",
    "view",
    "where",
    "xor_sum",
    "zeros",
    "zeros_like",
]


@functools.cache
def _pure_functions():
    return {id(getattr(owner, name)) for owner in (tl, tl.math) for name in _PURE if hasattr(owner, name)}


def is_pure(function):
    """Tell whether a function of the language always returns the same for the same arguments."""
    return id(function) in _pure_functions() or isinstance(function, Libdevice)


def is_load(function):
    """Tell whether a function is ``tl.load``."""
    return function is tl.load


class Libdevice:
    """A function of ``triton.language.extra.libdevice``: a stub there, which the compiler replaces by CUDA's.

    It is an object, because NineToothed inlines plain functions.
    """

    def __init__(self, function):
        self._function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args, **kwargs):
        kwargs["_semantic"] = semantic()

        return self._function(*args, **kwargs)


def descriptor(base, shape, strides, block_shape, padding):
    """Return a tensor descriptor made on the host, as kernel code sees it."""
    return semantic().make_tensor_descriptor(
        base=base, shape=shape, strides=strides, block_shape=block_shape, padding_option=padding
    )
