"""Operators that nobody has an OpSpec for, right and with planted mistakes, and what is common to their tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from conformance import authoring, drawing, judge, runner
from conformance import spec as specs
from conformance.implementations import Implementation

EXAMPLES = 16
"""Calls of each dtype and operator in which a planted mistake has to show."""


def right(function: Callable[..., Any], folder: Any, **described: Any) -> None:
    """Judge the right implementation, in one line. Raises AssertionError where it is called wrong."""
    judge(function, isolated=False, examples=6, folder=folder, **described)


def missed(function: Callable[..., Any], mistakes: Sequence[str], **described: Any) -> list[str]:
    """The mistakes that nothing shows; ``function`` makes one whose name it is given. Nothing is shrunk or saved."""
    op = function.__name__
    spec = authoring.operator(op, **described)
    with specs.registered(spec):
        drawn = [drawing.drawn(spec.cases((dtype,)), f"{op}/{dtype}", EXAMPLES) for dtype in spec.dtypes]
        # In turn, so that what shows in one dtype alone shows soon.
        cases = [case for one in zip(*drawn, strict=True) for case in one]

        def caught(mistake: str) -> bool:
            wrong = functools.partial(function, mistake=mistake)
            implementation = Implementation("planted", SimpleNamespace(**{op: wrong}))
            return any(
                runner.judge(case, implementation, torch.device("cpu"), thorough=False).failure for case in cases
            )

        return [mistake for mistake in mistakes if not caught(mistake)]
