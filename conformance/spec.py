"""The harness's knowledge of an op: one ``OpSpec``, found by name in the registry."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import cache
from importlib import metadata
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies
from hypothesis.strategies import SearchStrategy
from torch.overrides import get_testing_overrides

from conformance import cases, drawing, runtime
from conformance.cases import Case
from conformance.features import Features, of_arguments

if TYPE_CHECKING:
    from conformance.running import Running

Cases = Callable[[Sequence[str]], SearchStrategy[Case]]
"""Calls of an op whose tensor dtypes come from those named."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A case made concrete on the CPU: exactly the inputs that the implementation gets."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: torch.Tensor | tuple[torch.Tensor, ...] | None
    """The results of torch's function on the judged device, as CPU copies; None where it refused or is not asked.

    Oracles may use its dtype and shape, never its values (but for ops that are exact by definition).
    """
    places: tuple[tuple[int, ...] | None, ...] = ()
    """For a part of a larger call: the indices of each dim of that call's result that it gives."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """The oracle's answer to one call: ``value``, and the bound of an output's distance from it."""

    value: torch.Tensor
    """float64 (exact ops: the output dtype, compared bit for bit but for the kind of NaN and, unless
    ``signed_zero``, the sign of zero)."""
    bound: torch.Tensor | None = None
    """The bound beside half an ulp of the output dtype, float64, broadcastable to ``value``; None: exact."""
    judged: torch.Tensor | None = None
    """False where values are not judged (a documented intermediate leaves the compute dtype's range)."""
    low: torch.Tensor | None = None
    """For float64 outputs: the rest of the exact value beyond ``value`` (double-double's low part)."""
    signed_zero: bool = False
    instead: torch.Tensor | None = None
    """Another value that each element may have at random, exactly, in float64 (dropout: if it is dropped)."""
    rounded: tuple[torch.Tensor, ...] = ()
    """For an operation that is one rounding: the numbers, in float64, to which each element may be rounded; () where
    any number within the bound will do."""
    also: tuple[torch.Tensor, ...] = ()
    """Other values that are right, exactly, in float64, whatever the bound: with the ``semantics`` of the CPU."""
    chance: float = 1.0
    """The probability with which an element has ``value`` and not ``instead``."""

    def part(self, dim: int, start: int, length: int) -> Expected:
        """Return the answer to a part of the result."""

        def narrowed(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.broadcast_to(self.value.shape).narrow(dim, start, length)

        fields = {name: narrowed(getattr(self, name)) for name in ("value", "bound", "judged", "low", "instead")}
        several = {name: tuple(map(narrowed, getattr(self, name))) for name in ("rounded", "also")}
        return dataclasses.replace(self, **fields, **several)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One benchmark shape. ``bytes`` is the least that must move, ``flops`` the least that must be computed."""

    case: Case
    bytes: int
    flops: int


Draw = Callable[[Random], Benchmark]


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Calls of an op as models and engines make them."""

    family: str
    """The family under which their figures are counted together."""
    weight: float
    """The frequency of calls of the op, relative to the others."""
    draw: Draw


OUTS = ("right", "empty", "wrong size", "dtype", "rounded", "strided", "input", "overlap", "turned")
"""The kinds of ``out``: of the right size, empty, of another size or dtype, of another floating-point dtype with
operands whose results are ties there, with other strides, an operand or between its rows, a part of one, or one that is
turned."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """A dim along which the elements of a result do not depend on each other."""

    size: int
    operands: tuple[int | None, ...]
    """For each operand the dim that goes with it; None: the whole operand goes with each part."""
    result: int
    """The dim of the result."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The dims of a result along which its elements do not depend on each other."""

    axes: Mapping[int | str, tuple[int | None, ...]]
    """For each dim of a tensor argument, by its place or name, the dim of the result that goes with it; None: the whole
    argument goes with each part."""
    terms: int = 1
    """The number of terms that the oracle evaluates for an element."""


@dataclasses.dataclass(frozen=True)
class OpSpec:
    """All that is known about an op. Nothing about an op is known anywhere else."""

    name: str
    reference: Callable[..., Any]
    """torch's function, which defines the right shape, dtype, strides and exceptions."""
    cases: Cases
    """Legal calls, whose tensor dtypes come from those named."""
    refused: Cases
    """Calls that torch refuses (on CUDA; with the CPU's ``semantics`` it takes some of them)."""
    dtypes: tuple[str, ...]
    expected: Callable[[Call], Expected | tuple[Expected, ...]]
    """The oracle and its bound, for each result where there are several."""
    large: Callable[[int], Cases] | None = None
    """``cases`` of up to so many elements; None: there are none of their own."""
    scenes: Cases | None = None
    """Calls that models make all the time, and ``cases`` hardly ever draws, since many things come together in them:
    they are drawn beside those, and take no share of theirs; None: there are none."""
    apart: tuple[Cases, ...] = ()
    """Further scenes, with or without ``scenes``, each of which is drawn for itself, so that every run has some: of one
    that is drawn among many, a run may have none. Where a dtype alone has none of them, they are drawn among
    ``scenes``."""
    defined: Callable[[Case], Case] = lambda case: case
    """Returns a case that was derived from a legal one; or one like it, where torch does not define the result of that
    one, or an implementation need not take it."""
    takes: Callable[[Case], bool] = lambda case: True
    """Tells whether an implementation has to take a case that was derived from a legal one."""
    checks: tuple[str, ...] = ("memory", "values", "metadata", "inputs_unchanged", "deterministic", "errors")
    benchmarks: tuple[Benchmark, ...] = ()
    sampled: Sampled | None = None
    """Calls that are timed beside ``benchmarks`` where a sample is asked for."""
    cuda_refuses: Callable[[Call], type[Exception] | None] = lambda call: None
    """Returns the exception class of CUDA for a call that torch takes on the CPU and refuses on CUDA, else None.

    CUDA's semantics hold everywhere, so a reference computed on the CPU is read through this, unless ``semantics`` are
    those of the CPU."""
    left_out: Callable[[Call], bool] = lambda call: False
    """Tells of a call that torch takes whether an implementation may refuse it with NotImplementedError ("not
    provided")."""
    widened: Callable[[Case], Case | None] = lambda case: None
    """Returns, for a case that torch refuses and that an implementation may take all the same, the call that it stands
    for: an implementation may refuse the case as torch does, or do what the other call does."""
    peer: Callable[..., Any] | None = None
    """The torch code that is timed where torch has no such function, and nobody writes the reference, in the compute
    dtype, for speed; None: the reference."""
    mixes: bool = True
    """Whether dtypes of one call, of its tensors or named in it, may be different ones of ``dtypes``."""
    strides: bool = True
    """Whether strides of results are torch's. Not where torch's depend on the algorithm that it chooses."""
    refusals: bool = True
    """Whether a refusal is judged by its exception class. Not where a reference refuses by what happens to raise in it:
    any exception then is a refusal."""
    writes: Callable[[Case], Collection[int]] = cases.written
    """The operands that the call is given to write."""
    outs: tuple[str, ...] = ()
    """The ``OUTS`` in which torch's CPU and CUDA agree; none where the op has no ``out=``."""
    inplace: bool = False
    """Whether it has ``inplace=``."""
    batch: Callable[[Case], Batch | None] = lambda case: None
    """A dim of the case of which parts can be computed alone, if there is one."""
    parts: Callable[[Call], Parts | None] = lambda call: None
    """How the result of a call that is not refused falls into parts, of which a few are judged where it is large."""
    drawn: bool = True
    """The suite draws calls. False where ``cases`` do not know what the contents of operands have to be: saved cases
    alone are judged then."""
    again: str = ""
    """How a saved case is judged again, where ``python -m conformance reproduce`` does not know the op."""
    gradients: Callable[[Call, torch.Tensor], Mapping[int | str, Running]] | None = None
    """Returns the gradients of a call that is not refused, by the place or name of each tensor that has one. It gets
    the call, whose ``result`` is what the call itself returned, and the result's gradient. None: there are none."""
    constants: Callable[[Case], Collection[int]] = lambda case: ()
    """The operands of a differentiable call that may not require a gradient: torch has none of these."""
    trained: tuple[int, ...] | None = None
    """The operands whose gradients training asks for; None: all that have one. Others may be dear to differentiate."""
    features: Callable[[Case], Features] = of_arguments
    """Returns the features of a case that coverage counts; another function adds to those of the arguments, or replaces
    them."""

    def all_scenes(self, without: str = "") -> Cases:
        """Return all scenes: half of the calls are of ``scenes``. ``without``: a dtype; those ``apart`` that it has
        alone are left out."""

        def draws(dtypes: Sequence[str]) -> SearchStrategy[Case]:
            chosen = [one(dtypes) for one in self.apart if not without or one((without,)).is_empty]
            others = [calls for calls in chosen if not calls.is_empty]
            # Each an object of its own: one_of drops what it has already.
            main = [self.scenes(dtypes) for _ in range(max(len(others), 1))] if self.scenes else []
            return strategies.one_of(*main, *others)

        return draws


API = 1
"""The version of ``OpSpec`` and of what it holds. It grows where a module that was written for the last one breaks."""
GROUP = "ntops.specs"
"""Entry points of this group name modules with OpSpecs: these are known wherever they are installed."""


class SpecError(ValueError):
    """A module of OpSpecs that cannot be used. The message is for people."""


_NAMED_ONLY = ("out", "out_dtype", "alpha", "beta", "rounding_mode")
"""Keyword-only parameters of torch's functions, which its table does not tell from the others."""


def parameters(op: str, *, required: bool = False) -> tuple[str, ...]:
    """Return the names of torch's parameters that can be given by position, in that order; ``required``: of those
    alone."""
    return _parameters(op, registry()[op].reference, required)


@cache
def _parameters(op: str, reference: Callable[..., Any], required: bool) -> tuple[str, ...]:
    # Functions in C++ have no signature; torch has a table of them.
    found = inspect.signature(get_testing_overrides().get(reference, reference)).parameters.values()
    names = [one.name for one in found if one.kind != one.KEYWORD_ONLY and one.name not in _NAMED_ONLY]
    needed = {one.name for one in found if one.default is one.empty}
    # torch.isinf takes ``input``, whatever the table says.
    return ("input",) if op == "isinf" else tuple(name for name in names if name in needed or not required)


@cache
def registry() -> dict[str, OpSpec]:
    """Return every OpSpec by op name: the ``SPEC`` of each module of ``conformance.ops``, and those that ``bring`` has
    found in modules of others, entry points of ``GROUP`` first. Raises SpecError."""
    import conformance.ops

    modules = (
        importlib.import_module(f"conformance.ops.{module.name}")
        for module in pkgutil.iter_modules(conformance.ops.__path__)
        if not module.name.startswith("_")
    )
    with drawing.unread():
        found = {module.SPEC.name: module.SPEC for module in modules}
    for entry in sorted(metadata.entry_points(group=GROUP)):
        _add(entry.value, found, f"entry point {entry.name!r} of {GROUP}")
    return found


_brought: dict[str, list[str]] = {}
"""Names that ``bring`` was called with, and the ops that each of them added."""


def brought() -> tuple[str, ...]:
    """Return the names with which ``bring`` was called: processes that are started bring the same."""
    return tuple(_brought)


def bring(names: Sequence[str], defined: Callable[[str], OpSpec] | None = None) -> list[str]:
    """Add the OpSpecs of modules to the registry of this process. A name is a module's, or a file ``*.py``.

    :param defined: Returns the OpSpec that a file ``*.json`` describes, or raises ValueError.

    A module's OpSpecs are its attributes of that class. Raises SpecError: a module that cannot be imported, has none,
    is written for another ``API`` (its ``CONFORMANCE_API``), or names an op that there is; then nothing is added.

    Returns the names that had not been brought before, for ``forget``.
    """
    new: list[str] = []
    try:
        for name in names:
            if name not in _brought:
                _brought[name] = _add(name, registry(), f"--specs {name}", defined)
                new.append(name)
    except SpecError:
        forget(new)
        raise
    return new


def forget(names: Sequence[str]) -> None:
    """Undo ``bring`` of these."""
    for name in names:
        for op in _brought.pop(name):
            del registry()[op]


@contextlib.contextmanager
def registered(spec: OpSpec) -> Generator[None]:
    """Register an op within the context. Raises SpecError: there is one of its name."""
    if spec.name in registry():
        raise SpecError(f"there is an op {spec.name!r} already")
    registry()[spec.name] = spec
    try:
        yield
    finally:
        del registry()[spec.name]


def _add(name: str, known: dict[str, OpSpec], called: str, defined: Callable[[str], OpSpec] | None = None) -> list[str]:
    """Add the OpSpecs of a module or a file to ``known``, all or none; return the names of those that are new."""
    if not name.isprintable():
        raise SpecError(f"{called!r}: not a name")
    if defined is not None and name.endswith(".json"):
        try:
            found = [defined(name)]
        except ValueError as error:
            raise SpecError(f"{called}: {error}") from None
    else:
        found = _of_module(name, called)
    for spec in found:
        if not spec.name.isidentifier():
            raise SpecError(f"{called}: the name of an op is an identifier, and {spec.name!r} is none")
        if known.get(spec.name, spec) is not spec:
            raise SpecError(f"{called}: there is an op {spec.name!r} already")
    added = [spec.name for spec in found if spec.name not in known]
    known.update((spec.name, spec) for spec in found)
    return added


def _of_module(name: str, called: str) -> list[OpSpec]:
    try:
        module = runtime.import_named(name)
    # Importing runs somebody else's code.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise SpecError(f"{called}: importing it failed: {type(error).__name__}: {runtime.said(error)}") from None
    if (api := getattr(module, "CONFORMANCE_API", API)) != API:
        raise SpecError(f"{called}: it is written for version {api} of OpSpec, and this harness has version {API}")
    found = _specs_of(module)
    if not found:
        raise SpecError(f"{called}: it has no OpSpec; every attribute that is one counts")
    return found


def _specs_of(module: ModuleType) -> list[OpSpec]:
    return list({id(one): one for one in vars(module).values() if isinstance(one, OpSpec)}.values())
