"""A transformer of plain torch with a wrong kernel in one layer, in a shadow; and what the shadow costs.

python docs/examples/shadowed_model.py [--width 1024] [--layers 12] [--tokens 128] [--steps 8] [--repeats 3]
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

import conformance


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gelu = functional.gelu

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(self.gelu(self.up(self.after(x))))


def timed(model, x, steps, **how):
    """Seconds of some steps in a shadow, or without one."""
    began = time.perf_counter()
    if how:
        with conformance.shadow(model, report=None, **how) as report:
            for _ in range(steps):
                model(x)
    else:
        for _ in range(steps):
            model(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return seconds, (report if how else None)


@torch.no_grad()
def main(arguments=None):
    parser = argparse.ArgumentParser()
    for name, default in (("width", 1024), ("layers", 12), ("tokens", 128), ("steps", 8), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = nn.Sequential(*(Block(options.width) for _ in range(options.layers))).to(options.device)
    x = torch.randn(1, options.tokens, options.width, device=options.device)
    timed(model, x, 1)
    # What is imported, and compiled, the first time.
    timed(nn.Sequential(Block(64)).to(options.device), x[..., :64], 1, every=1)
    print(f"{sum(one.numel() for one in model.parameters()) / 1e6:.0f} M parameters, {options.steps} steps")
    for how in ({"every": 1}, {"every": options.steps}, {"slowdown": 3.0}, {"limit": 0}):
        # Each in turn: other work on the machine comes and goes.
        pairs = [
            (timed(model, x, options.steps), timed(model, x, options.steps, **how)) for _ in range(options.repeats)
        ]
        times = sorted(seconds / plain for (plain, _), (seconds, _) in pairs)
        told = f"{statistics.median(times):.1f} times as long as alone ({times[0]:.1f} to {times[-1]:.1f})"
        report = pairs[-1][1][1]
        calls = f"{report.judged.total()} of {report.calls.total()} calls judged, {len(report.failures)} wrong"
        print(f"{how}: {told}; the last time {calls} in {report.seconds:.2f} s beside {report.own:.2f} s", flush=True)

    wrong = options.layers // 2
    # The formula with tanh, where the exact one was asked for.
    model[wrong].gelu = lambda x: torch.ops.example.gelu(x)
    with conformance.shadow(model, report=None, ops="gelu") as report:
        model(x)
    print(report)
    return report.failures


library = torch.library.Library("example", "DEF")
library.define("gelu(Tensor input) -> Tensor")
library.impl("gelu", lambda input: functional.gelu(input, approximate="tanh"), "CompositeExplicitAutograd")

if __name__ == "__main__":
    main()
