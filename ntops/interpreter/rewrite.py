"""Rewrite kernel source on its AST, so that plain Python means what the compiler makes of it."""

import ast
import functools
import inspect
import linecache
import textwrap
import types

from ntops.interpreter import cse, errors


def rewrite(function, runtime, language, is_optimized=True):
    """Rewrite ``function`` so that it runs under the interpreter.

    :param runtime: The object that the rewritten code finds under the name ``_rt``.
    :param language: Tells what objects are in Triton's language: ``is_constant``, ``is_pure``, ``is_load``.
    :param is_optimized: Whether common subexpressions are computed once.
    :return: The rewritten function.
    :raises OSError: The function has no source, which a compiled kernel needs as well.
    """
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    known = {**function.__globals__, **{name: cell.cell_contents for name, cell in free.items() if _is_set(cell)}}

    def compiled():
        return _compiled(function, free, known, language, is_optimized)

    code = _shared(function, known, (language, is_optimized), compiled)
    namespace = {}
    exec(code, function.__globals__, namespace)
    made = namespace["_factory"](runtime, *(cell.cell_contents if _is_set(cell) else None for cell in free.values()))
    made.__defaults__ = function.__defaults__
    made.__kwdefaults__ = function.__kwdefaults__

    if not function.__module__.startswith("triton."):
        errors.kernel_codes.add(made.__code__)

    return made


_codes = {}


def _shared(function, known, how, make):
    """Return the result of ``make``, shared by functions that are ``alike``."""
    key, used = alike(function, known)

    if key is None:
        return make()

    if (key, how) not in _codes:
        # Keep the objects of the key, so that their ids are not reused.
        _codes[key, how] = (make(), used)

    return _in_file(_codes[key, how][0], function.__code__.co_filename)


def alike(function, known):
    """Return a key that is the same for functions that differ only in module and annotations, and the objects whose ids
    are in it. Kernels that NineToothed generates often differ only in what the compiler is told of their arguments.

    :param known: The function's globals and closure.
    :return: ``(None, ())`` for a function with its body on its first line.
    """
    code = function.__code__
    body = [line for *_, line in code.co_lines() if line and line > code.co_firstlineno]

    if not body:
        return None, ()

    text = "".join(linecache.getlines(code.co_filename, function.__globals__)[min(body) - 1 : max(body)])
    used = [known.get(name) for name in _names_in(code)]

    return (code, text, *map(id, used)), used


