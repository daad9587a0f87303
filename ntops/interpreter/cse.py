"""Compute common subexpressions of a kernel once, and invariant ones of a loop before the loop.

Values are numbered: two expressions have one key if they are the same operation on values with the same keys, whatever
their names. The first of two equal expressions is kept in a temporary, in place, if it precedes the second on every
path. Only loop-invariant expressions are moved, and only from places that each iteration reaches.

One file: expressions, statements and loops are numbered in one walk, with one state.
"""

import ast
import collections

_VALUE_NODES = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript)
_FRAME_NODES = (ast.Tuple, ast.List, ast.Slice, ast.Attribute)


def eliminate(tree, is_pure, is_load, carried=frozenset()):
    """Rewrite the function ``tree`` in place.

    :param is_pure: Tells whether the function of a call node always returns the same for the same arguments.
    :param is_load: Tells whether it reads memory, and so returns the same until something is written.
    :param carried: Names whose assignment converts the assigned value.
    """
    numbering = _Numbering(is_pure, is_load, carried)
    numbering.block(tree.body)
    _Cleaner(numbering.used).visit(tree)


class _Key:
    """The identity of a value: one object for all expressions that are the same operation on the same values.

    ``level`` is the number of loops around the innermost dependency. ``is_constant`` tells that Python computes the
    value from literals alone, which costs nothing.
    """

    __slots__ = ("is_constant", "is_literal", "level", "reads_memory")

    def __init__(self, level=0, reads_memory=False):
        self.level = level
        self.reads_memory = reads_memory
        self.is_literal = self.is_constant = False


class _Loop:
    """A loop around the code being numbered: the temporaries available before it, the statements moved there, and
    whether it may not be reached."""

    def __init__(self, available, conditional):
        self.available = available
        self.conditional = conditional
        self.prelude = []


