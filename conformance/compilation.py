"""Compile every kernel that an implementation launches, for GPUs that are not there.

Triton's compiler needs no GPU. Each op is called with arguments as its strategy draws them and at its benchmark
shapes, and differentiated where it can be, on CPU memory that is never read; each launch is caught before it happens,
and what differs to Triton (types, alignment, constants, options) is compiled down to machine code for the target.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import queue
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.console
import rich.progress
import rich.table
import torch

from conformance import cases, drawing, far_memory, load_checks, sass_checks
from conformance import spec as specs
from conformance.case_changes import is_tied
from conformance.cases import Case
from conformance.implementations import DEFAULT, Implementation, NotProvided, load
from conformance.names import unknown_name
from conformance.spec import Call, OpSpec
from strategies import dtypes, layouts, tensors, values
from strategies.specs import TensorSpec


@dataclasses.dataclass(frozen=True)
class Target:
    """A GPU to compile for, and the shared memory that a program can have there, in bytes."""

    backend: str
    arch: int | str
    warp_size: int
    shared_memory: int


TARGETS = {
    "sm_80": Target("cuda", 80, 32, 166912),
    "sm_90": Target("cuda", 90, 32, 232448),
    "sm_100": Target("cuda", 100, 32, 232448),
    "gfx942": Target("hip", "gfx942", 64, 65536),
}

SPILL_LIMIT, SPILL_SHARE = 128, 0.03
"""Bytes that a thread may spill to memory, and where it spills more, the share of a loop's instructions that may do so:
a few words cost nothing, nor does what is spilled before a loop. Of attention in float32 with 128 dims the fastest
tiles spill 432 bytes, 1.3 % of their loop."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The result of compiling one kernel: ``error`` is empty where it compiled."""

    op: str
    kernel: str
    signature: str
    registers: int = 0
    spills: int = 0
    shared: int = 0
    error: str = ""
    spill_share: float | None = None
    """The share of a loop's instructions that spill, as ``sass_checks.spill_share`` has it; of NVIDIA's code alone."""

    def problem(self, target: Target) -> str:
        """Return why this fails the session, or an empty string."""
        if self.error:
            return self.error
        if self.shared > target.shared_memory:
            return f"{self.shared} bytes of shared memory, of {target.shared_memory}"
        if self.spills <= SPILL_LIMIT or (self.spill_share is not None and self.spill_share <= SPILL_SHARE):
            return ""
        of_loop = "" if self.spill_share is None else f", and {self.spill_share:.1%} of a loop spills"
        return f"{self.spills} bytes spilled, over {SPILL_LIMIT}{of_loop}"


@dataclasses.dataclass(frozen=True)
class _Launch:
    op: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: str


class _Driver:
    """Stands in for the driver of a GPU that is not there; whatever would launch is never reached."""

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget(target.backend, target.arch, target.warp_size)
        properties = {"max_shared_mem": target.shared_memory, "multiprocessor_count": 100}
        self.utils = type("Utils", (), {"get_device_properties": staticmethod(lambda device: properties)})

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


def compile_all(
    ops: Sequence[OpSpec], implementation: Implementation, name: str, *, examples: int, sample: int, processes: int
) -> Iterator[tuple[int, Compiled]]:
    """Compile every kernel that the ops launch for one target, in parallel; yields (how many there are, one result).

    To be called once in a process, before any kernel has been made in it.

    :param ops: The ops.
    :param implementation: The implementation that launches them.
    :param name: The target's, from ``TARGETS``.
    :param examples: The number of calls to draw for each op and dtype.
    :param sample: Compile one kernel in so many of each op, another one for each target.
    :param processes: The number of processes that compile at a time.
    """
    target = TARGETS[name]
    launches = sampled(record(ops, implementation, target, examples), [*TARGETS].index(name), sample)
    # Forked, so that the functions and their arguments need not travel.
    context = multiprocessing.get_context("fork")
    global _launches
    _launches = launches
    starts = range(0, len(launches), BATCH)
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for results in pool.map(_compile_batch, starts, [name] * len(starts)):
            yield from ((len(launches), result) for result in results)


_launches: list[_Launch] = []

MISTAKE = "the assembler's mistake: a register is read that nothing has written"

BATCH = 16
"""Kernels whose machine code is read at once."""


