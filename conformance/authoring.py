"""The OpSpec of an operator that torch lacks, from a reference in torch and the shapes of its arguments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from hypothesis import strategies as st

from conformance import call_contexts, error_analysis
from conformance import cases as case_data
from conformance.cases import Case, Same
from conformance.names import unknown_name
from conformance.ops import _sizes
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import shapes, tensors, values
from strategies.specs import TensorSpec

DTYPES = ("float32", "float16", "bfloat16")
ELEMENTS, ELEMENTS_OF_PRODUCTS = _sizes.ELEMENTS, 1 << 16
"""The most elements of all named sizes together: for at most two names, and for more."""
LEADING = "..."
FINITE = "finite"
"""The word that keeps NaN, infinities and other special values out of an argument."""
CHECKS = ("memory", "values", "metadata", "inputs_unchanged", "deterministic", "errors")

Bound = Callable[..., torch.Tensor | float]


class ArgumentError(ValueError):
    """A description of arguments that is not well formed. The message is for people."""


class _Size(NamedTuple):
    """``times`` the size of a name, or just ``times`` where the name is empty."""

    times: int
    name: str


class _Shape(NamedTuple):
    """A tensor argument: its sizes, and what its elements may be."""

    sizes: tuple[_Size | str, ...]
    dtype: str
    """Empty: the dtype that is drawn."""
    values: str | None
    finite: bool


def operator(
    name: str,
    *,
    reference: Callable[..., Any],
    arguments: str | Sequence[Any] | None = None,
    like: Sequence[Any] | None = None,
    keywords: Mapping[str, Any] | None = None,
    dtypes: str | Sequence[str] | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    bound: Bound | None = None,
    strides: bool = False,
    again: str = "",
) -> OpSpec:
    """Return an OpSpec whose calls are drawn, refused ones among them, and whose bound is derived.

    :param reference: The right results, composed of torch's functions; called with the arguments of each call.
    :param arguments: For each argument a tensor's shape, or a value that is no text. A shape is sizes with spaces
        between them: a name is one size in all arguments, "8*D" eight times that of D, a number itself; "..." first
        stands for up to three dims. After a colon come, in any order, a dtype that the argument always has, a recipe of
        ``strategies.values`` for its elements, and "finite", which plants no special values. A text is split at commas.
    :param like: Tensors in place of ``arguments``: equal sizes are one name, 1 is itself. Other values are themselves.
    :param keywords: Keyword arguments of every call: each a value, or a list of those to choose from.
    :param dtypes: The dtypes to draw for arguments without one; default: float32, float16 and bfloat16. With ``like``
        the dtypes of its tensors.
    :param sizes: The sizes to draw for a name; default: all, 0 among them.
    :param bound: Instead of the derived one: called with the float64 result of the reference and the operands, gives
        how far from it a result may lie beside half an ulp of its dtype.
    :param strides: Whether results have the strides of the reference's.
    :param again: How a saved case is judged again, where ``reproduce`` does not know the op.
    :raises ArgumentError: A description that is not well formed.
    """
    if (arguments is None) == (like is None):
        raise ArgumentError("give either arguments or like")
    if not name.isidentifier():
        raise ArgumentError(f"the name of an op is an identifier, and {name!r} is none")
    if like is not None:
        described, found = _like(like)
        dtypes = dtypes or found
    else:
        assert arguments is not None
        parts = arguments.split(",") if isinstance(arguments, str) else arguments
        described = [_parsed(part) if isinstance(part, str) else part for part in parts]
    names = tuple(dtypes.replace(",", " ").split() if isinstance(dtypes, str) else dtypes or DTYPES)
    for one in names:
        if one not in dtype_names.NAMES:
            raise ArgumentError(unknown_name("dtype", one, dtype_names.NAMES))
    signature = _Signature(name, described, dict(keywords or {}), dict(sizes or {}))
    return OpSpec(
        name=name,
        reference=reference,
        cases=signature.cases,
        refused=lambda wanted: signature.refused(wanted, reference),
        dtypes=dtype_names.by_simplicity(names),
        expected=derived(reference) if bound is None else _given(reference, bound),
        checks=CHECKS,
        defined=signature.defined,
        # Only a function that calls nothing but torch's can take a lazily negated tensor.
        takes=lambda case: case.form != call_contexts.NEGATED and signature.defined(case) == case,
        mixes=False,
        refusals=False,
        strides=strides,
        again=again,
    )


# --- descriptions ------------------------------------------------------------------------------------------------


def _parsed(text: str) -> _Shape:
    """Parse the description of one tensor argument."""
    dims, _, about = text.partition(":")
    dtype, recipe, finite = "", None, False
    for word in about.split():
        if word in dtype_names.NAMES:
            dtype = word
        elif word in values.RECIPES:
            recipe = word
        elif word == FINITE:
            finite = True
        else:
            raise ArgumentError(
                f"{text!r}: {unknown_name('word', word, (*dtype_names.NAMES, *values.RECIPES, FINITE))}"
            )
    return _Shape(tuple(_size(word, place, text) for place, word in enumerate(dims.split())), dtype, recipe, finite)


def _size(word: str, place: int, text: str) -> _Size | str:
    if word == LEADING and not place:
        return LEADING
    times, _, name = word.rpartition("*") if "*" in word else ("1", "", word)
    if word.isdecimal():
        return _Size(int(word), "")
    if not times.isdecimal() or not int(times) or not name.isidentifier():
        raise ArgumentError(f"{text!r}: {word!r} is no size; sizes are D, 128, 8*D, and ... before all others")
    return _Size(int(times), name)


def _like(examples: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Return descriptions of arguments like these, and the dtype of the first that is floating-point."""
    floating = [one.dtype for one in examples if isinstance(one, torch.Tensor) and one.dtype.is_floating_point]
    drawn = floating[0] if floating else None

    def described(one: torch.Tensor) -> _Shape:
        sizes = tuple(_Size(1, "") if size == 1 else _Size(1, f"size_{size}") for size in one.shape)
        return _Shape(sizes, "" if one.dtype == drawn else dtype_names.from_torch(one.dtype), None, False)

    found = [described(one) if isinstance(one, torch.Tensor) else one for one in examples]
    return found, (dtype_names.from_torch(drawn),) if drawn is not None else DTYPES


