"""Measure the configurations of ntops' operators on this GPU, and keep the best: ``python -m ntops.tune``."""

import argparse
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from ntops.launch import tuned_tables
from ntops.tune import compiling, engine, operators

COMPILING = 0.5
"""The share of a budget after which no further kernel is compiled ahead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 0; 2 for bad options, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m ntops.tune", description=__doc__)
    parser.add_argument("--op", action="append", help=f"repeatable; default: all of {', '.join(operators.OPERATORS)}")
    parser.add_argument("--shape", action="append", help="of the one --op; repeatable; default: those worth it")
    parser.add_argument("--dtype", help=f"of every --shape: {', '.join(operators.DTYPES)} (default: bfloat16)")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="begin nothing after it")
    parser.add_argument("--out", type=pathlib.Path, help="write, or add to, the table of this GPU model")
    parser.add_argument("--again", action="store_true", help="measure what was measured before, too")
    parser.add_argument(
        "--processes", type=int, default=min(os.cpu_count() or 1, 12), help="that compile (%(default)s)"
    )
    parser.add_argument("--verbose", action="store_true", help="show every configuration")
    options = parser.parse_args(arguments)
    begun = time.monotonic()

    try:
        tasks = _tasks(options)
        operators.check_defaults()
    except ValueError as error:
        parser.error(str(error))

    device = engine.device_name()
    is_gpu = device != engine.INTERPRETER

    if not is_gpu:
        print("no GPU: kernels are interpreted, and times are those of this host; they say nothing about a GPU")

        if options.out:
            parser.error("--out needs a GPU: a table is of a GPU model")

    works = [task.work() for task in tasks]
    usable = {}

    try:
        if is_gpu:
            wanted = engine.missing(works, device, again=options.again)
            until = begun + COMPILING * options.budget
            compiled = compiling.compile_all(tasks, works, wanted, processes=options.processes, deadline=until)
            usable = {"usable": compiled.usable}

        results = engine.run(works, device=device, deadline=begun + options.budget, again=options.again, **usable)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is kept in {tuned_tables.path(device)}, run this again to go on")
        return 130

    for result in results:
        print(result if options.verbose else str(result).partition("\n")[0])

        if not options.verbose:
            print("   " + " ".join(f"{name}={value}" for name, value in result.best.options.items()))

    left = sum(map(len, engine.missing(works, device)))
    print(
        f"{len(results)} of {len(works)} problems measured in {time.monotonic() - begun:.0f} s, kept in "
        f"{tuned_tables.path(device)}" + (f"; {left} configurations left, run this again to go on" if left else "")
    )

    if options.out:
        try:
            records = engine.table(works, device=device, deadline=begun + options.budget)
        except KeyboardInterrupt:
            print(f"interrupted, {options.out} is as it was; run this again to go on")
            return 130

        tuned_tables.save_table(options.out, device, records)
        print(f"written: {options.out}, {len(records)} of {len(results)} problems")

        if len(records) < len(results):
            print("the others were timed by the host's clock, or their fastest not once more in the --budget")

    return 0


def _tasks(options):
    if options.shape and len(options.op or ()) != 1:
        raise ValueError("--shape needs one --op")

    if options.dtype and not options.shape:
        raise ValueError("--dtype needs --shape")

    if options.shape:
        sizes = [_sizes(shape) for shape in options.shape]
        return [operators.task(options.op[0], shape, options.dtype or "bfloat16") for shape in sizes]

    names = options.op or list(operators.OPERATORS)

    for name in names:
        operators.check_operator(name)

    return [operators.task(name, shape, dtype) for name in names for dtype, shape in operators.OPERATORS[name].shapes]


def _sizes(text):
    try:
        return tuple(int(size) for size in text.split("x"))
    except ValueError:
        raise ValueError(f"--shape {text!r} is not of the form 128x4096x4096") from None


if __name__ == "__main__":
    sys.exit(main())
