"""Trace which places of an implementation's own code a call comes to, and which none came to before.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import sys

import torch

_SEEN = set()
"""The places that calls have come to: code objects, and the offsets of their instructions."""


def forget():
    """Take all places for new again."""
    _SEEN.clear()


def traced(function, tools, others, counted, hidden=None):
    """Return the function as one that notes the places to which it comes.

    The parts of a condition are places, too: that a shape fits and its strides do not is nearer to the way beyond it.

    :param tools: The ``tracer`` and ``without_collector`` of ``context_calls``: what the collector of cycles calls,
        whenever that is, is no place of the call.
    :param others: Packages that are not the implementation's; nothing below calls of Triton is noted.
    :param counted: A list, to which the number of new places is added.
    :param hidden: The globals of a module whose functions are no places either.
    """

    def kind_of(frame):
        if frame.f_globals is hidden:
            return "other"
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        return "hidden" if package == "triton" else "other" if package in others else "own"

    def step(frame, event, _):
        # A line begins with an instruction. Python 3.13 tells none of the first call of a function, and its lines.
        if event in ("opcode", "line"):
            _SEEN.add((frame.f_code, frame.f_lasti))
        return step

    @tools.without_collector()
    def call(*args, **kwargs):
        before, known = sys.gettrace(), len(_SEEN)
        # Python 3.12 tells instructions if some frame has asked for them before the trace function is set.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(tools.tracer(kind_of, step, opcodes=True))
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(before)
            counted.append(len(_SEEN) - known)

    return call


def differentiated(function):
    """Return the function as one that also computes the gradients of its floating-point operands, for ones, where it
    knows them. A call that raises is made again without them: it may know no operand that requires a gradient."""

    def call(*args, **kwargs):
        leaves, named = [*map(_leaf, args)], {name: _leaf(value) for name, value in kwargs.items()}
        given = (x for x in (*leaves, *named.values()) if isinstance(x, torch.Tensor) and x.requires_grad)
        wanted = list({id(x): x for x in given}.values())
        try:
            result = function(*leaves, **named)
            if wanted and isinstance(result, torch.Tensor) and result.requires_grad:
                torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)
        # Code of strangers may raise anything. Nothing is judged here: what is found is, gradients included.
        except Exception:  # noqa: BLE001
            return function(*args, **kwargs)
        return result

    return call


def _leaf(value):
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().requires_grad_() if floating else value
