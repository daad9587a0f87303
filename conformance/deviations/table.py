"""The rows of the tables of torch's deviations from the oracle, and helpers of their conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from conformance.cases import Case, NonFinite
from strategies.specs import TensorSpec


@dataclasses.dataclass(frozen=True)
class Deviation:
    """One way in which torch on some devices differs from the oracle."""

    name: str
    why: str
    ops: tuple[str, ...]
    """Empty: any op, those of strangers, too."""
    checks: tuple[str, ...]
    devices: tuple[str, ...]
    """Device types on which torch does so."""
    applies: Callable[[Case], bool]
    """Whether a case of those ops can show it."""
    case: Case
    """A case that shows it."""
    present: Callable[[], bool] = lambda: True
    """Tell whether the installed torch does so on this CPU under the present settings, where these differ."""


def specs(case: Case) -> list[TensorSpec]:
    return [argument for argument in case.args if isinstance(argument, TensorSpec)]


def number(argument: object) -> float | None:
    if isinstance(argument, NonFinite):
        return float(argument.value)
    return argument if isinstance(argument, bool | int | float) else None


def tensor(dtype: str, *shape: int, values: str = "normal", **more: Any) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, values=values, **more)
