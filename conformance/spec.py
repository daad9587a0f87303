"""What the harness knows about an op: one ``OpSpec``, found by name in the registry."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy
from torch.overrides import get_testing_overrides

from conformance import cases
from conformance.cases import Case
from conformance.features import Features, of_arguments


@dataclasses.dataclass(frozen=True)
class Call:
    """A case made concrete on the CPU: exactly the inputs that the implementation gets."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: torch.Tensor | tuple[torch.Tensor, ...] | None
    """What torch's function returned for it on the judged device, as CPU copies; None where it refused or is not asked.

    Oracles may use its dtype and shape, never its values (but for ops that are exact by definition).
    """
    places: tuple[tuple[int, ...] | None, ...] = ()
    """Of a part of a larger call: which indices of each dim of that one's result it gives."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """The oracle's answer to one call: ``value`` and how far from it an output may lie."""

    value: torch.Tensor
    """float64 (exact ops: the output dtype, compared bit for bit but for the kind of NaN and, unless
    ``signed_zero``, the sign of zero)."""
    bound: torch.Tensor | None = None
    """What is added to half an ulp of the output dtype, float64, broadcastable to ``value``; None: exact."""
    judged: torch.Tensor | None = None
    """False where values are not judged (a documented intermediate leaves the compute dtype's range)."""
    low: torch.Tensor | None = None
    """For float64 outputs: what the exact value has beyond ``value`` (double-double's low part)."""
    signed_zero: bool = False
    instead: torch.Tensor | None = None
    """Another value that each element may have at random, exactly, in float64 (dropout: if it is dropped)."""
    rounded: tuple[torch.Tensor, ...] = ()
    """float64: of an operation that is one rounding, what each element may be rounded to; () where any number within
    the bound will do."""
    chance: float = 1.0
    """The probability with which an element has ``value`` and not ``instead``."""

    def part(self, dim: int, start: int, length: int) -> Expected:
        """The answer to a part of the result."""

        def narrowed(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.broadcast_to(self.value.shape).narrow(dim, start, length)

        fields = {name: narrowed(getattr(self, name)) for name in ("value", "bound", "judged", "low", "instead")}
        return dataclasses.replace(self, **fields, rounded=tuple(map(narrowed, self.rounded)))


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One benchmark shape. ``bytes`` is the least that must move, ``flops`` the least that must be computed."""

    case: Case
    bytes: int
    flops: int


OUTS = ("right", "empty", "wrong size", "dtype", "rounded", "strided", "input", "overlap", "turned")
"""What an ``out`` may be: of the right size, empty, of another size or dtype, of another floating-point dtype with
operands whose results are ties there, with other strides, an operand, a part of one, or one that is turned."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """A dim along which the elements of a result do not depend on each other."""

    size: int
    operands: tuple[int | None, ...]
    """Along which dim each operand goes with it; None: as a whole with each part."""
    result: int
    """The dim of the result."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The dims of a result along which its elements do not depend on each other."""

    axes: Mapping[int | str, tuple[int | None, ...]]
    """For each dim of a tensor argument, by its place or name, the dim of the result that goes with it; None: it goes
    as a whole with each part."""
    terms: int = 1
    """What the oracle evaluates for an element."""


@dataclasses.dataclass(frozen=True)
class OpSpec:
    """All that is known about an op. Nothing about an op is known anywhere else."""

    name: str
    reference: Callable[..., Any]
    """torch's function; it says what shape, dtype, strides and which exceptions are right."""
    cases: Callable[[Sequence[str]], SearchStrategy[Case]]
    """Legal calls, whose tensor dtypes come from those named."""
    refused: Callable[[Sequence[str]], SearchStrategy[Case]]
    """Calls that torch refuses (on CUDA)."""
    dtypes: tuple[str, ...]
    expected: Callable[[Call], Expected | tuple[Expected, ...]]
    """The oracle and its bound, for each result where there are several."""
    large: Callable[[int], Callable[[Sequence[str]], SearchStrategy[Case]]] | None = None
    """``cases`` of up to so many elements; None: there are none of their own."""
    defined: Callable[[Case], Case] = lambda case: case
    """A case that was derived from a legal one; or one like it, where torch does not define what that one gives."""
    checks: tuple[str, ...] = ("memory", "values", "metadata", "inputs_unchanged", "deterministic", "errors")
    benchmarks: tuple[Benchmark, ...] = ()
    cuda_refuses: Callable[[Call], type[Exception] | None] = lambda call: None
    """Where torch on the CPU takes a call that torch on CUDA refuses: the exception class of CUDA, else None.

    CUDA's semantics hold everywhere, so a reference computed on the CPU is read through this."""
    left_out: Callable[[Call], bool] = lambda call: False
    """Calls that torch takes and that an implementation may refuse with NotImplementedError ("not provided")."""
    widened: Callable[[Case], Case | None] = lambda case: None
    """The call that a case stands for, of those that torch refuses and that an implementation may take all the same: an
    implementation may refuse it as torch does, or do what the other call does."""
    peer: Callable[..., Any] | None = None
    """What is written in torch instead, and timed, where torch has no such function and the reference, in the dtype
    that is computed in, is not how anybody writes it for speed; None: the reference."""
    mixes: bool = True
    """Whether dtypes of one call, of its tensors or named in it, may be different ones of ``dtypes``."""
    strides: bool = True
    """Whether strides of results are torch's. Not where torch's depend on the algorithm that it chooses."""
    writes: Callable[[Case], Collection[int]] = cases.written
    """The operands that the call is given to write."""
    outs: tuple[str, ...] = ()
    """Those of ``OUTS`` in which torch's CPU and CUDA agree; none where the op has no ``out=``."""
    inplace: bool = False
    """Whether it has ``inplace=``."""
    batch: Callable[[Case], Batch | None] = lambda case: None
    """A dim of the case of which parts can be computed alone, if there is one."""
    parts: Callable[[Call], Parts | None] = lambda call: None
    """How the result of a call that is not refused falls into parts, of which a few are judged where it is large."""
    features: Callable[[Case], Features] = of_arguments
    """What coverage counts of a case; another one adds to what follows from the arguments, or says it by itself."""


_NAMED_ONLY = ("out", "out_dtype", "alpha", "beta", "rounding_mode")
"""Of torch's functions; its table does not tell them from the others."""


@cache
def parameters(op: str, *, required: bool = False) -> tuple[str, ...]:
    """The names of torch's parameters that can be given by position, in that order; of those ``required`` alone."""
    reference = registry()[op].reference
    # Functions in C++ have no signature; torch has a table of them.
    found = inspect.signature(get_testing_overrides().get(reference, reference)).parameters.values()
    names = [one.name for one in found if one.kind != one.KEYWORD_ONLY and one.name not in _NAMED_ONLY]
    needed = {one.name for one in found if one.default is one.empty}
    # torch.isinf takes ``input``, whatever the table says.
    return ("input",) if op == "isinf" else tuple(name for name in names if name in needed or not required)


@cache
def registry() -> dict[str, OpSpec]:
    """Every OpSpec, by op name: the ``SPEC`` of each module of ``conformance.ops``."""
    import conformance.ops

    specs = (
        importlib.import_module(f"conformance.ops.{module.name}")
        for module in pkgutil.iter_modules(conformance.ops.__path__)
        if not module.name.startswith("_")
    )
    return {module.SPEC.name: module.SPEC for module in specs}
