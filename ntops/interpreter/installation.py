"""Replace Triton's builder, launcher and kernel compilation by those of the interpreter."""

import dataclasses
import inspect
import sys
import types

from ntops.interpreter import control, launch, reduce, shortcuts
from ntops.interpreter._triton import InterpretedFunction, Libdevice, TritonSemantic, _interpreter, semantic, tl, triton
from ntops.interpreter.builder import Builder, divide, remainder


class _Driver:
    """A substitute for a GPU driver, which answers Triton and NineToothed while they make kernels."""

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
        # An autotuned kernel takes its first configuration: timings under an interpreter mean nothing.
        return lambda kernel_call, quantiles: [0.0 for _ in quantiles]


def install():
    """Replace Triton's builder, launcher and kernel compilation by the interpreter's, once for the process."""
    # With debug, tl.device_assert is checked; overflow is allowed and wraps, as in compiled kernels.
    options = dataclasses.replace(_interpreter.interpreter_builder.options, debug=True, sanitize_overflow=False)
    _interpreter.interpreter_builder = Builder(options, dict(_interpreter.interpreter_builder.codegen_fns))
    _interpreter.interpreter_semantic = TritonSemantic(_interpreter.interpreter_builder)

    _bind_builtins()
    _let_triton_patch_the_rest()
    _patch_language()
    _patch_libdevice()
    shortcuts.install(divide, remainder, semantic())

    InterpretedFunction.run = launch.run
    InterpretedFunction.__call__ = launch.call

    try:
        _ = triton.runtime.driver.active
    except RuntimeError:
        triton.runtime.driver.set_active(_Driver())


def _bind_builtins():
    """Bind our semantics to every function of the language, once instead of at each launch."""
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
        """Stand for a kernel that uses all of the language; Triton inspects it."""

    _interpreter._patch_lang(types.FunctionType(kernel.__code__, {"tl": tl, "core": tl.core}))


def _patch_language():
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

    # The tensor's own shape is a tuple of Triton's, which is slow to compare.
    tl.block_type.with_element_ty = lambda self, element: shortcuts.block_of(element, tuple(self.shape))
    tensor = tl.tensor
    tensor.__init__ = _remembering(tensor.__init__)
    tensor.__bool__ = _truth
    tensor.__index__ = control.index_of
    tensor.__repr__ = tensor.__str__ = lambda self: str(self.handle.data)
    tensor.T = property(lambda self: tl.permute(self, tuple(reversed(range(len(self.shape))))))


def _remembering(init):
    """Return an ``__init__`` that computes a tensor's properties once for each type."""

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
    # Triton's semantics test a mask's truth where they mean whether it is None.
    if sys._getframe(1).f_globals.get("__name__", "").startswith("triton."):
        return True

    return control.truth(self)


def _patch_libdevice():
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as cuda

    for name, function in inspect.getmembers(cuda, inspect.isfunction):
        if inspect.getmodule(function) is cuda:
            callable_object = Libdevice(getattr(function, "__wrapped__", function))
            setattr(cuda, name, callable_object)

            if hasattr(libdevice, name):
                setattr(libdevice, name, callable_object)
