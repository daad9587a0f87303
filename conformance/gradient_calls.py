"""Ask autograd for the gradients of a call: once, twice, after other calls, added up in ``.grad``, and theirs in turn.

Loaded by its path into the judged process, so it needs torch and nothing else. One file: such files load no others.
"""

import functools
import threading
import time
from pathlib import Path

import torch
from torch.utils import checkpoint

LAYERS, SMALL = 20, 1 << 12
"""The calls of one shape that a deep model makes before it differentiates the first of them, of results of up to so
many elements."""
RESEEDED = 0x5EED
"""A seed of torch's generators between a call and its backward pass."""
STEEPER = -2.0
"""The factor of the second gradient of the result where gradients are asked for twice. A power of two, so that it
rounds nothing."""
_ENDING, _PAUSE = 10_000, 1e-4
"""The most looks at whether a thread has ended, and the seconds between two of them."""


EVALUATED = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
"""Modes in which the same call of the same tensors is made before, as models are evaluated between steps."""
FROZEN = "frozen"
"""The same call is made and differentiated before, where the first of several operands needs no gradient: as of a
layer that begins with data and goes on with activations."""
STEPPED = "stepped"
"""The same call of the same tensors, with other contents, is made and differentiated before, as before an optimizer's
step."""
STEPPED_BY = -2.0
"""The factor of these contents. A power of two, so that it rounds nothing."""
FREED = 4
"""The calls of the same sizes that are made after the result of the first one is freed."""
ADDED_UP = 0.5
"""Fills the ``.grad`` that a parameter has before gradients are asked for; it has to stay as it is."""


def _kept_elsewhere(function):
    """Return the function as called where what autograd saves is kept as dense copies, as by offloading."""

    def call(*args, **kwargs):
        with torch.autograd.graph.saved_tensors_hooks(_dense_copy, lambda one: one):
            return function(*args, **kwargs)

    return call


def _dense_copy(one):
    return one.detach().clone(memory_format=torch.contiguous_format)


def _checkpointed(function):
    """Return the function as one that is called again in the backward pass, which keeps nothing else."""
    return functools.partial(checkpoint.checkpoint, function, use_reentrant=False)


SAVED = {"": lambda function: function, "elsewhere": _kept_elsewhere, "checkpoint": _checkpointed}
"""Maps what becomes of the tensors that autograd saves to functions that make such a function of one."""


def leaf(tensor, origin):
    """Return a tensor of the same memory that requires a gradient, as autograd and ``origin`` have it: "leaf",
    "parameter", or "result" of another operator."""
    return torch.nn.Parameter(tensor.detach()) if origin == "parameter" else tensor.detach().requires_grad_()


def operand(one, origin):
    """Return the operand of a call of the same memory: the tensor itself, or what another operator made of it."""
    return one.view_as(one) if origin == "result" and one.requires_grad else one


def frozen(function, arguments, given, wish):
    """Make the call with the first of the wanted operands frozen; return what makes its backward pass.

    :param arguments: Returns ``args`` and ``kwargs`` for the operands.
    """
    first = wish["wanted"][0]
    some = [one.detach() if number == first else one for number, one in enumerate(given)]
    args, kwargs = arguments([operand(one, wish["origin"]) for one in some])
    value = function(*args, **kwargs)
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return lambda: None
    return functools.partial(plain, value, [some[number] for number in wish["wanted"][1:]], given[wish["dout"]])


def stepped(function, arguments, given, wish):
    """Make the call where the wanted operands have other contents; return what makes its backward pass, and puts their
    own contents back. Where the call raises, nobody looks at them.

    :param arguments: As of ``frozen``.
    """
    wanted = [given[number] for number in wish["wanted"]]
    # torch writes no tensor of which it is sure that several elements have one address.
    kept = [(one, one.detach().clone()) for one in wanted if torch._debug_has_internal_overlap(one) != 1]
    memories = [one.untyped_storage().clone() for one, _ in kept]
    with torch.no_grad():
        for one, was in kept:
            one.copy_(was * STEPPED_BY)
    args, kwargs = arguments([operand(one, wish["origin"]) for one in given])
    value = function(*args, **kwargs)

    def end():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            plain(value, wanted, given[wish["dout"]])
        with torch.no_grad():
            for (one, was), memory in zip(kept, memories, strict=True):
                one.copy_(was)
                # Where it is negated lazily a copy may lose the sign of NaN.
                one.untyped_storage().copy_(memory)

    return end


BEFORE = {FROZEN: frozen, STEPPED: stepped}
"""Maps what is differentiated before to functions that make that call, and return what makes its backward pass."""