class _Numbering:
    def __init__(self, is_pure, is_load, carried):
        self._is_pure = is_pure
        self._is_load = is_load
        self._carried = carried
        self._values = {}  # the key of each name
        self._made = {}  # the key of each operation on keys
        self._available = collections.ChainMap()  # the temporary of each key
        self._memory = 0
        self._temporary_count = 0
        self._loops = []
        self._conditional = 0
        self._keys = {}
        self.used = set()

    # Keys

    def _fresh(self):
        return _Key(len(self._loops))

    def _same(self, *parts):
        """Return the key of an operation from its ``parts``: names, and the keys of its operands."""
        key = self._made.get(parts)

        if key is None:
            keys = [part for part in parts if isinstance(part, _Key)]
            key = self._made[parts] = _Key(
                max((part.level for part in keys), default=0), any(part.reads_memory for part in keys)
            )
            key.is_literal = parts[0] == "constant"
            key.is_constant = parts[0] in ("BinOp", "UnaryOp", "Compare") and all(
                part.is_literal or part.is_constant for part in keys
            )

        return key

    def _key(self, node):
        """Return the key of a pure expression, else ``None``."""
        if id(node) not in self._keys:
            # Keep the node, so that its id is not reused.
            self._keys[id(node)] = (node, self._make_key(node))

        return self._keys[id(node)][1]

    def _make_key(self, node):
        if node is None:
            return self._same("none")

        if isinstance(node, ast.Constant):
            return self._same("constant", type(node.value).__name__, repr(node.value))

        if isinstance(node, ast.Name):
            return self._values.get(node.id) or self._same("name", node.id)

        if isinstance(node, ast.Call):
            return self._call_key(node)

        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return None

        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            return None

        if isinstance(node, _VALUE_NODES + _FRAME_NODES):
            return self._node_key(node)

        return None

    def _node_key(self, node):
        key = [type(node).__name__]

        for field, value in ast.iter_fields(node):
            if field == "ctx":
                continue

            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, (ast.operator, ast.unaryop, ast.cmpop)):
                    key.append(type(part).__name__)
                elif isinstance(part, str):
                    key.append(part)
                else:
                    part_key = self._key(part)

                    if part_key is None:
                        return None

                    key.append(part_key)

        return self._same(*key)

    def _call_key(self, node):
        is_cast = isinstance(node.func, ast.Attribute) and node.func.attr == "to"
        is_load = self._is_load(node.func)

        if not (is_cast or is_load or self._is_pure(node.func)):
            return None

        parts = [self._key(node.func.value) if is_cast else _dotted(node.func)]
        parts += [self._key(argument) for argument in node.args]
        names = [keyword.arg for keyword in node.keywords]
        parts += [self._key(keyword.value) for keyword in node.keywords]

        if any(part is None for part in parts) or None in names or (is_load and "volatile" in names):
            return None

        if is_load:
            # Loads also depend on the state of memory, and are never moved in front of a loop.
            if ("memory", self._memory) not in self._made:
                self._made["memory", self._memory] = _Key(len(self._loops), reads_memory=True)

            parts.append(self._made["memory", self._memory])

        return self._same("call", len(names), *names, *parts)

    # Expressions

    def _expression(self, node):
        """Return ``node`` with temporaries for repeated expressions."""
        if node is None or not isinstance(node, ast.expr):
            return node

        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)):
            self._forget(node)
            self._memory += 1

            return node

        node = self._conjunction(node)
        key = self._key(node) if isinstance(node, _VALUE_NODES) else None

        if key in self._available:
            temporary = self._available[key]
            self.used.add(temporary)

            return ast.copy_location(ast.Name(temporary, ast.Load()), node)

        place = self._movable_to(node, key)

        if place is not None:
            return self._move(node, key, place)

        self._children(node)

        if isinstance(node, ast.Call) and key is None:
            self._after_unknown_call(node)

        if key is None or key.is_constant:
            return node

        temporary = self._temporary(key)

        return ast.copy_location(ast.NamedExpr(ast.Name(temporary, ast.Store()), node), node)

    def _conjunction(self, node):
        """Return a chain of ``&`` without repetitions, with operands that change in fewer loops first; the bits are the
        same."""
        if not _is_conjunction(node):
            return node

        operands = _conjuncts(node)
        keys = [self._key(operand) for operand in operands]

        if None in keys:
            return node

        distinct = dict(reversed(list(zip(keys, operands, strict=True))))
        order = sorted(dict.fromkeys(keys), key=lambda key: key.level)

        if order == keys:
            return node

        chain = distinct[order[0]]

        for key in order[1:]:
            chain = ast.copy_location(ast.BinOp(chain, ast.BitAnd(), distinct[key]), node)

        return chain

    def _children(self, node):
        if isinstance(node, ast.IfExp):
            node.test = self._expression(node.test)
            node.body = self._perhaps(node.body)
            node.orelse = self._perhaps(node.orelse)
        elif isinstance(node, ast.BoolOp):
            node.values = [self._expression(node.values[0]), *map(self._perhaps, node.values[1:])]
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            self._forget(node)
        else:
            for field, value in ast.iter_fields(node):
                if isinstance(value, list):
                    setattr(node, field, [self._part(part) for part in value])
                else:
                    setattr(node, field, self._part(value))

    def _part(self, part):
        if isinstance(part, (ast.keyword, ast.Starred)):
            part.value = self._expression(part.value)

            return part

        return self._expression(part)

    def _perhaps(self, node):
        """Rewrite an expression that may not be evaluated: its values are not available afterwards."""
        self._available = self._available.new_child()
        self._conditional += 1
        node = self._expression(node)
        self._conditional -= 1
        self._available = self._available.parents

        return node

    def _movable_to(self, node, key):
        """Return the outermost loop in front of which ``node`` can be computed, as its index among the loops."""
        if key is None or self._conditional or not self._loops or key.is_constant or key.reads_memory:
            return None

        place = len(self._loops) - 1

        if key.level > place:
            return None

        # Do not move out of a branch: the computation may be invalid if the branch is not taken.
        while place > key.level and not self._loops[place].conditional:
            place -= 1

        return place

    def _move(self, node, key, place):
        loop = self._loops[place]
        inside = self._available, self._loops, self._conditional
        self._available, self._loops, self._conditional = loop.available, self._loops[:place], loop.conditional
        self._children(node)
        temporary = self._temporary(key)
        self._available, self._loops, self._conditional = inside
        self.used.add(temporary)
        assignment = ast.Assign([ast.Name(temporary, ast.Store())], node)
        loop.prelude.append(ast.copy_location(assignment, node))

        return ast.copy_location(ast.Name(temporary, ast.Load()), node)

    def _temporary(self, key):
        self._temporary_count += 1
        self._available[key] = f"_value_{self._temporary_count}"

        return self._available[key]

    def _after_unknown_call(self, node):
        self._memory += 1

        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            name = node.func.value.id

            if name in self._values:
                self._values[name] = self._fresh()

    # Statements

    def block(self, statements):
        """Number ``statements``, in place."""
        done = []

        for statement in statements:
            # A name's key may change from one statement to the next.
            self._keys.clear()
            done += self._statement(statement)

        statements[:] = done

    def _statement(self, node):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            self._assign(node)
        elif isinstance(node, ast.AugAssign):
            node.value = self._expression(node.value)
            self._forget(node.target)
        elif isinstance(node, (ast.Expr, ast.Return)):
            node.value = self._expression(node.value)
        elif isinstance(node, ast.Assert):
            node.test = self._expression(node.test)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, (ast.For, ast.While)):
            return [*self._loop(node), node]
        elif not isinstance(node, (ast.Pass, ast.Break, ast.Continue, ast.Import, ast.ImportFrom)):
            self._forget(node)
            self._memory += 1

        return [node]

    def _assign(self, node):
        key = self._key(node.value) if node.value is not None else None
        node.value = self._expression(node.value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]

        for target in targets:
            self._forget(target)

        if len(targets) == 1 and isinstance(targets[0], ast.Name) and key and targets[0].id not in self._carried:
            self._values[targets[0].id] = key

    def _if(self, node):
        node.test = self._expression(node.test)
        values = self._values
        self._conditional += 1

        for branch in (node.body, node.orelse):
            self._values, self._available = dict(values), self._available.new_child()
            self.block(branch)
            self._available = self._available.parents

        self._conditional -= 1
        self._values = values
        self._forget(node)
        self._memory += 1

    def _loop(self, node):
        if isinstance(node, ast.For):
            node.iter = self._expression(node.iter)

        loop = _Loop(self._available, self._conditional)
        values, conditional = self._values, self._conditional
        self._loops.append(loop)
        self._values, self._available, self._conditional = dict(values), self._available.new_child(), 0
        self._forget(node)
        self._memory += 1

        if isinstance(node, ast.While):
            # Values that the test computes are available in the body, which always comes after it.
            node.test = self._expression(node.test)

        self.block(node.body)
        self._loops.pop()
        self._values, self._available, self._conditional = values, self._available.parents, conditional
        self._forget(node)
        self._memory += 1

        if isinstance(node, ast.For) and loop.prelude:
            # Moved statements may use values that the iterable computes.
            self._temporary_count += 1
            name = f"_value_{self._temporary_count}"
            self.used.add(name)
            loop.prelude.insert(0, ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], node.iter), node))
            node.iter = ast.copy_location(ast.Name(name, ast.Load()), node.iter)

        return loop.prelude

    def _forget(self, node):
        """Forget the names that ``node`` binds anywhere, and those that it changes by subscript: they have new
        values."""
        self._keys.clear()

        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, (ast.Store, ast.Del)):
                self._values[child.id] = self._fresh()
            elif (name := _changed_name(child)) is not None:
                self._values[name] = self._fresh()


def _changed_name(node):
    """Return the name whose value changes if ``node`` is an assignment to a part of it."""
    if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        return node.value.id if isinstance(node.value, ast.Name) else None

    return None


def _dotted(node):
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def _is_conjunction(node):
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd)


def _conjuncts(node):
    return [*_conjuncts(node.left), *_conjuncts(node.right)] if _is_conjunction(node) else [node]


class _Cleaner(ast.NodeTransformer):
    """Remove unused temporaries, which would keep arrays alive."""

    def __init__(self, used):
        self._used = used

    def visit_NamedExpr(self, node):
        self.generic_visit(node)
        is_ours = node.target.id.startswith("_value_")

        return node.value if is_ours and node.target.id not in self._used else node
