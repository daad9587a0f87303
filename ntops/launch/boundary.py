"""Decide which side of torch's dispatcher a call belongs to: straight to the kernels, or to ``torch.ops.ntops``.

A call of plain tensors goes straight to the kernels. If torch has more to do than to launch (for a mode, a transform of
:mod:`torch.func`, autocast, a tensor without memory of its own, a subclass, or a gradient), the call goes to
``torch.ops.ntops``, which :mod:`ntops.library` registers. The dispatcher does its part and calls back with plain
tensors, or with meta tensors if only shapes are needed.
"""

import contextlib
import functools
import inspect
import threading

import numpy
import torch
from torch.autograd import profiler

from ntops.launch import tracing, virtual_tensors

OPERATORS = {}
"""The functions with ``ntops.torch``'s signatures that call ``torch.ops.ntops``, by name; ``ntops.library`` fills
it."""


class _Local(threading.local):
    inside = False
    abstract = False


_local = _Local()


def goes_through(values):
    """Tell whether a call with these arguments belongs to torch's dispatcher: the one rule that decides it."""
    if _local.inside:
        return False

    is_overridden = torch.overrides.has_torch_function(values)

    # Modes and subclasses see the operator only.
    with torch._C.DisableTorchFunction():
        tensors = [value for value in values if isinstance(value, torch.Tensor)]

        # The argument checks refuse unsupported arguments with a better message than the dispatcher.
        if virtual_tensors.transforms_forward() or any(_is_left_out(tensor) for tensor in tensors):
            return False

        return is_overridden or virtual_tensors.is_active() or any(_is_torchs(tensor) for tensor in tensors)


def _is_torchs(tensor):
    needs_gradient = tensor.requires_grad and torch.is_grad_enabled()
    return needs_gradient or tensor.is_meta or not virtual_tensors.is_ordinary(tensor)


def _is_left_out(tensor):
    dense = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    return not dense or virtual_tensors.has_tangent(tensor)


def decided(function):
    """Decorate a public function so that a call that belongs to torch's dispatcher goes there."""
    name = function.__name__
    range_name = tracing.name_of(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        # The dispatcher reports its own calls to the profiler.
        if (tracing.NVTX or (profiler._is_profiler_enabled and not _local.inside)) and tracing.is_outermost():
            return tracing.traced(range_name, call, args, kwargs)

        if any(isinstance(value, numpy.generic) for value in (*args, *kwargs.values())):
            _check_flags(function, args, kwargs)
            # NumPy's numbers wrap, are not ``bool`` and have dtypes of their own.
            args = [_python(value) for value in args]
            kwargs = {key: _python(value) for key, value in kwargs.items()}

        if goes_through((*args, *kwargs.values())) and name in OPERATORS:
            return OPERATORS[name](*args, **kwargs)

        return function(*args, **kwargs)

    return call


def _check_flags(function, args, kwargs):
    """Raise TypeError if a flag is a bool of NumPy, which torch refuses, ``inplace`` excepted."""
    parameters = inspect.signature(function).parameters

    for name, value in [*zip(parameters, args, strict=False), *kwargs.items()]:
        is_flag = name in parameters and type(parameters[name].default) is bool and name != "inplace"

        if is_flag and isinstance(value, numpy.bool_):
            raise TypeError(f"argument {name!r} must be a bool, not {type(value).__name__}")


def _python(value):
    return value.item() if isinstance(value, numpy.generic) else value


@contextlib.contextmanager
def inside(abstract=False):
    """Return a context on the side of the kernels: nothing in it goes to the dispatcher.

    :param abstract: Whether tensors may be without memory. A call then checks its arguments and allocates its results
        by the usual rules, and launches nothing.
    """
    outer = _local.inside, _local.abstract
    _local.inside, _local.abstract = True, abstract

    try:
        yield
    finally:
        _local.inside, _local.abstract = outer


def is_inside():
    """Tell whether the dispatcher has done its part of a call, gradients included."""
    return _local.inside


def is_abstract():
    """Tell whether a call computes only the shapes, strides and dtypes of its results."""
    return _local.abstract


def has_work(output):
    """Tell whether a kernel must be launched: ``output`` has elements, and the call is not abstract."""
    return not _local.abstract and output.numel() > 0
