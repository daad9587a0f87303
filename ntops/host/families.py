"""Families of elementwise functions: what their members share is said once, and each member declares the rest.

A member is a file of ``ntops.torch`` that holds one declaration, such as ``exp = floating("exp", "exp(input)", ...)``.
Its signature, documentation, checks and call are those of the family, below; its kernel is the one of its name. From
``MEMBERS`` follow its schema, its gradient, and how it is batched (:mod:`ntops.library`).
"""

import dataclasses
import functools
import importlib
import inspect
from typing import Any

import torch

from ntops.host.arguments import check_operands, check_tensor
from ntops.host.elementwise import elementwise
from ntops.host.promotion import accumulate_dtype, result_dtype
from ntops.launch.recorder import repeatable


@dataclasses.dataclass(frozen=True)
class Member:
    """A function of a family."""

    family: str
    arguments: tuple[str, ...]
    """The names of its arguments, without ``out`` and ``inplace``."""
    gradient: str | tuple[str, dict[str, Any]] | None
    """The formula of the gradient of ``input`` (:mod:`ntops.autograd.elementwise`), with the values of the formula's
    operands if their names differ; ``None`` if it has none."""
    inplace: bool
    """Tells whether it takes ``inplace``."""


MEMBERS: dict[str, Member] = {}
"""The members of all families by name; ``ntops.torch`` fills it."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Dtypes of ``input`` for which torch has no function."""

    kind: str
    """"bool" or "floating-point"."""
    error: type[Exception]
    message: str

    def check(self, dtype):
        """Raise the error for a dtype of this kind."""
        if dtype.is_floating_point if self.kind == "floating-point" else dtype is torch.bool:
            raise self.error(self.message.format(dtype=dtype))


def members(*families):
    """Return the names of the members of these families."""
    return tuple(name for name, member in MEMBERS.items() if member.family in families)


