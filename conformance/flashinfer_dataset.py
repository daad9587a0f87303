"""Write saved cases as a data set of FlashInfer Trace, the format of flashinfer-bench: definitions and workloads.

Cases of one op make one definition where their calls differ in sizes, elements and floats alone. The format has no
strides, no call that writes an operand, and fewer dtypes than torch: such cases are left out, and strides are lost.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from conformance import cases, corpus, repro
from conformance import spec as specs
from conformance.cases import Case, CaseError, DType, Ints, NonFinite, Same
from strategies import dtypes, layouts, stored
from strategies.specs import TensorSpec

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
DTYPES += ("int64", "int32", "int16", "int8", "bool")
"""The dtypes of the format that the harness has, too."""


class _Call(NamedTuple):
    """A case as the format has it."""

    case: Case
    inputs: dict[str, TensorSpec | int | float]
    expression: str
    """The call, of the names of the inputs."""
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    """The shape and dtype of each result."""

    @property
    def source(self) -> str:
        return f"import torch\n\n\ndef run({', '.join(self.inputs)}):\n    return {self.expression}\n"

    @property
    def operands(self) -> dict[str, TensorSpec]:
        return _tensors(self.inputs)

    def columns(self) -> list[int]:
        """Return the size of every dim: of the inputs, then of the outputs."""
        return [size for one in self.operands.values() for size in one.shape] + [
            size for shape, _ in self.outputs for size in shape
        ]


def write(found: Sequence[tuple[Path, Case]], out: Path) -> list[str]:
    """Write cases, read from these paths, as a data set in the new folder ``out``; return lines for people: what was
    written, left out, or lost.

    Raises CaseError: ``out`` is there already, or none of the cases can be written. Nothing is written then. Raises
    StoredError: safetensors is not installed.
    """
    stored.library()
    told: list[str] = []
    calls: dict[str, _Call] = {}
    for path, case in found:
        try:
            calls[cases.case_id(case)] = _call(case)
        except CaseError as error:
            told.append(f"left out {path}: {error}")
    if not calls:
        raise CaseError("; ".join(("no case is left to be written", *told)))
    with corpus.whole_folder(out) as folder:
        for name, group in _groups(list(calls.values())):
            _write(name, group, folder)
            told.append(f"wrote {out / _file('definitions', group[0], name)}: {_count(len(group), 'workload')}")
    if lost := [identity for identity, call in calls.items() if not all(map(_is_plain, call.operands.values()))]:
        told.append(f"the format has no strides: those of {_count(len(lost), 'case')} are lost, such as {lost[0]}")
    return told


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _is_plain(operand: TensorSpec) -> bool:
    return layouts.strides(operand.layout, operand.shape) == layouts.strides(
        TensorSpec((), "bool").layout, operand.shape
    )


# --- calls -------------------------------------------------------------------------------------------------------


def _call(case: Case) -> _Call:
    """Return a case as the format has it, with what torch says of its results. Raises CaseError: it cannot say it."""
    spec = specs.registry()[case.op]
    function = repro.qualified(spec.reference, case.op).replace(":", ".")
    # Of somebody else's op of that name nobody knows whether it is torch's.
    known = str(getattr(spec.reference, "__module__", "")).startswith(("torch", "conformance.ops."))
    if not function or not known:
        raise CaseError(f"torch has no function {case.op}, which the reference would call")
    if case.form:
        raise CaseError(f"the format has no other forms of a call than the plain one, and its form is {case.form!r}")
    if spec.writes(case) or "out" in case.kwargs:
        raise CaseError("the call writes an operand, and the format has only calls that return their results")
    if "distribution" in spec.checks:
        raise CaseError("its result is drawn at random")
    for operand in cases.operands(case):
        if operand.dtype not in DTYPES:
            raise CaseError(f"the format has no dtype {operand.dtype}")
        if not math.prod(operand.shape):
            raise CaseError("the format has no sizes of 0")
    inputs, texts = _arguments(case)
    made = _Call(case, inputs, f"{function}({', '.join(texts)})", ())
    return made._replace(outputs=_results(made))


def _arguments(case: Case) -> tuple[dict[str, TensorSpec | int | float], list[str]]:
    """Return the inputs by name, and the text of each argument: the name of an input, or the argument itself."""
    names = list(specs.parameters(case.op))
    names += [f"argument_{place}" for place in range(len(names), len(case.args))]
    named = [*zip(names, case.args, strict=False), *((name, case.kwargs[name]) for name in sorted(case.kwargs))]
    inputs: dict[str, TensorSpec | int | float] = {}
    texts = []
    for place, (name, argument) in enumerate(named):
        match argument:
            case Same(operand, 0, turned):
                text = list(_tensors(inputs))[operand] + (".transpose(-2, -1)" if turned else "")
            case None | bool() | str() | tuple() | DType() | Ints() | NonFinite():
                text = repro.literal(argument)
            case TensorSpec() | int() | float():
                inputs[name], text = argument, name
            case _:
                raise CaseError("the format has no tensors that share memory, and no causal variants")
        texts.append(text if place < len(case.args) else f"{name}={text}")
    return inputs, texts


def _tensors(inputs: dict[str, TensorSpec | int | float]) -> dict[str, TensorSpec]:
    return {name: one for name, one in inputs.items() if isinstance(one, TensorSpec)}


def _elements(call: _Call) -> dict[str, torch.Tensor]:
    return dict(zip(call.operands, cases.materialize(call.case)[2], strict=True))


def _results(call: _Call) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Make the call by the source of the reference."""
    names: dict[str, Any] = {}
    try:
        exec(compile(call.source, "reference", "exec"), names)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            result = names["run"](**(call.inputs | _elements(call)))
    except stored.StoredError:
        raise
    # Any error of torch: a case may be an illegal call.
    except Exception as error:  # noqa: BLE001
        raise CaseError(f"torch refuses {call.expression}: {type(error).__name__}") from None
    results = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(one, torch.Tensor) for one in results):
        raise CaseError("its results are not all tensors")
    found = tuple((tuple(one.shape), dtypes.from_torch(one.dtype)) for one in results)
    for _, dtype in found:
        if dtype not in DTYPES:
            raise CaseError(f"the format has no dtype {dtype}, which its result has")
    return found


