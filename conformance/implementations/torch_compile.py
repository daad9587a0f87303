"""torch's own functions as torch.compile makes them: ``--implementation conformance.implementations.torch_compile``.

A call that it leaves to torch, in whole or in part, is not provided: every judged call was compiled. On the CPU that
takes a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import exc

from conformance import spec as specs
from conformance.implementations import NotProvided, torch_function
from conformance.ops import _attention as attention

conformance_claims = {"*": ("deterministic",)}

# For one function, and for all; the default of 8 is reached after as many cases, and thousands take long to search.
torch._dynamo.config.recompile_limit = 512  # ty: ignore[invalid-assignment]
torch._dynamo.config.accumulated_recompile_limit = 512  # ty: ignore[invalid-assignment]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function``; the result raises what that raises where it refuses a call.

    :raises NotProvided: torch takes the call, and cannot compile it as a whole.
    """

    def inside(*args: Any, **kwargs: Any) -> Any:
        # torch.compile may silently run code as it is, under modes of some kinds for one.
        if not torch.compiler.is_compiling():
            raise RuntimeError("torch.compile did not compile the call")
        return function(*args, **kwargs)

    fast = torch.compile(inside, dynamic=True, fullgraph=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return _unmarked(fast(*args, **kwargs))
            except exc.FailOnRecompileLimitHit:
                torch.compiler.reset()
                return _unmarked(fast(*args, **kwargs))
        # All that goes wrong while it compiles: torch's refusals come as this too.
        except exc.TorchDynamoException as error:
            function(*args, **kwargs)
            if isinstance(error, exc.Unsupported):
                raise NotProvided(f"torch.compile leaves this call to torch: {error}") from error
            raise

    return call


def _unmarked(result: Any) -> Any:
    """The result without what torch 2.13 notes on it for later graphs: which of its sizes were dynamic."""
    for tensor in result if isinstance(result, tuple) else (result,):
        for name in [name for name in vars(tensor) if name.startswith("_dynamo_")]:
            delattr(tensor, name)
    return result


def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Compose the cache and causal variants, which torch has not, around the compiled attention."""
    return attention.by(_attention, attention.Arguments(*args, **kwargs))


_attention = compiled(attention.torch_attention)
_functions = {op: compiled(function) for op in specs.registry() if (function := torch_function(op))}
globals().update({op: call for op, call in _functions.items() if op != "scaled_dot_product_attention"})
