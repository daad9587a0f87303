"""Benchmark rows: make and refresh the arguments of an OpSpec's benchmarks on the device, and check results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from conformance import cases
from conformance import spec as specs
from conformance.cases import Case
from conformance.spec import Benchmark, OpSpec
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import TensorSpec
from strategies.tensors import materialize

SMALL = 1 << 20
"""Bytes up to which a call is small, so that its row shows the time that the host needs."""
SETS = 8
"""The most sets of inputs; as many are made as exceed the L2 cache."""
INTERPRETED = 1 << 14
"""Elements and multiplications up to which a benchmark runs under the interpreter."""

HALF = (torch.float16, torch.bfloat16)

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""The largest distance of a result from torch's, relative and of norms: it shows that the work was done, not how
exactly."""


class WrongResult(AssertionError):
    """The error of a timed call whose result is not that of its inputs."""


def label(case: Case) -> str:
    """Return the operands of a benchmark in short: sizes, layouts that are not contiguous, other dtypes, and
    keywords."""
    tensors = [(name, a) for name, a in _arguments(case) if isinstance(a, TensorSpec)]
    words, seen = [], set()
    for _, tensor in tensors:
        word = "x".join(str(size) for size in tensor.shape) or "scalar"
        kind = layouts.layout_class(tensor.layout, tensor.shape)
        word += "" if kind == "contiguous" else f" {'transposed' if kind == 'permuted' else kind}"
        if word not in seen:
            words.append(word)
        seen.add(word)
    plain = [(name, a) for name, a in _arguments(case) if isinstance(a, bool | int | float | str)]
    return ", ".join([*words, *(f"{name}={a}" if name else str(a) for name, a in plain)])


def _arguments(case: Case) -> list[tuple[str, Any]]:
    return [*(("", argument) for argument in case.args), *sorted(case.kwargs.items())]


def identity(row: Benchmark) -> str:
    """Return the name by which a row is found again in another run."""
    return f"{row.case.op}[{cases.dtype_of(row.case)} {label(row.case)}]"


def selected(ops: Sequence[str], dtypes: Sequence[str]) -> dict[str, tuple[OpSpec, Benchmark]]:
    """Return the rows of these ops and dtypes by :func:`identity`, those of one op together; no names select all."""
    known = specs.registry()
    return {
        identity(row): (known[op], row)
        for op in sorted(set(ops) or known)
        for row in known[op].benchmarks
        if not dtypes or cases.dtype_of(row.case) in dtypes
    }


def is_small(row: Benchmark) -> bool:
    """Tell whether the row shows the time that the host needs."""
    return row.bytes <= SMALL


def fits_interpreter(row: Benchmark) -> bool:
    """Tell whether the row runs under the interpreter within seconds."""
    return row.bytes <= 8 * INTERPRETED and row.flops <= 64 * INTERPRETED


def make(row: Benchmark, device: torch.device) -> tuple[list[Inputs], Callable[..., None]]:
    """Make sets of arguments for the row on the device; return them and a function that writes new contents into one.

    Operands of other recipes than "normal" keep the elements of their recipe: sizes, positions or masks, for which only
    some values are legal.
    """
    count = 2
    if device.type == "cuda":
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        count = max(2, min(SETS, math.ceil(2 * cache / max(row.bytes, 1))))
    specs = cases.operands(row.case)
    generator = torch.Generator(device).manual_seed(cases.seed(row.case))
    found, drawn = [], set()
    for _ in range(count):
        operands = []
        for position, spec in enumerate(specs):
            if spec.values != "normal" or spec.specials:
                operands.append(materialize(spec, position, device))
                continue
            size, dtype = layouts.storage_size(spec.layout, spec.shape), dtype_names.to_torch(spec.dtype)
            base = torch.empty(size, dtype=dtype, device=device)
            operands.append(base.as_strided(spec.shape, layouts.strides(spec.layout, spec.shape), spec.layout.offset))
            drawn.add(base.data_ptr())
        found.append(cases.bind(row.case, operands))

    def refresh(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        for tensor in (*args, *kwargs.values()):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() in drawn:
                _fill(tensor, generator)

    for inputs in found:
        refresh(*inputs)
    return found, refresh


def _fill(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Write new elements, drawn on the device: floats normal, integers over their whole range."""
    if not tensor.is_contiguous():
        tensor = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    if tensor.dtype == torch.bool:
        tensor.random_(0, 2, generator=generator)
    elif not tensor.dtype.is_floating_point:
        tensor.random_(generator=generator)
    elif tensor.element_size() > 1:
        tensor.normal_(generator=generator)
    else:
        tensor.copy_(torch.empty(tensor.shape, device=tensor.device).normal_(generator=generator))


def check(spec: OpSpec, name: str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise WrongResult unless ``result`` is about what torch gives for these inputs as they are now.

    Where torch's own sums of half types are off, as those of cumsum are on a GPU, what it gives for the same numbers in
    float32 decides.
    """
    results, expected = _tuple(result), _tuple(spec.reference(*args, **kwargs))
    for ours, theirs in zip(results, expected, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            found, wanted = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (ours, theirs))
            raise WrongResult(f"{spec.name} of {name}: {found} instead of {wanted}")
    try:
        _check_values(spec, name, results, expected)
    except WrongResult:
        if all(tensor.dtype not in HALF for tensor in expected):
            raise
        args, kwargs = tree_map(_wide, (args, kwargs))
        wide = zip(_tuple(spec.reference(*args, **kwargs)), expected, strict=True)
        _check_values(spec, name, results, tuple(found.to(theirs.dtype) for found, theirs in wide))


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value


def _check_values(
    spec: OpSpec, name: str, results: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]
) -> None:
    for ours, theirs in zip(results, expected, strict=True):
        if "distribution" in spec.checks:
            _check_random(spec.name, name, ours, theirs)
        elif not theirs.dtype.is_floating_point:
            if not torch.equal(ours, theirs):
                raise WrongResult(f"{spec.name} of {name}: not torch's result for the inputs of the timed call")
        else:
            _check_close(spec.name, name, ours, theirs)


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _check_close(op: str, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    ours, theirs, limit = ours.float(), theirs.float(), TOLERANCE.get(theirs.dtype, 0.2)
    finite = theirs.isfinite()
    if not torch.equal(finite, ours.isfinite()):
        raise WrongResult(f"{op} of {name}: NaN or infinity where torch has none, or the reverse")
    error = torch.linalg.vector_norm(torch.where(finite, ours - theirs, 0))
    relative = (error / torch.linalg.vector_norm(torch.where(finite, theirs, 0)).clamp_min(1e-30)).item()
    if not relative <= limit:
        raise WrongResult(
            f"{op} of {name}: {relative:.2g} from torch's result for the inputs of the timed call, at most {limit:g} "
            "(relative, of norms): it did not compute this, or not on the stream that it was given"
        )


def _check_random(op: str, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Raise WrongResult unless two masks of the same probability have as many zeros, and the same value where both kept
    an element."""
    both = (ours != 0) & (theirs != 0)
    zeros, expected = ((x == 0).double().mean().item() for x in (ours, theirs))
    if abs(zeros - expected) > 0.01 + 3 / math.sqrt(ours.numel()):
        raise WrongResult(f"{op} of {name}: {zeros:.1%} zeros where torch has {expected:.1%}")
    _check_close(op, name, torch.where(both, ours, 0), torch.where(both, theirs, 0))