# --- definitions -------------------------------------------------------------------------------------------------


def _groups(calls: Sequence[_Call]) -> list[tuple[str, list[_Call]]]:
    """Return the calls of each definition, by its name."""
    found: dict[str, list[_Call]] = {}
    for call in calls:
        found.setdefault(_name(call), []).append(call)
    groups = []
    for name, group in found.items():
        if _has_axes(group):
            groups.append((name, group))
        else:
            # Broadcasting that differs from case to case: a size of the result is now one input's, now another's.
            alone: dict[str, list[_Call]] = {}
            for call in group:
                alone.setdefault(_name(call, call.columns()), []).append(call)
            groups += alone.items()
    return groups


def _name(call: _Call, sizes: Sequence[int] = ()) -> str:
    """Return the name of a call's definition: the op, dtypes, ranks, and a digest of all that sets it apart."""
    told = [
        [name, one.dtype, len(one.shape)]
        if isinstance(one, TensorSpec)
        else [name, one if type(one) is int else "float"]
        for name, one in call.inputs.items()
    ]
    about = [call.expression, told, [[len(shape), dtype] for shape, dtype in call.outputs], list(sizes)]
    digest = hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:8]
    of = dict.fromkeys(one.dtype for one in call.operands.values())
    ranks = (f"{len(one.shape)}d" for one in call.operands.values())
    return "_".join((call.case.op, *of, *ranks, digest))


def _has_axes(group: Sequence[_Call]) -> bool:
    """Tell whether each size of the results is an input's, or the same in all calls."""
    columns = list(zip(*(call.columns() for call in group), strict=True))
    count = sum(len(one.shape) for one in group[0].operands.values())
    return all(column in columns[:count] or len({*column}) == 1 for column in columns[count:])


def _definition(name: str, group: Sequence[_Call]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return a definition, and the sizes of its variable axes in each call."""
    columns = iter(zip(*(call.columns() for call in group), strict=True))
    axes: dict[tuple[int, ...], tuple[str, dict[str, Any]]] = {}

    def tensor(of: str, rank: int, dtype: str) -> dict[str, Any]:
        shape = []
        for dim in range(rank):
            column, about = next(columns), f"dim {dim} of {of}"
            axis = (f"{of}_{dim}", {"type": "var", "description": about})
            if len({*column}) == 1:
                axis = (f"d{column[0]}", {"type": "const", "value": column[0], "description": about})
            shape.append(axes.setdefault(column, axis)[0])
        return {"shape": shape, "dtype": dtype, "description": f"'{of}' of {call.case.op}"}

    call = group[0]
    inputs = {}
    for of, one in call.inputs.items():
        if isinstance(one, TensorSpec):
            inputs[of] = tensor(of, len(one.shape), one.dtype)
        else:
            dtype = "int64" if type(one) is int else "float32"
            inputs[of] = {"shape": None, "dtype": dtype, "description": f"'{of}' of {call.case.op}"}
    several = len(call.outputs) > 1
    outputs = {
        of: tensor(of, len(shape), dtype)
        for place, (shape, dtype) in enumerate(call.outputs)
        for of in [f"output_{place}" if several else "output"]
    }
    about = {
        "name": name,
        "op_type": call.case.op,
        "description": f"{call.expression}, written by ntops' conformance harness.",
        "axes": dict(axes.values()),
        "inputs": inputs,
        "outputs": outputs,
        "reference": call.source,
    }
    return about, {axis: list(sizes) for sizes, (axis, about) in axes.items() if about["type"] == "var"}


def _file(kind: str, call: _Call, name: str) -> Path:
    return Path(kind, call.case.op, name + (".json" if kind == "definitions" else ".jsonl"))


def _write(name: str, group: Sequence[_Call], folder: Path) -> None:
    """Write a definition, its workloads, and the elements of their operands."""
    from safetensors.torch import save

    about, sizes = _definition(name, group)
    lines = []
    for place, call in enumerate(group):
        identity = cases.case_id(call.case)
        blob = Path("blob", "workloads", call.case.op, name, f"{name}_{identity}.safetensors")
        (folder / blob).parent.mkdir(parents=True, exist_ok=True)
        (folder / blob).write_bytes(save({of: one.contiguous().clone() for of, one in _elements(call).items()}))
        inputs = {
            of: {"type": "safetensors", "path": blob.as_posix(), "tensor_key": of}
            if isinstance(one, TensorSpec)
            else {"type": "scalar", "value": one}
            for of, one in call.inputs.items()
        }
        axes = {axis: of_calls[place] for axis, of_calls in sizes.items()}
        workload = {"axes": axes, "inputs": inputs, "uuid": identity}
        lines.append({"definition": name, "workload": workload, "solution": None, "evaluation": None})
    for kind, data in (
        ("definitions", msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"),
        ("workloads", b"".join(msgspec.json.encode(line) + b"\n" for line in lines)),
    ):
        path = folder / _file(kind, group[0], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
