"""Run a kernel over its grid: many programs at once, and one by one where that is impossible."""

import functools
import inspect
import threading

import numpy as np

from ntops.interpreter import _triton, arguments, rewrite, source_analysis, watching
from ntops.interpreter.control import Diverged, NeedsSequential, Runtime
from ntops.interpreter.errors import MemoryFault, kernel_line
from ntops.interpreter.launch_watch import LaunchWatch

# The most programs that run together, and the most elements of a block of all of them: beyond these, memory grows
# without gain in time. A kernel that runs for the first time starts with a few programs.
CHUNK = 4096
_ELEMENTS = 2**17
_FIRST = 16
# The number of divergences after which running programs one by one is quicker.
_MOST_PARTINGS = 64

_lock = threading.RLock()


class Kernel:
    """A ``@triton.jit`` function with the facts known about it."""

    def __init__(self, function):
        self.function = function
        self.name = function.__name__
        self.signature = inspect.signature(function)
        self.kinds = {
            name: _triton.annotated_type(parameter.annotation) for name, parameter in self.signature.parameters.items()
        }
        self.is_sequential = False
        self.elements = None
        self._rewritten = {}

    @property
    def chunk(self):
        """Return the number of programs to run together."""
        wanted = _FIRST if self.elements is None else max(_FIRST, _ELEMENTS // max(1, self.elements))

        return min(CHUNK, wanted)

    def rewritten(self, is_optimized=True):
        """Return the function rewritten for the interpreter, with or without elimination of common subexpressions."""
        if is_optimized not in self._rewritten:
            self._rewritten[is_optimized] = rewrite.rewrite(self.function, Runtime, _triton, is_optimized)

        return self._rewritten[is_optimized]

    @functools.cached_property
    def has_atomics(self):
        """Tell whether the kernel, or a function that it calls, may use atomics."""
        return source_analysis.may_use_atomics(self.function)


def kernel_of(interpreted):
    """Return the Kernel of one of Triton's interpreted functions."""
    kernel = interpreted.__dict__.get("_ntops_kernel")

    if kernel is None:
        kernel = interpreted._ntops_kernel = Kernel(interpreted.fn)

    return kernel


def call(self, *args, **kwargs):
    """Call a ``@triton.jit`` function from kernel code (replaces ``InterpretedFunction.__call__``)."""
    return kernel_of(self).rewritten(_triton.builder().is_optimized)(*args, **kwargs)


def run(self, *args, grid, warmup, **kwargs):
    """Launch a kernel (replaces ``InterpretedFunction.run``).

    :raises InterpreterError: The kernel failed; the message says where.
    :raises MemoryFault: Memory is watched, and the kernel made a forbidden access.
    """
    if warmup:
        return

    kernel = kernel_of(self)
    # Compiler options such as num_warps have no effect here.
    kwargs = {name: value for name, value in kwargs.items() if name in kernel.signature.parameters}
    bound = kernel.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    bound = bound.arguments

    for hook in self.pre_run_hooks:
        hook(*args, **kwargs)

    grid = grid(bound) if callable(grid) else grid
    grid = tuple(map(int, grid))

    if len(grid) > 3:
        raise ValueError(f"a grid has at most 3 dims, and that of {kernel.name} has {len(grid)}: {grid}")

    grid = (*grid, 1, 1)[:3]

    with _lock, np.errstate(all="ignore"), arguments.on_host(bound) as staged:
        _run(kernel, staged, grid)


def _run(kernel, bound, grid):
    builder = _triton.builder()
    values = arguments.converted(kernel.kinds, bound)
    total = grid[0] * grid[1] * grid[2]
    watcher = watching.current()

    if watcher is not None:
        builder.watch = LaunchWatch(watcher, kernel.name, values.values(), builder)

    try:
        start = 0

        while start < total:
            stop = min(start + kernel.chunk, total)
            _Chunk(kernel, values, grid, builder).run(np.arange(start, stop))
            kernel.elements = max(kernel.elements or 0, builder.largest_block)
            start = stop
    finally:
        builder.end_launch()


class _Chunk:
    """Programs that run together, else in groups, else one by one."""

    def __init__(self, kernel, values, grid, builder):
        self.kernel = kernel
        self.values = values
        self.grid = grid
        self.builder = builder
        self.partings = 0
        # Overwritten values are kept, since programs may have to start again.
        self.log = []

    def run(self, programs):
        if len(programs) == 1 or self.kernel.is_sequential:
            return self._run_in_order(programs)

        self.builder.begin_chunk(self.log, is_split=False, tracks_accesses=self.kernel.has_atomics)

        try:
            self._run_together(programs)
        except NeedsSequential:
            self.kernel.is_sequential = True
            self._restart(programs)
        except MemoryFault:
            raise
        except Exception:  # noqa: BLE001
            # The kernel may be wrong, which running it in order reports best, or running programs together may be.
            self._restart(programs, is_optimized=False)

    def _restart(self, programs, is_optimized=True):
        self.builder.undo(0)
        self._run_in_order(programs, is_optimized)

    def _run_together(self, programs):
        mark = len(self.log)

        try:
            self._execute(programs)
        except Diverged as parting:
            self.partings += 1
            self.builder.undo(mark)
            self.builder.is_split = True
            alone = self.partings > _MOST_PARTINGS

            for group in np.split(programs, len(programs)) if alone else _groups(programs, parting.values):
                self._run_together(group)

    def _run_in_order(self, programs, is_optimized=True):
        for program in programs:
            self.log.clear()
            self.builder.begin_chunk(self.log, is_split=False, tracks_accesses=False)

            try:
                self._run_alone(program, is_optimized)
            except MemoryFault:
                raise
            except Exception as error:
                raise _failure(self.kernel, error, np.unravel_index(program, self.grid)) from error

    def _run_alone(self, program, is_optimized):
        try:
            self._execute(np.array([program]), is_optimized)
        except MemoryFault:
            raise
        except Exception:
            if not is_optimized:
                raise

            # An expression moved in front of a loop may fail where the loop would not have begun.
            self.builder.undo(0)
            self._execute(np.array([program]), is_optimized=False)

    def _execute(self, programs, is_optimized=True):
        indices = np.unravel_index(programs, self.grid)
        # Along a grid axis with a single program the index is the same for all.
        self.builder.start(
            self.grid,
            [
                index.astype(np.int32) if size > 1 else np.zeros(1, np.int32)
                for index, size in zip(indices, self.grid, strict=True)
            ],
            programs,
        )
        self.builder.is_optimized = is_optimized
        self.kernel.rewritten(is_optimized)(**self.values)


def _groups(programs, values):
    """Return the programs grouped by the way that they take, the first program's group first."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)

    return [programs[inverse == group] for group in np.argsort(first)]


def _failure(kernel, error, index):
    line = kernel_line(error.__traceback__)
    where = f" at {line}" if line else ""
    program = tuple(int(place) for place in index)

    return _triton.InterpreterError(f"{kernel.name}{where}, program {program}: {type(error).__name__}: {error}")
