"""Make a call of a random operator again: from the state of torch's generator that the first one had, or many times.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import torch

REPLAYED, MANY = "replayed", "many"


def _replayed(function, tools):
    """Let the call be made twice, as activation checkpointing does: from one state of the generator, which is set again
    in between. Return both results."""

    def call(*args, **kwargs):
        device = next((one.device for one in tools.operands(args, kwargs)), torch.device("cpu"))
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index])
        # Not those of generators that were just seeded.
        torch.rand(())
        torch.rand((), device=device)
        states = [one.get_state() for one in generators]
        first = function(*args, **kwargs)
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)
        return first, function(*args, **kwargs)

    return call


def _many(function, tools, times):
    """Let the call be made so many times; return how many different results there are."""

    def call(*args, **kwargs):
        found = (function(*args, **kwargs).detach().cpu().contiguous() for _ in range(times))
        # As bytes, which every dtype has.
        return torch.tensor(len({one.view(-1).view(torch.uint8).numpy().tobytes() for one in found}))

    return call


KINDS = {REPLAYED: _replayed, MANY: _many}
"""As ``dispatcher_calls.KINDS``."""
