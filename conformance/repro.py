"""Write ``repro_<id>.py``: one case as a script that needs torch and an implementation, and nothing of this project."""

from __future__ import annotations

import inspect
import keyword
import math
import pprint
from types import ModuleType
from typing import Any

import torch

from conformance import (
    call_contexts,
    environment,
    forms,
    guards,
    mask_statistics,
    messages,
    repro_lines,
    repro_runtime,
    semantics,
)
from conformance import spec as specs
from conformance.cases import Argument, Case, DType, Ints, NonFinite, Same, Variant, View, case_id, seed
from conformance.checks import RARE, builtin_class
from conformance.checks.gradient_kinds import wish
from conformance.checks.gradient_words import told
from conformance.checks.gradients import AROUND
from conformance.checks.gradients import expected as expected_gradients
from conformance.implementations import TORCH_SPACES, Implementation
from conformance.repro_data import packed_operand, packed_result, packed_storage
from conformance.runner import Verdict, prepare
from conformance.sequence_staging import PLAIN
from conformance.spec import Expected
from strategies.specs import TensorSpec

MAX_BYTES = 2**26
"""The most bytes of all inputs together that a script can hold; a shrunk case has a few."""
ACROSS_CALLS = ("keywords", "batch_invariant", "config_invariant", "settings", "inplace", "aliasing", "special_values")
"""Checks that may fail although each call is right by itself, made without the harness."""


class ReproError(ValueError):
    """The error of a case of which no script can be made."""


def script(case: Case, verdict: Verdict, implementation: Implementation, device: torch.device) -> str:
    """Return the script's text. Raises ReproError where the inputs are too large to be embedded, or where the check
    compares calls that a script of one call does not make."""
    failure = verdict.failure
    if failure and failure.check == "gradients":
        return _script(case, verdict, implementation, device, *_differentiated(case, verdict, device))
    if failure and failure.check in RARE:
        raise ReproError(f"since {failure.check} compares this call with the same in a context that the harness makes")
    if failure and failure.case is not None:
        case = failure.case
    elif failure and failure.check in ACROSS_CALLS:
        raise ReproError(f"since {failure.check} compares this call with others, which the harness makes")
    prepared = prepare(case, device)
    may_refuse = None
    if prepared.refusal is not None and not verdict.refused and (meant := prepared.widened()):
        # torch itself refuses it, and so may others.
        may_refuse, prepared = builtin_class(prepared.refusal).__name__, meant
    size = sum(tensor.untyped_storage().nbytes() for tensor in prepared.inputs)
    if size > MAX_BYTES:
        raise ReproError(f"its inputs take {size} bytes; a script holds at most {MAX_BYTES}")
    results: list[dict[str, Any]] = []
    if prepared.refusal is None:
        expected = forms.expected(prepared.spec, case, prepared.call)
        results = [
            packed_result(result, one, prepared.reference, verdict)
            | ({} if prepared.spec.strides else {"strides": None})
            for result, one in zip(
                prepared.reference.tensors(), expected if isinstance(expected, tuple) else (expected,), strict=True
            )
        ]
    failed = verdict.failure.check if verdict.failure else ""
    copies, reference = "written" in prepared.spec.checks, prepared.reference.operands
    data = {
        "reference": qualified(prepared.spec.reference, case.op),
        "seed": seed(case),
        "precision": torch.get_float32_matmul_precision(),
        "operands": [packed_operand(tensor) for tensor in prepared.inputs],
        "writes": [] if copies and prepared.refusal else sorted(prepared.spec.writes(case)),
        "written": {number: packed_storage(reference[number]) for number in prepared.spec.writes(case)}
        if copies
        else {},
        "moved": None if prepared.refusal else list(prepared.reference.moved),
        "refusal": builtin_class(prepared.refusal).__name__ if prepared.refusal else None,
        "may_refuse": may_refuse,
        "tuple": isinstance(prepared.reference.value, tuple),
        "results": results,
        "failed": failed,
        "layouts": "layout_invariant" in implementation.claims(case.op),
        "deterministic": failed == "deterministic" or "deterministic" in implementation.claims(case.op),
    }
    return _script(case, verdict, implementation, device, data, _call(case))


