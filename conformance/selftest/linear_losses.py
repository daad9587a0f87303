"""Plant what implementations of linear cross entropy get wrong: chunks of rows and of classes, and what they are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.ops import _linear_cross_entropy as oracle
from conformance.selftest import losses
from conformance.selftest.defect_registry import plant
from conformance.selftest.differentiable import Gradients, Step, backward

OP = "linear_cross_entropy"
CHUNK = 256
"""The rows or classes of a chunk."""


class Call(losses.Call):
    """The numbers of a call in float64, its classes in the last dim."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]):
        given = oracle.named(args, kwargs)
        self.rows, self.linear_weight = given["input"].detach().double(), given["linear_weight"].detach().double()
        self.bias = None if given["linear_bias"] is None else given["linear_bias"].detach().double()
        self.of = given["input"].dtype
        names = ("weight", "reduction", "label_smoothing", "ignore_index")
        named = {name: given[name] for name in names if given[name] is not None}
        super().__init__((self.logits(self.linear_weight, self.bias), given["target"]), named)

    def logits(self, linear_weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The logits of another layer."""
        found = torch.tensordot(self.rows, linear_weight, ([-1], [-1]))
        return found if bias is None else found + bias

    def put(self, logits: torch.Tensor) -> None:
        """Take other logits for its own."""
        self.x = logits.double().movedim(self.dim, -1)
        self.log_shares = self.x.log_softmax(-1)


def _wrong(kind: str) -> Callable[[Any], Any]:
    """Enter the decorated function as a defect: of a call with logits it gives the value, or None for the right one."""

    def enter(change: Any) -> Any:
        def linear_cross_entropy(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = right(*args, **kwargs)
            if result.dtype == torch.float64:
                return result
            call = Call(args, kwargs)
            value = change(call) if call.x.numel() else None
            return result if value is None else result.copy_(value)

        plant(OP, change.__name__, kind, "values", linear_cross_entropy, " ".join((change.__doc__ or "").split()))
        return change

    return enter


# --- forward -----------------------------------------------------------------------------------------------------


@_wrong("operands")
def bias_left_out(call: Call) -> torch.Tensor | None:
    """The bias is left out."""
    if call.bias is None:
        return None
    call.put(call.logits(call.linear_weight, None))
    return call.reduced(call.losses())


@_wrong("operands")
def bias_of_probabilities(call: Call) -> torch.Tensor | None:
    """The bias is added after the logarithm, where it cancels no more."""
    if call.bias is None:
        return None
    bias = call.bias.movedim(0, -1) if call.dim else call.bias
    call.log_shares = call.logits(call.linear_weight, None).movedim(call.dim, -1).log_softmax(-1) + bias
    return call.reduced(call.losses())


@_wrong("reading")
def pixels_before_classes(call: Call) -> torch.Tensor | None:
    """Rows of a weight of several dims are taken for pixels, and then classes."""
    weight = call.linear_weight
    if weight.ndim < 3:
        return None
    turned = weight.flatten(1, -2).mT.reshape(weight.shape)
    call.put(call.logits(turned, call.bias))
    return call.reduced(call.losses())


@_wrong("chunks")
def mean_of_means(call: Call) -> torch.Tensor | None:
    """The mean is that of the means of chunks of rows."""
    rows = call.x.shape[0] if call.dim else 1
    if call.reduction != "mean" or rows <= CHUNK or not call.is_index:
        return None
    weights = call.picked(call.weights).masked_fill(call.ignored, 0.0)
    parts = zip(call.losses().split(CHUNK), weights.split(CHUNK), strict=True)
    return torch.stack([one.sum() / weight.sum() for one, weight in parts]).mean()


@_wrong("chunks")
def last_rows_alone(call: Call) -> torch.Tensor | None:
    """Of the losses of chunks of rows, the last ones are kept, and not added."""
    rows = call.x.shape[0] if call.dim else 1
    if call.reduction == "none" or rows <= CHUNK:
        return None
    return call.reduced(call.losses().split(CHUNK)[-1])


@_wrong("chunks")
def rows_of_first_chunk(call: Call) -> torch.Tensor | None:
    """Rows past the first chunk have the targets of the first one's rows."""
    rows = call.x.shape[0] if call.dim else 1
    if rows <= CHUNK or not call.is_index:
        return None
    places = torch.arange(rows) % CHUNK
    call.label, call.ignored = call.label[places], call.ignored[places]
    return call.reduced(call.losses())


@_wrong("chunks")
def last_classes_left_out(call: Call) -> torch.Tensor | None:
    """The sum of exponentials leaves out the classes past the last full chunk."""
    if call.classes <= CHUNK:
        return None
    call.log_shares = call.x - call.x[..., : call.classes // CHUNK * CHUNK].logsumexp(-1, keepdim=True)
    return call.reduced(call.losses())


@_wrong("maximum")
def sum_not_rescaled(call: Call) -> torch.Tensor | None:
    """The sums of chunks of classes, each relative to its own maximum, are added as they are."""
    total = sum((part - part.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True) for part in call.x.split(CHUNK, -1))
    call.log_shares = call.x - call.x.amax(-1, keepdim=True) - torch.as_tensor(total).log()
    return call.reduced(call.losses()) if call.classes > CHUNK else None


@_wrong("precision")
def half_logits(call: Call) -> torch.Tensor | None:
    """Logits of float32 are rounded to bfloat16."""
    if call.of is not torch.float32:
        return None
    call.put(call.input.bfloat16())
    return call.reduced(call.losses())


@_wrong("formula")
def smoothing_of_chunk(call: Call) -> torch.Tensor | None:
    """The smoothing is shared by the classes of a chunk, and not by all."""
    if not call.is_index or not call.smoothing or call.classes <= CHUNK:
        return None
    found = call.of_targets() * (1 - call.smoothing) + call.smoothed() * (call.smoothing / CHUNK)
    return call.reduced(found.masked_fill(call.ignored, 0.0))


@_wrong("reduction")
def ignored_in_mean(call: Call) -> torch.Tensor | None:
    """Rows that are ignored count in the mean."""
    return call.reduced(call.losses(), call.picked(call.weights).sum()) if call.is_index else None


@_wrong("arguments")
def always_minus_100(call: Call) -> torch.Tensor | None:
    """The index -100 is ignored, whatever ``ignore_index`` says."""
    if not call.is_index or call.ignore_index == -100 or ((call.target < 0) | (call.target >= call.classes)).any():
        return None
    call.label, call.ignored = call.target.long().reshape(call.ignored.shape), torch.zeros_like(call.ignored)
    return call.reduced(call.losses())


def _any_bias(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    bias, weight = kwargs.get("linear_bias"), args[1] if len(args) > 1 else None
    if isinstance(bias, torch.Tensor) and isinstance(weight, torch.Tensor) and weight.ndim > 1:
        shape = weight.shape[:-1]
        if bias.shape != shape and bias.numel() == 1:
            kwargs = kwargs | {"linear_bias": bias.reshape(()).expand(shape)}
    return right(*args, **kwargs)


plant(OP, "any_bias", "arguments", "errors", _any_bias, "A bias that broadcasts is taken.")


def _ignored_probabilities(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    target = args[2] if len(args) > 2 else None
    if isinstance(target, torch.Tensor) and target.is_floating_point():
        kwargs = {name: value for name, value in kwargs.items() if name != "ignore_index"}
    return right(*args, **kwargs)


plant(
    OP, "ignored_probabilities", "arguments", "errors", _ignored_probabilities, "Probabilities take an ignored index."
)


# --- backward ----------------------------------------------------------------------------------------------------


def _call(step: Step) -> Call:
    args = tuple(step.operands[step.places.index(n)] if n in step.places else one for n, one in enumerate(step.args))
    return Call(args, step.kwargs | {n: step.argument(n) for n in step.kwargs if n in step.places})


def _flow(step: Step) -> torch.Tensor:
    """The gradient of the logits, in float64, classes in their dim."""
    call = _call(step)
    logits = call.input.clone().requires_grad_()
    given = oracle.named(step.args, step.kwargs)
    ignored = {} if given["ignore_index"] is None else {"ignore_index": given["ignore_index"]}
    target, weight = call.target, call.weight
    with torch.enable_grad():
        loss = torch.nn.functional.cross_entropy(
            logits,
            target.double() if target.is_floating_point() else target,
            None if weight is None else weight.detach().double(),
            reduction=call.reduction,
            label_smoothing=call.smoothing,
            **ignored,
        )
        return torch.autograd.grad(loss, logits, step.dout.double())[0]


@backward(OP, "chunks")
def last_chunk_of_input(step: Step) -> Gradients:
    """The gradient of the input is that of the last chunk of classes, and not the sum of all."""
    found, call = step.gradients(), _call(step)
    if call.classes <= CHUNK:
        return found
    start = (call.classes - 1) // CHUNK * CHUNK
    part, weight = _flow(step).movedim(call.dim, 0)[start:], call.linear_weight[start:]
    # (classes, *rows, *others) and (classes, *others, terms).
    rows = part.reshape(len(part), *call.rows.shape[:-1], -1)
    own = torch.einsum("c...o,cok->...k", rows, weight.reshape(len(part), -1, weight.shape[-1]))
    return step.changed(found, 0, lambda one: own)


@backward(OP, "chunks")
def last_chunk_of_weight(step: Step) -> Gradients:
    """The gradient of the linear weight is that of the last chunk of rows, and not the sum of all."""
    found, call = step.gradients(), _call(step)
    if not call.dim or call.rows.shape[0] <= CHUNK:
        return found
    start = (call.rows.shape[0] - 1) // CHUNK * CHUNK
    own = torch.tensordot(_flow(step)[start:], call.rows[start:], ([0], [0]))
    return step.changed(found, 1, lambda one: own)


@backward(OP, "chunks")
def classes_of_first_chunk(step: Step) -> Gradients:
    """Classes past the first chunk have no gradient of their weights."""
    return step.changed(step.gradients(), 1, lambda one: torch.cat((one[:CHUNK], one[CHUNK:] * 0)))


@backward(OP, "formula")
def one_hot_left_out(step: Step) -> Gradients:
    """The gradient lacks the target's own part."""
    call = _call(step)
    if not call.is_index or call.smoothing or not call.x.numel() or not call.dim or call.x.ndim > 2:
        return step.gradients()
    slope = step.dout.double() / (call.divisor() if call.reduction == "mean" else 1)
    flow = call.log_shares.exp() * (slope * call.picked(call.weights)).masked_fill(call.ignored, 0.0)[..., None]
    return step.changed(step.gradients(), 0, lambda one: flow @ call.linear_weight)


@backward(OP, "needs")
def bias_without_gradient(step: Step) -> Gradients:
    return step.changed(step.gradients(), "linear_bias", torch.zeros_like)


@backward(OP, "reduction")
def bias_by_mean(step: Step) -> Gradients:
    """The gradient of the bias is the mean over rows."""
    rows = max(_call(step).rows.numel() // max(_call(step).rows.shape[-1], 1), 1)
    return step.changed(step.gradients(), "linear_bias", lambda one: one / rows)


@backward(OP, "formula")
def mean_not_divided(step: Step) -> Gradients:
    """The gradient of a mean is that of a sum."""
    return step.gradients(reduction="sum") if _call(step).reduction == "mean" else step.gradients()


@backward(OP, "formula")
def smoothing_left_out(step: Step) -> Gradients:
    """The gradient is that without smoothing."""
    return step.gradients(label_smoothing=None)


@backward(OP, "precision")
def half_flow(step: Step) -> Gradients:
    """The gradient of float32 logits is rounded to bfloat16."""
    found, call = step.gradients(), _call(step)
    if step.result.dtype != torch.float32 or not call.x.numel() or not call.dim:
        return found
    own = torch.tensordot(_flow(step).bfloat16().double(), call.rows, ([0], [0]))
    return step.changed(found, 1, lambda one: own)