def forget(tensors):
    """Drop the gradients that were added up."""
    for one in tensors:
        one.grad = None


def plain(value, wanted, dout, _other=None, retain_graph=False):
    """Return the gradients of the ``wanted`` operands for the gradient ``dout`` of the result ``value``."""
    return torch.autograd.grad(value, wanted, dout, retain_graph=retain_graph, allow_unused=True)


def of_factors(value, wanted):
    """Return the gradients of the ``wanted`` operands where that of the result ``value`` is ``factors``."""
    return plain(value, wanted, factors(value))


def to_be_written(operand, is_view):
    """Return a tensor with the elements of an operand that depends on it, for a call to write in place, and the tensor
    of which it is a part, as a gate is of what one product has given; None: of none."""
    if not is_view:
        return operand.clone(), None
    base = torch.stack([operand, operand.detach()], -1)
    return part_of(base), base


def part_of(base):
    """Return the part of a tensor that ``to_be_written`` returns."""
    return base.select(-1, 0)


def twice(value, wanted, dout, _=None):
    """Return the gradients; the same again, from the same graph, after the first ones were changed in place, as by who
    clips them; those for ``STEEPER`` times ``dout``, which are asked for in between; and whether autograd refuses to
    give them once more, since the graph is freed."""
    first = _clipped(plain(value, wanted, dout, retain_graph=True), [*wanted, dout])
    steeper = plain(value, wanted, dout * STEEPER, retain_graph=True)
    again = plain(value, wanted, dout)
    # A pass that fails leaves what it had still to do, and with it tensors, in a queue of its thread.
    return *first, *again, *steeper, torch.tensor(_in_a_thread(lambda: _is_freed(value, wanted, dout)))


def _clipped(found, others):
    """Change gradients in place that are dense and no memory of ``others``; return them all as they were."""
    known = {one.untyped_storage()._cdata for one in others}

    def own(one):
        is_dense = one is not None and one.layout is torch.strided and not torch._debug_has_internal_overlap(one)
        return is_dense and one.untyped_storage()._cdata not in known

    kept = [one.clone() if own(one) else one for one in found]
    for one in filter(own, found):
        # A gradient of zeros is another one then, too.
        one.mul_(-0.5).add_(1)
    return kept


def _is_freed(value, wanted, dout):
    try:
        plain(value, wanted, dout)
    # A freed graph is refused by autograd with RuntimeError, and by a node that keeps its own with any exception. The
    # gradients were right before this, so that no other failure is hidden.
    except Exception:  # noqa: BLE001
        return True
    return False


def _between(value, wanted, dout, calls):
    """Return the gradients of a call after which another one with other contents was made without gradients, and one
    that was differentiated, ``LAYERS`` more were made, and one with other options, and torch was seeded; another one
    follows before they are looked at. Another thread asks for them, as in a pipeline of stages."""
    with torch.no_grad():
        calls.other()
    following, operands = calls.other()
    if following.requires_grad:
        plain(following, operands, dout)
    # Kept, as the graph of a model keeps them.
    layers = [calls.other() for _ in range(LAYERS if value.numel() <= SMALL else 0)]
    layers.append(calls.beside())
    # As who draws data does: what a random call draws anew in its backward pass is of its own seed.
    torch.manual_seed(RESEEDED)
    found = _in_a_thread(lambda: plain(value, wanted, dout))
    del layers
    following, operands = calls.other()
    if following.requires_grad:
        plain(following, operands, dout)
    return found


def _in_a_thread(function):
    """Return what a function returns in a thread of its own, after its end. Raises what it raises."""
    found, raised = [], []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def work():
        try:
            if device is not None:
                torch.cuda.set_device(device)
            found.append(function())
        # Raised again below.
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    # Python has left the thread then, and the system may not yet: what it holds of its own, it frees at its very end.
    running = Path(f"/proc/self/task/{thread.native_id}")
    for _ in range(_ENDING):
        if not running.exists():
            break
        time.sleep(_PAUSE)
    if raised:
        raise raised[0]
    return found[0]


def _accumulated(value, wanted, dout, _):
    """Return the gradients as ``backward`` leaves them in ``.grad``, where there were zeros, for one operand after the
    other, as a pipeline has it that needs those of weights later; and then for all and zeros, which adds nothing."""
    for one in wanted:
        one.grad = torch.zeros_like(one)
    for one in wanted:
        value.backward(dout, retain_graph=True, inputs=[one])
    first = [one.grad.detach().clone() for one in wanted]
    value.backward(torch.zeros_like(dout))
    # Where a derivative is infinite, zero times it is NaN.
    return [torch.where(one.grad.isnan(), own, one.grad) for one, own in zip(wanted, first, strict=True)]