# --- calls -------------------------------------------------------------------------------------------------------


class _Signature:
    """The calls of an operator."""

    def __init__(
        self, op: str, described: Sequence[Any], keywords: dict[str, Any], sizes: dict[str, Sequence[int]]
    ) -> None:
        self.op, self.described, self.keywords, self.sizes = op, described, keywords, sizes
        self.shapes = [one for one in described if isinstance(one, _Shape)]
        if not self.shapes:
            raise ArgumentError(f"{op}: no argument is a tensor")
        every = [size for one in self.shapes for size in one.sizes]
        self.names = list(dict.fromkeys(one.name for one in every if isinstance(one, _Size) and one.name))
        self.leading = LEADING in every
        for name in sizes:
            if name not in self.names:
                raise ArgumentError(unknown_name("size", name, self.names))
        self.times = {
            name: max(one.times for one in every if isinstance(one, _Size) and one.name == name) for name in self.names
        }
        self.fixed = max(
            1,
            *(
                math.prod(one.times for one in shape.sizes if isinstance(one, _Size) and not one.name)
                for shape in self.shapes
            ),
        )

    def cases(self, dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        """Return the strategy of legal calls."""
        return _cases(self, tuple(dtypes))

    def refused(self, dtypes: Sequence[str], reference: Callable[..., Any]) -> st.SearchStrategy[Case]:
        """Return the strategy of calls that the reference refuses: one size or one dim too many, or no arguments."""
        return _refused(self, tuple(dtypes), reference)

    def draw_sizes(self, draw: st.DrawFn) -> tuple[dict[str, int], tuple[int, ...]]:
        """Draw a size for each name, and the leading dims."""
        free = [name for name in self.names if name not in self.sizes]
        count = len(free) + self.leading
        budget = (ELEMENTS if count <= 2 else ELEMENTS_OF_PRODUCTS) // self.fixed
        found = {name: draw(st.sampled_from(list(self.sizes[name]))) for name in self.names if name in self.sizes}
        budget //= math.prod(max(size * self.times[name], 1) for name, size in found.items())
        budget = max(budget // math.prod(self.times[name] for name in free), 1)
        leading = ()
        if self.leading:
            leading = draw(shapes.shapes(0, 3, budget=max(math.isqrt(budget), 1) if free else budget))
            budget = max(budget // max(math.prod(leading), 1), 1)
        drawn = draw(shapes.shapes(len(free), len(free), budget=budget)) if free else ()
        return found | dict(zip(free, drawn, strict=True)), leading

    def shape(self, described: _Shape, sizes: Mapping[str, int], leading: tuple[int, ...]) -> tuple[int, ...]:
        found: list[int] = []
        for one in described.sizes:
            found += leading if isinstance(one, str) else (one.times * sizes.get(one.name, 1),)
        return tuple(found)

    def defined(self, case: Case) -> Case:
        """Return the case; where sizes of its operands do not match, one like it in which they do."""
        operands, args = case_data.operands(case), list(case.args)
        places = [place for place, one in enumerate(self.described) if isinstance(one, _Shape)]
        if len(args) != len(self.described):
            return case
        found: list[tuple[_Shape, tuple[int, ...]]] = []
        for place in places:
            one = args[place]
            if isinstance(one, Same):
                shape = operands[one.operand].shape
                shape = (*shape[:-2], shape[-1], shape[-2]) if one.turned else shape
            elif isinstance(one, TensorSpec):
                shape = one.shape
            else:
                return case
            found.append((self.described[place], shape))
        sizes, leading = self._sizes_of(found)
        for place, (described, shape) in zip(places, found, strict=True):
            right = self.shape(described, sizes, leading)
            if right != shape:
                one = args[place]
                like = operands[one.operand] if isinstance(one, Same) else one
                assert isinstance(like, TensorSpec)
                args[place] = TensorSpec(right, like.dtype, values=like.values, seed=like.seed)
        return msgspec.structs.replace(case, args=tuple(args), digests=()) if args != list(case.args) else case

    def _sizes_of(self, found: Sequence[tuple[_Shape, tuple[int, ...]]]) -> tuple[dict[str, int], tuple[int, ...]]:
        """Return a size for each name, and the leading dims, each from the first operand that has it."""
        sizes: dict[str, int] = {}
        leading: tuple[int, ...] | None = None
        for described, shape in found:
            dims = described.sizes
            if LEADING in dims:
                count = max(len(shape) - len(dims) + 1, 0)
                leading = shape[:count] if leading is None else leading
                dims, shape = dims[1:], shape[count:]
            for one, size in zip(dims, shape, strict=False):
                if isinstance(one, _Size) and one.name and one.name not in sizes:
                    legal = self.sizes.get(one.name, ())
                    size //= one.times
                    sizes[one.name] = legal[0] if legal and size not in legal else size
        return {name: sizes.get(name, 1) for name in self.names}, leading or ()

    def case(self, draw: st.DrawFn, made: Sequence[TensorSpec]) -> Case:
        """Return the call with these tensors."""
        remaining = iter(made)
        args = tuple(next(remaining) if isinstance(one, _Shape) else case_data.argument(one) for one in self.described)
        kwargs = {
            name: case_data.argument(draw(st.sampled_from(value)) if isinstance(value, list) else value)
            for name, value in self.keywords.items()
        }
        return Case(op=self.op, args=args, kwargs=kwargs)


@st.composite
def _cases(draw: st.DrawFn, signature: _Signature, dtypes: tuple[str, ...]) -> Case:
    sizes, leading = signature.draw_sizes(draw)
    dtype = draw(dtype_names.dtypes(dtypes))
    made = [
        draw(
            tensors.tensors(
                signature.shape(one, sizes, leading),
                one.dtype or dtype,
                values=one.values,
                specials=() if one.finite else values.SPECIALS,
            )
        )
        for one in signature.shapes
    ]
    return signature.case(draw, made)


@st.composite
def _refused(draw: st.DrawFn, signature: _Signature, dtypes: tuple[str, ...], reference: Callable[..., Any]) -> Case:
    dtype = draw(dtype_names.dtypes(dtypes))
    small = {
        name: next((size for size in signature.sizes.get(name, ()) if size), 2 + place)
        for place, name in enumerate(signature.names)
    }
    right = [signature.shape(one, small, (2,)) for one in signature.shapes]
    wrong = []
    for place, shape in enumerate(right):
        longer = [(*shape[:dim], size + 1, *shape[dim + 1 :]) for dim, size in enumerate(shape)]
        wrong += [(place, other) for other in (*longer, (*shape, 3), shape[1:]) if other != shape]
    first = draw(st.integers(0, len(wrong) - 1))
    for place, other in itertools.islice(itertools.cycle(wrong), first, first + len(wrong)):
        given = [*right[:place], other, *right[place + 1 :]]
        made = [TensorSpec(shape, one.dtype or dtype) for shape, one in zip(given, signature.shapes, strict=True)]
        case = signature.case(draw, made)
        if _refuses(reference, case):
            return case
    # An operator that takes every shape refuses a call without arguments.
    return Case(op=signature.op, args=())


def _refuses(reference: Callable[..., Any], case: Case) -> bool:
    args, kwargs, _ = case_data.materialize(case)
    try:
        reference(*args, **kwargs)
    # An exception of any kind: an implementation has to raise the same.
    except Exception:  # noqa: BLE001
        return True
    return False


# --- oracles -----------------------------------------------------------------------------------------------------


def derived(reference: Callable[..., Any]) -> Callable[[Call], Expected | tuple[Expected, ...]]:
    def expected(call: Call) -> Expected | tuple[Expected, ...]:
        results, several = error_analysis.analyse(reference, call.args, call.kwargs)
        found = tuple(Expected(one.value, one.bound, one.judged, rounded=one.rounded) for one in results)
        return found if several else found[0]

    return expected


def _given(reference: Callable[..., Any], bound: Bound) -> Callable[[Call], Expected | tuple[Expected, ...]]:
    def wide(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value

    def expected(call: Call) -> Expected | tuple[Expected, ...]:
        operands = [wide(one) for one in call.args]
        result = reference(*operands, **{name: wide(value) for name, value in call.kwargs.items()})
        several = isinstance(result, tuple | list)
        found = tuple(
            Expected(one, torch.as_tensor(bound(one, *operands), dtype=torch.float64).broadcast_to(one.shape))
            if one.dtype.is_floating_point
            else Expected(one)
            for one in (result if several else (result,))
        )
        return found if several else found[0]

    return expected
