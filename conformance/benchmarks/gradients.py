"""Gradients of bfloat16 calls as models make them: ``python -m conformance.benchmarks.gradients FILE``.

Writes, for each operator that trains, the relative error of its gradients against float64, beside torch's; and for
those whose backward pass is a kernel of its own, the time of that pass beside torch's eager one, measured in turn.
Needs a CUDA GPU.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import ntops
from conformance import environment
from conformance import spec as specs

SIZES = ((8192, 4096), (4096, 16384))
HEADS = (
    *((4, 32, heads, 4096, dim, causal) for heads, dim in ((32, 128), (8, 128), (32, 64)) for causal in (False, True)),
    *((1, 16, 16, 16384, 128, causal) for causal in (False, True)),
)
"""Calls of attention: batch, query heads, key heads, length, head dim, whether causal."""
LOSSES = ((8192, 32000), (8192, 152064))
"""Calls of ``cross_entropy``: rows, classes."""
ROUNDS = 30

Call = tuple[tuple[Any, ...], dict[str, Any]]


def tensor(*shape: int, seed: int = 0, positive: bool = False, scale: float = 1.0) -> torch.Tensor:
    """Return a bfloat16 tensor of normal numbers that requires a gradient."""
    generator = torch.Generator("cuda").manual_seed(seed)
    found = torch.randn(shape, generator=generator, device="cuda") * scale
    return (found.abs() + 0.5 if positive else found).bfloat16().requires_grad_()


def calls() -> dict[str, Call]:
    """Return a call of each operator, with sizes as models have them; gradients of broadcast rows are summed."""
    x, row = tensor(4096, 4096), tensor(4096, seed=1, positive=True)
    found: dict[str, Call] = {name: ((x, row), {}) for name in ("add", "sub", "mul", "div")}
    found |= {
        name: ((x,), {}) for name in ("abs", "neg", "exp", "sin", "cos", "sigmoid", "tanh", "relu", "silu", "gelu")
    }
    found |= {"rsqrt": ((tensor(4096, 4096, positive=True),), {}), "clamp": ((x, -1.0, 1.0), {})}
    found |= {"pow": ((tensor(4096, 4096, positive=True), row), {}), "softmax": ((x, -1), {})}
    found |= {"layer_norm": ((x, (4096,), row, tensor(4096, seed=2)), {}), "rms_norm": ((x, (4096,), row), {})}
    square, wide = tensor(4096, 4096, seed=3), tensor(4096, 14336, seed=4, scale=1 / 64)
    found |= {"mm": ((x, square), {}), "addmm": ((tensor(4096, seed=5), x, square), {})}
    found |= {
        "matmul": ((tensor(4, 1024, 4096), wide), {}),
        "bmm": ((tensor(8, 1024, 1024), tensor(8, 1024, 1024)), {}),
    }
    found["dropout"] = ((x, 0.25), {})
    angles = torch.arange(2048, device="cuda")[:, None] * 10000.0 ** (-torch.arange(64, device="cuda") / 64)
    sin, cos = angles.sin(), angles.cos()
    found["rotary_position_embedding"] = ((tensor(2, 2048, 32, 128), sin, cos, False), {})
    found["fused_rmsnorm_rope"] = ((tensor(2, 2048, 4096), row, cos, sin), {"head_dim": 128})
    weights = (tensor(14336, 4096, seed=seed, scale=1 / 64) for seed in (6, 7))
    found["fused_gated_mlp"] = ((tensor(2, 1024, 4096), *weights), {})
    labels = torch.arange(4096, device="cuda") * 7919 % 32000
    found["linear_cross_entropy"] = ((x, tensor(32000, 4096, seed=11, scale=1 / 64), labels), {})
    heads = tuple(tensor(1, count, 2048, 128, seed=seed) for count, seed in ((8, 8), (2, 9), (2, 10)))
    found["scaled_dot_product_attention"] = (heads, {"is_causal": True, "enable_gqa": True})
    return found


def gradients(function: Callable[..., torch.Tensor], call: Call) -> list[torch.Tensor]:
    """Return the gradients of a call's operands, for one gradient of the result."""
    args, kwargs = call
    result = function(*args, **kwargs)
    given = torch.randn(result.shape, generator=torch.Generator("cuda").manual_seed(99), device="cuda")
    wanted = [one for one in args if isinstance(one, torch.Tensor) and one.requires_grad]
    given = given.bfloat16().to(result.dtype)
    return list(torch.autograd.grad(result, wanted, given))


