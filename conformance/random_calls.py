"""Make a call of a random operator again, from the state of torch's generator that the first one had.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import torch

REPLAYED = "replayed"


def _replayed(function, tools):
    """Let the call be made twice, as activation checkpointing does: from one state of the generator, which is set again
    in between. Return both results."""

    def call(*args, **kwargs):
        device = next((one.device for one in tools.operands(args, kwargs)), torch.device("cpu"))
        generator = torch.cuda if device.type == "cuda" else torch
        where = (device,) if device.type == "cuda" else ()
        # Not that of a generator that was just seeded.
        torch.rand((), device=device)
        state = generator.get_rng_state(*where)
        first = function(*args, **kwargs)
        generator.set_rng_state(state, *where)
        return first, function(*args, **kwargs)

    return call


KINDS = {REPLAYED: _replayed}
"""As ``dispatcher_calls.KINDS``."""