def _script(
    case: Case,
    verdict: Verdict,
    implementation: Implementation,
    device: torch.device,
    data: dict[str, Any],
    call: str,
) -> str:
    """Return the text of a script with these data that makes this call."""
    results, failed = data["results"], data["failed"]
    data = {"id": case_id(case), "op": case.op, **data, "implementation": implementation.name, "device": str(device)}
    data["semantics"] = semantics.chosen()
    # The parts that the script takes from other modules, by the names under which it gets them.
    parts: dict[str, ModuleType] = {}
    if any(result["random"] for result in results):
        parts = {"faults": mask_statistics, "favoured": mask_statistics}
    if failed in ("guard_bands", "fully_written"):
        parts["guarded"] = guards
    dresses = (call_contexts,) if "dressed(" in call else ()
    # Everything from the case is written with repr or as a comment, line by line, so that nothing in it becomes code.
    found = environment.line(implementation.name, messages.device_name(device)) + messages.by_semantics()
    about = f"{messages.call(case)}\n{messages.findings(verdict)}\n{found}"
    return "\n".join(
        (
            f'"""A call of {case.op} that goes wrong. Needs torch, and nothing of the harness that found it.',
            "",
            f"    python repro_{case_id(case)}.py [IMPLEMENTATION]",
            "",
            "IMPLEMENTATION is a module, or module:object, with torch's signatures, or torch itself.",
            "Exits with 1 where something is wrong, with 0 where nothing is.",
            '"""',
            "",
            *(f"# {line}".rstrip() for line in about.splitlines()),
            inspect.getsource(repro_runtime).split('"""', 2)[2],
            *(inspect.getsource(part).split('"""', 2)[2] for part in dict.fromkeys((*parts.values(), *dresses))),
            "",
            call,
            "",
            "",
            f"CASE = {pprint.pformat(data, width=120, sort_dicts=False)}",
            "",
            'if __name__ == "__main__":',
            f"    sys.exit(main({', '.join(('CASE', 'call', *(f'{name}={name}' for name in parts)))}))",
            "",
        )
    )


def _differentiated(case: Case, verdict: Verdict, device: torch.device) -> tuple[dict[str, Any], str]:
    """Return the data and the call of a case whose gradients are wrong. Raises ReproError."""
    prepared, message = prepare(case, device), verdict.failure.message if verdict.failure else ""
    way = wish(case, prepared.reference.value)
    if not message.startswith(told(way)):
        raise ReproError("of gradients that there are not")
    if way.overwritten is not None:
        raise ReproError("since it is right that such a call raises")
    if way.kind == "second order" or message.removeprefix(told(way)).startswith(tuple(f": {one}" for one in AROUND)):
        raise ReproError("since a script compares gradients alone")
    if way.kind == "shared":
        raise ReproError("since a script keeps the result, which is freed")
    if way.beside is not None:
        raise ReproError("since a script makes no calls in between")
    if "distribution" in prepared.spec.checks:
        raise ReproError("of gradients that depend on what was drawn")
    inputs = way.inputs()
    result = prepare(way.case, device).reference.value
    answers = expected_gradients(prepared.spec, way.case, way.wanted, inputs, result)
    results = []
    for number, answer in zip(way.wanted, answers, strict=True):
        one = torch.zeros(inputs[number].shape, dtype=inputs[number].dtype)
        found = answer or Expected(one.double(), judged=torch.zeros((), dtype=torch.bool), bound=one.double())
        results.append(packed_result(one, found, prepared.reference, verdict) | {"strides": None, "shares": True})
    data = {
        "reference": qualified(prepared.spec.reference, case.op),
        "seed": seed(case),
        "precision": torch.get_float32_matmul_precision(),
        "operands": [packed_operand(tensor) for tensor in inputs],
        "writes": [],
        "written": {},
        "moved": None,
        "refusal": None,
        "may_refuse": None,
        "tuple": True,
        "results": results * (1 + way.twice),
        "failed": "gradients",
        "layouts": False,
        "deterministic": False,
    }
    plain = _expression(way.case, holds=way.saved != "checkpoint")
    holds = "hold(" in plain
    form = way.case.form
    is_dressed = call_contexts.is_dressed(form)
    lines = (
        f"def {'differentiated' if is_dressed else 'call'}({case.op}, operands):",
        "    *operands, dout = operands",
        f"    for n in {sorted(way.leaves)}:",
        f"        operands[n] = {repro_lines.LEAVES.get(way.origin, repro_lines.LEAVES['leaf'])}",
        f"    wanted = [operands[n] for n in {list(way.wanted)}]",
        *(["    operands = [x.view_as(x) if x.requires_grad else x for x in operands]"] * (way.origin == "result")),
        *(repro_lines.HOLDING if holds else ()),
        *repro_lines.before(way, plain),
        *(line.format(call=plain) for line in repro_lines.SAVED[way.saved]),
        *(["    for x in held:", "        x.clear() if type(x) is list else x.copy_(x * 3 + 7)"] * holds),
        *(f"    {repro_lines.SETTINGS[name].format(value=value)}" for name, value in way.settings.items()),
        f"    found = torch.autograd.grad(value, wanted, dout, retain_graph={way.twice}, allow_unused=True)",
        *(repro_lines.AGAIN if way.twice else ()),
        *(f"    {repro_lines.SETTINGS[name].format(value=PLAIN[name])}" for name in way.settings),
        "    # None stands for zeros.",
        f"    zeros = [torch.zeros_like(one) for one in wanted]{' * 2' if way.twice else ''}",
        "    return tuple(zero.detach() if one is None else one for one, zero in zip(found, zeros, strict=True))",
    )
    if is_dressed:
        lines += (
            "",
            "",
            f"def call({case.op}, operands):",
            f"    given = dressed({form!r}, operands, [{len(inputs) - 1}])",
            "    try:",
            f"        return differentiated({case.op}, given)",
            "    finally:",
            f"        undressed({form!r}, operands, given, None)",
        )
    return data, "\n".join(lines)


