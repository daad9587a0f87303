"""Runs the launches of ``kernels`` and saves what comes out: ``python outcomes.py HOW COUNT OUT.pt``.

HOW is ``stock`` (Triton's own interpreter), ``ntops`` (ours) or ``cuda`` (compiled); each takes a process of its own.
"""

import argparse
import dataclasses
import os

import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("how", choices=["stock", "ntops", "cuda"])
parser.add_argument("count", type=int)
parser.add_argument("out")
options = parser.parse_args()

if options.how == "ntops":
    from ntops import interpreter

    interpreter.install()
else:
    os.environ["TRITON_INTERPRET"] = "1" if options.how == "stock" else "0"

if options.how == "stock":
    from triton.runtime import interpreter

    # The checks are a property of a debug build, and the interpreter is forty times slower with them.
    interpreter.interpreter_builder.options = dataclasses.replace(
        interpreter.interpreter_builder.options, sanitize_overflow=False
    )

import kernels  # noqa: E402
import triton  # noqa: E402

if options.how == "cuda":
    # Descriptors that a kernel makes lie in memory of the launch.
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


def attempt(launch):
    """The results, or what is said why there are none."""
    try:
        return kernels.run(launch, "cuda" if options.how == "cuda" else "cpu")
    except Exception as error:  # noqa: BLE001  (one launch that is refused must not end the others)
        return f"{type(error).__name__}: {error}"


names = [name for name in kernels.FAMILIES if options.how != "stock" or name not in kernels.NOT_LIKE_STOCK]
torch.save({name: [attempt(launch) for launch in kernels.launches(name, options.count)] for name in names}, options.out)