def _of_two_results(value, wanted, dout, calls):
    """Return the gradients, and after them ``1 + STEEPER`` times as large ones: of two results of the same operands,
    asked for in one pass, as of a weight that two layers share, that of the second result being ``STEEPER`` times that
    of the first. The gradients alone where the second call has none."""
    second = calls.again(calls.given)
    alone = plain(value, wanted, dout, retain_graph=True)
    if not second.requires_grad:
        return alone
    return *alone, *torch.autograd.grad([value, second], wanted, [dout, dout * STEEPER], allow_unused=True)


def _chained(value, wanted, dout, calls):
    """Return the gradients, and after them, of a second call whose operand ``calls.place`` is the result to which
    another tensor is added: those of the operands of the first call and of that tensor, the same two in two passes, and
    the result before and after the second call. The gradients alone where the second call has none."""
    first = plain(value, wanted, dout, retain_graph=True)
    before = value.detach().clone()

    def following(operand):
        given = enumerate(calls.given)
        return calls.again([operand if number == calls.place else one.detach() for number, one in given])

    middle = before.clone().requires_grad_()
    last = following(middle)
    if not last.requires_grad:
        return first
    (step,) = plain(last, [middle], dout)
    steps = [None for _ in wanted] if step is None else plain(value, wanted, step.clone(), retain_graph=True)
    # Of any x, x - 0 is x. The last pass frees both graphs.
    beside = torch.full_like(value, -0.0).requires_grad_()
    last = following(value + beside)
    at_once = torch.autograd.grad(last, [*wanted, beside], dout, allow_unused=True)
    return *first, *at_once, *steps, step, before, value.detach()


def _shared(held, wanted, dout, calls):
    """Return the gradients where the result is added to another tensor, as beside a residual connection, and last the
    gradient of that tensor: both are the same tensor for autograd, and nobody else holds it. The result is freed, and
    others are made where it lay.

    :param held: A list with the only reference to the result, and then the operands of other calls.
    """
    beside = torch.zeros_like(held[0]).requires_grad_()
    total = (held[0] + beside) * 1
    # Freed last, so that it is handed out first.
    held.pop(0)
    for operands in held:
        calls.again(operands)
    return torch.autograd.grad(total, [*wanted, beside], dout, allow_unused=True)


def _negated(value, wanted, dout, _):
    """Return the gradients for a gradient of the result that is negated when it is read."""
    once = dout
    for dim, (size, stride) in enumerate(zip(dout.shape, dout.stride(), strict=True)):
        once = once.narrow(dim, 0, 1) if stride == 0 and size > 1 else once
    # With the strides that were asked for.
    opposite = torch.empty_strided(once.shape, once.stride(), dtype=dout.dtype, device=dout.device).copy_(-once)
    return plain(value, wanted, torch._neg_view(opposite.expand(dout.shape)))


def second_order(value, wanted, dout, _=None):
    """Return the gradients of a sum of ``dout * (value + value ** 2 / 2)``, in which that of the result depends on the
    operands; after them the gradients of a sum of these, each element times a factor of its own, and after these theirs
    in the same way. An order has zeros where an operand has no gradient, and None for all of them where autograd cannot
    or may not differentiate the order before; then it is the last. Where autograd knows nothing of the first ones,
    these alone."""
    found = torch.autograd.grad(value, wanted, dout * (1 + value), create_graph=True, allow_unused=True)
    if not any(one is not None and one.requires_grad for one in found):
        return [one if one is None else one.detach() for one in found]
    orders = [found, *_again(found, wanted)]
    return [one if one is None else one.detach() for order in orders for one in order]


def _again(found, wanted):
    """Yield the gradients of gradients, and theirs."""
    none = [None for _ in wanted]
    second = _of_sum(found, wanted, True)
    if second is None:
        # Who has no third derivative may refuse to record the second.
        yield _of_sum(found, wanted, False) or none
        return
    yield second
    yield _of_sum(second, wanted, False) or none


def _of_sum(found, wanted, create_graph):
    """Return the gradients of a sum of ``found``, each element times its factor; None where there are none."""
    known = [one for one in found if one is not None and one.requires_grad]
    if not known or any(map(_may_not_be_differentiated, known)):
        return None
    total = sum((one * factors(one)).sum() for one in known)
    try:
        again = torch.autograd.grad(total, wanted, retain_graph=True, create_graph=create_graph, allow_unused=True)
    # Who has no such derivative says so, whatever the class of the exception.
    except Exception:  # noqa: BLE001
        return None
    return [torch.zeros_like(own) if one is None else one for one, own in zip(again, wanted, strict=True)]


