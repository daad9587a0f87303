"""Read from a kernel's source how it may run."""

import ast
import inspect
import textwrap

from ntops.interpreter._triton import InterpretedFunction
from ntops.interpreter.rewrite import alike, resolved

_found = {}


def may_use_atomics(function):
    """Tell whether a kernel, or a function that it calls, uses atomics; assume so if that is unknown."""
    known = _known(function)
    key, used = alike(function, known)

    if key is None:
        return _may_use_atomics(function, known, set())

    if key not in _found:
        # Keep the object, so that its id is not reused.
        _found[key] = (_may_use_atomics(function, known, set()), used)

    return _found[key][0]


def _known(function):
    variables = inspect.getclosurevars(function)

    return {**variables.builtins, **variables.globals, **variables.nonlocals}


def _may_use_atomics(function, known, seen):
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))

    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and "atomic" in getattr(node, "attr", getattr(node, "id", "")):
            return True

        if not isinstance(node, ast.Call):
            continue

        callee = resolved(node.func, known)

        if callee is None and isinstance(node.func, ast.Name):
            return True  # A function that was passed in.

        is_function = isinstance(callee, InterpretedFunction) and not callee.fn.__module__.startswith("triton.language")

        if is_function and callee.fn not in seen and _may_use_atomics(callee.fn, _known(callee.fn), seen):
            return True

    return False
