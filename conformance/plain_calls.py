"""The check ``plain``: a script of a few lines makes the call in a process of its own, as a user would.

An implementation can tell the judged process from others: by its parents, its command line, the files of its callers.
The script's process holds an interpreter, torch and the implementation, and has to give what the judged one gave: at
first, and also when it makes the calls again as ``plain_script`` does.
"""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from conformance import cases, code_draws, forms, plain_process, plain_script, runner, runtime
from conformance import spec as specs
from conformance.calls import Local, Outcome
from conformance.case_changes import bare, each_filled, is_listed, named_arguments
from conformance.cases import Case
from conformance.checks import FAILED, PASSED, Finding
from conformance.checks.call_record import difference, malformed
from conformance.checks.gradient_kinds import floating_operands
from conformance.checks.gradients import has_gradients
from conformance.checks.result import judged, wrong
from conformance.implementations import Implementation, module_of
from conformance.runner import Verdict
from strategies.dtypes import is_floating
from strategies.specs import CONTIGUOUS, TensorSpec

PLAIN = "plain"
"""The name of the check."""
FEW, FEW_OF_MANY, SHARE = 3, 1, 25
"""The least number of cases of one op, the same where there are more than ``MANY`` ops, and one in so many of those
that are drawn of each of its dtypes."""
MANY = 8
"""The most ops of a run that is no whole library's."""
WIDE, ROOM = 4_099, 1 << 14
"""A size that few drawn cases have, and the most elements of a case that gets it."""
KEPT = 15
"""The most cases of each op and dtype among which these are."""
SMALL = 1 << 21
"""The most elements of the operands of one case."""
SECONDS, AGAIN = 0.15, 300
"""A script repeats a call for so many seconds, and makes at most so many calls again."""
_SCRIPT = """import torch
{load}

{device}# As where operands are drawn.
torch.rand(1)

{text}

run({name}, {given!r}, {made!r}, {seconds})
"""
_AGAIN = {
    plain_script.OFTEN: "after many calls with other contents of the same tensors",
    plain_script.AT_ONCE: f"in one of {plain_script.WORKERS} threads that make calls at once",
    plain_script.MORE: f"with {plain_script.THREADS} threads of torch or more",
    plain_script.LATER: "a month later",
    plain_script.EVALUATED: "in inference mode",
    plain_script.TRAINED: "in training, after one in inference mode",
}
"""Maps each way in which a script repeats calls to its words."""
_OTHERWISE = (plain_script.MORE, plain_script.EVALUATED, plain_script.TRAINED)
"""The ways in which results may have other bits."""
_LINES = 5
"""The number of last lines of a script's output that are shown."""


@dataclasses.dataclass
class Pool:
    """Cases that passed, of which some are made once more by a script at the end of the run."""

    _found: dict[str, dict[str, dict[str, Case]]] = dataclasses.field(default_factory=dict)
    """The cases by op and dtype, and by their ids."""
    _first: list[Case] = dataclasses.field(default_factory=list)

    def take(self, case: Case, verdict: Verdict, replayed: bool = False) -> None:
        """Note a case and the verdict on it. ``replayed``: it failed in an earlier run."""
        if not fits(case, verdict):
            return
        if replayed:
            self._first.append(case)
        kept = self._found.setdefault(case.op, {}).setdefault(cases.dtype_of(case), {})
        kept[verdict.id] = case
        if len(kept) > KEPT:
            kept.pop(_in_turns(kept).pop())

    @property
    def few(self) -> int:
        """How many cases of each op are chosen at least: of a library's fewer, since it has to be quick."""
        return FEW if len(self._found) <= MANY else FEW_OF_MANY

    def chosen(self, few: int, each: int) -> list[Case]:
        """Return ``few`` cases of each op, of all dtypes in turn, or ``each`` of each dtype, whichever is more; and
        those that failed in an earlier run. With ``each`` a plain one of each dtype with more elements is added, and
        two of nothing but what a call has to be given."""
        found = list(self._first)
        for dtypes in self._found.values():
            rows = [[kept[identity] for identity in _in_turns(kept)] for kept in dtypes.values()]
            turns = [row[turn] for turn in range(KEPT) for row in rows if turn < len(row)]
            found += turns[: max(few, each * len(rows))]
            if each:
                found += [
                    case
                    for kept in dtypes.values()
                    for some, count in ((kept.values(), 1), (map(bare, kept.values()), 2))
                    for case in _grown(some, count)
                ]
        return list({cases.case_id(case): case for case in found}.values())