def _may_not_be_differentiated(tensor):
    """Tell whether the graph of a tensor has a node that raises, as of ``once_differentiable``: autograd does not come
    to it on the way to operands, and finds them unused."""
    left, seen = [tensor.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("autograd::Error"):
            return True
        seen.add(node)
        left += [one for one, _ in node.next_functions]
    return False


def factors(tensor):
    """Return a number for each element, of both signs: of equal ones the gradients of a softmax have the sum 0."""
    places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    return ((places * 5 % 7 - 3) / 4).to(tensor.dtype)


VJP, GRAD, BATCH, ROWS, OUTSIDE, FORWARD = "vjp", "grad", "batch", "rows", "outside", "forward"
TRANSFORMED = "transformed"
TRANSFORMS = {
    VJP: "torch.func.vjp",
    GRAD: "torch.func.grad",
    BATCH: "torch.func.grad under torch.func.vmap",
    ROWS: "torch.func.vmap of what torch.func.vjp returns, as in a Jacobian",
    OUTSIDE: "torch.func.grad of torch.func.vmap",
    FORWARD: "torch.func.jvp",
}


def _transformed(function, tools, wanted, how):
    """Let a transform of torch.func differentiate the call: return its result, and the gradients of a sum of the
    result's elements, each times its factor.

    :param wanted: The places of the tensor arguments that are differentiated.
    :param how: One of ``TRANSFORMS``. In a batch the call is the first of three; the second has other contents. Of
        rows the first is the gradient. Forward there is one derivative: along ``factors`` of all of the operands.
    """

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)

        def of_wanted(*tensors):
            own = dict(zip(wanted, tensors, strict=True))
            changed = [own.get(place, tensor) for place, tensor in enumerate(given)]
            args_of_call, kwargs_of_call = tools.replaced(args, kwargs, given, changed)
            return function(*args_of_call, **kwargs_of_call)

        operands = [given[place] for place in wanted]
        if how == FORWARD:
            return torch.func.jvp(of_wanted, tuple(operands), tuple(map(factors, operands)))
        if how in (VJP, ROWS):
            value, pull_back = torch.func.vjp(of_wanted, *operands)[:2]
            terms = factors(value)
            if how == ROWS:
                rows = torch.func.vmap(pull_back)(torch.stack([terms, terms * STEEPER]))
                return value, *(one.select(0, 0).clone() for one in rows)
            # After the end of the transform, as a training loop may keep it.
            return value, *pull_back(terms)
        value = function(*args, **kwargs)
        terms = factors(value)
        gradients = torch.func.grad(lambda *tensors: (of_wanted(*tensors) * terms).sum(), tuple(range(len(wanted))))
        if how == GRAD:
            return value, *gradients(*operands)
        others = tools.copied(given, True)
        batches = [torch.stack([given[place], others[place], given[place]]) for place in wanted]
        batched = torch.func.vmap(gradients)
        if how == OUTSIDE:
            places = tuple(range(len(wanted)))
            batched = torch.func.grad(lambda *tensors: (torch.func.vmap(of_wanted)(*tensors) * terms).sum(), places)
        return value, *(one.select(0, 0).clone() for one in batched(*batches))

    return call


INSIDE = "inside"


def _inside(function, tools):
    """Let a backward pass make the call, as a user's own torch.autograd.Function does."""

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, work):
            ctx.work = work
            return tensor.clone()

        @staticmethod
        def backward(ctx, *gradients):
            ctx.work()
            return *gradients, None

    def call(*args, **kwargs):
        found, given = [], tools.operands(args, kwargs)
        # A GPU's nodes have a thread of their own.
        begin = torch.zeros((), device=given[0].device if given else None, requires_grad=True)
        with torch.enable_grad():
            end = Pass.apply(begin, lambda: found.append(function(*args, **kwargs)))
        end.backward()
        return found[0]

    return call


CONTEXTS = {TRANSFORMED: _transformed, INSIDE: _inside}
"""As ``dispatcher_calls.KINDS``."""
KINDS = {
    "twice": twice,
    "between": _between,
    "accumulated": _accumulated,
    "both": _of_two_results,
    "chained": _chained,
    "shared": _shared,
    "negated": _negated,
    "second order": second_order,
}
