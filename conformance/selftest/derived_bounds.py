"""``python -m conformance.selftest.derived_bounds``: how many planted defects of values derived bounds catch alone.

Each operator's planted defects that the check ``values`` has to catch are judged as in the self-test, but by the bound
that is derived of the reference, in place of that of the OpSpec. Operators whose bound cannot be derived are named.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from conformance import profiles, runner

# First: the kernels among the defects are interpreted, also where there is a GPU.
runner.resolve_device("cpu")

from conformance import authoring, cpu_cuda_differences  # noqa: E402
from conformance import spec as specs  # noqa: E402
from conformance.error_analysis import NoRule  # noqa: E402
from conformance.names import unknown_name  # noqa: E402
from conformance.selftest import defect_registry, search  # noqa: E402
from conformance.selftest.search import Result  # noqa: E402
from conformance.spec import Call, Expected  # noqa: E402

PART = 12
"""A process judges so many defects of an op: so that no op keeps one process while the others have nothing to do."""
LEAST = 0.95
"""The share of all defects that is to be caught."""


def study(op: str, names: Sequence[str]) -> list[Result]:
    """Judge the op's defects of these names by derived bounds. Raises NoRule, if there is no such bound."""
    torch.set_num_threads(1)
    spec = specs.registry()[op]
    derived = authoring.derived(spec.reference)

    def expected(call: Call) -> Expected | tuple[Expected, ...]:
        # An analysis calls torch on the CPU, where it may mean something else.
        stand_in = cpu_cuda_differences.find(op, call)
        if stand_in and stand_in.check != cpu_cuda_differences.SPEED:
            return spec.expected(call)
        # What is written to ``out`` is the result, and an analysis does not resize.
        return derived(dataclasses.replace(call, kwargs={k: v for k, v in call.kwargs.items() if k != "out"}))

    specs.registry()[op] = dataclasses.replace(spec, expected=expected)
    try:
        return search.study(op, [defect_registry.bank()[name] for name in names], (), profiles.PROFILES["ci"])[0]
    finally:
        specs.registry()[op] = spec


def of_values() -> dict[str, list[str]]:
    """Return the names of the planted defects that the check ``values`` has to catch, by op."""
    bank = search.by_op(one for one in defect_registry.bank().values() if one.check == "values")
    return {op: [one.name for one in bank[op]] for op in sorted(bank)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each op; return 1, the exit status, if less than ``LEAST`` of the defects are caught."""
    parser = argparse.ArgumentParser(prog="python -m conformance.selftest.derived_bounds", description=__doc__)
    parser.add_argument("--op", action="append", metavar="NAME", help="this op only; repeatable")
    parser.add_argument("-n", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    options = parser.parse_args(arguments)
    names = of_values()
    for op in options.op or ():
        if op not in names:
            parser.error(unknown_name("op", op, list(names)))
    caught = planted = 0
    print("| op | caught | planted | not caught |\n| --- | ---: | ---: | --- |")
    # Spawned: torch's threads do not survive a fork.
    with ProcessPoolExecutor(options.n, get_context("spawn")) as pool:
        parts = {
            op: [pool.submit(study, op, names[op][i : i + PART]) for i in range(0, len(names[op]), PART)]
            for op in options.op or names
        }
        for op, tasks in parts.items():
            try:
                results = [result for task in tasks for result in task.result()]
            except NoRule as error:
                print(f"| {op} | | | {error} |", flush=True)
                continue
            missed = [one.name for one in results if not one.killed]
            caught, planted = caught + len(results) - len(missed), planted + len(results)
            print(f"| {op} | {len(results) - len(missed)} | {len(results)} | {', '.join(missed)} |", flush=True)
    print(f"{caught} of {planted} defects of values are caught by derived bounds alone, {caught / max(planted, 1):.1%}")
    return 0 if caught >= LEAST * planted else 1


if __name__ == "__main__":
    sys.exit(main())
