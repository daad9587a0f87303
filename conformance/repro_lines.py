"""Lines of scripts that ask for gradients: how operands require them, and what is done before and after the call."""

from conformance import gradient_calls
from conformance.checks.gradient_kinds import Wish


def before(way: Wish, call: str) -> list[str]:
    """Return the lines of the call that is made before the one that is differentiated."""
    if way.evaluated == gradient_calls.STEPPED:
        return [
            "    apart = [x for x in wanted if torch._debug_has_internal_overlap(x) != 1]",
            "    kept = [x.detach().clone() for x in apart]",
            "    with torch.no_grad():",
            "        for x, was in zip(apart, kept, strict=True):",
            f"            x.copy_(was * {gradient_calls.STEPPED_BY})",
            f"    value = {call}",
            "    if value.requires_grad:",
            "        torch.autograd.grad(value, wanted, dout, allow_unused=True)",
            "    with torch.no_grad():",
            "        for x, was in zip(apart, kept, strict=True):",
            "            x.copy_(was)",
        ]
    if way.evaluated != gradient_calls.FROZEN:
        return [f"    with torch.{MODES[way.evaluated]}():", f"        {call}"] if way.evaluated else []
    return [
        f"    kept, operands = operands, [x.detach() if n == {way.wanted[0]} else x for n, x in enumerate(operands)]",
        f"    value = {call}",
        "    if value.requires_grad:",
        f"        torch.autograd.grad(value, [operands[n] for n in {list(way.wanted[1:])}], dout, allow_unused=True)",
        "    operands = kept",
    ]


LEAVES = {
    "leaf": "operands[n].detach().requires_grad_()",
    "parameter": "torch.nn.Parameter(operands[n].detach())",
}
SAVED = {
    "": ("    value = {call}",),
    "elsewhere": (
        "    def dense(x):",
        "        return x.detach().clone(memory_format=torch.contiguous_format)",
        "    with torch.autograd.graph.saved_tensors_hooks(dense, lambda x: x):",
        "        value = {call}",
    ),
    "checkpoint": (
        "    from torch.utils.checkpoint import checkpoint",
        "    value = checkpoint(lambda: {call}, use_reentrant=False)",
    ),
}
AGAIN = (
    "    # The first ones are changed in place, as by who clips them.",
    "    known = {x.untyped_storage().data_ptr() for x in [*wanted, dout]}",
    "    own = [x is not None and x.untyped_storage().data_ptr() not in known for x in found]",
    "    own = [it and not torch._debug_has_internal_overlap(x) for x, it in zip(found, own, strict=True)]",
    "    kept = tuple(x.clone() if it else x for x, it in zip(found, own, strict=True))",
    "    for x, it in zip(found, own, strict=True):",
    "        if it:",
    "            x.mul_(-0.5).add_(1)",
    "    found = kept + torch.autograd.grad(value, wanted, dout, allow_unused=True)",
)
HOLDING = (
    "    # The caller's lists and numbers are its own again before the backward pass.",
    "    held = []",
    "    def hold(x):",
    "        held.append(x)",
    "        return x",
)
MODES = {"no_grad": "no_grad", "inference": "inference_mode"}
SETTINGS = {
    "deterministic": "torch.use_deterministic_algorithms({value}, warn_only=True)",
    "default_dtype": "torch.set_default_dtype(torch.{value})",
}
"""The lines that set ``gradient_kinds.SETTINGS``."""