def _in_turns(kept: Mapping[str, Case]) -> list[str]:
    """Return the ids of cases, in turn those of large ones, which show more, of plain ones, and of any."""
    orders = (lambda one: cases.size(kept[one]), lambda one: _plainness(kept[one]), lambda one: one)
    # An id is a hash: the last order is none.
    rows = [sorted(kept, key=order, reverse=True) for order in orders]
    return list(dict.fromkeys(identity for found in zip(*rows, strict=True) for identity in found))


def _plainness(case: Case) -> tuple[int, ...]:
    """Return what is larger for calls as most are: of tensors of one dtype and one shape, contiguous, with nothing
    else."""
    operands = cases.operands(case)
    kinds, shapes = {one.dtype for one in operands}, {one.shape for one in operands}
    strided = sum(one.layout != CONTIGUOUS for one in operands)
    return -len(case.kwargs), -len(kinds), len(operands), -len(shapes), -strided, -len(case.args), *cases.size(case)


def _grown(kept: Iterable[Case], count: int) -> list[Case]:
    """Return the plainest cases that can have a size of ``WIDE``, with that, at most so many, none with the shapes of
    another."""
    made = (
        (specs.registry()[case.op], one)
        for case in sorted(kept, key=_plainness, reverse=True)
        for one in code_draws.sized(each_filled(case, _telling), [WIDE], 0, ROOM)
    )
    fitting = (one for spec, one in made if _has_wide(one) and code_draws.is_allowed(spec, one, ROOM))
    found: dict[tuple[tuple[int, ...], ...], Case] = {}
    for one in fitting:
        found.setdefault(tuple(spec.shape for spec in cases.operands(one)), one)
        if len(found) == count:
            break
    return [*found.values()]


def _has_wide(case: Case) -> bool:
    shapes = [one.shape for one in cases.operands(case)]
    return any(WIDE in shape for shape in shapes) and not any(0 in shape for shape in shapes)


def _telling(operand: TensorSpec) -> TensorSpec:
    """Return an operand whose elements differ and are all finite."""
    plain = msgspec.structs.replace(operand, specials=())
    return (
        plain
        if is_listed(operand) or not is_floating(operand.dtype)
        else msgspec.structs.replace(plain, values="normal")
    )


def fits(case: Case, verdict: Verdict) -> bool:
    """Tell whether a script can repeat the call with the same result: it is a small legal one that passed, is not
    random, writes nothing but its result and has the plain form."""
    spec = specs.registry()[case.op]
    small = sum(torch.Size(operand.shape).numel() for operand in cases.operands(case)) <= SMALL
    legal = verdict.status == PASSED and not verdict.refused and not case.form
    # What a call writes to a KV cache is no result.
    writes_cache = "out" not in case.kwargs and case.kwargs.get("inplace") is not True and bool(spec.writes(case))
    return legal and small and "distribution" not in spec.checks and not writes_cache


