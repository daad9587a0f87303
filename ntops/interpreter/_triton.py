"""The one file that touches Triton's internals: what is taken from them, and what is put in their place."""

import functools
import inspect
import os
import re
import sys
import types
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
    """The known version that the installed torch requires; the usual one where it requires none of them."""
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

BaseBuilder = _interpreter.InterpreterBuilder
InterpretedFunction = _interpreter.InterpretedFunction

__all__ = [
    "BaseBuilder",
    "InterpretedFunction",
    "InterpreterError",
    "TensorDescriptor",
    "TensorWrapper",
    "builder",
    "call_function",
    "install",
    "ir",
    "native",
    "scalar_tensor",
    "semantic",
    "tl",
    "triton",
]


def builder():
    """The builder that runs what kernels ask for."""
    return _interpreter.interpreter_builder


def semantic():
    """Triton's rules of types and shapes, on top of that builder."""
    return _interpreter.interpreter_semantic


def scalar_tensor(data, dtype):
    """A scalar for each program, as kernel code sees it."""
    from ntops.interpreter.handles import Handle

    return tl.tensor(Handle(data, dtype), dtype)


def call_function(function, arguments):
    """Call a ``@triton.jit`` function, such as a combine function, with values of kernel code."""
    return function(*arguments)


def annotated_type(annotation):
    """What a parameter's annotation says: ``"constexpr"``, the name of a type such as ``"i64"``, or ``""``."""
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
    """The type that the compiler would give an argument."""
    return type_named(mangle_type(argument))


@functools.cache
def type_named(name):
    """The type of an annotation such as ``"i64"``, one object for each name, since much is kept with it."""
    return tl.str_to_ty(name, None)


def is_constant(value):
    """Whether a global of a kernel is one of Triton's compile-time constants."""
    return isinstance(value, tl.constexpr)


# Functions whose answer depends on their arguments alone (and on the program that asks).
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
    """Whether a function of the language always gives the same for the same arguments."""
    return id(function) in _pure_functions() or isinstance(function, _Libdevice)


def is_load(function):
    """Whether it is ``tl.load``."""
    return function is tl.load


class _Driver:
    """Stands in for a GPU driver: what Triton and NineToothed ask of it while they make kernels."""

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    @property
    def utils(self):
        return self

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}

    def get_benchmarker(self):
        # An autotuned kernel takes its first configuration: timings under an interpreter say nothing.
        return lambda kernel_call, quantiles: [0.0 for _ in quantiles]


def install():
    """Put our builder, our launcher and what mends kernel code in place of Triton's, once for the process."""
    import dataclasses

    from ntops.interpreter import fast, launch
    from ntops.interpreter.builder import Builder, divide, remainder

    # With debug, tl.device_assert is checked; overflow is allowed, as it is in compiled kernels, where it wraps.
    options = dataclasses.replace(_interpreter.interpreter_builder.options, debug=True, sanitize_overflow=False)
    _interpreter.interpreter_builder = Builder(options, dict(_interpreter.interpreter_builder.codegen_fns))
    _interpreter.interpreter_semantic = TritonSemantic(_interpreter.interpreter_builder)

    _bind_builtins()
    _let_triton_patch_the_rest()
    _patch_language()
    _patch_libdevice()
    fast.install(divide, remainder, semantic())

    InterpretedFunction.run = launch.run
    InterpretedFunction.__call__ = launch.call

    try:
        _ = triton.runtime.driver.active
    except RuntimeError:
        triton.runtime.driver.set_active(_Driver())


def _bind_builtins():
    """Give every function of the language our semantics, once instead of around each launch."""
    for owner in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
        for name, member in inspect.getmembers(owner):
            if tl.core.is_builtin(member):
                setattr(owner, name, _bound(member))


def _bound(member):
    rules = semantic()
    # Triton's own wrapper only checks that there are semantics.
    function = getattr(member, "__wrapped__", member)

    def call(*args, **kwargs):
        kwargs["_semantic"] = rules

        return function(*args, **kwargs)

    call.__name__, call.__doc__, call.signature = member.__name__, member.__doc__, getattr(member, "signature", None)

    return call


def _let_triton_patch_the_rest():
    def kernel():
        """Stands for one that sees all of the language, which is what Triton looks at."""

    _interpreter._patch_lang(types.FunctionType(kernel.__code__, {"tl": tl, "core": tl.core}))


def _patch_language():
    from ntops.interpreter import control, fast, reduce

    def same(self, builder):
        return self

    # The builder takes Triton's types as they are.
    for kind in (tl.dtype, tl.block_type, tl.pointer_type):
        kind.to_ir = same

    def hint(input, values):
        return input

    def static_assert(condition, message=""):
        assert control.truth(condition), message

    for language in (tl, tl.core):
        language.reduce = reduce.reduce
        language.associative_scan = reduce.associative_scan
        language.range = control.Runtime.range
        language.static_assert = static_assert
        language.multiple_of = language.max_contiguous = language.max_constancy = hint

    # Its own shape is a tuple of Triton's, which is slow to compare.
    tl.block_type.with_element_ty = lambda self, element: fast.block_of(element, tuple(self.shape))
    tensor = tl.tensor
    tensor.__init__ = _remembering(tensor.__init__)
    tensor.__bool__ = _truth
    tensor.__index__ = control.index_of
    tensor.__repr__ = tensor.__str__ = lambda self: str(self.handle.data)
    tensor.T = property(lambda self: tl.permute(self, tuple(reversed(range(len(self.shape))))))


def _remembering(init):
    """What a tensor says of its type, worked out once for each type."""

    def __init__(self, handle, type):
        known = type.__dict__.get("_ntops_tensor")

        if known is None:
            init(self, handle, type)
            type._ntops_tensor = {name: value for name, value in self.__dict__.items() if name != "handle"}
        else:
            self.__dict__.update(known)
            self.handle = handle

    return __init__


def _truth(self):
    # Triton's semantics ask "is there a mask?" by its truth, and mean whether it is None.
    if sys._getframe(1).f_globals.get("__name__", "").startswith("triton."):
        return True

    from ntops.interpreter import control

    return control.truth(self)


class _Libdevice:
    """A function of ``triton.language.extra.libdevice``: a stub there, which the compiler replaces by CUDA's.

    An object, because NineToothed inlines what is a plain function.
    """

    def __init__(self, function):
        self._function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args, **kwargs):
        kwargs["_semantic"] = semantic()

        return self._function(*args, **kwargs)


def _patch_libdevice():
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as cuda

    for name, function in inspect.getmembers(cuda, inspect.isfunction):
        if inspect.getmodule(function) is cuda:
            callable_object = _Libdevice(getattr(function, "__wrapped__", function))
            setattr(cuda, name, callable_object)

            if hasattr(libdevice, name):
                setattr(libdevice, name, callable_object)


def descriptor(base, shape, strides, block_shape, padding):
    """A tensor descriptor made on the host, as kernel code sees it."""
    return semantic().make_tensor_descriptor(
        base=base, shape=shape, strides=strides, block_shape=block_shape, padding_option=padding
    )
