"""What came of measuring the configurations of a kernel for one problem."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Measured:
    """One configuration."""

    options: Mapping[str, Any]
    seconds: float
    """The median; infinite where it failed."""
    speedup: float
    """How many times as fast it is as the reference in the same rounds; 0 where it failed."""
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """The configurations of one problem, the fastest first; those that failed last.

    :param kernel: Its name.
    :param sizes: Of the problem, by name.
    :param device: The GPU model, or ``interpreter``.
    :param clock: ``events`` (device time), or ``wall``: of the host, which says nothing about a GPU.
    :param best: What is used from now on.
    :param measured: All of them.
    :param pruned: How many were left out, since they cannot fit the device.
    :param missing: How many were not measured, since the budget ended.
    :param bytes: That must move at least; 0 if it is not known.
    :param flops: That must be computed at least; 0 if it is not known.
    """

    kernel: str
    sizes: Mapping[str, int]
    device: str
    clock: str
    best: Measured
    measured: tuple[Measured, ...]
    pruned: int = 0
    missing: int = 0
    bytes: int = 0
    flops: int = 0

    @property
    def latency(self) -> float:
        """Of the best configuration, in seconds."""
        return self.best.seconds

    @property
    def bandwidth(self) -> float:
        """Of the best configuration, in TB/s."""
        return self.bytes / self.latency / 1e12

    @property
    def tflops(self) -> float:
        """Of the best configuration, in TFLOP/s."""
        return self.flops / self.latency / 1e12

    def __str__(self) -> str:
        """A table: a line for each configuration."""
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        figures = [f"{self.latency * 1e6:.1f} us"]
        figures += [f"{self.bandwidth:.2f} TB/s"] if self.bytes else []
        figures += [f"{self.tflops:.1f} TFLOP/s"] if self.flops else []
        clock = "" if self.clock == "events" else ", host time: it says nothing about a GPU"
        lines = [f"{self.kernel} {sizes} on {self.device}: {', '.join(figures)}{clock}"]

        for one in self.measured:
            options = " ".join(f"{name}={value}" for name, value in one.options.items())
            mark = "*" if one is self.best else " "
            figure = one.error or f"{one.seconds * 1e6:10.1f} us  {one.speedup:5.2f}x"
            lines.append(f" {mark} {figure}  {options}")

        failed = sum(bool(one.error) for one in self.measured)
        lines.append(f"   {self.pruned} cannot fit the device, {failed} failed, {self.missing} not measured")

        return "\n".join(lines)
