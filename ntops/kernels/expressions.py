"""Elementwise kernels that are one expression, which a lambda says; ``ntl`` and ``libdevice`` are its vocabulary.

NineToothed compiles functions, so the lambda is written as one: ``lambda input, other: input == other`` as

    def application(output, input, other, compute_dtype):
        output = ntl.cast(input, compute_dtype) == ntl.cast(other, compute_dtype)
"""

import ast
import functools
import inspect

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise

__all__ = ["bitwise", "comparison", "floating", "gradient", "kernel", "libdevice", "ntl", "plain"]

_ROUNDED = "ntl.cast({}, output.dtype)"


def kernel(expression, *, rounded=False, tensors=None, **options):
    """Return the arrangement, application and ``premake`` of a kernel that is one expression.

    :param expression: A lambda of the inputs by name, each cast to the dtype in which the kernel computes; see
        :func:`_application`.
    :param rounded: Whether its value is cast to the dtype of the output.
    :param tensors: How many inputs may be tensors; those that follow are always Python numbers. ``None``: all.
    :param options: See :func:`ntops.kernels.element_wise.premaker`.
    """
    application, names = _application(expression, stored=_ROUNDED if rounded else "{}")
    inputs, numbers = names[:tensors], names[len(names[:tensors]) :]
    premake = element_wise.premaker(application, *inputs, numbers=numbers, **options)

    return element_wise.arrangement, application, premake


def floating(expression):
    """Return the arrangement, application and ``premake`` of a function of one tensor, and of Python numbers, with a
    floating-point result."""
    return kernel(expression, rounded=True, tensors=1, result=constants.floating)


def comparison(expression):
    """Return the arrangement, application and ``premake`` of a kernel that compares two inputs in the dtype to which
    both are promoted."""
    return kernel(expression, result=constants.boolean, computed=lambda dtype, output_dtype: dtype)


def bitwise(expression):
    """Return the arrangement, application and ``premake`` of a bitwise function of two inputs."""
    return kernel(expression, computed=lambda dtype, output_dtype: output_dtype)


def plain(expression, *, rounded=False, result=lambda dtype: dtype):
    """Return the arrangement, application and ``premake`` of a kernel that computes in the dtype of its inputs; see
    :func:`kernel`."""
    stored = _ROUNDED if rounded else "{}"
    application, operands = _application(expression, computed="{}", stored=stored)

    def premake(ndim, dtype=None, output_dtype=None, block_size=None):
        """Return the arrangement, application and tensors of the kernel.

        :param ndim: The number of dims of the tensors.
        :param dtype: The element type of the inputs; only ahead-of-time builds need it, and ``output_dtype``, which
            follows from it.
        :param block_size: See :func:`ntops.kernels.element_wise.arrangement`.
        """
        made = element_wise.tensors(ndim, *operands, dtype=dtype, output_dtype=output_dtype or result(dtype))

        return functools.partial(element_wise.arrangement, block_size=block_size), application, made

    return element_wise.arrangement, application, element_wise.named(premake, application)


def gradient(expression):
    """Return the application of a gradient (:mod:`ntops.kernels.elementwise_backward`), and the names of the operands
    that follow ``gradient`` in the expression."""
    application, operands = _application(expression, stored=_ROUNDED)
    return application, (*operands[1:],)


def _application(expression, *, computed="ntl.cast({}, compute_dtype)", stored="{}"):
    """Return the application that an expression stands for, and the names of its operands.

    :param expression: A lambda of the operands by name, the only one that begins on its line.
    :param computed: How an operand is read; ``{}`` stands for its name.
    :param stored: How the value of the expression is written, likewise.
    """
    lines, _ = inspect.findsource(expression)
    first = expression.__code__.co_firstlineno
    nodes = ast.walk(ast.parse("".join(lines)))
    (function,) = (node for node in nodes if isinstance(node, ast.Lambda) and node.lineno == first)
    operands = [argument.arg for argument in function.args.args]
    value = constants.Writer({name: computed.format(name) for name in operands}).visit(function.body)
    parameters = ["output", *operands, *(["compute_dtype"] if "compute_dtype" in computed else [])]
    source = f"def application({', '.join(parameters)}):\n    output = {stored.format(ast.unparse(value))}\n"
    scope = {"ntl": ntl} | expression.__globals__

    return constants.defined(source, "application", f"<{expression.__module__}:{first}>", scope), operands
