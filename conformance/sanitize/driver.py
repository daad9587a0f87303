"""The program that runs under a sanitizer: calls an implementation with saved cases, once each, or runs a control.

Values are judged elsewhere. ``conformance.sanitize.batches`` starts it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from conformance import case_files, cases, corpus
from conformance.cases import Case
from conformance.implementations import Implementation, ImplementationError, NotProvided, load
from conformance.sanitize import controls

ALLOCATING = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor is an allocation of CUDA's, of its own size: in torch's cache a read past the end of one tensor is one of
another's memory, and memory that is given out again counts as written."""
CONSAN_ENVIRONMENT = {"TRITON_INSTRUMENTATION_MODE": "consan"}


class Plan(msgspec.Struct, frozen=True):
    """A task: the cases of files, or a control by its name."""

    implementation: str
    device: str
    files: Sequence[str] = ()
    max_elements: int = cases.MAX_ELEMENTS
    configurations: int = 0
    """The most of the kernel's other configurations with each case, until each has run."""
    tf32: bool = False
    """Whether products of float32 may use TF32."""
    control: str = ""


class Outcome(msgspec.Struct):
    """The progress of a task; written after each case, so that it is known of a process that dies, too."""

    called: int = 0
    configurations: int = 0
    """Calls in a certain configuration of the kernel."""
    refused: int = 0
    """Calls that ended with an exception, as torch's own do for some saved cases."""
    not_provided: int = 0
    failed: str = ""
    """Why it stopped: there is no such implementation, the CUDA context is lost, or a control gave a wrong result."""


def main(arguments: Sequence[str]) -> int:
    """Do the task in the first file, and write an Outcome to the second one."""
    plan_path, outcome_path = map(Path, arguments)
    plan = msgspec.json.decode(plan_path.read_bytes(), type=Plan)
    torch.set_float32_matmul_precision("high" if plan.tf32 else "highest")
    outcome = Outcome()
    if plan.control:
        _control(plan, outcome)
    else:
        _cases(plan, outcome, outcome_path)
    corpus.write(outcome_path, msgspec.json.encode(outcome))
    return 0


def _cases(plan: Plan, outcome: Outcome, path: Path) -> None:
    try:
        implementation = load(plan.implementation)
    except ImplementationError as error:
        outcome.failed = str(error)
        return
    _provide_scratch(plan.device)
    seen: dict[tuple[str, ...], int] = {}
    for file in plan.files:
        corpus.write(path, msgspec.json.encode(outcome))
        case = case_files.read(file, max_elements=plan.max_elements)
        names = _call(case, implementation, plan.device, None, outcome)
        first = seen.setdefault(names, 0)
        seen[names] = min(first + plan.configurations, len(names))
        for number in range(first, seen[names]):
            _call(case, implementation, plan.device, number, outcome)
        try:
            _synchronize(plan.device)
        except RuntimeError as error:
            outcome.failed = f"{corpus.name(Path(file))}: {str(error).partition(chr(10))[0]}"
            return


def _call(
    case: Case, implementation: Implementation, device: str, number: int | None, outcome: Outcome
) -> tuple[str, ...]:
    """Make one call, in the kernel's configuration of a number; return the names of all configurations."""
    function = implementation.function(case.op)
    if function is None:
        outcome.not_provided += 1
        return ()
    torch.manual_seed(0)
    args, kwargs, _ = cases.materialize(case, device)
    try:
        with implementation.configurations(case.op, number) as names:
            function(*args, **kwargs)
    except NotProvided:
        outcome.not_provided += 1
    # Any exception: whether it is right is judged elsewhere.
    except Exception:  # noqa: BLE001
        outcome.refused += 1
    else:
        if number is None:
            outcome.called += 1
        else:
            outcome.configurations += 1
        return tuple(names)
    return ()


def _control(plan: Plan, outcome: Outcome) -> None:
    # Imported here: it imports Triton, and implementations may want to be the first to do so.
    from conformance.sanitize import kernels

    _provide_scratch(plan.device)
    try:
        kernels.run(plan.control)
        outcome.called += 1
        _synchronize(plan.device)
    except (controls.WrongResult, RuntimeError) as error:
        outcome.failed = str(error).partition("\n")[0]


def _synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _provide_scratch(device: str) -> None:
    """Give instrumented kernels the memory for their notes, for which Triton asks an allocator."""
    if "TRITON_INSTRUMENTATION_MODE" not in os.environ:
        return
    # Imported here: implementations may want to be the first to do so.
    import triton

    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
