"""What ``shadow`` reports: the calls of a model by operator, and those that were wrong."""

from __future__ import annotations

import collections
import dataclasses

import msgspec

from conformance import semantics


class Failure(msgspec.Struct, frozen=True):
    """A call of the model that left its bound, or changed an operand."""

    op: str
    """That of the case: ``mm`` or ``addmm`` for ``linear``."""
    called: str
    """The function that the model called."""
    module: str
    """The path of the module that called it, ``model.layers.7.mlp``; empty: none was known."""
    layer: int | None
    """The first number in the path."""
    call: int
    """The number of the call, of all calls of judged operators, from 0."""
    check: str
    message: str
    index: tuple[int, ...] | None
    """The worst element."""
    share: float | None
    case: str = ""
    """Where the case is saved; of several failures of an op in one module the first alone is."""
    implementation: str = "MODULE"
    """What has the function, where it was named."""
    semantics: str = semantics.CUDA
    """Those by which it was judged."""

    def __str__(self) -> str:
        where = f"{self.module or 'no module'}" + (f" (layer {self.layer})" if self.layer is not None else "")
        told = f"{where}: call {self.call}, {self.op} by {self.called}: {self.check}: {self.message}"
        return told + (f"\n    {self._again()}" if self.case else "")

    def _again(self) -> str:
        command = f"python -m conformance reproduce {self.case} --implementation {self.implementation}"
        return command + (f" {semantics.OPTION} {self.semantics}" if self.semantics != semantics.CUDA else "")


@dataclasses.dataclass
class Report:
    """The calls seen within a ``shadow``. As a string, for people."""

    calls: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """The number of calls that the model made, by op."""
    judged: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """The number of them that were judged, by op."""
    unjudged: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    """By op and reason how many could not be; what sampling and limits left out is not among them."""
    deviations: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """By op how many results left the bound, but are torch's own where torch is known to leave it."""
    failures: list[Failure] = dataclasses.field(default_factory=list)
    """In the order of the calls."""
    kept: int = 0
    """The number of calls that were saved as a workload; those with the same operands are one case."""
    seconds: float = 0.0
    """Seconds of judging."""
    own: float = 0.0
    """Seconds of all else in the block."""

    @property
    def first(self) -> Failure | None:
        """The first call that is wrong: those after it may have got its result."""
        return self.failures[0] if self.failures else None

    def __str__(self) -> str:
        made, judged = self.calls.total(), self.judged.total()
        lines = [
            f"{made} calls, {judged} judged, {len(self.failures)} wrong; {self.seconds:.1f} s beside {self.own:.1f} s"
        ]
        places: dict[tuple[str, str], list[Failure]] = {}
        for one in self.failures:
            places.setdefault((one.module, one.op), []).append(one)
        for first, *more in places.values():
            lines.append(f"{first}" + (f"\n    and {len(more)} more of its calls there" if more else ""))
        lines += [f"{count} calls of {op} were not judged: {why}" for (op, why), count in self.unjudged.most_common()]
        lines += [f"{count} results of {op} leave the bound as torch's own do" for op, count in self.deviations.items()]
        lines += [f"{self.kept} calls were saved as a workload"] if self.kept else []
        return "\n".join(lines)

    def encoded(self) -> bytes:
        """Return the report as JSON."""
        unjudged = [{"op": op, "reason": why, "calls": count} for (op, why), count in self.unjudged.most_common()]
        plain = {**vars(self), "unjudged": unjudged}
        return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"
