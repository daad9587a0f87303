"""Controls: kernels in which a sanitizer is known to have something to find, or nothing, to tell what a tool cannot
see.

The right ones use what racecheck is known to report falsely, mbarriers and bulk copies by the Tensor Memory Accelerator
(TMA): a report about one of these is one about the tool. For each tool there is a planted defect, so that "nothing
found" says something. All need compute capability 9 or more.
"""

from __future__ import annotations

from conformance.sanitize.reports import CONSAN

PRODUCT = "persistent TMA product"
SPECIALIZED = "warp-specialized TMA product"
COPY = "TMA copy"
TOO_EARLY = "planted: read before the wait"
PAST_END = "planted: read past the end"
EMPTY = "planted: read of torch.empty"
NO_BARRIER = "planted: barrier not initialised"

RIGHT = (PRODUCT, SPECIALIZED, COPY)
PLANTED = {
    "memcheck": PAST_END,
    "racecheck": TOO_EARLY,
    "initcheck": EMPTY,
    "synccheck": NO_BARRIER,
    CONSAN: TOO_EARLY,
}
"""For each tool the defect that it should find."""
CAPABILITY = 9


class WrongResult(AssertionError):
    """A right kernel computed something else than torch on the CPU."""


def names(tool: str) -> tuple[str, ...]:
    """Return the controls that are run under the tool."""
    return (*RIGHT, PLANTED[tool])
