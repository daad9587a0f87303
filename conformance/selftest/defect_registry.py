"""Planted defects: implementations of one op each, right but for one mistake of a kind that real libraries make.

A module of this package enters its defects with ``defect`` (one function, one or several ops) or ``plant``; ``bank()``
finds them all. Each is built on ``sound.right(op)``, which does the call as torch on CUDA does it.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import conformance.selftest
from conformance.implementations import CLAIMS, Implementation
from conformance.sequence_judge import SEQUENCE

Function = Callable[..., Any]
Wrong = Callable[..., Any]
"""Called as ``wrong(right, *args, **kwargs)``: ``right`` is the op's right function, the rest the call's arguments."""

NAME = "conformance.selftest.planted"


@dataclasses.dataclass(frozen=True)
class Defect:
    """One wrong implementation of one op, and the check that has to catch it."""

    name: str
    """``<op>_<what is wrong>``; ``--implementation conformance.selftest.planted:<name>`` judges it."""
    op: str
    kind: str
    """What sort of mistake it is, for tables."""
    check: str
    """One of ``checks.CHECKS``, or SEQUENCE; or ``runner.CRASH`` where it ends the process that judges it."""
    function: Function
    """With the op's torch signature."""
    about: str
    """What is wrong, in a few words."""
    configurations: Callable[..., Any] | None = None
    """``conformance_configurations``, of a mistake that some of a kernel's configurations have."""
    settings: Callable[..., Any] | None = None
    """``conformance_settings``, of a mistake that calls have under some setting."""
    claims_nothing: bool = False
    """Whether it claims nothing; else to be deterministic, and the property that it breaks if that is one."""
    make: Callable[[], Function] | None = None
    """Makes the function anew, of a mistake in what is kept between calls: with nothing kept."""

    def anew(self) -> Defect:
        """The same defect as a process that has just been started has it."""
        return self if self.make is None else dataclasses.replace(self, function=self.make())

    @property
    def implementation(self) -> Implementation:
        """What the harness judges."""
        claimed = () if self.claims_nothing else ("deterministic", *({self.check} & (set(CLAIMS) - {"deterministic"})))
        claims = {self.op: claimed}
        provider = SimpleNamespace(**{self.op: self.function}, conformance_claims=claims)
        if self.configurations is not None:
            provider.conformance_configurations = self.configurations
        if self.settings is not None:
            provider.conformance_settings = self.settings
        return Implementation(f"{NAME}:{self.name}", provider, claims)


_DEFECTS: dict[str, Defect] = {}


def plant(
    op: str,
    name: str,
    kind: str,
    check: str,
    wrong: Wrong,
    about: str = "",
    configurations: Callable[..., Any] | None = None,
    settings: Callable[..., Any] | None = None,
    claims_nothing: bool = False,
) -> None:
    """Enter one defect. Raises ValueError where the name is taken."""
    from conformance.selftest import correct

    full = f"{op}_{name}"
    if full in _DEFECTS:
        raise ValueError(f"there are two defects {full!r}")
    about = about or " ".join((wrong.__doc__ or name.replace("_", " ")).split())
    function = partial(wrong, correct.right(op))
    _DEFECTS[full] = Defect(full, op, kind, check, function, about, configurations, settings, claims_nothing)


def defect(
    ops: str | Iterable[str],
    kind: str,
    check: str = "values",
    name: str = "",
    configurations: Callable[..., Any] | None = None,
    settings: Callable[..., Any] | None = None,
    claims_nothing: bool = False,
) -> Callable[[Any], Any]:
    """Enter the decorated function as a defect of each of ``ops``, under its own name or ``name``."""

    def enter(wrong: Any) -> Any:
        for op in ops.split() if isinstance(ops, str) else ops:
            plant(op, name or wrong.__name__, kind, check, wrong, "", configurations, settings, claims_nothing)
        return wrong

    return enter


def plant_state(
    ops: str,
    name: str,
    kind: str,
    make: Callable[[Function], Function],
    about: str,
    trained: Callable[[str], Function] | None = None,
) -> None:
    """Enter a mistake in what is kept between calls as a defect of each of ``ops``. ``make``: the wrong function with
    nothing kept, of the right one. ``trained``: returns the right one with gradients; None: it has none."""
    from conformance.selftest import correct

    for op in ops.split():
        # What is right is found when it is needed.
        def anew(op: str = op) -> Function:
            return make(trained(op)) if trained else correct.with_names(op, make(correct.right(op)))

        full = f"{op}_{name}"
        if full in _DEFECTS:
            raise ValueError(f"there are two defects {full!r}")
        _DEFECTS[full] = Defect(full, op, kind, SEQUENCE, anew(), about, make=anew)


@cache
def bank() -> dict[str, Defect]:
    """Every planted defect, by name, in the order of ops."""
    for module in pkgutil.iter_modules(conformance.selftest.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{conformance.selftest.__name__}.{module.name}")
    return {name: _DEFECTS[name] for name in sorted(_DEFECTS)}