def record(ops: Sequence[OpSpec], implementation: Implementation, target: Target, examples: int) -> list[_Launch]:
    """Return the distinct launches that the ops make on the target, without launching anything."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(_Driver(target))
    found: dict[str, _Launch] = {}
    current = ""

    def caught(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        *_, binder = self.device_caches[0]
        _, specialization, options = binder(*args, **kwargs)
        signature = f"{specialization} {options}"
        found.setdefault(f"{self.cache_key} {signature}", _Launch(current, self, args, kwargs, signature))

    launch, JITFunction.run = JITFunction.run, caught
    try:
        for spec in ops:
            current = spec.name
            function = implementation.function(spec.name)
            if function is not None:
                for number, (case, wanted) in enumerate(_calls(spec, examples)):
                    operands = [_allocate(spec) for spec in cases.operands(case)]
                    if (far := _far_apart(case, operands, number)) is not None:
                        # Sizes and strides of 64 bits make kernels of their own.
                        _is_provided(function, spec, case, far)
                    if _is_provided(function, spec, case, operands):
                        for numbers in wanted:
                            _differentiate(function, case, operands, numbers)
    finally:
        JITFunction.run = launch
    return list(found.values())


def _is_provided(function: Any, spec: OpSpec, case: Case, operands: Sequence[torch.Tensor]) -> bool:
    """Make a call; tell whether it is provided. One that may be left out has no kernel: the suite counts it as not
    provided. Raises NotImplementedError where it may not be."""
    args, kwargs = cases.bind(case, operands)
    try:
        function(*args, **kwargs)
    except NotImplementedError as error:
        if not isinstance(error, NotProvided) and not spec.left_out(Call(args, kwargs, None)):
            raise
        return False
    return True


def _far_apart(case: Case, operands: Sequence[torch.Tensor], turn: int) -> Sequence[torch.Tensor] | None:
    """Return the operands of a call that writes none, the rows of one of them far apart; None where there is none, or
    no memory for it."""
    if specs.registry()[case.op].writes(case) or case.form or is_tied(case):
        return None
    found, number = far_memory.laid(tuple(operands), tuple(operands), far_memory.FAR_ROWS, turn)
    if number is None:
        return None
    far_memory.keep_from_children(found[number])
    return found


def _differentiate(function: Any, case: Case, operands: Sequence[torch.Tensor], wanted: Collection[int] | None) -> None:
    """Call a function with operands of which the wanted ones require a gradient, None for all, and run its backward
    pass, if it has one."""
    floating = {n for n, one in enumerate(operands) if one.is_floating_point()}
    chosen = floating if wanted is None else floating & {*wanted}
    given = [one.detach().requires_grad_(n in chosen) for n, one in enumerate(operands)]
    args, kwargs = cases.bind(case, given)
    if kwargs.get("out") is not None or kwargs.get("inplace") or not chosen:
        return
    try:
        result = function(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        # It has no gradient, or writes to an operand that requires one, which autograd refuses.
        return
    for one in result if isinstance(result, tuple) else (result,):
        if isinstance(one, torch.Tensor) and one.requires_grad:
            one.backward(torch.empty(one.shape, dtype=one.dtype), retain_graph=True)


def sampled(launches: Sequence[_Launch], start: int, step: int) -> list[_Launch]:
    """Return one launch in ``step`` of each op."""
    by_op: dict[str, list[_Launch]] = {}
    for launch in launches:
        by_op.setdefault(launch.op, []).append(launch)
    return [launch for found in by_op.values() for launch in found[start % min(step, len(found)) :: step]]


def _calls(spec: OpSpec, examples: int) -> Iterator[tuple[Case, tuple[Collection[int] | None, ...]]]:
    """Yield calls of an op, each with the sets of operands that are differentiated in turn, None for all: its benchmark
    shapes, and calls of each dtype from its strategy, the same ones each time."""
    # Gradients that nobody asks for may take many operations of torch, each on as much memory as the call has.
    yield from ((benchmark.case, (spec.trained,)) for benchmark in spec.benchmarks)
    sets = tuple(dict.fromkeys((None, spec.trained)))
    for dtype in spec.dtypes:
        yield from ((case, sets) for case in drawing.drawn(spec.cases([dtype]), dtype, examples))


def _allocate(spec: TensorSpec) -> torch.Tensor:
    """Return a tensor whose memory is reserved and not touched; listed numbers are written, since a host may look at
    these."""
    if spec.values.startswith(values.LISTED):
        return tensors.materialize(spec)
    storage = torch.empty(layouts.storage_size(spec.layout, spec.shape), dtype=dtypes.to_torch(spec.dtype))
    return storage.as_strided(spec.shape, layouts.strides(spec.layout, spec.shape), spec.layout.offset)


def _compile_batch(start: int, name: str) -> list[Compiled]:
    """Compile some launches and check their machine code."""
    target = TARGETS[name]
    found = [_compile(launch, target) for launch in _launches[start : start + BATCH]]
    checked = sass_checks.checked([cubin for _, cubin in found], target.arch)
    return [
        dataclasses.replace(
            result,
            error=f"{MISTAKE}: {instruction}" if instruction else result.error,
            spill_share=share if cubin else None,
        )
        for (result, cubin), (instruction, share) in zip(found, checked, strict=True)
    ]


def _compile(launch: _Launch, target: Target) -> tuple[Compiled, bytes]:
    """Compile one launch; return the result and its machine code, empty where that is not NVIDIA's."""
    kernel = launch.function.fn.__name__
    try:
        compiled = launch.function.warmup(*launch.args, grid=(1, 1, 1), **launch.kwargs)
    except Exception as error:  # noqa: BLE001  (whatever the compiler raises is the result)
        return Compiled(launch.op, kernel, launch.signature, error=f"{type(error).__name__}: {error}"), b""
    registers, spills = _resources(compiled, target)
    error = load_checks.wrongly_filled(compiled.asm["ttgir"]) if target.backend == "cuda" else ""
    result = Compiled(launch.op, kernel, launch.signature, registers, spills, compiled.metadata.shared, error)
    return result, compiled.asm.get("cubin", b"")


