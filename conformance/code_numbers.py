"""Find the numbers that a function's code has, and that of what it calls: sizes at which it takes another way, blocks,
ends of tables and ranges.

Loaded by its path into the judged process, so it needs nothing of the harness. Nothing is called or imported here.
"""

import functools
import re
import sys
import types
from collections import deque

MOST = 512
"""The most numbers that are returned."""
LARGEST = 2**40
"""The largest number that is returned: addresses, which differ from process to process, are beyond it."""
OBJECTS = 4000
"""The most objects that are looked at: what a package refers to has no end."""
OTHERS = (*sys.stdlib_module_names, "torch", "triton", "ninetoothed", "numpy", "jax", "cupy", "numba", "cutlass")
"""Packages whose own code is not the implementation's."""
_NUMBERS = (int, float)
_HOLDERS = (tuple, list, set, frozenset)
_TABLES = {}
"""The tables of modules by identity, each with what it held when it was noted, and the modules whose tables are known
by name."""


def note_tables():
    """Note the tables of the modules that are imported by now and were not before: later a dict whose keys are no texts
    may be a cache, which holds something else after each call."""
    for name, module in list(sys.modules.items()):
        if name in _TABLES or not _is_own(name) or not isinstance(module, types.ModuleType):
            continue
        tables = [one for one in vars(module).values() if type(one) is dict]
        _TABLES[name] = True
        _TABLES.update({id(one): (one, [part for item in one.items() for part in item]) for one in tables})


def of(function):
    """Return the numbers in the code of a function and of what that refers to, nearest first, each once.

    Code is what Python runs or Triton compiles, with constants as the compiler has folded them: ``1 << 16`` is 65536;
    and texts in C++, CUDA or the like.
    """
    found = dict.fromkeys(one for one in _parts(function) if _is_number(one) and abs(one) <= LARGEST)
    return list(found)[:MOST]


def rows(function):
    """Return the whole numbers that stand together in the code, two to four of them, as in a row of a table of sizes;
    nearest first, each row once."""
    rows = (tuple(one) for one in _parts(function) if isinstance(one, tuple | list) and 2 <= len(one) <= 4)
    found = dict.fromkeys(row for row in rows if all(isinstance(one, int) and 1 < one <= LARGEST for one in row))
    return list(found)[:MOST]


def functions(function):
    """Return the functions of a function's code: itself, and those of the implementation that it refers to."""
    return [one for one in _parts(function) if isinstance(one, types.FunctionType) and _is_own(one.__module__)]


def _parts(function):
    """Yield a function and what it refers to, nearest first."""
    note_tables()
    seen, waiting = set(), deque([function])
    while waiting and len(seen) < OBJECTS:
        one = waiting.popleft()
        if _is_number(one):
            yield one
        elif id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting.extend(_within(one))


def _is_number(one):
    return isinstance(one, _NUMBERS) and not isinstance(one, bool)


def _within(one):
    """Return what an object holds or refers to."""
    if isinstance(one, _HOLDERS):
        return list(one)
    if isinstance(one, dict):
        _, noted = _TABLES.get(id(one), (None, ()))
        return list(noted) or [value for key, value in one.items() if isinstance(key, str)]
    if isinstance(one, types.CodeType):
        return [*_constants(one)]
    if isinstance(one, types.FunctionType):
        return _of_function(one)
    if isinstance(one, types.MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, functools.partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, staticmethod | classmethod):
        return [one.__func__]
    if isinstance(one, property):
        return [one.fget]
    if isinstance(one, str):
        return _written(one) if ";" in one and "{" in one else []
    if isinstance(one, types.ModuleType | bytes) or one is None:
        return []
    if isinstance(one, type):
        return [*vars(one).values()] if _is_own(one.__module__) else []
    return _of_object(one)


def _of_function(function):
    if not _is_own(function.__module__):
        # A decorator's, of another package.
        return [*vars(function).values(), *_closed_over(function)]
    names = [*_names(function.__code__)]
    spaces = [function.__globals__]
    # ``module.function``: the names of attributes are among those of the code.
    spaces += [vars(found) for found in map(function.__globals__.get, names) if _is_own_module(found)]
    referred = [space[name] for name in names for space in spaces if name in space]
    given = [function.__defaults__, function.__kwdefaults__, *vars(function).values()]
    return [function.__code__, *given, *_closed_over(function), *referred]


def _closed_over(function):
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            # It is not bound yet.
            continue
    return found


def _of_object(one):
    """Return what an instance holds: a kernel its function, an operator of a library its implementation."""
    kind = type(one)
    own = _is_own(kind.__module__)
    # Tensors and the like hold data, and looking at some objects' attributes runs code.
    holds = own or kind.__module__.partition(".")[0] in ("triton", "ninetoothed") or callable(one)
    try:
        attributes = [*object.__getattribute__(one, "__dict__").values()] if holds else []
    except AttributeError:
        attributes = []
    return [*([kind] if own else []), *attributes]


def _constants(code):
    """Yield the numbers and texts of a code object, in the order in which it has them, and the code objects in it."""
    for constant in code.co_consts:
        if isinstance(constant, (*_NUMBERS, *_HOLDERS, str, types.CodeType)):
            yield constant


def _written(text):
    """Return the numbers that a text has, and powers of two that are written as a shift."""
    shifts = [1 << int(by) for by in re.findall(r"\b1[uUlL]*\s*<<\s*([0-9]{1,2})\b", text)]
    return [*map(_number, re.findall(r"(?<![\w.])[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?", text)), *shifts]


def _number(text):
    return int(text) if text.isdecimal() else float(text)


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_own(module):
    return isinstance(module, str) and _is_of_own_package(module)


@functools.cache
def _is_of_own_package(name):
    return name.partition(".")[0] not in OTHERS


def _is_own_module(found):
    return isinstance(found, types.ModuleType) and _is_own(found.__name__)
