"""Pairs of a value and its error as tensors that torch's functions take, and the dispatch of operations to their
rules."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from conformance import rounding
from conformance.float_formats import FORMATS, compute_dtype

_EXPONENT = 0x7FF0000000000000


class NoRule(Exception):
    """An operation of the reference that has no rule. The message is for people."""


class Analysis(NamedTuple):
    """A result of a reference, and how far from it a right implementation may be."""

    value: torch.Tensor
    """float64 where the result is floating-point; else the result itself."""
    bound: torch.Tensor | None
    """float64, beside half an ulp of the result's dtype; None: exact."""
    judged: torch.Tensor
    """False where nothing is said."""
    dtype: torch.dtype
    rounded: tuple[torch.Tensor, ...] = ()
    """The numbers, in float64, to which each element may be rounded, where the last operation is one rounding."""


class Pair(torch.Tensor):
    """A tensor that has its dtype in name only, and holds ``value`` (float64; integers as they are), ``error``
    (float64, 0 or more) and ``unsure`` (bool: nothing is said of the element). ``rounding`` is the dtype to which the
    value is rounded by the last operation; that is in ``error`` only after ``settled``, since the comparison with a
    result of that dtype allows it by itself. ``once``: the last operation rounds an exact result once, as IEEE 754 and
    torch do."""

    value: torch.Tensor
    error: torch.Tensor
    unsure: torch.Tensor
    rounding: torch.dtype | None
    once: bool

    @staticmethod
    def __new__(
        cls: type[Pair],
        value: torch.Tensor,
        error: torch.Tensor | None,
        unsure: torch.Tensor | None,
        dtype: torch.dtype,
        rounding: torch.dtype | None = None,
    ) -> Pair:
        if dtype.is_complex:
            raise NoRule("no bound can be derived: the reference has complex numbers. Give a bound")
        pair = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, strides=value.stride(), dtype=dtype, device=torch.device("cpu")
        )
        pair.value = value
        pair.error = torch.zeros(value.shape, dtype=torch.float64) if error is None else error
        pair.unsure = torch.zeros(value.shape, dtype=torch.bool) if unsure is None else unsure
        pair.rounding = rounding
        pair.once = False
        return pair

    def __init__(self, *_: Any) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # ty: ignore[incompatible-method-override]
        return _dispatch(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the elements as torch does, which has no method for it that is dispatched. Raises NoRule where they
        have errors."""
        if self.error.any() or self.unsure.any():
            raise NoRule("no bound can be derived: the reference reads numbers out of a tensor that it computed")
        return self.value.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"Pair({self.value}, {self.error}, {self.dtype})"


# --- numbers -----------------------------------------------------------------------------------------------------


def ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``float_formats.ulp`` of a tensor."""
    form = FORMATS[dtype]
    binade = (value.contiguous().view(torch.int64) & _EXPONENT).view(torch.float64)
    largest = math.ldexp(1.0, math.frexp(form.max)[1] - 1)
    return (binade.clamp(max=largest) * 2.0 ** (1 - form.precision)).clamp(min=form.subnormal)


def loss(value: torch.Tensor, dtype: torch.dtype, ulps: float) -> torch.Tensor:
    """Return so many ulps of the dtype that a result of ``dtype`` is computed in; of float64 twice as many, since the
    value here is computed in float64 too."""
    compute = compute_dtype(dtype)
    return ulp(value, compute) * (2 * ulps if compute == torch.float64 else ulps)


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff of the dtype that ``dtype`` is computed in."""
    return FORMATS[compute_dtype(dtype)].unit


def settled(pair: Pair) -> Pair:
    """Return the pair with the last rounding in its error, as an operand of the next operation: an element whose value
    is beyond the range of the dtype that it is rounded to is unsure there."""
    if not pair.dtype.is_floating_point:
        return pair
    value, error, unsure = pair.value, pair.error, pair.unsure
    if pair.rounding is not None:
        narrow = pair.rounding
        # An exact value that is a number of the dtype is not rounded, but for float64, in which the value here is
        # computed too.
        exact = (error == 0) & (value.to(narrow).double() == value) & (narrow != torch.float64)
        # What is rounded may be larger than the value, and so may its ulp.
        step = ulp(value.abs() + error, narrow) * (1.0 if narrow == torch.float64 else 0.5)
        error = torch.where(exact | ~value.isfinite(), error, error + step)
    widest = FORMATS[compute_dtype(pair.dtype) if pair.rounding is None else pair.rounding].max
    unsure = unsure | (value.isfinite() & (value.abs() + error > widest))
    return Pair(value, error, unsure, pair.dtype)


def pair_of(value: Any, dtype: torch.dtype | None = None) -> Pair:
    """Return an operand as a settled pair. A number may be rounded to the compute dtype."""
    if isinstance(value, Pair):
        return settled(value)
    if isinstance(value, torch.Tensor):
        return exact(value)
    if dtype is not None and not dtype.is_floating_point:
        # By way of all 64 bits: a comparison may be with a number that the dtype has not.
        return exact(torch.tensor(value, dtype=torch.int64).to(dtype))
    dtype = dtype or torch.float32
    number = torch.tensor(float(value), dtype=torch.float64)
    narrow = compute_dtype(dtype) if dtype.is_floating_point else torch.float32
    near = number.to(narrow).double() == number
    error = torch.where(near | ~number.isfinite(), 0.0, ulp(number, narrow) / 2)
    return Pair(number, error, None, dtype)


def exact(tensor: torch.Tensor) -> Pair:
    """Return the pair of a tensor of which every element is known."""
    return Pair(tensor.double() if tensor.dtype.is_floating_point else tensor, None, None, tensor.dtype)


def made(
    value: torch.Tensor,
    error: torch.Tensor | float,
    unsure: torch.Tensor,
    dtype: torch.dtype,
    rounding: torch.dtype | None = None,
) -> Pair:
    """Return the pair of a result. A sure NaN or infinity has no error; an element with an infinite error is unsure. A
    result with an error may be a subnormal number, of which a relative error says nothing: it may be a step off."""
    error = torch.as_tensor(error, dtype=torch.float64).broadcast_to(value.shape)
    unsure = unsure.broadcast_to(value.shape)
    finite, known = value.isfinite(), error.isfinite()
    unsure = unsure | (finite & ~known)
    if dtype.is_floating_point:
        error = error + (error > 0) * FORMATS[compute_dtype(dtype)].subnormal
    error = torch.where(finite & known, error, 0.0)
    return Pair(value, error, unsure, dtype, rounding)


# --- operations --------------------------------------------------------------------------------------------------

_inside = 0
"""The number of composite operations that are being taken apart: their casts are not the reference's own."""


@contextlib.contextmanager
def taken_apart() -> Generator[None]:
    """Take casts within the context for the operation's own, not for the reference's."""
    global _inside
    _inside += 1
    try:
        yield
    finally:
        _inside -= 1


def is_taken_apart() -> bool:
    return bool(_inside)


RULES: dict[str, Callable[..., Any]] = {}
"""The rules of torch's operations for pairs, by name; ``rules`` fills it."""


def _dispatch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = func._schema.name.removeprefix("aten::")
    packet = func.overloadpacket
    if "out" in kwargs:
        others = {key: value for key, value in kwargs.items() if key != "out"}
        return _written(kwargs["out"], packet(*args, **others))
    if name in RULES:
        return RULES[name](func, *args, **kwargs)
    _refuse_random(func)
    if name in RESHAPES:
        return _reshaped(func, *args, **kwargs)
    if name.endswith("_") and not name.endswith("__") and hasattr(torch.ops.aten, name[:-1]):
        return _written(args[0], getattr(torch.ops.aten, name[:-1])(*args, **kwargs))
    if not _floating((args, kwargs)):
        return _integral(func, args, kwargs)
    with taken_apart():
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            return func.decompose(*args, **kwargs)
        if func in decomposition_table:
            return decomposition_table[func](*args, **kwargs)
    raise NoRule(
        f"no bound can be derived: {func} has no rule (conformance/error_analysis/rules.py). Give a bound: "
        "bound=lambda value, *operands: ..., or write the reference with other operations"
    )


RESHAPES = ("squeeze_", "unsqueeze_", "transpose_", "t_")
"""Operations that give a tensor another shape in place."""


def _reshaped(func: Any, pair: Pair, *args: Any) -> Pair:
    for one in (pair.value, pair.error, pair.unsure):
        func(one, *args)
    # Changes the shape that torch knows, too.
    with torch._C._DisableTorchDispatch():
        func(pair, *args)
    return pair


def _refuse_random(func: Any) -> None:
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise NoRule(f"no bound can be derived: {func} is random. Give a bound")


def _written(target: Any, result: Any) -> Any:
    """Write the result of an operation to an operand, and return that."""
    if isinstance(target, tuple | list):
        return tuple(_written(one, of) for one, of in zip(target, result, strict=True))
    if not isinstance(target, Pair):
        raise NoRule("no bound can be derived: the reference writes to a tensor that is no operand. Give a bound")
    if not isinstance(result, Pair):
        result = exact(result)
    if result.dtype != target.dtype:
        result = torch.ops.aten._to_copy(result, dtype=target.dtype)
    result = result if target.value.shape == result.value.shape and result.rounding is None else settled(result)
    target.value.copy_(result.value)
    target.error.copy_(result.error)
    target.unsure.copy_(result.unsure)
    target.rounding = None
    return target


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(lambda one: found.append(one) if isinstance(one, torch.Tensor) else None, tree)
    return found


def _floating(tree: Any) -> bool:
    return any(one.dtype.is_floating_point for one in _tensors(tree))


def plain(tree: Any, of: Callable[[Pair], Any] = lambda pair: pair.value) -> Any:
    """Return arguments with plain tensors in place of pairs."""
    return tree_map(lambda one: of(one) if isinstance(one, Pair) else one, tree)


def _integral(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply an operation to integers and truth values, which have no error; one unsure argument makes all results
    unsure."""
    result = func(*plain(args), **plain(kwargs))
    unsure = any(bool(one.unsure.any()) for one in _tensors((args, kwargs)) if isinstance(one, Pair))

    def wrapped(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        pair = exact(tensor)
        pair.unsure.fill_(unsure)
        return pair

    return tree_map(wrapped, result)


class _Factories(TorchDispatchMode):
    """Makes pairs of new tensors, which the reference may write to. Random numbers have no rule."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        if any(isinstance(one, Pair) for one in tensors):
            return _dispatch(func, args, kwargs)
        _refuse_random(func)
        result = func(*args, **kwargs)
        return result if tensors or not isinstance(result, torch.Tensor) else exact(result)


def analyse(
    reference: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Analysis, ...], bool]:
    """Return the results of a reference, called with CPU tensors, and whether it returns several.

    Raises NoRule, which names the operation that has no rule, and what the reference raises."""
    # In inference mode torch would not take operations apart that are made of others, and a cast among them.
    with torch.inference_mode(False), torch.no_grad():
        # Copies, since a reference may write to its operands.
        wrapped = tree_map(
            lambda one: exact(one.clone()) if isinstance(one, torch.Tensor) else one, (tuple(args), dict(kwargs))
        )
        with _Factories():
            result = reference(*wrapped[0], **wrapped[1])
    several = isinstance(result, tuple | list)
    return tuple(map(_analysis, result if several else (result,))), several


def _analysis(result: Any) -> Analysis:
    if not isinstance(result, torch.Tensor):
        raise NoRule(f"no bound can be derived: the reference returns an object of type {type(result).__name__}")
    pair = result if isinstance(result, Pair) else exact(result)
    if not pair.dtype.is_floating_point:
        return Analysis(pair.value, None, ~pair.unsure, pair.dtype)
    rounded: tuple[torch.Tensor, ...] = ()
    # Something else may have been written to a part of it since.
    if pair.once and not pair.error.any() and pair.dtype in rounding.IEEE:
        ways = rounding.ways((compute_dtype(pair.dtype), pair.dtype), pair.dtype)
        rounded = tuple(torch.from_numpy(rounding.through(pair.value.numpy(), way)) for way in ways)
    if pair.rounding != pair.dtype or pair.dtype == torch.float64:
        # The comparison allows a rounding to the dtype of the result, and sees overflows; any other rounding counts
        # here.
        pair = Pair(pair.value, settled(pair).error, pair.unsure, pair.dtype)
    else:
        # The comparison takes half an ulp of the value, not of what is rounded.
        more = ulp(pair.value.abs() + pair.error, pair.dtype) - ulp(pair.value, pair.dtype)
        pair = Pair(pair.value, pair.error + torch.where(pair.value.isfinite(), more / 2, 0.0), pair.unsure, pair.dtype)
    return Analysis(pair.value, pair.error, ~pair.unsure, pair.dtype, rounded)