def _resources(compiled: Any, target: Target) -> tuple[int, int]:
    """Return the registers and the spilled bytes of a thread."""
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        counts = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text))
        return int(counts["vgpr_count"]), 4 * int(counts["vgpr_spill_count"])
    return sass_checks.resources(compiled.asm["cubin"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 if every kernel compiled within the limits of its target, else 1; 2 for bad options."""
    parser = argparse.ArgumentParser(prog="python -m conformance.compilation", description=__doc__)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="repeatable; default: all")
    parser.add_argument("--op", action="append", help="this op only; repeatable")
    parser.add_argument("--implementation", default=DEFAULT, help="module or module:object (default: %(default)s)")
    parser.add_argument("--examples", type=int, default=20, help="calls drawn for each op and dtype (%(default)s)")
    sample = "compile one kernel in so many of each op, other ones for each target (default: all)"
    parser.add_argument("--sample", type=int, default=1, metavar="N", help=sample)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write what came of each kernel")
    options = parser.parse_args(arguments)
    names = options.target or list(TARGETS)
    if unknown := set(options.op or ()) - set(specs.registry()):
        parser.error(unknown_name("op", min(unknown), sorted(specs.registry())))
    results = _compile_targets(names, options)
    if options.json:
        rows = {name: [dataclasses.asdict(result) for result in compiled] for name, compiled in results.items()}
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"written: {options.json}")
    return _summarize(results)


def _compile_targets(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[Compiled]]:
    """Return the compiled kernels of each target. Two targets run at a time: one finds its kernels, on a single core,
    while the other compiles."""
    context, at_once = multiprocessing.get_context("spawn"), min(2, len(names), options.processes)
    told = context.Queue()

    def compile_apart(name: str) -> list[Compiled]:
        # A process for each target, since Triton asks for its GPU only once.
        with concurrent.futures.ProcessPoolExecutor(1, context, _tell, (told,)) as pool:
            return pool.submit(_compile_target, name, options, options.processes // at_once).result()

    columns = (*rich.progress.Progress.get_default_columns(), "{task.completed}/{task.total}")
    with rich.progress.Progress(*columns) as bar, concurrent.futures.ThreadPoolExecutor(at_once) as threads:
        tasks = {name: bar.add_task(f"{name}: finding kernels", total=None) for name in names}
        found = {name: threads.submit(compile_apart, name) for name in names}
        while not all(future.done() for future in found.values()) or not told.empty():
            with contextlib.suppress(queue.Empty):
                name, op, total = told.get(timeout=0.2)
                bar.update(tasks[name], description=f"{name}: {op}", total=total, advance=1)
        return {name: future.result() for name, future in found.items()}


_told: Any = None


def _tell(told: Any) -> None:
    """Set the queue by which this process reports its progress."""
    global _told
    _told = told


def _compile_target(name: str, options: argparse.Namespace, processes: int) -> list[Compiled]:
    prepare()
    known = specs.registry()
    chosen = [known[op] for op in options.op or sorted(known)]
    found, implementation = [], load(options.implementation)
    amounts = {"examples": options.examples, "sample": options.sample, "processes": processes}
    for total, result in compile_all(chosen, implementation, name, **amounts):
        found.append(result)
        _told.put((name, result.op, total))
    return found


def _summarize(results: Mapping[str, list[Compiled]]) -> int:
    table = rich.table.Table(
        "target", "op", "kernels", "failed", "registers", "spilled", "shared", title="most of each"
    )
    problems = []
    for name, compiled in results.items():
        problems += [(name, result) for result in compiled if result.problem(TARGETS[name])]
        for op in sorted({result.op for result in compiled}):
            rows = [result for result in compiled if result.op == op]
            failed = sum(bool(result.problem(TARGETS[name])) for result in rows)
            largest = [max(getattr(result, field) for result in rows) for field in ("registers", "spills", "shared")]
            table.add_row(name, op, *map(str, (len(rows), failed, *largest)))
    console = rich.console.Console()
    console.print(table)
    for name, result in problems:
        console.print(f"{name} {result.op} {result.kernel}: {result.problem(TARGETS[name])}", markup=False)
        console.print(f"    {result.signature}", markup=False)
    total = sum(map(len, results.values()))
    console.print(f"{total - len(problems)} passed, {len(problems)} failed")
    return 1 if problems or not total else 0


def prepare() -> None:
    """Make this process one in which kernels are compiled, not interpreted; before ntops or Triton is imported."""
    os.environ["TRITON_INTERPRET"] = "0"
    torch.set_num_threads(1)
    # Calls that resize out= warn, which does not matter here.
    warnings.simplefilter("ignore", UserWarning)
    import ntops.host.arguments

    # Compiled kernels refuse memory of the CPU; here none of it is read.
    ntops.host.arguments.INTERPRETED = True


if __name__ == "__main__":
    sys.exit(main())
