"""``shadow``: the calls that a running model makes, judged beside torch; ``conformance.shadow`` is its public name."""

from __future__ import annotations

import collections
import contextlib
import functools
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from conformance import corpus, runtime, semantics
from conformance import spec as specs
from conformance.checks import DEVIATION, FAILED, Finding
from conformance.implementations import ImplementationError, module_of
from conformance.live_calls import LINEAR, LiveCall, Named, Unjudged, named
from conformance.names import unknown_name
from conformance.semantics import NAMES
from conformance.shadow_report import Failure, Report
from strategies import stored

CASES, WORKLOAD = "cases", "workload"
"""The folders of the failing cases and of calls that are kept, in that of the report."""
SECONDS, FIXED = 1e-7, 10_000
"""The seconds that judging an element may take before any call of its op was judged, and the elements that count for
what a call costs whatever its size."""
SHARE = 0.7
"""The part of its time that judging gets: beside it the model itself is slower, since it finds the caches cold."""
_OWN = ("conformance", "strategies")


class Shadow(contextlib.AbstractContextManager[Report]):
    """As ``conformance.shadow`` says."""

    def __init__(
        self,
        judged: str | torch.nn.Module | object,
        *,
        model: torch.nn.Module | None = None,
        ops: str | Collection[str] | None = None,
        report: Path | str | None = "shadow",
        every: int = 1,
        limit: int | None = None,
        seconds: float | None = None,
        slowdown: float | None = None,
        keep: int = 0,
        semantics: str = semantics.CUDA,
    ) -> None:
        self._implementation = judged if isinstance(judged, str) else "MODULE"
        self._named = judged if isinstance(judged, str) else getattr(judged, "__name__", type(judged).__name__)
        self._model = judged if isinstance(judged, torch.nn.Module) else model
        self._watched = isinstance(judged, torch.nn.Module)
        known = [*specs.registry(), *([LINEAR] if self._watched else [])]
        self._ops = known if ops is None else [ops] if isinstance(ops, str) else [*ops]
        for op in self._ops:
            if op not in known:
                raise ValueError(unknown_name("op", op, known))
        if semantics not in NAMES:
            raise ValueError(f"semantics={semantics!r}: {' or '.join(NAMES)}")
        self._semantics = semantics
        if every < 1:
            raise ValueError(f"every={every}: at least 1")
        self._every, self._limit, self._seconds, self._slowdown = every, limit, seconds, slowdown
        self._folder, self._keep = None if report is None else Path(report), keep
        if keep < 0:
            raise ValueError(f"keep={keep}: at least 0")
        if keep and report is None:
            raise ValueError(f"keep={keep}: calls are saved in the folder of the report")
        if self._folder is not None:
            stored.library()
        if not self._watched:
            self._provider = _provider(judged)
            self._functions = _functions(self._provider, self._ops)
            if not self._functions:
                raise ImplementationError(f"{self._named!r} has no function that is called as an op is")
        self._lock, self._local = threading.RLock(), threading.local()
        self._ended = contextlib.ExitStack()

    def __enter__(self) -> Report:
        self.report = Report()
        self._seen: collections.Counter[tuple[str, str]] = collections.Counter()
        self._kept: collections.Counter[tuple[str, str]] = collections.Counter()
        self._rates: dict[str, float] = {}
        self._began = time.perf_counter()
        if self._model is not None:
            for path, module in self._model.named_modules():
                self._hook(path, module)
        if not self._watched:
            self._wrap()
        return self.report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.close()
        self.report.own = time.perf_counter() - self._began - self.report.seconds
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            corpus.write(self._folder / "report.json", self.report.encoded())

    # --- where calls are seen ------------------------------------------------------------------------------------

    def _hook(self, path: str, module: torch.nn.Module) -> None:
        """Note the module that runs. In the outermost one the mode is entered, so that it is the innermost of all
        modes, and a library that takes torch's calls by one of its own has its results judged."""

        def before(*_: Any) -> None:
            paths = self._paths()
            if not paths and self._watched:
                self._local.mode = _Mode(self)
                self._local.mode.__enter__()
            paths.append(path)

        def after(*_: Any) -> None:
            paths = self._paths()
            paths.pop()
            if not paths and self._watched:
                self._local.mode.__exit__(None, None, None)

        for handle in (
            module.register_forward_pre_hook(before, prepend=True),
            module.register_forward_hook(after, always_call=True),
        ):
            self._ended.callback(handle.remove)

    def _paths(self) -> list[str]:
        return self._local.__dict__.setdefault("paths", [])

    def _wrap(self) -> None:
        """Put a judged function in the place of each: in what was named, and where a module has imported it."""
        wrapped = {op: self._wrapper(op, function) for op, function in self._functions.items()}
        for op, wrapper in wrapped.items():
            self._replace(self._provider, op, wrapper)
        by_function = {id(function): wrapped[op] for op, function in self._functions.items()}
        for space in _spaces(self._provider):
            for name, value in [*vars(space).items()]:
                if id(value) in by_function:
                    self._replace(space, name, by_function[id(value)])

    def _replace(self, space: Any, name: str, value: object) -> None:
        before = vars(space).get(name, _MISSING) if hasattr(space, "__dict__") else _MISSING
        setattr(space, name, value)
        if before is _MISSING:
            self._ended.callback(delattr, space, name)
        else:
            self._ended.callback(setattr, space, name, before)

    def _wrapper(self, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        which, called = Named(op), f"{self._named}.{op}"

        @functools.wraps(function)
        def judged(*args: Any, **kwargs: Any) -> Any:
            return self.made(which, called, function, args, kwargs)

        return judged

    # --- what is done with them ----------------------------------------------------------------------------------

    def made(
        self, which: Named, called: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call of the model as it is, and judge it if it is one of those to judge."""
        if which.op not in self._ops or torch.compiler.is_compiling() or self._local.__dict__.get("judging"):
            return function(*args, **kwargs)
        path = (self._paths() or [""])[-1]
        with self._lock:
            number, before = self.report.calls.total(), self.report.seconds
            self.report.calls[which.op] += 1
            live = self._taken(which, path, args, kwargs, number)
            seconds = self.report.seconds - before
        result = function(*args, **kwargs)
        if live is not None:
            with self._lock:
                before = self.report.seconds
                self._judge(live, which, called, path, number, result)
                seconds += self.report.seconds - before
                self._rates[which.op] = seconds / _elements(args, kwargs)
        return result

    def _taken(
        self, which: Named, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], number: int
    ) -> LiveCall | None:
        """The call with copies of its operands, if it is to be judged."""
        place = path, which.op
        self._seen[place] += 1
        if (self._seen[place] - 1) % self._every or self._spent(self._cost(which.op, args, kwargs)):
            return None
        with self._timed():
            try:
                return LiveCall(which, args, kwargs, number)
            except Unjudged as why:
                self.report.unjudged[which.op, str(why)] += 1
        return None

    def _spent(self, cost: float) -> bool:
        """Tell whether a limit is reached, or judging a call, for ``cost`` seconds, would slow the block too much."""
        own = time.perf_counter() - self._began - self.report.seconds
        return (
            (self._limit is not None and self.report.judged.total() >= self._limit)
            or (self._seconds is not None and self.report.seconds >= self._seconds)
            or (self._slowdown is not None and self.report.seconds + cost >= (self._slowdown - 1) * own * SHARE)
        )

    def _cost(self, op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
        """Estimate the seconds of judging a call by the last one of the op."""
        return self._rates.get(op, SECONDS) * _elements(args, kwargs)

    def _judge(self, live: LiveCall, which: Named, called: str, path: str, number: int, result: Any) -> None:
        # A call on a GPU has those of CUDA.
        meant = self._semantics if live.device.type == "cpu" else semantics.CUDA
        with self._timed(), semantics.within(meant):
            try:
                finding = live.judged(result)
            except Unjudged as why:
                self.report.unjudged[which.op, str(why)] += 1
                return
            self.report.judged[which.op] += 1
            self._save(live, called, path, number)
            if finding.status == DEVIATION:
                self.report.deviations[which.op] += 1
            if finding.status == FAILED:
                self._fail(live, called, path, number, finding)

    def _save(self, live: LiveCall, called: str, path: str, number: int) -> None:
        """Save a judged call, if it is one of those to keep."""
        place = path, live.op
        if self._folder is None or self._kept[place] >= self._keep:
            return
        self._kept[place] += 1
        try:
            live.saved(f"call {number}, {called} in {path or 'no module'}", self._folder / WORKLOAD)
        except OSError as error:
            self.report.unjudged[live.op, f"judged, and not saved: {error.strerror}"] += 1
            return
        self.report.kept += 1

    def _fail(self, live: LiveCall, called: str, path: str, number: int, finding: Finding) -> None:
        saved = ""
        if self._folder is not None and all((one.module, one.op) != (path, live.op) for one in self.report.failures):
            note = f"{finding.check} failed for {called} in {path or 'no module'}, call {number}"
            try:
                saved = str(live.saved(note, self._folder / CASES))
            except OSError as error:
                finding = msgspec.structs.replace(
                    finding, message=f"{finding.message}\n    not saved: {error.strerror}"
                )
        number_in_path = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
        self.report.failures.append(
            Failure(
                live.op,
                called,
                path,
                int(number_in_path[1]) if number_in_path else None,
                number,
                finding.check,
                finding.message,
                finding.index,
                finding.share,
                saved,
                self._implementation,
                semantics.chosen(),
            )
        )

    @contextlib.contextmanager
    def _timed(self) -> Generator[None]:
        """Within, what is called is the judge's and not the model's."""
        began, self._local.judging = time.perf_counter(), True
        try:
            yield
        finally:
            self._local.judging = False
            self.report.seconds += time.perf_counter() - began


def _elements(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return FIXED + sum(one.numel() for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))


class _Mode(TorchFunctionMode):
    """Takes the calls of torch's functions, methods and operators in a thread."""

    def __init__(self, shadow: Shadow) -> None:
        super().__init__()
        self._shadow = shadow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        which = named(func)
        if which is None:
            return func(*args, **(kwargs or {}))
        return self._shadow.made(which, _called(func), func, args, kwargs or {})


_MISSING = object()


def _called(function: Any) -> str:
    """Return the name of a function of torch, for people."""
    name = str(getattr(function, "__name__", function))
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"torch.ops.{function}"
    return f"torch's {name}"


def _provider(judged: str | object) -> object:
    if not isinstance(judged, str):
        return judged
    found, problem = runtime.load(module_of(judged))
    if problem:
        raise ImplementationError(problem)
    return found


def _functions(provider: object, ops: Collection[str]) -> dict[str, Callable[..., Any]]:
    """The functions that are called as ops are, without those that are torch's own."""
    found = {op: getattr(provider, op, None) for op in ops}
    return {op: one for op, one in found.items() if callable(one) and not _is_torchs(one)}


def _is_torchs(function: object) -> bool:
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return False
    # Those in C++ belong to no module.
    return str(getattr(function, "__module__", None) or "torch").partition(".")[0] == "torch"


def _spaces(provider: object) -> Iterator[Any]:
    """Where a function may have been imported to: every module but those of the harness and of what is judged; and
    torch's methods."""
    own = {*_OWN, str(getattr(provider, "__name__", "")).partition(".")[0]} - {"__main__"}
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] not in own and hasattr(module, "__dict__"):
            yield module
    yield torch.Tensor
