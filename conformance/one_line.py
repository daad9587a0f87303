"""Judge a user's own operator in one of the user's tests. ``conformance.judge`` is the public name of ``judge``.

The reference, the oracle and the verdict are in the process of the test; the operator is called in another one, as in
the suite, where it may crash or hang. It is found there by its module and its name, or by the file of the test. A
function without such a name is judged in the process of the test, if the user says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis

from conformance import authoring, cases, code_search, corpus, drawing, messages, repro, runner, sufficiency
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import CHECKS, FAILED, Finding, least_tried
from conformance.error_analysis import NoRule
from conformance.implementations import Implementation
from conformance.judged_process import Ended, JudgedProcess
from conformance.metrics import Tally
from conformance.names import unknown_name
from conformance.profiles import PROFILES
from conformance.runner import Verdict
from conformance.session import Run
from conformance.worker import CASE_TIMEOUT

PROFILE = "CONFORMANCE_PROFILE"
"""The variable of the environment that says how deep ``judge`` looks."""


class Judgement(AssertionError):
    """The error of a wrong operator: a message for each check that failed, as the suite's."""


def judge(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    refused: bool = True,
    checks: Sequence[str] | None = None,
    profile: str | None = None,
    examples: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    isolated: bool = True,
    timeout: float = CASE_TIMEOUT,
    folder: Path | str = corpus.FAILURES,
    **described: Any,
) -> None:
    """Judge an operator, as ``conformance.judge`` says."""
    __tracebackhide__ = True
    profile = profile or os.environ.get(PROFILE) or "smoke"
    if profile not in PROFILES:
        raise ValueError(unknown_name("profile", profile, PROFILES))
    for check in checks or ():
        if check not in CHECKS:
            raise ValueError(unknown_name("check", check, CHECKS))
    op = name or getattr(function, "__name__", "")
    if not op.isidentifier():
        raise ValueError(f"{function!r} has no name that is an identifier: say name=")
    # A function with the name of an operator of the suite need not be that.
    op = f"own_{op}" if op in specs.registry() else op
    spec = authoring.operator(op, again="run the test again: it judges this case first", **described)
    settings = PROFILES[profile]
    if examples is not None:
        settings = hypothesis.settings(settings, max_examples=examples)
    if seed is None:
        # A test draws the same each time, unless it is to look further.
        seed = int.from_bytes(os.urandom(4)) if profile == "deep" else 0
    folder = Path(folder)
    with specs.registered(spec), _device(device) as where:
        _probe(spec)
        place: Any = (_Apart if isolated else _Here)(function, op, where, checks, timeout)
        with contextlib.closing(place):
            run = Run(place.implementation, where, spec.dtypes, checks, folder, settings, seed, child=place)
            found, tally = _judged(run, spec, refused)
            found = found or sufficiency.complaints(tally.by_op(), place.implementation, [op])
    if found:
        raise Judgement("\n\n".join(found))


def _judged(run: Run, spec: specs.OpSpec, refused: bool) -> tuple[list[str], Tally]:
    """Judge saved cases, then drawn ones; return the messages about what is wrong, and the counts."""
    tally, found = Tally(), []
    paths = [path for path in corpus.files([run.save_to]) if path.stem.rpartition("-")[0] == spec.name]
    reports = (run.replay(path, _no_sequence) for path in paths)
    searches = (
        run.search(spec.name, dtype, refused=kind)
        for kind in ((False, True) if refused else (False,))
        for dtype in spec.dtypes
    )
    for report in (*reports, *searches):
        tally.merge(report.tally.sorted())
        found += report.failures
    return list(dict.fromkeys(found)), tally


def _probe(spec: specs.OpSpec) -> None:
    """Ask the oracle of the simplest call. Raises NoRule before anything is searched, where it has no bound."""
    (case,) = drawing.drawn(spec.cases(spec.dtypes[:1]), 0, 1)
    args, kwargs, _ = cases.materialize(case)
    try:
        spec.expected(specs.Call(args, kwargs, None))
    except NoRule as error:
        raise error from None
    # A reference may refuse that very call, with whatever happens to raise in it.
    except Exception:  # noqa: BLE001
        return


def _no_sequence(*_: Any) -> Any:
    raise cases.CaseError("a saved sequence of calls, which judge does not make")


@contextlib.contextmanager
def _device(name: str) -> Generator[Any]:
    """Yield the device of a name. Choosing the CPU sets a variable for Triton, which does not stay set in this
    process."""
    before = os.environ.get("TRITON_INTERPRET")
    device = runner.resolve_device(name)
    if before is None:
        os.environ.pop("TRITON_INTERPRET", None)
    yield device


# --- where it is called ------------------------------------------------------------------------------------------


