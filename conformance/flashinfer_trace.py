"""Definitions of FlashInfer Trace, the format of flashinfer-bench: an operator's reference, and what its inputs are.

A definition is a JSON file: axes, constant or variable; inputs and outputs with a shape of axes and a dtype; and the
source of a reference, a function ``run``. Reading one runs that source. Its workloads are a file of a JSON object on
each line: drawn calls have their sizes and numbers, and ``save_workloads`` makes cases of them, with their elements.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec
import torch

from conformance import authoring, cases, corpus
from conformance.authoring import ArgumentError
from conformance.cases import Case, Same
from conformance.spec import OpSpec
from strategies import dtypes as dtype_names
from strategies import stored, tensors
from strategies.specs import TensorSpec

MOST = 1 << 22
"""The most elements of an input whose sizes are those of a workload; larger workloads are left out."""
_DTYPES = {"float8_e4m3": "float8_e4m3fn"}
_POINTER = b"version https://git-lfs.github.com/spec/v1"


class Axis(msgspec.Struct, frozen=True):
    type: Literal["const", "var"]
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


class Random(msgspec.Struct, frozen=True, tag="random"):
    """Elements, or a number, to be drawn."""


class Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    value: bool | int | float


class Blob(msgspec.Struct, frozen=True, tag="safetensors"):
    """Elements in a file of the data set."""

    path: str
    tensor_key: str


class Workload(msgspec.Struct, frozen=True):
    axes: dict[str, int]
    inputs: dict[str, Random | Scalar | Blob]
    uuid: str


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
    if unmet := _unmet(path, found):
        raise ArgumentError(
            f"{path}: drawn calls would not meet the constraint {unmet!r}. Write an OpSpec that does "
            "(docs/adding-an-op.md, section 3), or judge its workloads (python -m conformance trace read)"
        )
    return _described(path, found, workloads, numbers)


def operator(path: Path | str) -> OpSpec:
    """Return the OpSpec of a definition, as ``--specs`` takes it. One with constraints that drawn calls would not meet
    is judged by saved cases alone. Raises ArgumentError."""
    path = Path(path)
    found = _read(path)
    spec = authoring.operator(found.name, **_described(path, found, None, {}))
    if _unmet(path, found) is None:
        return spec

    def takes(case: Case) -> bool:
        # One operand in the place of another may be an index that points anywhere.
        return spec.takes(case) and not any(isinstance(one, Same) for one in case.args)

    return dataclasses.replace(spec, drawn=False, takes=takes)


def save_workloads(
    path: Path | str, out: Path, *, limit: int | None = None, max_elements: int = cases.MAX_ELEMENTS
) -> list[str]:
    """Write the workloads of a definition, from the data set that it is in, as cases with their data into the new
    folder ``out``; return lines for people. The cases are of the op that ``operator`` returns.

    Elements and numbers to be drawn follow from the workload's uuid.

    :param limit: The most workloads.
    :param max_elements: Workloads whose operands have more elements together are left out, and named.
    :raises ArgumentError: A definition, a workload or a file of elements that cannot be read, or does not fit the
        others. Nothing is written then.
    :raises CaseError: ``out`` is there already. :raises StoredError: safetensors is not installed.
    """
    path = Path(path)
    found = _read(path)
    operator(path)
    beside = _beside(path)
    if beside is None:
        raise ArgumentError(f"{path}: no workloads are beside it, in workloads/.../{path.stem}.jsonl")
    stored.library()
    workloads = _workloads(beside, found)[:limit]
    told: list[str] = []
    if not workloads:
        raise ArgumentError(f"{beside}: it has no workload of {found.name}")
    root = next(one.parent for one in beside.parents if one.name == "workloads")
    with corpus.whole_folder(out) as folder:
        for one in workloads:
            where = f"{beside}: workload {one.uuid!r}"
            shapes = _shapes(where, found, one)
            total = sum(math.prod(shape) for shape in shapes.values())
            if total > max_elements:
                told.append(f"left out {where}: it has {total} elements; --max-elements allows {max_elements}")
                continue
            case = _case(where, root, found, one, shapes, folder)
            (folder / f"{cases.case_id(case)}.json").write_bytes(cases.encode(case))
        if not (written := len(corpus.files([folder]))):
            raise ArgumentError("; ".join(("no workload is left", *told)))
    return [*told, f"wrote {written} cases of {len(workloads)} workloads of {found.name} to {out}"]


def _described(path: Path, found: Definition, workloads: Path | str | None, numbers: dict[str, Any]) -> dict[str, Any]:
    """Return what ``definition`` returns, whatever the constraints."""
    fixed = _fixed(found)
    beside = _beside(path) if workloads is None else Path(workloads)
    lines = _workloads(beside, found) if beside is not None else []
    given = {name: one.value for line in lines[:1] for name, one in line.inputs.items() if isinstance(one, Scalar)}
    # Not the sizes of those that are too large to be judged often.
    lines = [one for one in lines if all(math.prod(shape) <= MOST for shape in _sizes(found, one).values())]
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


def _read(path: Path) -> Definition:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Definition)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: no definition of FlashInfer Trace: {error}") from None
    for name, tensor in found.inputs.items():
        for axis in tensor.shape or ():
            if axis not in found.axes or not axis.isidentifier():
                raise ArgumentError(f"{path}: input {name!r} has an axis {axis!r}, which the definition has not")
    return found


def _fixed(found: Definition) -> dict[str, int]:
    return {name: axis.value for name, axis in found.axes.items() if axis.type == "const" and axis.value is not None}


def _unmet(path: Path, found: Definition) -> str | None:
    """Return a constraint that drawn calls would not meet: one of more than constant axes."""
    for one in found.constraints or ():
        try:
            names = {node.id for node in ast.walk(ast.parse(one, mode="eval")) if isinstance(node, ast.Name)}
        except SyntaxError:
            raise ArgumentError(f"{path}: the constraint {one!r} is no expression") from None
        if not names <= {*_fixed(found)}:
            return one
    return None


def _beside(path: Path) -> Path | None:
    """Return the workloads of the definition in a data set, if there are any."""
    path = path.absolute()
    for folder in path.parents[:2]:
        found = folder.parent / "workloads" / path.relative_to(folder).with_suffix(".jsonl")
        if folder.name == "definitions" and found.is_file():
            return found
    return None


def _workloads(path: Path, found: Definition) -> list[Workload]:
    """Read the workloads of a definition."""
    try:
        lines = msgspec.json.Decoder(_Line).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: no workloads of FlashInfer Trace: {error}") from None
    return [line.workload for line in lines if line.definition == found.name]


def _sizes(found: Definition, one: Workload) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a workload; an axis that nobody knows has -1."""
    sizes = one.axes | _fixed(found)
    return {
        name: tuple(sizes.get(axis, -1) for axis in tensor.shape)
        for name, tensor in found.inputs.items()
        if tensor.shape is not None
    }


