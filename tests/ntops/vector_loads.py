"""Count the loads and stores of single elements and of vectors, as compiled for sm_90: a line of JSON for each launch.

Run as a script, with the sizes of rows and of long rows: a process in which kernels are compiled interprets none.
"""

import json
import re
import sys

import torch

from conformance import compilation

ROWS, COLUMNS, LONG = 512, int(sys.argv[1]), int(sys.argv[2])
SINGLE, VECTOR = r"(ld|st)\.global[^v;]*\.b(16|32)\b", r"(ld|st)\.global[^;]*\.v[248]\b"


def tensor(*shape):
    return torch.empty(*shape, dtype=torch.bfloat16).requires_grad_()


def calls(functions):
    """Calls of bfloat16 rows, those of sizes that are multiples of 16 with their gradients; by name."""
    x, y, row = tensor(ROWS, COLUMNS), tensor(ROWS, COLUMNS), tensor(COLUMNS)
    long, long_row = tensor(64, LONG), tensor(LONG)
    classes = torch.zeros(ROWS, dtype=torch.int64)
    odd = torch.empty(100_001, dtype=torch.bfloat16)
    yield "mul", lambda: functions.mul(x, row), (x, row)
    yield "tanh of an odd size", lambda: functions.tanh(odd), ()
    yield "softmax", lambda: functions.softmax(x, -1), (x,)
    yield "log_softmax", lambda: functions.log_softmax(x, -1), (x,)
    yield "rms_norm", lambda: functions.rms_norm(x, (COLUMNS,), row), (x, row)
    yield "layer_norm", lambda: functions.layer_norm(x, (COLUMNS,), row, row), (x, row)
    yield "long layer_norm", lambda: functions.layer_norm(long, (LONG,), long_row, long_row), (long, long_row)
    yield "cumsum", lambda: functions.cumsum(x, -1), (x,)
    yield "long cumsum", lambda: functions.cumsum(long[:2], -1), (long,)

    for name in ("sum", "amax", "argmax", "logsumexp"):
        yield name, lambda name=name: getattr(functions, name)(x, -1), ()

    if COLUMNS % 16 == 0:
        yield "mean of all", lambda: functions.mean(x), ()
        yield "cross_entropy", lambda: functions.cross_entropy(x, classes), (x,)
        yield "cross_entropy of probabilities", lambda: functions.cross_entropy(x, y), (x, y)


def main() -> None:
    compilation.prepare()
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(compilation._Driver(compilation.TARGETS["sm_90"]))
    import ntops.torch

    launches, compile_ = [], JITFunction.run
    JITFunction.run = lambda self, *args, grid, warmup, **options: launches.append((self, args, options))
    named = []

    for name, call, operands in calls(ntops.torch):
        result = call()
        if operands and COLUMNS % 16 == 0:
            torch.autograd.grad(result, operands, torch.empty_like(result))
        named += [name] * (len(launches) - len(named))

    JITFunction.run = compile_

    for name, (function, args, options) in zip(named, launches, strict=True):
        ptx = function.warmup(*args, grid=(1, 1, 1), **options).asm["ptx"]
        counts = {kind: len(re.findall(form, ptx)) for kind, form in (("single", SINGLE), ("vector", VECTOR))}
        print(json.dumps({"call": name, "kernel": function.__name__, **counts}), flush=True)


if __name__ == "__main__":
    main()