class _Here:
    """The implementation, in this process: a crash ends the test."""

    def __init__(
        self, function: Callable[..., Any], op: str, device: Any, checks: Sequence[str] | None, _: float
    ) -> None:
        self.implementation = Implementation(f"{function.__module__}:{op}", SimpleNamespace(**{op: function}))
        self.device, self.checks = device, checks
        self.about = SimpleNamespace(device_name=messages.device_name(device))

    def judge(
        self, case: Case, thorough: bool = True, checks: Sequence[str] | None = None, search: str = ""
    ) -> Verdict:
        """Judge a case, as ``worker.Child.judge``."""
        if not thorough:
            least_tried.within(search)
        return runner.judge(case, self.implementation, self.device, checks or self.checks, thorough)

    def numbers(self, op: str) -> Sequence[float]:
        """Return the numbers in the code of an op, as ``worker.Child.numbers``."""
        return self.implementation.numbers(op)

    def explore(self, starts: Sequence[Case], calls: int, elements: int, seed: str) -> Sequence[Case]:
        """Search for calls that come to new places of the code, as ``worker.Child.explore``."""
        return code_search.search(starts, self.implementation, self.device, calls, elements, seed)

    def script(self, *_: Any) -> str:
        raise repro.ReproError("since what is judged has no name under which a script finds it")

    def close(self) -> None:
        pass


class _Apart(JudgedProcess):
    """The implementation, in a process of its own. One that died is followed by another."""

    def __init__(
        self, function: Callable[..., Any], op: str, device: Any, checks: Sequence[str] | None, timeout: float
    ) -> None:
        self.functions = {op: getattr(function, "__name__", op)}
        self.checks = checks
        self.about = SimpleNamespace(device_name=messages.device_name(device))
        super().__init__(_found_by(function), device, timeout, self.functions)

    def judge(
        self, case: Case, thorough: bool = True, checks: Sequence[str] | None = None, search: str = ""
    ) -> Verdict:
        """Judge a case, as ``worker.Child.judge``."""
        if not thorough:
            least_tried.within(search)
        try:
            return self.asked(lambda ours: runner.judge(case, ours, self.device, checks or self.checks, thorough))
        except Ended as end:
            return Verdict(cases.case_id(case), case.op, FAILED, (Finding(end.check, FAILED, str(end)),))

    def numbers(self, op: str) -> Sequence[float]:
        """Return the numbers in the code of an op, as ``worker.Child.numbers``."""
        try:
            return self.asked(lambda ours: ours.numbers(op))
        except Ended:
            return ()

    def explore(self, starts: Sequence[Case], calls: int, elements: int, seed: str) -> Sequence[Case]:
        """Search for calls that come to new places of the code, as ``worker.Child.explore``."""
        try:
            return self.asked(lambda ours: code_search.search(starts, ours, self.device, calls, elements, seed))
        except Ended:
            return ()
        except code_search.Broken as broken:
            self.close()
            return broken.found

    def script(self, case: Case, verdict: Verdict, *_: Any) -> str:
        """Return a script, as ``worker.Child.script``."""
        if self.functions[case.op] != case.op:
            raise repro.ReproError("since the op has another name than the function")
        return repro.script(case, verdict, self.implementation, self.device)


def _found_by(function: Callable[..., Any]) -> str:
    """Return the name under which another process finds the function's module or object. Raises ValueError: there is
    none."""
    op = getattr(function, "__name__", repr(function))
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "").split(".")
    refused = (
        f"{op}: it is judged in a process of its own, which has to find it by its module and name. Define it in a "
        "module, or say isolated=False: then what crashes or hangs ends the test"
    )
    if module is None or path[-1] != op or "<locals>" in path or "<lambda>" in path or module == "__main__":
        raise ValueError(refused)
    found: Any = sys.modules.get(module)
    for one in path:
        found = getattr(found, one, None)
    if found is not function:
        raise ValueError(refused)
    file = getattr(sys.modules[module], "__file__", None)
    if not _importable(module, file):
        if file is None or not file.endswith(".py"):
            raise ValueError(refused)
        # The module of a test, which pytest imports in its own way.
        module = file
    return ":".join((module, *([".".join(path[:-1])] if path[:-1] else [])))


def _importable(module: str, file: str | None) -> bool:
    """Tell whether another process that imports the module gets what this one has."""
    with contextlib.suppress(ImportError, ValueError):
        # Not what sys.modules says: pytest enters modules there that nobody else can import.
        parent, _, _ = module.rpartition(".")
        path = None if not parent else getattr(sys.modules.get(parent), "__path__", None)
        if parent and path is None:
            return False
        for finder in sys.meta_path:
            spec = finder.find_spec(module, path)
            if spec is not None:
                return spec.origin == file and (not parent or _importable(parent, sys.modules[parent].__file__))
    return False