def doubled(call: Call) -> Call:
    """Return the same call in float64."""

    def wide(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    args, kwargs = call
    return tuple(map(wide, args)), kwargs


def reference(name: str) -> Callable[..., torch.Tensor]:
    """Return torch's function, or, where torch has none, a composition of its functions, with gradients."""
    if name == "scaled_dot_product_attention":
        return torch.nn.functional.scaled_dot_product_attention
    return _rotated if name == "rotary_position_embedding" else specs.registry()[name].reference


def _rotated(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate the halves of each head."""
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    sin, cos = sin[:, None], cos[:, None]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1).to(x.dtype)


def errors(name: str, call: Call) -> dict[str, list[float]]:
    """Return the distance of each operand's gradient from that in float64, relative to its norm: for ntops and for
    torch."""
    if name == "dropout":
        return _dropout(call)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = gradients(reference(name), doubled(call))
    found = {"ntops": gradients(getattr(ntops.torch, name), call), "torch": gradients(reference(name), call)}
    return {who: [_distance(*pair) for pair in zip(ones, wanted, strict=True)] for who, ones in found.items()}


def _dropout(call: Call) -> dict[str, list[float]]:
    (x, p), _ = call
    result = ntops.torch.dropout(x, p)
    given = torch.ones_like(result)
    (found,) = torch.autograd.grad(result, x, given)
    wanted = torch.where(result == 0, 0.0, 1 / (1 - p)).double()
    return {"ntops": [_distance(found[x != 0], wanted[x != 0])]}


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def backward(function: Callable[..., torch.Tensor], call: Call) -> Callable[[], object]:
    """Return the backward pass of a call as a function that can be called repeatedly."""
    args, kwargs = call
    result = function(*args, **kwargs)
    given = torch.randn_like(result)
    wanted = [one for one in args if isinstance(one, torch.Tensor) and one.requires_grad]
    return lambda: torch.autograd.grad(result, wanted, given, retain_graph=True)


def timed() -> dict[str, tuple[Call, float, str]]:
    """Return the calls whose backward pass is timed, by operator and sizes, each with its work: floating-point
    operations, or bytes that have to move."""
    found: dict[str, tuple[Call, float, str]] = {}
    for batch, count, key_heads, length, dim, causal in HEADS:
        sizes = ((batch, number, length, dim) for number in (count, key_heads, key_heads))
        heads = tuple(tensor(*size, seed=seed) for seed, size in enumerate(sizes))
        # The backward pass has five products; a causal mask leaves half of the scores.
        work = 10 * batch * count * length**2 * dim / (2 if causal else 1)
        label = f" {batch}x{count}/{key_heads}x{length}x{dim}{' causal' if causal else ''}"
        options = {"is_causal": causal, "enable_gqa": key_heads != count}
        found["scaled_dot_product_attention" + label] = (heads, options), work, "TFLOP/s"
    for rows, columns in SIZES:
        x, row, bias = tensor(rows, columns), tensor(columns, seed=1), tensor(columns, seed=2)
        moved, size = 3.0 * 2 * rows * columns, f" {rows}x{columns}"
        found["softmax" + size] = ((x, -1), {}), moved, "TB/s"
        found["rms_norm" + size] = ((x, (columns,), row), {}), moved, "TB/s"
        found["layer_norm" + size] = ((x, (columns,), row, bias), {}), moved, "TB/s"
    for rows, columns in LOSSES:
        labels = torch.arange(rows, device="cuda") * 7919 % columns
        moved = 2.0 * 2 * rows * columns
        found[f"cross_entropy {rows}x{columns}"] = ((tensor(rows, columns), labels), {}), moved, "TB/s"
    return found


def measured(call: Call, name: str) -> dict[str, float]:
    """Return the median times of both backward passes, in milliseconds, measured in turn."""
    passes = {"ntops": backward(getattr(ntops.torch, name), call), "torch": backward(reference(name), call)}
    for one in passes.values():
        for _ in range(3):
            one()
    taken: dict[str, list[float]] = {who: [] for who in passes}
    # Overwrites the caches, so that they hold nothing of the call before.
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for _ in range(ROUNDS):
        for who, one in passes.items():
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            one()
            end.record()
            torch.cuda.synchronize()
            taken[who].append(start.elapsed_time(end))
    return {who: statistics.median(times) for who, times in taken.items()}


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found: dict[str, Any] = {"environment": environment.environment(), "times": {}, "errors": {}}
    for label, (call, work, unit) in timed().items():
        name = label.partition(" ")[0]
        times = measured(call, name)
        rates = {who: work / time / 1e9 for who, time in times.items()}
        found["times"][label] = {"ms": times, unit: rates, "ratio": times["torch"] / times["ntops"]}
        print(label, {who: f"{time:.4f} ms, {rates[who]:.4g} {unit}" for who, time in times.items()}, flush=True)
    for name, call in calls().items():
        found["errors"][name] = errors(name, call)
        print(name, found["errors"][name], flush=True)
    worst = max(math.inf if not math.isfinite(e) else e for one in found["errors"].values() for e in one["ntops"])
    print(f"largest relative error of a gradient: {worst:.4g}")
    Path(arguments[0]).write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {arguments[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
