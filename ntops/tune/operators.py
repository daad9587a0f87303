"""ntops' own operators for tuning: their arguments for a shape, and the shapes worth measuring."""

import dataclasses
import functools
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import ntops.torch
from ntops import timing
from ntops._runtime import INTERPRETED
from ntops.launch import config_selection
from ntops.tune import engine
from ntops.tune.result import Result

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "tf32": torch.float32}
"""The dtypes by name; products of ``float32`` are IEEE, and ``tf32`` is what large models use."""
_TOLERANCE = {torch.float16: 2**-8, torch.bfloat16: 2**-6, torch.float32: 2**-8}
"""The tolerance as a share of the largest element: it separates wrong results from other orders of rounding.
Conformance judges exactly."""
_L2 = 128 << 20
"""Bytes that exceed any GPU's L2 cache."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator that can be tuned.

    :param dims: The names of the sizes of a shape.
    :param shapes: The shapes to measure by default, each with its dtype.
    :param arguments: ``arguments(tensor, *shape)`` returns its arguments; ``tensor(*sizes)`` makes a tensor.
    :param reference: torch's function.
    :param elements: ``elements(*shape)`` returns the least number of elements read and written; ``flops`` likewise.
    :param options: ``options(*shape)`` returns its keyword arguments.
    """

    name: str
    dims: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    arguments: Callable[..., tuple[Any, ...]]
    reference: Callable[..., torch.Tensor]
    elements: Callable[..., int]
    flops: Callable[..., int] = lambda *shape: 0
    options: Callable[..., Mapping[str, Any]] = lambda *shape: {}