def _declared(function, family, name, gradient=None, **texts):
    """Return a family's function as the public function ``ntops.torch.<name>``."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = f"ntops.torch.{name}"
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").format(name=name, **texts)
    parameters = inspect.signature(function).parameters
    arguments = (one for one in parameters if one not in ("out", "inplace"))
    MEMBERS[name] = Member(family, tuple(arguments), gradient, "inplace" in parameters)

    return repeatable(function)


@functools.cache
def _premake(name):
    return importlib.import_module(f"ntops.kernels.{name}").premake


def floating(name, formula, note="", *, gradient):
    """Declare a function of one tensor with a floating-point result.

    :param formula, note: What is computed, for the documentation; so in the other families.
    :param gradient: See :class:`Member`; likewise.
    """
    premake = _premake(name)

    def function(input, *, out=None):
        """Compute ``{formula}``{note} elementwise, as :func:`torch.{name}` does.

        :param input: A tensor of any shape and dtype.
        :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
        :return: A tensor of the shape of ``input``; of the default dtype where ``input`` is not floating-point.
        :raises TypeError: An argument has the wrong type.
        :raises RuntimeError: The device or ``out`` does not fit.
        :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
        """
        check_tensor(input, "input")
        dtype = input.dtype if input.dtype.is_floating_point else torch.get_default_dtype()
        return elementwise(premake, {"input": input}, dtype, out=out, compute_dtype=accumulate_dtype(dtype))

    return _declared(function, "floating", name, gradient, formula=formula, note=note)


def exact(name, formula, *, refused=None, gradient=None, arguments=lambda dtype: {}):
    """Declare a function of one tensor that rounds nothing.

    :param refused: What torch refuses, a :class:`Refusal`.
    :param arguments: The function from the dtype to further arguments of ``premake``.
    """
    premake = _premake(name)

    def function(input, *, out=None):
        """Compute ``{formula}`` elementwise, as :func:`torch.{name}` does.

        :param input: A tensor of any shape.
        :param out: Where the result is written; it has the very dtype of ``input``.
        :return: A tensor of the shape and dtype of ``input``.
        {refused}:raises TypeError: An argument has the wrong type.
        :raises RuntimeError: The device or ``out`` does not fit.
        :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
        """
        check_tensor(input, "input")

        if refused:
            refused.check(input.dtype)

        further = arguments(input.dtype)
        return elementwise(premake, {"input": input}, input.dtype, out=out, exact_out=True, **further)

    raised = f":raises {refused.error.__name__}: ``input`` is {refused.kind}.\n" if refused else ""
    return _declared(function, "exact", name, gradient, formula=formula, refused=raised)


def question(name, what, compute_dtype=lambda dtype: None):
    """Declare a question about each element of a tensor, answered with a bool.

    :param what: What the elements may be, for the documentation.
    :param compute_dtype: The function from the dtype to the one in which the kernel computes, for kernels that take it.
    """
    premake = _premake(name)

    def function(input):
        """Tell whether ``input`` is {what}, elementwise, as :func:`torch.{name}` does; integers never are.

        :param input: A tensor of any shape and dtype.
        :return: A bool tensor of the shape of ``input``.
        :raises TypeError: ``input`` is not a tensor.
        :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
        """
        check_tensor(input, "input")
        compute = compute_dtype(input.dtype)
        return elementwise(premake, {"input": input}, torch.bool, promoted=input.dtype, compute_dtype=compute)

    return _declared(function, "question", name, what=what)


def comparison(name, formula, note=""):
    """Declare a comparison in the dtype to which both operands are promoted.

    :param note: A remark about numbers, for the documentation.
    """
    premake = _premake(name)

    def function(input, other, *, out=None):
        """Compute ``{formula}`` elementwise, as :func:`torch.{name}` does.

        :param input: A tensor of any shape.
        :param other: A tensor that broadcasts with ``input``, or a number, which is first wrapped to the dtype to which
            both are promoted{note}.
        :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
        :return: A bool tensor of the broadcast shape.
        :raises TypeError: An argument has the wrong type.
        :raises RuntimeError: Shapes, devices or ``out`` do not fit.
        :raises NotImplementedError: Complex, sparse, quantized or nested operands.
        """
        check_tensor(input, "input")
        check_operands(other=other)
        promoted = result_dtype(input, other)
        operands = {"input": input, "other": other}
        return elementwise(premake, operands, torch.bool, out=out, promoted=promoted, compute_dtype=promoted)

    return _declared(function, "comparison", name, formula=formula, note=note)


def bitwise(name, formula):
    """Declare a bitwise function of integers or bools, at least one of them a tensor."""
    premake = _premake(name)

    def function(input, other, *, out=None):
        """Compute ``{formula}`` elementwise, logical on bools, as :func:`torch.{name}` does.

        :param input: An integer or bool tensor of any shape, or a number.
        :param other: A tensor that broadcasts with ``input``, or a number; one of the two is a tensor.
        :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
        :return: A tensor of the broadcast shape and the promoted dtype.
        :raises TypeError: An argument has the wrong type.
        :raises RuntimeError: Shapes, devices or ``out`` do not fit.
        :raises NotImplementedError: Floating-point, complex, sparse, quantized or nested operands; a
            floating-point ``out``.
        """
        check_operands(input=input, other=other)

        if not isinstance(input, torch.Tensor) and not isinstance(other, torch.Tensor):
            raise TypeError("arguments 'input' and 'other' are numbers; make one of them a tensor")

        if not isinstance(input, torch.Tensor) and out is not None:
            raise TypeError("argument 'input' is a number, with which there is no 'out'; make it a tensor")

        dtype = result_dtype(input, other)

        if dtype.is_floating_point:
            raise NotImplementedError(
                f"arguments 'input' and 'other' promote to {dtype}; bitwise functions take integers and bools"
            )

        if isinstance(out, torch.Tensor) and out.is_floating_point():
            raise NotImplementedError(
                f"argument 'out' has dtype {out.dtype}; bitwise functions give integers and bools"
            )

        return elementwise(premake, {"input": input, "other": other}, dtype, out=out, compute_dtype=dtype)

    return _declared(function, "bitwise", name, formula=formula)


def activation(*, gradient=None, runtime_error="``input`` is expanded and to be written."):
    """Decorate a function of one floating-point tensor that calls :func:`activate`. Its docstring says what it computes
    and what its own arguments are; what all activations share is added.

    :param runtime_error: When the function raises :class:`RuntimeError`.
    """

    def decorate(function):
        summary, _, own = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        arguments = inspect.signature(function).parameters
        lines = [":param input: A floating-point tensor of any shape.", *own.splitlines()]

        if "inplace" in arguments:
            lines.append(":param inplace: Whether ``input`` itself is written and returned.")

        wrong = (
            "An argument has the wrong type." if {*arguments} - {"input", "inplace"} else "``input`` is not a tensor."
        )
        lines += [
            ":return: A tensor of the shape and dtype of ``input``.",
            f":raises TypeError: {wrong}",
            f":raises RuntimeError: {runtime_error}",
            ":raises NotImplementedError: An integer, bool, complex, sparse, quantized or nested ``input``.",
        ]
        name = function.__name__
        function.__doc__ = "{summary}\n\n{lines}"
        return _declared(function, "activation", name, gradient, summary=summary, lines="\n".join(lines))

    return decorate


def activate(name, input, inplace=False, numbers=None, **arguments):
    """Run an activation, in place on request.

    :param numbers: Arguments of the kernel that are Python numbers, by name.
    :param arguments: Further arguments of ``premake``.
    :raises NotImplementedError: ``input`` is not floating-point.
    """
    check_tensor(input, "input")
    dtype = input.dtype

    if not dtype.is_floating_point:
        raise NotImplementedError(f"argument 'input' has dtype {dtype}; {name} is defined for floating-point only")

    return elementwise(
        _premake(name),
        {"input": input},
        dtype,
        inplace=inplace,
        compute_dtype=accumulate_dtype(dtype),
        numbers=numbers,
        **arguments,
    )
