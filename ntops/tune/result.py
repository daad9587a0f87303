"""The result of measuring a kernel's configurations for one problem."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Measured:
    """One measured configuration."""

    options: Mapping[str, Any]
    seconds: float
    """The median; infinite if it failed."""
    speedup: float
    """How many times as fast it is as the reference in the same rounds; 0 if it failed."""
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """The measured configurations of one problem, the fastest first, failed ones last.

    :param kernel: The kernel's name.
    :param sizes: The problem's sizes by name.
    :param device: The GPU model, or ``interpreter``.
    :param clock: ``events`` (device time), or ``wall`` (host time, which says nothing about a GPU).
    :param best: The configuration that is used from now on.
    :param measured: All measured configurations.
    :param pruned: The number of configurations left out because they cannot fit the device.
    :param missing: The number of configurations not measured before the budget ended.
    :param bytes: The least number of bytes to move; 0 if unknown.
    :param flops: The least number of operations to compute; 0 if unknown.
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
        """The time of the best configuration, in seconds."""
        return self.best.seconds

    @property
    def bandwidth(self) -> float:
        """The bandwidth of the best configuration, in TB/s."""
        return self.bytes / self.latency / 1e12

    @property
    def tflops(self) -> float:
        """The rate of the best configuration, in TFLOP/s."""
        return self.flops / self.latency / 1e12

    def __str__(self) -> str:
        """Return a table with a line for each configuration."""
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
