"""Note what an implementation's own code compares in a call, and with what: how near the call came to the other answer.

While they are called here, its functions have code that is made anew from their source, in which a recorder makes each
comparison. Fuzzers do so with machine code: libFuzzer's "value profile" (https://llvm.org/docs/LibFuzzer.html), and the
"input-to-state correspondence" of REDQUEEN (Aschermann et al., NDSS 2019). What is no comparison and decides like one
counts, too: whether a quotient, remainder or mask of bits is zero, the lesser of two, what a slice leaves of a dim,
and what a table has for a key.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import ast
import builtins
import contextlib
import functools
import itertools
import linecache
import math
import operator
import types

import torch

NAME = "__ntops_comparisons__"
"""The recorder's name. It stays among the builtins: functions that the implementation made in a call may live on."""
MOST = 256
"""The most outcomes that are noted of one call."""
LARGEST = 2**62
"""Larger numbers are noted without their values."""
ELEMENTS = 1 << 20
"""The most elements of a tensor of which the one is looked for that is nearest to a number."""
PARTS = 16
"""So many outcomes a place of the code may have: two for each dim, or number of a tuple."""
ENTRIES, MOST_PARTS = 64, PARTS // 2 - 1
"""So many keys of a table are looked at, and so many parts of each."""
_COMPARED = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
_WHOLE = {"Mod": "mod", "FloorDiv": "floordiv", "RShift": "rshift", "BitAnd": "and_"}
_CALLED = ("min", "max", "range")
_LEFT_ALONE = ("jit", "compile", "script")
"""Functions with decorators of such names are compiled from their source or bytecode."""


class _Recorder:
    """Makes the comparisons of the code, and notes them in calls of the search."""

    slice = slice

    def __init__(self):
        self.notes, self.noted = False, {}
        self.lengths = {}
        """The length of the table at each place; -1 where it changed."""

    def compare(self, place, how, left, right):
        answer = getattr(operator, how)(left, right)
        if self.notes:
            self._note_comparison(place, answer, left, right)
        return answer

    def held(self, place, left, right):
        answer = left in right
        if self.notes and isinstance(right, (tuple, list, set, frozenset, dict)):
            if isinstance(left, tuple):
                self._note_entry(place, right, left)
                return answer
            self._note(place, answer)
            for number, one in enumerate(itertools.islice(right, PARTS - 1)):
                if _is_number(left) and _is_number(one):
                    self._note(place + 1 + number, left == one, left, one)
        return answer

    def whole(self, place, how, left, right):
        answer = getattr(operator, how)(left, right)
        if self.notes and type(answer) is int and type(left) is int and type(right) is int:
            self._note(place, answer == 0, left, _other_side(how, left, right, answer))
        return answer

    def called(self, place, function, *args):
        answer = function(*args)
        if self.notes and function in (min, max, range) and len(args) == 2 and all(map(_is_number, args)):
            self._note_comparison(place, args[0] <= args[1], *args)
        return answer

    def got(self, place, get, *args):
        table = getattr(get, "__self__", None)
        if self.notes and isinstance(table, dict) and args and get.__name__ == "get":
            self._note_entry(place, table, args[0])
        return get(*args)

    def part(self, place, whole, index):
        if self.notes and isinstance(whole, dict):
            self._note_entry(place, whole, index)
        answer = whole[index]
        if self.notes and isinstance(whole, torch.Tensor):
            each = index if isinstance(index, tuple) else (index,)
            for dim, (one, size) in enumerate(zip(each, whole.shape, strict=False)):
                for last, end in enumerate((one.start, one.stop) if isinstance(one, slice) else ()):
                    if type(end) is int and 2 * dim + last < PARTS:
                        self._note(place + 2 * dim + last, end < size, size, abs(end))
        return answer

    def _note_comparison(self, place, answer, left, right):
        if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
            self._note_elements(place, answer, left, right)
        elif isinstance(answer, bool):
            self._note(place, answer, left, right)
            self._note_equal(place + 1, left, right)

    def _note_equal(self, place, left, right):
        """Note which numbers of two sequences of one length are equal."""
        if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)) and len(left) == len(right):
            for number, (one, other) in enumerate(zip(left, right, strict=True)):
                if number < PARTS - 1 and isinstance(one, int) and isinstance(other, int):
                    self._note(place + number, one == other, one, other)

    def _note_entry(self, place, table, key):
        """Note whether a table has a key, how many parts of it the nearest of its keys has, and which. What calls put
        into a table is none of the code's."""
        if self.lengths.setdefault(place, len(table)) != len(table):
            self.lengths[place] = -1
            return
        # Whatever a key of a stranger's class raises is none of the call's.
        with contextlib.suppress(Exception):
            self._note(place, key in table)
            parts = _parts(key)
            others = [one for one in map(_parts, itertools.islice(table, ENTRIES)) if len(one) == len(parts)]
            pairs = [[*zip(parts, one, strict=True)][:MOST_PARTS] for one in others]
            equal, nearest = max(((sum(a == b for a, b in one), one) for one in pairs), key=operator.itemgetter(0))
            self._note(place + PARTS - 1 - equal, True)
            for number, (own, other) in enumerate(nearest):
                self._note(place + 1 + number, own == other, own, other)
                if own != other:
                    # One part more would be nearer to the key.
                    self._note(place + PARTS - 2 - equal, False, own, other)

    def _note_elements(self, place, answer, left, right):
        """Note whether some and whether all elements of a comparison hold, and the element that is nearest."""
        tensor, number = (left, right) if isinstance(left, torch.Tensor) else (right, left)
        if not isinstance(answer, torch.Tensor) or answer.dtype is not torch.bool or not answer.numel():
            return
        # What is looked at would be a part of the graph.
        if answer.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        nearest = None
        # Whatever a tensor of a stranger's class raises is none of the call's.
        with contextlib.suppress(Exception):
            if type(number) in (int, float) and tensor.numel() <= ELEMENTS and not tensor.is_complex():
                wide = tensor.detach().to(torch.float64).flatten()
                nearest = wide[(wide - number).abs().nan_to_num(math.inf).argmin()].item()
            self._note(place, bool(answer.any()), nearest, number)
            self._note(place + 1, bool(answer.all()), nearest, number)

    def _note(self, place, answer, left=None, right=None):
        key = (place, bool(answer))
        if key not in self.noted and len(self.noted) == MOST:
            return
        pair = (left, right) if _is_number(left) and _is_number(right) else None
        if (known := self.noted.get(key)) is None or (pair is not None and _apart(pair) < _apart(known)):
            self.noted[key] = pair