def judge(
    chosen: Sequence[Case], implementation: Implementation, device: torch.device, seconds: float | None = None
) -> list[Verdict]:
    """Judge whether a script gives what the judged process gives; return a verdict on each case.

    ``seconds``: the time limit of the script. Raises ``calls.Lost``: the judged process ended.
    """
    prepared = [runner.prepare(case, device) for case in chosen]
    ours = [one.invoke(implementation.maker(one.case.op)) for one in prepared]
    # torch cannot resize what a script loads.
    kept = [place for place, one in enumerate(prepared) if not _resizes(one)]
    prepared, ours = [prepared[place] for place in kept], [ours[place] for place in kept]
    if not prepared:
        return []
    made, again, problem = _made(prepared, implementation, device, seconds)
    if problem:
        return [_verdict(prepared[0].case, problem)]
    return [
        _verdict(one.case, _differing(one, implementation, first, second) or _later(one, implementation, first, later))
        for one, first, second, later in zip(prepared, ours, made, again, strict=True)
    ]


def _resizes(prepared: runner.Prepared) -> bool:
    """Tell whether torch resizes an operand, which it is given as ``out``."""
    operands = zip(prepared.inputs, prepared.reference.operands, strict=True)
    return any(before.shape != after.shape for before, after in operands)


def _verdict(case: Case, message: str) -> Verdict:
    status = FAILED if message else PASSED
    return Verdict(cases.case_id(case), case.op, status, (Finding(PLAIN, status, message),))


def _differing(prepared: runner.Prepared, implementation: Implementation, ours: Outcome, made: Outcome) -> str:
    """Say how a script's result differs from the judged process's, or, where determinism is not claimed, how it is
    wrong; empty: not at all."""
    if ours.error is None and (message := malformed(ours.value, prepared.reference.value)):
        # A result that is kept from calls that were differentiated knows of them.
        return f"called once more it {message}"
    message = difference(ours, made, "the judged process and a plain script (as of torchrun)")
    if message and "deterministic" not in implementation.claims(prepared.case.op):
        message = _wrong(prepared, implementation, made, "in a plain script (as of torchrun)")
    return message


def _later(
    prepared: runner.Prepared, implementation: Implementation, ours: Outcome, again: Mapping[str, Outcome]
) -> str:
    """Say how a result differs that a script got when it made the call again; empty: not at all. With another number of
    threads sums are of other parts, and with gradients kernels may be others: results have to be right, or as wrong as
    torch's."""
    claimed = "deterministic" in implementation.claims(prepared.case.op)
    for way, made in again.items():
        told = _AGAIN.get(way, way)
        message = difference(ours, made, f"the first call and one {told}")
        if message and (way in _OTHERWISE or not claimed):
            message = _wrong(prepared, implementation, made, f"in a plain script, {told},")
        # On some CPUs torch's own products in bfloat16 are NaN with more threads than cores.
        if message and not (way == plain_script.MORE and not difference(made, _with_more_threads(prepared))):
            return message
    return ""


def _with_more_threads(prepared: runner.Prepared) -> Outcome:
    threads = torch.get_num_threads()
    torch.set_num_threads(plain_script.many_threads())
    try:
        return prepared.invoke(Local(prepared.spec.reference))
    finally:
        torch.set_num_threads(threads)


def _wrong(prepared: runner.Prepared, implementation: Implementation, made: Outcome, where: str) -> str:
    trial = runner.tried(prepared, implementation)
    theirs = dataclasses.replace(trial.ours, value=made.value, error=made.error, places=None, told=None)
    if trial.spec.writes(trial.case) and made.error is None:
        # Operands that the script writes are not those of this process.
        found = malformed(made.value, trial.reference.value) or judged(trial, theirs).message
    else:
        found = wrong(trial, theirs)
    return found and f"{where} it is wrong: {found}"