# --- cases -------------------------------------------------------------------------------------------------------


def _shapes(where: str, found: Definition, one: Workload) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a workload. Raises ArgumentError: it does not fit the definition."""
    shapes = _sizes(found, one)
    for name, shape in shapes.items():
        for axis, size in zip(found.inputs[name].shape or (), shape, strict=True):
            if size < 0:
                raise ArgumentError(f"{where}: it has no size of axis {axis!r}, or a negative one")
    for name, given in one.inputs.items():
        if name not in found.inputs:
            raise ArgumentError(f"{where}: the definition has no input {name!r}")
        if isinstance(given, Scalar if name in shapes else Blob):
            raise ArgumentError(f"{where}: input {name!r} is a {'tensor' if name in shapes else 'number'}")
    return shapes


def _case(
    where: str,
    root: Path,
    found: Definition,
    one: Workload,
    shapes: Mapping[str, tuple[int, ...]],
    folder: Path,
) -> Case:
    """Return a workload as a case, whose elements are saved to the folder."""
    args: list[cases.Argument] = []
    digests: list[str] = []
    seed = int.from_bytes(hashlib.sha256(one.uuid.encode()).digest()[:8])
    for place, (name, tensor) in enumerate(found.inputs.items()):
        # What a workload does not name is random, as in flashinfer-bench.
        given, dtype = one.inputs.get(name, Random()), _dtype(tensor.dtype)
        if isinstance(given, Scalar):
            args.append(given.value)
        elif isinstance(given, Blob):
            elements = _elements(f"{where}: input {name!r}", root, given)
            have = str(elements.dtype).removeprefix("torch."), tuple(elements.shape)
            if have != (dtype, shapes[name]):
                told = f"{have[0]}{list(have[1])}, and not {dtype}{list(shapes[name])}"
                raise ArgumentError(f"{where}: input {name!r} is {told}")
            args.append(tensors.keep(elements, elements.stride(), 0, folder))
            digests.append(tensors.digest(elements))
        elif name in shapes:
            spec = TensorSpec(shapes[name], dtype, seed=seed)
            args.append(spec)
            digests.append(tensors.digest(tensors.materialize(spec, len(digests))))
        else:
            args.append(tensors.materialize(TensorSpec((), dtype, seed=seed), place).item())
    note = f"workload {one.uuid} of {found.name}"
    return Case(op=found.name, args=tuple(args), digests=tuple(digests), note=note)


def _elements(where: str, root: Path, given: Blob) -> torch.Tensor:
    """Return the tensor of a file of the data set. Raises ArgumentError."""
    inside = PurePosixPath(given.path)
    # By its text alone: caches of data sets have symbolic links to files elsewhere.
    if inside.is_absolute() or ".." in inside.parts:
        raise ArgumentError(f"{where}: {given.path!r} is not within the data set")
    path = root / inside
    try:
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise ArgumentError(f"{where}: {path} is a pointer of Git LFS: git lfs pull")
        with stored.library().safe_open(path, "pt") as file:
            return file.get_tensor(given.tensor_key)
    except ArgumentError:
        raise
    # safetensors has an exception of its own, and raises others.
    except Exception as error:  # noqa: BLE001
        raise ArgumentError(f"{where}: {path} cannot be read: {error}") from None


# --- definitions -------------------------------------------------------------------------------------------------


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