def _other_side(how, left, right, answer):
    """Return a number near the left one with which the answer is zero, if it is not, and else with which it is not."""
    if how == "mod":
        return left + right - answer if answer else left + 1
    if how == "and_":
        return left - answer if answer else left + (right & -right)
    divisor = right if how == "floordiv" else 1 << min(max(right, 0), 62)
    return divisor - 1 if answer else divisor


def _parts(key):
    return key if isinstance(key, tuple) else (key,)


def _is_number(one):
    return type(one) in (int, float) and abs(one) < LARGEST


def _apart(pair):
    return abs(pair[0] - pair[1])


class _Rewriting(ast.NodeTransformer):
    """Has the recorder make what decides."""

    def __init__(self, places):
        self.places = places

    def _recorded(self, node, method, *args):
        name = ast.Attribute(ast.Name(NAME, ast.Load()), method, ast.Load())
        place = [] if method == "slice" else [ast.Constant(next(self.places))]
        return ast.copy_location(ast.Call(name, [*place, *args], []), node)

    def visit_FunctionDef(self, node):
        if any(name in ast.unparse(one) for one in node.decorator_list for name in _LEFT_ALONE):
            return node
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Compare(self, node):
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        # What stands between two comparisons is evaluated twice.
        if not all(isinstance(one, (ast.Name, ast.Constant)) for one in sides[1:-1]):
            return node
        found = [
            self._one(node, left, how, right) for left, how, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        return found[0] if len(found) == 1 else ast.copy_location(ast.BoolOp(ast.And(), found), node)

    def _one(self, node, left, how, right):
        name = type(how).__name__
        if name in _COMPARED:
            return self._recorded(node, "compare", ast.Constant(_COMPARED[name]), left, right)
        if name in ("In", "NotIn"):
            held = self._recorded(node, "held", left, right)
            return held if name == "In" else ast.copy_location(ast.UnaryOp(ast.Not(), held), node)
        return ast.copy_location(ast.Compare(left, [how], [right]), node)

    def visit_BinOp(self, node):
        self.generic_visit(node)
        how = _WHOLE.get(type(node.op).__name__)
        return self._recorded(node, "whole", ast.Constant(how), node.left, node.right) if how else node

    def visit_Call(self, node):
        self.generic_visit(node)
        plain = not node.keywords and not any(isinstance(one, ast.Starred) for one in node.args)
        if isinstance(node.func, ast.Name) and node.func.id in _CALLED and plain:
            return self._recorded(node, "called", node.func, *node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and plain:
            return self._recorded(node, "got", node.func, *node.args)
        return node

    def visit_Subscript(self, node):
        self.generic_visit(node)
        index = node.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        # What is found by a constant decides nothing.
        if not isinstance(node.ctx, ast.Load) or isinstance(index, (ast.Constant, ast.UnaryOp)):
            return node
        if any(isinstance(one, ast.Starred) for one in parts):
            return node
        each = [self._slice(one) if isinstance(one, ast.Slice) else one for one in parts]
        index = ast.copy_location(ast.Tuple(each, ast.Load()), node) if isinstance(index, ast.Tuple) else each[0]
        return self._recorded(node, "part", node.value, index)

    def _slice(self, node):
        ends = [one or ast.copy_location(ast.Constant(None), node) for one in (node.lower, node.upper, node.step)]
        return self._recorded(node, "slice", *ends)


_PLACES = itertools.count(0, PARTS)


@functools.lru_cache(maxsize=256)
def _codes(file):
    """Return the code objects that are made here of a file's functions, by those that Python makes; none where its
    source is not known."""
    source = "".join(linecache.getlines(file))
    try:
        plain = compile(source, file, "exec", dont_inherit=True)
        tree = ast.fix_missing_locations(_Rewriting(_PLACES).visit(ast.parse(source)))
        made = compile(tree, file, "exec", dont_inherit=True)
    # Not Python, or nested too deeply: that costs the search a guide alone.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {_key(one): other for one, other in _pairs(plain, made)}


def _pairs(plain, made):
    """Yield the code objects of two that have as many in the same order, each with its own."""
    yield plain, made
    within = [[one for one in code.co_consts if isinstance(one, types.CodeType)] for code in (plain, made)]
    if [one.co_name for one in within[0]] == [one.co_name for one in within[1]]:
        for one, other in zip(*within, strict=True):
            yield from _pairs(one, other)


def _key(code):
    """Return what tells the code of a place in a file from all other, as long as the file is as it was."""
    return code.co_name, code.co_firstlineno, code.co_linetable, code.co_code, code.co_freevars


def _made(code):
    """Return the code with recorded comparisons; None where the source that is found is not that of the code."""
    made = _codes(code.co_filename).get(_key(code))
    return made if made is not None and made.co_freevars == code.co_freevars else None


class Comparisons:
    """Notes what a function and others that it refers to compare while it is called in its context.

    :param functions: Returns a function and those that it refers to.
    """

    def __init__(self, function, functions):
        self.function, self._all = function, functions
        self._recorder = vars(builtins).setdefault(NAME, _Recorder())
        self._functions, self._calls = [], 0
        self.found = []
        """The outcomes of the last call: a place and its answer, and the two numbers that came nearest to the other
        answer, or None."""

    def __enter__(self):
        self._calls += 1
        # What the first calls import or make is there for the next ones.
        if self._calls & (self._calls - 1) == 0:
            found = ((one, one.__code__, _made(one.__code__)) for one in self._all(self.function))
            self._functions = [(one, code, made) for one, code, made in found if made is not None]
        self._recorder.notes, self._recorder.noted = True, {}
        for function, _, made in self._functions:
            function.__code__ = made
        return self

    def __exit__(self, *_):
        for function, code, _ in self._functions:
            function.__code__ = code
        self._recorder.notes = False
        noted = self._recorder.noted.items()
        self.found = [[place, answer, *(pair or (None, None))] for (place, answer), pair in noted]


_LAST = []


def of(function, functions):
    """Return the ``Comparisons`` of a function, the same while it alone is asked for."""
    plain = _plain(function)
    if not _LAST or _plain(_LAST[0].function) is not plain:
        _LAST[:] = [Comparisons(function, functions)]
    return _LAST[0]


def _plain(function):
    """Return a function, or that of a method, which is another object each time that one asks for it."""
    return getattr(function, "__func__", function)