def _made(
    prepared: Sequence[runner.Prepared], implementation: Implementation, device: torch.device, seconds: float | None
) -> tuple[list[Outcome], list[dict[str, Outcome]], str]:
    """Run a script of all calls; return its results, those that differ when it makes the calls again, and what is wrong
    with all of it."""
    module, _, path = module_of(implementation.name).partition(":")
    load = f"import {module}"
    if module.endswith(".py"):
        file = Path(module).resolve()
        module, load = file.stem, f"import sys\nsys.path.append({str(file.parent)!r})\nimport {file.stem}"
    name = f"{module}{'.' if path else ''}{path}"
    with tempfile.TemporaryDirectory() as folder:
        # Under any name: an implementation can find out its own.
        script, given, made, printed = (
            Path(folder, one) for one in (f"{secrets.token_hex(4)}.py", "operands.pt", "results.pt", "printed.txt")
        )
        each = -(-len(prepared) // AGAIN)
        trains = _training(prepared, implementation, device)
        calls = [_written(one, device, place % each == 0, trains.get(place, ())) for place, one in enumerate(prepared)]
        torch.save(calls, given)
        on = f"torch.cuda.set_device({device.index})\n" if device.index else ""
        how = {"seconds": SECONDS, "text": Path(plain_script.__file__).read_text()}
        script.write_text(_SCRIPT.format(load=load, name=name, device=on, given=str(given), made=str(made), **how))
        with printed.open("wb") as output:
            ended = plain_process.run(script, output, device, seconds)
        told = "".join(f"\n    {line}" for line in printed.read_text(errors="replace").splitlines()[-_LINES:])
        if ended:
            return [], [], f"a plain script of some calls {ended}; it printed last:{told}"
        try:
            # Only tensors and texts: somebody else's code wrote it.
            results = torch.load(made, weights_only=True)
            found = torch.load(f"{made}.again", weights_only=True)
            outcomes = [_outcome(result) for _, result in zip(prepared, results, strict=True)]
            again = [
                {way: _outcome(results[place]) for way, results in found.items() if place in results}
                for place in range(len(prepared))
            ]
            return outcomes, again, ""
        # Any error: that file may hold anything.
        except Exception as error:  # noqa: BLE001
            kind = f"{type(error).__name__}: {str(error)[:200]}"
            return [], [], f"a plain script of some calls left no results that can be read: {kind}{told}"


def _written(
    prepared: runner.Prepared, device: torch.device, repeats: bool, wanted: Sequence[int | str]
) -> tuple[str, tuple[Any, ...], dict[str, Any], bool, Sequence[int | str]]:
    """Return a call as it is saved for the script: the op, the arguments, whether the script repeats it, unless it
    writes an operand, and, if the script evaluates and then trains it, the arguments that require gradients."""
    args, kwargs = forms.bind(prepared.case, [runtime._copy(tensor, device) for tensor in prepared.inputs])
    repeats = repeats and not prepared.spec.writes(prepared.case)
    return prepared.case.op, tuple(args), dict(kwargs), repeats, wanted


def _training(
    prepared: Sequence[runner.Prepared], implementation: Implementation, device: torch.device
) -> dict[int, list[int | str]]:
    """Return the places of the calls to train, each with its arguments that require gradients: of the first call of
    each op and set of argument names that torch differentiates, if the implementation claims gradients."""
    found: dict[int, list[int | str]] = {}
    kinds = set()
    for place, one in enumerate(prepared):
        case = one.case
        kind = case.op, *sorted(name for name, value in named_arguments(case).items() if value is not None)
        claimed = "gradients" in implementation.claims(case.op)
        if kind in kinds or not claimed or not has_gradients(case, one.call, one.reference.value):
            continue
        operands = [runtime._copy(tensor, device) for tensor in one.inputs]
        args, kwargs = forms.bind(case, operands)
        floating = {id(operands[number]) for number in floating_operands(case)}
        arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        wanted = [key for key, argument in arguments if id(argument) in floating]
        if isinstance(plain_script.in_training(one.spec.reference, args, kwargs, wanted), torch.Tensor):
            kinds.add(kind)
            found[place] = wanted
    return found


def _outcome(result: Any) -> Outcome:
    if isinstance(result, str):
        return Outcome((), error=RuntimeError(result))
    return Outcome((), tuple(result) if isinstance(result, list) else result)
