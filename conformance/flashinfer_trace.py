"""Definitions of FlashInfer Trace, the format of flashinfer-bench: an operator's reference, and what its inputs are.

A definition is a JSON file: axes, constant or variable; inputs and outputs with a shape of axes and a dtype; and the
source of a reference, a function ``run``. Reading one runs that source. Its workloads are a file of a JSON object on
each line: drawn calls have their sizes and numbers, not their elements.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from conformance import authoring
from conformance.authoring import ArgumentError
from conformance.spec import OpSpec
from strategies import dtypes as dtype_names

MOST = 1 << 22
"""The most elements of an input whose sizes are those of a workload; larger workloads are left out."""
_DTYPES = {"float8_e4m3": "float8_e4m3fn"}


class Axis(msgspec.Struct, frozen=True):
    type: str
    value: int | None = None


class Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[str, ...] | None
    """None: a number."""


class Definition(msgspec.Struct, frozen=True):
    """A definition, but for what only says what it is about."""

    name: str
    axes: dict[str, Axis]
    inputs: dict[str, Tensor]
    reference: str
    constraints: tuple[str, ...] | None = None


class Workload(msgspec.Struct, frozen=True):
    axes: dict[str, int]
    inputs: dict[str, dict[str, Any]]


class _Line(msgspec.Struct, frozen=True):
    """A workload, as a trace without a solution has it."""

    definition: str
    workload: Workload


def definition(path: Path | str, *, workloads: Path | str | None = None, **numbers: Any) -> dict[str, Any]:
    """Return ``reference``, ``arguments``, ``dtypes`` and ``sizes`` for ``conformance.judge`` and
    ``authoring.operator``.

    :param path: The definition. Its reference is run.
    :param workloads: A file of workloads; default: the one of the same data set, if there is one, such as
        ``workloads/<type>/<name>.jsonl`` for ``definitions/<type>/<name>.json``.
    :param numbers: Values of inputs that are numbers, by name; default: those of the first workload.
    :raises ArgumentError: A file that cannot be read or is no such file, a number that nobody says, constraints that
        drawn calls would not meet, dtypes that torch lacks.
    """
    path = Path(path)
    found = _read(path)
    fixed = {name: axis.value for name, axis in found.axes.items() if axis.type == "const" and axis.value}
    _check(path, found, fixed)
    lines = list(_workloads(_beside(path) if workloads is None else Path(workloads), found, fixed))
    given = {
        name: value["value"] for one in lines[:1] for name, value in one.inputs.items() if value.get("type") == "scalar"
    }
    reference = _run(path, found)
    arguments = [_argument(path, name, tensor, fixed, given | numbers) for name, tensor in found.inputs.items()]
    floating = [_dtype(one.dtype) for one in found.inputs.values() if one.shape is not None]
    floating = [name for name in floating if name in dtype_names.FLOATING]
    used = {name for one in found.inputs.values() for name in one.shape or ()} - {*fixed}
    sizes = {name: sorted({one.axes[name] for one in lines if name in one.axes}) for name in sorted(used)}
    return {
        "reference": reference,
        "arguments": arguments,
        # Each argument has its own.
        "dtypes": floating[:1] or ["float32"],
        "sizes": {name: drawn for name, drawn in sizes.items() if drawn},
    }


def operator(path: Path | str) -> OpSpec:
    """Return the OpSpec of a definition, as ``--specs`` takes it. Raises ArgumentError."""
    found = _read(Path(path))
    return authoring.operator(found.name, **definition(path))


def _read(path: Path) -> Definition:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Definition)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: no definition of FlashInfer Trace: {error}") from None


def _check(path: Path, found: Definition, fixed: dict[str, int]) -> None:
    """Refuse a definition whose drawn calls would not be calls of it."""
    for name, tensor in found.inputs.items():
        for axis in tensor.shape or ():
            if axis not in found.axes or not axis.isidentifier():
                raise ArgumentError(f"{path}: input {name!r} has an axis {axis!r}, which the definition has not")
    for one in found.constraints or ():
        try:
            names = {node.id for node in ast.walk(ast.parse(one, mode="eval")) if isinstance(node, ast.Name)}
        except SyntaxError:
            raise ArgumentError(f"{path}: the constraint {one!r} is no expression") from None
        if not names <= {*fixed}:
            raise ArgumentError(
                f"{path}: drawn calls would not meet the constraint {one!r}. Write an OpSpec that does "
                "(docs/adding-an-op.md, section 3)"
            )


def _beside(path: Path) -> Path | None:
    """Return the workloads of the definition in a data set, if there are any."""
    path = path.absolute()
    for folder in path.parents[:2]:
        found = folder.parent / "workloads" / path.relative_to(folder).with_suffix(".jsonl")
        if folder.name == "definitions" and found.is_file():
            return found
    return None


def _workloads(path: Path | None, found: Definition, fixed: dict[str, int]) -> Iterator[Workload]:
    """Read the workloads of a definition, but for those that are too large to be judged."""
    if path is None:
        return
    try:
        lines = msgspec.json.Decoder(_Line).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: no workloads of FlashInfer Trace: {error}") from None
    for one in (line.workload for line in lines if line.definition == found.name):
        sizes = fixed | one.axes
        shapes = (tensor.shape or () for tensor in found.inputs.values())
        if all(math.prod(sizes.get(axis, 1) for axis in shape) <= MOST for shape in shapes):
            yield one


def _argument(path: Path, name: str, tensor: Tensor, fixed: dict[str, int], numbers: dict[str, Any]) -> Any:
    if tensor.shape is None:
        if name not in numbers:
            raise ArgumentError(
                f"{path}: input {name!r} is a number, and no workload says which: definition(..., {name}=)"
            )
        return numbers[name]
    dtype = _dtype(tensor.dtype)
    if dtype not in dtype_names.NAMES:
        raise ArgumentError(f"{path}: input {name!r} has dtype {tensor.dtype}, which the harness does not judge")
    return f"{' '.join(str(fixed.get(axis, axis)) for axis in tensor.shape)}: {dtype}"


def _dtype(name: str) -> str:
    return _DTYPES.get(name, name)


def _run(path: Path, found: Definition) -> Callable[..., Any]:
    """Run the source of the reference, and return its function."""
    names: dict[str, Any] = {"__name__": f"definition_{found.name}"}
    try:
        exec(compile(found.reference, str(path), "exec"), names)
    # Running somebody else's code may raise anything, as importing a module of OpSpecs may.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise ArgumentError(f"{path}: its reference failed: {type(error).__name__}: {error}") from None
    if not callable(names.get("run")):
        raise ArgumentError(f"{path}: its reference has no function 'run'")
    return names["run"]
