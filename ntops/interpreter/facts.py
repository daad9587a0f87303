"""What a kernel's source says about how it may run."""

import ast
import dataclasses
import inspect
import textwrap

from ntops.interpreter._triton import InterpretedFunction
from ntops.interpreter.rewrite import resolved


@dataclasses.dataclass(frozen=True)
class Facts:
    """``may_part``: programs may take different ways. ``has_atomics``: some function of it uses atomics."""

    may_part: bool
    has_atomics: bool


_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.Assert, ast.BoolOp)


def of(function):
    """The facts about a kernel and all the functions that it calls; what cannot be known is assumed."""
    return _of(function, set())


def _of(function, seen):
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    may_part = any(isinstance(node, _BRANCHES) for node in ast.walk(tree))
    has_atomics = any("atomic" in name for name in names)
    variables = inspect.getclosurevars(function)
    known = {**variables.builtins, **variables.globals, **variables.nonlocals}

    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue

        callee = resolved(node.func, known)

        if callee is None:
            # A method of a tensor, or a function that was passed in.
            may_part = True
            has_atomics |= isinstance(node.func, ast.Name)
        elif isinstance(callee, InterpretedFunction) and callee.fn not in seen and not _is_tritons(callee):
            facts = _of(callee.fn, seen)
            may_part |= facts.may_part
            has_atomics |= facts.has_atomics

    return Facts(may_part, has_atomics)


def _is_tritons(callee):
    return callee.fn.__module__.startswith("triton.language")
