"""``python -m conformance.sanitize``: an implementation's kernels under memcheck, racecheck, initcheck and synccheck.

What follows ``--`` is given to compute-sanitizer as it is.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from conformance import corpus
from conformance import spec as specs
from conformance.cases import CaseError
from conformance.implementations import DEFAULT
from conformance.names import unknown_name
from conformance.sanitize import batches, controls, reports, summary
from conformance.sanitize.batches import Batch, Result, SanitizerError
from conformance.sanitize.driver import Plan
from conformance.worker import seconds

CLEAN, FOUND, CANNOT = 0, 1, 2
ELEMENTS = 2**17
TIMEOUT = 900.0
DEVICE = "cuda"
MOST = 8
"""The most processes at once: compute-sanitizer talks to at most ten."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 nothing was found, 1 something was, 2 it could not be run, or not to the end."""
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    ours = given.index("--") if "--" in given else len(given)
    options = _parser().parse_args(given[:ours])
    try:
        results = _sanitize(options, given[ours + 1 :])
    except (CaseError, SanitizerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT
    print("\n".join(summary.lines(results)))
    own = [result for result in results if not result.batch.plan.control]
    if any(result.found for result in own):
        return FOUND
    return CANNOT if any(result.problem for result in own) else CLEAN


def _sanitize(options: argparse.Namespace, extra: Sequence[str]) -> list[Result]:
    tools = options.tool or list(reports.TOOLS)
    sanitizer = None if set(tools) == {reports.CONSAN} else batches.find(options.sanitizer)
    if not torch.cuda.is_available():
        raise SanitizerError("torch finds no CUDA GPU on this machine")
    if options.control and torch.cuda.get_device_capability()[0] < controls.CAPABILITY:
        raise SanitizerError(f"--control needs a GPU of compute capability {controls.CAPABILITY} or more")
    if options.log is not None and not options.log.is_dir():
        raise SanitizerError(f"--log {options.log}: there is no such folder")
    called = batches.version(sanitizer) if sanitizer else f"without {batches.NAME}"
    print(f"{called}; torch {torch.__version__}, {torch.cuda.get_device_name()}; {options.implementation}", flush=True)
    planned = [*_planned(options, tools)]
    batches.check(Plan(options.implementation, DEVICE), options.timeout)
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.n) as pool:
        running = [pool.submit(batches.run, batch, sanitizer, extra, options.timeout, options.log) for batch in planned]
        try:
            for done in concurrent.futures.as_completed(running):
                results.append(done.result())
                print(f"[{len(results)}/{len(planned)}] {summary.progress(results[-1])}", file=sys.stderr, flush=True)
        except BaseException:
            batches.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    order = {batch: number for number, batch in enumerate(planned)}
    return sorted(results, key=lambda result: order[result.batch])


def _planned(options: argparse.Namespace, tools: Sequence[str]) -> Iterator[Batch]:
    folders = [options.corpus] if options.corpus else [corpus.SHIPPED, corpus.FAILURES]
    if unknown := set(options.op or ()) - set(specs.registry()):
        raise SanitizerError(unknown_name("op", min(unknown), sorted(specs.registry())))
    files: Mapping[str, Sequence[Path]] = batches.chosen(
        corpus.files(folders), options.op, options.cases, options.max_elements
    )
    if not files:
        among = " and ".join(map(str, folders))
        raise SanitizerError(f"there is no saved case of at most {options.max_elements} elements in {among}")
    for tool in tools:
        for name in controls.names(tool) if options.control else ():
            yield Batch(tool, name, Plan(options.implementation, DEVICE, control=name))
        for op, paths in files.items():
            absolute = tuple(str(path.absolute()) for path in paths)
            limits = (options.max_elements, options.configurations)
            plan = Plan(options.implementation, DEVICE, absolute, *limits, options.tf32)
            yield Batch(tool, op, plan)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance.sanitize", description=__doc__)
    add = parser.add_argument
    add("--implementation", default=DEFAULT, help="module, module:object or torch (default: %(default)s)")
    add("--op", action="append", metavar="NAME", help="this op only; repeatable")
    add(
        "--tool",
        action="append",
        choices=(*reports.TOOLS, reports.CONSAN),
        help="this tool only; repeatable (default: compute-sanitizer's four). consan is Triton's own, for kernels in "
        "Triton and Gluon on compute capability 9 or more, and needs no compute-sanitizer",
    )
    add("--cases", type=int, default=0, metavar="N", help="of each op so many at most, as various as can be; 0: all")
    others = "with each case so many of the kernel's other configurations, until each has run (default: %(default)s)"
    add("--configurations", type=int, default=4, metavar="N", help=others)
    add("--tf32", action="store_true", help="products of float32 may use TF32")
    elements = "leave out cases whose operands have more elements together (default: %(default)s)"
    add("--max-elements", type=int, default=ELEMENTS, metavar="N", help=elements)
    add("--corpus", type=Path, metavar="DIR", help="the saved cases of this folder")
    add("--control", action="store_true", help="also run kernels that are right, and a planted defect for each tool")
    limit = "for one op under one tool; 0 is no limit (default: %(default)g)"
    add("--timeout", type=seconds, default=TIMEOUT, metavar="SECONDS", help=limit)
    share = min(MOST, max(1, (os.cpu_count() or 1) // 4))
    at_once = f"processes at once, at most {MOST} (default here: %(default)s)"
    add("-n", type=int, default=share, choices=range(1, MOST + 1), metavar="N", help=at_once)
    add("--sanitizer", type=Path, metavar="PROGRAM", help="another compute-sanitizer than that of PATH")
    add("--log", type=Path, metavar="DIR", help="keep all that each process prints in this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
