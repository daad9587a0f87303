"""Find the fastest configuration of a user's own kernel."""

import functools
import hashlib
import inspect
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ninetoothed
import torch
from triton.runtime.jit import KernelInterface

from ntops import timing
from ntops.launch import tuned_tables
from ntops.tune import engine
from ntops.tune.result import Result


def configurations(**options: Sequence[Any]) -> list[dict[str, Any]]:
    """Return every combination: ``configurations(BLOCK=(128, 256), num_warps=(4, 8))`` returns four."""
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def made(premake: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    """Return a launch function for a NineToothed kernel: ``premake(**arguments, **blocks)`` returns arrangement,
    application and tensors. The kernel is made once for each configuration; ``num_warps`` and ``num_stages`` go to
    ``ninetoothed.make``."""

    @functools.cache
    def make(options: tuple[tuple[str, Any], ...]) -> Any:
        blocks = dict(options)
        compiler = {name: blocks.pop(name) for name in ("num_warps", "num_stages") if name in blocks}
        return ninetoothed.make(*premake(**arguments, **blocks), **compiler)

    @functools.wraps(premake)
    def launch(*args: Any, **options: Any) -> Any:
        return make(tuple(sorted(options.items())))(*args)

    return launch


class Autotuner:
    """A kernel with a space of configurations.

    A call runs the best configuration known for arguments of this size, or the first one if none is known, and measures
    nothing; :meth:`tune` measures.

    :param kernel: A launch function, called with the arguments and a configuration's options by keyword; or a
        ``@triton.jit`` kernel, with ``grid``; for one of NineToothed, see :func:`made`. It writes its result to
        arguments, or returns it.
    :param space: The configurations: mappings of options by name, ints, bools or strings. The first is the default.
    :param grid: The grid of a ``@triton.jit`` kernel: a tuple, or a function of the arguments and options by name.
    :param name: The name under which its configurations are kept; default: the kernel's name. Its source counts too.
    :param sizes: ``sizes(*args)`` returns the positive sizes on which the choice depends, a mapping of ints by name; a
        measurement counts for all sizes with the same next powers of two. Default: the number of elements of each
        tensor, and each int.
    :param fits: ``fits(options, *args)`` tells whether a configuration is worth trying; others do not run.
    :param check: ``check(result, args)`` raises an AssertionError if the result is wrong; ``result`` is what the kernel
        returned, else its tensors.
    :param bytes: ``bytes(*args)`` returns the bytes that the kernel moves, for the bandwidth; ``flops`` likewise.
    :param timer: A function with the parameters of :func:`ntops.timing.interleaved` that times functions in turn.
    :raises ValueError: The space is empty, or a ``@triton.jit`` kernel has no grid.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        space: Sequence[Mapping[str, Any]],
        *,
        grid: Any = None,
        name: str | None = None,
        sizes: Callable[..., Mapping[str, int]] | None = None,
        fits: Callable[..., bool] | None = None,
        check: Callable[[Any, tuple[Any, ...]], None] | None = None,
        bytes: Callable[..., int] | None = None,
        flops: Callable[..., int] | None = None,
        timer: Callable[..., Any] = timing.interleaved,
    ) -> None:
        if not space:
            raise ValueError("the space has no configuration")

        # Compiled or interpreted, the result of triton.jit holds the decorated function.
        is_triton = isinstance(kernel, KernelInterface)

        if is_triton != (grid is not None):
            raise ValueError("a @triton.jit kernel, and nothing else, needs a grid")

        self._launch: Callable[..., Any] = functools.partial(_launched, kernel, grid) if is_triton else kernel
        source = getattr(kernel, "fn", kernel)
        self.name = name or getattr(source, "__name__", "kernel")
        self.space = [dict(options) for options in space]
        self._digest = hashlib.sha256(_source(source).encode()).hexdigest()[:16]
        self._sizes, self._fits, self._check, self._timer = sizes or _default_sizes, fits, check, timer
        self._bytes, self._flops = bytes, flops
        self._chosen: dict[Any, dict[str, Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run the kernel with the best known configuration."""
        return self._launch(*args, **self.best(*args))

    def best(self, *args: Any) -> dict[str, Any]:
        """Return the best configuration known for these arguments; the first of the space if nothing was measured."""
        kind, sizes = _kind(args, self._digest), self._sizes(*args)
        key = (tuned_tables.identity(self.name, kind), tuned_tables.size_class(sizes), _index(args))

        if key not in self._chosen:
            best = tuned_tables.best(engine.device_name(key[2])).get(key[0], {}).get(key[1])
            known = best.options if best else None
            self._chosen[key] = known if known in self.space else self.space[0]

        return self._chosen[key]

    def tune(self, *args: Any, budget: float = float("inf"), again: bool = False) -> Result:
        """Measure the configurations that have not been measured for this size, on copies of the arguments.

        Floating-point arguments get new contents for each call that is timed.

        :param budget: Seconds after which no measurement begins; another call continues from there.
        :param again: Whether to repeat earlier measurements.
        :raises RuntimeError: No configuration works.
        """
        self._chosen.clear()
        device = engine.device_name(_index(args))
        usable = [one for one in self.space if self._fits is None or self._fits(one, *args)]
        work = engine.Work(
            kernel=self.name,
            kind=_kind(args, self._digest),
            sizes=self._sizes(*args),
            candidates=usable,
            inputs=lambda: [(_copied(args), {}) for _ in range(_sets(args))],
            function=self._function,
            check=lambda value, args, kwargs: self._check(value, args) if self._check else None,
            pruned=len(self.space) - len(usable),
            bytes=self._bytes(*args) if self._bytes else 0,
            flops=self._flops(*args) if self._flops else 0,
        )
        deadline = time.monotonic() + budget
        found = engine.run([work], device=device, deadline=deadline, again=again, timer=self._timer) if usable else []

        if not found:
            raise RuntimeError(f"no configuration of {self.name} was measured: of {len(self.space)}, {len(usable)} fit")

        return found[0]

    def _function(self, options):
        def call(*args: Any) -> Any:
            value = self._launch(*args, **options)
            # A kernel that returns nothing has written to its arguments.
            return value if isinstance(value, (torch.Tensor, tuple)) else tuple(_tensors(args))

        return call


def _launched(kernel, grid, *args, **options):
    return kernel[grid](*args, **options)


def _source(function):
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        # A function without source is known by its name alone.
        return getattr(function, "__qualname__", "")


def _tensors(args):
    return [value for value in args if isinstance(value, torch.Tensor)]


def _index(args):
    return next((tensor.device.index or 0 for tensor in _tensors(args)), 0)


def _default_sizes(*args):
    sizes = {}

    for number, value in enumerate(args):
        size = value.numel() if isinstance(value, torch.Tensor) else value if type(value) is int else None

        if size is not None:
            sizes[f"argument{number}"] = max(size, 1)

    return sizes or {"argument": 1}


def _kind(args, digest):
    types = [str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__ for value in args]
    return {"types": " ".join(types), "source": digest}


def _copied(args):
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in args)


def _sets(args):
    """Return the number of copies: together larger than any GPU's L2 cache, but only a few, and no more than fit
    memory."""
    size = sum(tensor.nbytes for tensor in _tensors(args))
    return min(max((256 << 20) // max(size, 1), 1), 4)