def _names_in(code):
    """Return the names of globals and attributes in a code object, and in those within it."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names_in(part)]

    return [*code.co_names, *code.co_freevars, *inner]


def _in_file(code, name):
    constants = (_in_file(part, name) if isinstance(part, types.CodeType) else part for part in code.co_consts)

    return code.replace(co_filename=name, co_consts=tuple(constants))


def _compiled(function, free, known, language, is_optimized):
    """Return the code of a module whose ``_factory`` makes the rewritten function."""
    tree = _parse(function)
    names, bound, carried = _scanned(tree)
    constants = {name for name in names if language.is_constant(known.get(name))} - bound

    if is_optimized:
        cse.eliminate(
            tree,
            lambda node: language.is_pure(resolved(node, known, bound)),
            lambda node: language.is_load(resolved(node, known, bound)),
            carried,
        )

    tree = _Mender(carried, constants, known, bound).visit(tree)

    # The factory's parameters are the closure, so that nothing is added to the kernel's module.
    factory = ast.FunctionDef(
        name="_factory",
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(arg=name) for name in ("_rt", *free)],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[tree, ast.Return(ast.Name(tree.name, ast.Load()))],
        decorator_list=[],
        type_params=[],
    )
    module = ast.fix_missing_locations(ast.Module([factory], []))

    return compile(module, inspect.getsourcefile(function) or "<kernel>", "exec", dont_inherit=True)


def _parse(function):
    tree = _definition(function)

    if not isinstance(tree, ast.FunctionDef):
        raise TypeError(f"{function.__qualname__} is not made by a `def`, which Triton needs")

    tree.decorator_list = []
    tree.returns = None
    arguments = tree.args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]

    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None

    return tree


def _definition(function):
    """Return the statement that made the function; the caller may change it."""
    code = function.__code__
    # A file may have been edited, and its module loaded again.
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    tree = _definitions(text).pop((code.co_firstlineno, code.co_name), None)

    if tree is None:
        lines, first_line = inspect.getsourcelines(function)
        tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))).body[0], first_line - 1)

    return tree


@functools.lru_cache(maxsize=16)
def _definitions(text):
    """Return the functions of a file by first line, which may be a decorator's, and name. Parsing a file once is
    quicker than finding the end of one function, for which ``inspect`` reads it token by token."""
    try:
        todo = ast.parse(text).body
    except SyntaxError:
        return {}

    found = {}

    for node in todo:
        if isinstance(node, ast.FunctionDef):
            found[min(part.lineno for part in (node, *node.decorator_list)), node.name] = node

        for field in ("body", "orelse", "finalbody"):
            todo.extend(getattr(node, field, ()))

    return found


def resolved(node, known, bound=frozenset()):
    """Return the object that a name, or an attribute of one, has among the ``known`` globals; ``None`` if
    undecidable."""
    if isinstance(node, ast.Name):
        return known.get(node.id) if node.id not in bound else None

    if isinstance(node, ast.Attribute):
        owner = resolved(node.value, known, bound)

        return getattr(owner, node.attr, None) if owner is not None else None

    return None


def _is_set(cell):
    try:
        _ = cell.cell_contents
    except ValueError:  # A function that refers to one defined after it.
        return False

    return True


def _names(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _is_unrolled(node):
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and ast.unparse(node.iter.func).rpartition(".")[2] == "static_range"
    )


def _scanned(tree):
    """Return the names in ``tree``; those bound in it; and those that exist before a loop that changes them: compiled,
    these are tensors, even if they begin as numbers."""
    names, bound, carried, places = set(), set(), set(), {}

    def visit(node, loop):
        if isinstance(node, ast.Name):
            names.add(node.id)

            if isinstance(node.ctx, ast.Store):
                bound.add(node.id)
                places.setdefault(node.id, set()).add(loop)

            return

        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif loop and isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            carried.add(node.target.id)

        is_loop = isinstance(node, (ast.For, ast.While)) and not _is_unrolled(node)
        inner = (*loop, id(node)) if is_loop else loop

        for field in node._fields:
            value = getattr(node, field, None)

            # A loop's own variable is bound in the loop, whatever surrounds it.
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST) and child._fields:
                    visit(child, inner if field in ("body", "orelse", "target", "test") else loop)

    visit(tree, ())
    carried |= {name for name, loops in places.items() if any(loops) and len(loops) > 1}

    return names, bound, carried


def _call(name, *arguments):
    return ast.Call(ast.Attribute(ast.Name("_rt", ast.Load()), name, ast.Load()), list(arguments), [])


def _later(node):
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])

    return ast.Lambda(empty, node)


# Builtins by the name of the function that the compiler makes of them.
_REPLACED = {"min": "minimum", "max": "maximum", "range": "range", "print": "print"}


class _Mender(ast.NodeTransformer):
    """Rewrite Python statements and operators that the compiler defines for tensors, and Python does not."""

    def __init__(self, carried, constants, known, bound):
        self._carried = carried
        self._constants = constants
        self._known = known
        self._bound = bound

    def visit(self, node):
        mended = super().visit(node)

        return mended if mended is node or not isinstance(node, ast.expr) else ast.copy_location(mended, node)

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load) and node.id in self._constants:
            return ast.Attribute(node, "value", ast.Load())

        is_builtin = node.id in _REPLACED and node.id not in self._bound and node.id not in self._known

        if is_builtin and isinstance(node.ctx, ast.Load):
            return ast.Attribute(ast.Name("_rt", ast.Load()), _REPLACED[node.id], ast.Load())

        return node

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        name = "both" if isinstance(node.op, ast.And) else "either"
        result = node.values[0]

        for value in node.values[1:]:
            result = _call(name, result, _later(value))

        return result

    def visit_UnaryOp(self, node):
        self.generic_visit(node)

        return _call("not_", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node):
        self.generic_visit(node)

        if len(node.ops) == 1:
            return node

        operands = [node.left, *node.comparators]
        pairs = [
            ast.Compare(left, [operator], [right])
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False)
        ]
        result = pairs[0]

        for pair in pairs[1:]:
            result = _call("both", result, _later(pair))

        return result

    def _visit_condition(self, node):
        self.generic_visit(node)
        node.test = ast.copy_location(_call("truth", node.test), node.test)

        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _visit_condition

    def visit_Assign(self, node):
        self.generic_visit(node)
        targets = {name for target in node.targets for name in _names(target)}

        if targets & self._carried:
            node.value = ast.copy_location(_call("tensor", node.value), node.value)

        return node

    def visit_AnnAssign(self, node):
        if node.value is None:
            return node

        if "constexpr" in ast.unparse(node.annotation):
            self.generic_visit(node)

            return ast.copy_location(ast.Assign([node.target], node.value), node)

        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))