def literal(argument: Any) -> str:
    """Return the source of an argument that is no tensor, where ``torch`` is imported."""
    match argument:
        case DType(name):
            return f"torch.{name}"
        case Ints(items):
            return repr(list(items))
        case NonFinite(text):
            return f"float({text!r})"
    return (
        f"float({str(argument)!r})" if isinstance(argument, float) and not math.isfinite(argument) else repr(argument)
    )


def _call(case: Case) -> str:
    """Return a function that makes the call as it would be written by hand."""
    made = _expression(case)
    if not call_contexts.is_dressed(case.form):
        return f"def call({case.op}, operands):\n    return {made}"
    inplace = case.kwargs.get("inplace") is True
    writes = call_contexts.kept(case.form, sorted(specs.registry()[case.op].writes(case)), inplace)
    return "\n".join(
        (
            f"def call({case.op}, operands):",
            f"    kept, operands = operands, dressed({case.form!r}, operands, {writes})",
            "    value = None",
            "    try:",
            f"        with surroundings({case.form!r}):",
            f"            value = {made}",
            "    finally:",
            f"        value = undressed({case.form!r}, kept, operands, value)",
            "    return value",
        )
    )


def _expression(case: Case, holds: bool = False) -> str:
    """Return the call in its form, of ``operands``. ``holds``: whether lists and 0-d tensors go through ``hold``."""
    count = 0

    # Operands are numbered in the order of the plain form.
    def text(argument: Argument) -> str:
        nonlocal count
        match argument:
            case TensorSpec():
                count += 1
                return f"operands[{count - 1}]"
            case Same(operand, shift, turned):
                it = f"operands[{operand}]"
                if shift:
                    it = f"{it}.as_strided({it}.shape, {it}.stride(), {it}.storage_offset() - {-shift})"
                return f"{it}.transpose(-2, -1)" if turned else it
            case View(operand, dim, start, length):
                return f"operands[{operand}].narrow({dim}, {start}, {length})"
            case Ints() if holds:
                return f"hold({literal(argument)})"
            case DType() | Ints():
                return literal(argument)
            case Variant(name):
                variant = f"importlib.import_module('torch.nn.attention.bias').CausalVariant.{name}"
                return f"own({case.op}, {variant})" if case.form == forms.call_contexts.OWN else variant
            case NonFinite(value):
                return number(float(value))
        return number(argument)

    def number(value: Any) -> str:
        if case.form == forms.NUMPY and (found := forms.of_numpy(value, seed(case))) is not value:
            if isinstance(found, tuple):
                return f"({''.join(f'{number(one)}, ' for one in value)})"
            return f"importlib.import_module('numpy').{type(found).__name__}({literal(value)})"
        if case.form == forms.ENUMS and type(value) is str:
            return f"importlib.import_module('enum').Enum('Option', {{'CHOSEN': {value!r}}}, type=str)({value!r})"
        return literal(value)

    for name in case.kwargs:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ReproError(f"keyword argument {name!r} is not a name")
    args = [text(argument) for argument in case.args]
    texts = {name: text(case.kwargs[name]) for name in sorted(case.kwargs)}
    if case.form == forms.SIZES:
        make = "list" if forms.sizes(case) is list else "torch.Size"
        made = f"hold({make}({{}}))" if holds and make == "list" else f"{make}({{}})"
        args = [made.format(one) if type(x) is tuple else one for x, one in zip(case.args, args, strict=True)]
    if case.form == forms.TENSORS:
        for name, value in case.kwargs.items():
            if isinstance(value, int | float) and forms.is_factor(name, value):
                made = f"torch.tensor({value!r}, dtype={forms.of_torch(value).dtype})"
                texts[name] = f"hold({made})" if holds else made
    if case.form in (forms.DIM_ENUMS, forms.DIM_TENSORS):
        places, names = forms.dims(case)
        args = [_dim(case.form, case.args[n]) if n in places else one for n, one in enumerate(args)]
        texts |= {name: _dim(case.form, case.kwargs[name]) for name in names}
    if case.form == forms.FLAGS:
        places, names = forms.flags(case)
        args = [str(int(bool(case.args[n]))) if n in places else one for n, one in enumerate(args)]
        texts |= {name: str(int(bool(case.kwargs[name]))) for name in names}
    positional, named = forms.arguments(case, args, texts)
    parts = [f"{x}" for x in positional] + [f"{name}={value}" for name, value in named.items()]
    return f"{case.op}({', '.join(parts)})"


def _dim(form: str, value: Any) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{_dim(form, one)}, ' for one in value)})"
    if form == forms.DIM_TENSORS:
        return f"torch.tensor({value})"
    return f"importlib.import_module('enum').IntEnum('Axis', {{'CHOSEN': {value}}})({value})"


def qualified(reference: Any, op: str) -> str:
    """Return where a script finds torch's function, as ``module:name``: the reference itself, or the function that a
    reference with a signature of its own stands for; empty where torch has no such function."""
    spaces = [space for space in TORCH_SPACES if hasattr(space, op)]
    if not spaces:
        return ""
    space = next((space for space in spaces if getattr(space, op) is reference), spaces[0])
    return f"{space.__name__}:{op}"