@dataclasses.dataclass(frozen=True)
class Task:
    """An operator at one shape, with all that another process needs to know."""

    op: str
    shape: tuple[int, ...]
    dtype: str

    def call(self) -> Callable[..., torch.Tensor]:
        """Return the operator such that each call chooses and launches anew."""
        function = inspect.unwrap(getattr(ntops.torch, self.op))
        precision = "highest" if self.dtype == "float32" else "high"

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> torch.Tensor:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision(precision)

            try:
                return function(*args, **kwargs)
            finally:
                torch.set_float32_matmul_precision(before)

        return call

    def inputs(self, make: Callable[..., torch.Tensor]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments; ``make`` is ``torch.empty`` or the like."""
        operator = OPERATORS[self.op]
        tensor = functools.partial(_tensor, make, DTYPES[self.dtype])

        return operator.arguments(tensor, *self.shape), operator.options(*self.shape)

    def forced(self, kernel: str, options: Any) -> Callable[..., torch.Tensor]:
        """Return the operator with a fixed configuration."""
        plain = self.call()

        def call(*args: Any, **kwargs: Any) -> torch.Tensor:
            with config_selection.forced(kernel, options):
                return plain(*args, **kwargs)

        return call

    def asked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, config_selection.Problem]:
        """Return the kernel and the problem for which the operator chooses with these arguments.

        :raises ValueError: It chooses nothing.
        """
        found = config_selection.asked(self.call(), *args, **kwargs)

        if found is None:
            raise ValueError(f"{self.op} of {self.shape} launches nothing that is tuned")

        return found

    def work(self) -> engine.Work:
        """Return the work to measure."""
        operator = OPERATORS[self.op]
        kernel, problem = self.asked(*self.inputs(torch.empty))
        device = config_selection.device(0)
        candidates = problem.candidates(device)
        size = operator.elements(*self.shape) * DTYPES[self.dtype].itemsize

        def check(value: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            expected = operator.reference(*args, **kwargs).float()
            error = float((value.float() - expected).abs().max() / expected.abs().max())
            limit = _TOLERANCE.get(value.dtype, 0)
            assert error <= limit, f"an error of {error:.3g} of the largest element, over {limit:.3g}"

        return engine.Work(
            kernel=kernel,
            kind=problem.kind(),
            sizes=problem.sizes(),
            candidates=[dataclasses.asdict(options) for options in candidates],
            inputs=lambda: [self.inputs(torch.randn) for _ in range(min(max(math.ceil(_L2 / size), 1), 4))],
            function=lambda options: self.forced(kernel, problem.OPTIONS(**options)),
            check=check,
            pruned=len(dict.fromkeys(problem.space(device))) - len(candidates) + 1,
            bytes=size,
            flops=operator.flops(*self.shape),
        )


def _tensor(make, dtype, *sizes):
    return make(*sizes, dtype=dtype, device="cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")


# The rows of inputs, and of weights (N, K) of models of 7 and of 70 billion parameters.
_WEIGHTS = ((4096, 4096), (11008, 4096), (4096, 11008), (8192, 8192), (28672, 8192), (8192, 28672))
_TOKENS = tuple(("bfloat16", (m, n, k)) for m in (1, 16, 128, 4096) for n, k in _WEIGHTS)
_SQUARES = tuple(("bfloat16", (n, n, n)) for n in (4096, 8192, 2048, 1024, 512))
_OTHERS = (("tf32", (4096, 4096, 4096)), ("float16", (4096, 4096, 4096)), ("tf32", (1024, 1024, 1024)))
_ROWS = tuple(
    (dtype, ((1 << 26) // columns, columns))
    for dtype in ("bfloat16", "float32")
    for columns in (4096, 16384, 1024, 8192, 65536, 32768, 2048)
)
_FULL = tuple((dtype, (1, 1 << 26)) for dtype in ("bfloat16", "float32"))
# Batch, query heads, key heads, queries, keys, head dim, and whether the mask is causal.
_ATTENTION = tuple(
    ("bfloat16", shape)
    for shape in (
        (4, 32, 32, 4096, 4096, 128, 0),
        (4, 32, 32, 4096, 4096, 128, 1),
        (16, 32, 8, 1, 8192, 128, 0),
        (4, 32, 32, 4096, 4096, 64, 0),
        (4, 32, 32, 4096, 4096, 64, 1),
        (4, 32, 8, 4096, 4096, 128, 1),
        (1, 32, 8, 1, 8192, 128, 0),
        (1, 32, 32, 16384, 16384, 128, 1),
        (64, 32, 8, 1, 8192, 128, 0),
    )
)


def _product_flops(m, n, k):
    return 2 * m * n * k


def _attention_flops(batch, heads, groups, queries, keys, dim, causal):
    # A causal call computes half of a square of scores.
    return 4 * batch * heads * queries * keys * dim // (2 if causal and queries > 1 else 1)


def _norm_arguments(number):
    return lambda tensor, rows, columns: (tensor(rows, columns), (columns,), *(tensor(columns) for _ in range(number)))


def _attend(query, key, value, **options):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)


def _reduction(name):
    return Operator(
        name,
        "RxC",
        (*_ROWS, *_FULL),
        lambda tensor, rows, columns: (tensor(rows, columns), -1),
        getattr(torch, name),
        lambda rows, columns: rows * columns + rows,
    )


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator(
            "mm",
            "MxNxK",
            (*_SQUARES, *_OTHERS, *_TOKENS),
            lambda tensor, m, n, k: (tensor(m, k), tensor(k, n)),
            torch.mm,
            lambda m, n, k: m * k + k * n + m * n,
            _product_flops,
        ),
        Operator(
            "addmm",
            "MxNxK",
            (*_SQUARES[:2], *((dtype, shape) for dtype, shape in _TOKENS if shape[1:] in _WEIGHTS[:3])),
            lambda tensor, m, n, k: (tensor(n), tensor(m, k), tensor(k, n)),
            torch.addmm,
            lambda m, n, k: n + m * k + k * n + m * n,
            _product_flops,
        ),
        Operator(
            "bmm",
            "BxMxNxK",
            tuple(
                ("bfloat16", shape)
                for shape in (
                    (16, 1024, 1024, 1024),
                    (128, 2048, 2048, 128),
                    (128, 2048, 128, 2048),
                    (64, 512, 512, 512),
                )
            ),
            lambda tensor, b, m, n, k: (tensor(b, m, k), tensor(b, k, n)),
            torch.bmm,
            lambda b, m, n, k: b * (m * k + k * n + m * n),
            lambda b, m, n, k: b * _product_flops(m, n, k),
        ),
        Operator(
            "softmax",
            "RxC",
            _ROWS,
            lambda tensor, rows, columns: (tensor(rows, columns), -1),
            torch.nn.functional.softmax,
            lambda rows, columns: 2 * rows * columns,
        ),
        Operator(
            "layer_norm",
            "RxC",
            _ROWS,
            _norm_arguments(2),
            torch.nn.functional.layer_norm,
            lambda rows, columns: 2 * rows * columns + 2 * columns,
        ),
        Operator(
            "rms_norm",
            "RxC",
            _ROWS,
            _norm_arguments(1),
            torch.nn.functional.rms_norm,
            lambda rows, columns: 2 * rows * columns + columns,
        ),
        Operator(
            "cumsum",
            "RxC",
            (*_ROWS, *_FULL),
            lambda tensor, rows, columns: (tensor(rows, columns), -1),
            torch.cumsum,
            lambda rows, columns: 2 * rows * columns,
        ),
        *map(_reduction, ("sum", "mean", "amax", "amin", "argmax", "logsumexp")),
        Operator(
            "scaled_dot_product_attention",
            "BxHqxHkvxLxSxExCAUSAL",
            _ATTENTION,
            lambda tensor, b, heads, groups, queries, keys, dim, causal: (
                tensor(b, heads, queries, dim),
                tensor(b, groups, keys, dim),
                tensor(b, groups, keys, dim),
            ),
            _attend,
            lambda b, heads, groups, queries, keys, dim, causal: 2 * b * dim * (heads * queries + groups * keys),
            _attention_flops,
            lambda b, heads, groups, queries, keys, dim, causal: {
                "is_causal": bool(causal),
                "enable_gqa": heads != groups,
            },
        ),
    )
}


def check_operator(op: str) -> None:
    """Refuse the name of an operator that is not tuned.

    :raises ValueError: It is not in ``OPERATORS``.
    """
    if op not in OPERATORS:
        raise ValueError(f"operator {op!r} is not tuned; valid are {', '.join(OPERATORS)}")


def task(op: str, shape: Sequence[int], dtype: str = "bfloat16") -> Task:
    """Return an operator at a shape.

    :raises ValueError: There is no such operator, shape or dtype; the message says what there is.
    """
    check_operator(op)

    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not tuned; valid are {', '.join(DTYPES)}")

    dims = OPERATORS[op].dims
    flag = dims.endswith("CAUSAL")

    if (
        len(shape) != len(dims.split("x"))
        or min(shape[:-1] if flag else shape) < 1
        or (flag and shape[-1] not in (0, 1))
    ):
        raise ValueError(f"shape {'x'.join(map(str, shape))} of {op} must be {dims}, all positive (CAUSAL is 0 or 1)")

    return Task(op, tuple(shape), dtype)


def tune(
    op: str,
    shape: Sequence[int],
    dtype: str = "bfloat16",
    *,
    budget: float = math.inf,
    again: bool = False,
    timer: Callable[..., Any] = timing.interleaved,
) -> Result:
    """Measure the configurations of an operator at a shape; later calls near this shape use the best.

    :param op: The operator's name.
    :param shape: ``mm`` and ``addmm``: (M, N, K); ``bmm``: (B, M, N, K); ``softmax``, norms and reductions (``sum``):
        (rows, columns); ``scaled_dot_product_attention``: (B, Hq, Hkv, L, S, E, causal), the last 0 or 1.
    :param dtype: ``float16``, ``bfloat16``, ``float32``, or ``tf32``: float32 with products of TF32.
    :param budget: Seconds after which no measurement begins.
    :param again: Whether to repeat earlier measurements.
    :param timer: A function with the parameters of :func:`ntops.timing.interleaved` that times functions in turn.
    :raises ValueError: There is no such operator, shape or dtype, or a default of warps or stages is set.
    :raises RuntimeError: Nothing was measured.
    """
    chosen = task(op, shape, dtype)
    check_defaults()
    work = chosen.work()
    deadline = time.monotonic() + budget
    found = engine.run([work], device=engine.device_name(), deadline=deadline, again=again, timer=timer)

    if not found:
        raise RuntimeError(f"nothing of {op} {tuple(shape)} was measured")

    return found[0]


def check_defaults() -> None:
    """Refuse the user's defaults, which would apply to every configuration.

    :raises ValueError: One is set.
    """
    for name in ("num_warps", "num_stages", "max_num_configs"):
        if getattr(ntops.torch, f"get_default_{name}")() is not None:
            raise ValueError(f"ntops.torch.set_default_{name}(None) first: the default counts for every configuration")
