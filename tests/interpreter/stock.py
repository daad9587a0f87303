"""Runs launches under Triton's own interpreter, in a process of its own: ``stock.py COUNT OUT.pt``."""

import dataclasses
import sys

import torch
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

import kernels

# The checks are a property of a debug build, and the interpreter is forty times slower with them.
interpreter.interpreter_builder.options = dataclasses.replace(
    interpreter.interpreter_builder.options, sanitize_overflow=False
)


def attempt(launch):
    """The results, or what Triton's own interpreter says why there are none."""
    try:
        return kernels.run(launch)
    except InterpreterError as error:
        return str(error)


results = {
    name: [attempt(launch) for launch in kernels.launches(name, int(sys.argv[1]))]
    for name in kernels.FAMILIES
    if name not in kernels.NOT_LIKE_STOCK
}
torch.save(results, sys.argv[2])
