"""Compile-time arguments of kernels, which ahead-of-time builds leave to ``premake``.

A kernel that is compiled at its first call takes its constants (the dtype in which it computes, Triton's
``input_precision``) as arguments. An ahead-of-time build knows only tensors and numbers, and passes ``dtype=`` to
``premake``, which derives the constants and writes them into the application.

Dtypes are NineToothed's names ("fp16", "i32"), and "i1" for bool, which it lacks.
"""

import ast
import inspect
import linecache
import textwrap

from ninetoothed import Tensor

_LITERALS = {
    "i1": "ntl.int1",
    "i8": "ntl.int8",
    "i16": "ntl.int16",
    "i32": "ntl.int32",
    "i64": "ntl.int64",
    "u8": "ntl.uint8",
    "fp16": "ntl.float16",
    "bf16": "ntl.bfloat16",
    "fp32": "ntl.float32",
    "fp64": "ntl.float64",
}
_FLOATING = ("fp16", "bf16", "fp32", "fp64")


def bind(application, tensors, **constants):
    """Return the application and the tensors of a kernel with these constants, which are its last parameters, in order.

    A constant that is ``None`` stays an argument of the kernel, a constexpr tensor; others are written into the
    application.
    """
    tensors += tuple(constant(name) for name, value in constants.items() if value is None)
    literals = {name: _literal(name, value) for name, value in constants.items() if value is not None}

    return (_written_in(application, literals) if literals else application), tensors


def constant(name):
    """Return a compile-time argument of a kernel, such as the dtype in which it computes."""
    return Tensor(0, constexpr=True, name=name)


def _literal(name, value):
    if name != "compute_dtype":
        return repr(value)

    if value not in _LITERALS:
        raise ValueError(f"argument 'compute_dtype' is {value!r}; valid are {', '.join(_LITERALS)}")

    return _LITERALS[value]


def _written_in(application, literals):
    """Return the application with literals in the place of these parameters."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(application)))
    (function,) = tree.body
    function.args.args = [argument for argument in function.args.args if argument.arg not in literals]
    source = ast.unparse(Writer(literals).visit(tree)) + "\n"
    # Applications that are expressions have one name; their files tell them apart.
    name = f"<{application.__code__.co_filename}.{application.__name__} {literals}>"

    return defined(source, application.__name__, name, application.__globals__)


def defined(source, function, file, scope):
    """Return the function that a source defines in a scope.

    NineToothed reads the source of a function that it compiles; linecache holds it, as for interactive sessions.
    """
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    found = {}
    exec(compile(source, file, "exec"), scope, found)

    return found[function]


class Writer(ast.NodeTransformer):
    """Replace names by expressions."""

    def __init__(self, expressions):
        self._expressions = expressions

    def visit_Name(self, node):
        found = self._expressions.get(node.id)
        return ast.parse(found, mode="eval").body if found else node


def is_floating(dtype):
    """Tell whether a dtype is known to be floating-point."""
    return dtype in _FLOATING


def floating(dtype):
    """Return the dtype of an always floating-point result: float32 for integers, else the dtype of the input."""
    return dtype if dtype is None or is_floating(dtype) else "fp32"


def accumulated(dtype):
    """Return the dtype in which kernels compute for ``dtype``: float32 for half types, int32 for bool, else itself."""
    return {"fp16": "fp32", "bf16": "fp32", "i1": "i32"}.get(dtype, dtype)


def boolean(dtype):
    """Return the dtype of a truth value, for an input of a known dtype."""
    return dtype and "i1"


def summed(dtype):
    """Return the dtype of a sum: int64 for integers and bool, else the dtype of the input."""
    return dtype if dtype is None or is_floating(dtype) else "i64"


def limits(dtype):
    """Return the least and the greatest element of a dtype; infinities if it is floating-point or unknown."""
    if dtype is None or is_floating(dtype):
        return float("-inf"), float("inf")

    kind, bits = dtype[0], int(dtype[1:])
    return (0, 2**bits - 1) if kind == "u" or bits == 1 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def padding(number):
    """Return the element that pads tiles, as NineToothed takes it.

    Triton 3.6 and 3.7 fill a register of several int8 or int16 from one constant wrongly where it is below -1: all but
    the first become -1 on NVIDIA GPUs. So a negative one is computed, in a way that compilers do not see through.
    """
    if isinstance(number, int) and number < -1:
        return f"ninetoothed.language.minimum(ninetoothed.language.program_id(0), {number})"

    return number


def numbers(dtype, *names):
    """Return the types of arguments that are Python numbers, by name, for a result of ``dtype``; ``None`` if it is
    unknown."""
    return dict.fromkeys(names, "fp64" if is_floating(dtype) else "i64") if dtype else {}
