"""The first call of an op in this process: ``python -m conformance.benchmarks.first_call ROW IMPLEMENTATION DEVICE``.

ROW is the name of a benchmark row, such as "add[bfloat16 1024]". Prints the seconds of the call: it starts with the
implementation imported, the device in use and idle and the arguments there, and ends when the device is idle again.
"""

from __future__ import annotations

import sys
import time

import torch

from conformance import runner
from conformance.benchmarks import _rows
from conformance.implementations import load

NOT_PROVIDED = 3
"""The exit code where the implementation lacks the op."""


def main(name: str, implementation: str, device_name: str) -> int:
    device = runner.resolve_device(device_name)  # before the import, which chooses compiled or interpreted
    spec, row = _rows.selected([name.partition("[")[0]], [])[name]
    function = load(implementation).function(spec.name)
    if function is None:
        return NOT_PROVIDED
    inputs, _ = _rows.make(row, device)
    args, kwargs = inputs[0]
    with torch.no_grad():
        _wait(device)
        start = time.perf_counter()
        result = function(*args, **kwargs)
        _wait(device)
        seconds = time.perf_counter() - start
        _rows.check(spec, implementation, result, args, kwargs)
    print(seconds)
    return 0


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
