"""Plant what implementations of cross entropy get wrong, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.ops import _cross_entropy as oracle
from conformance.selftest.defect_registry import plant
from conformance.selftest.differentiable import Gradients, Step, backward

OP = "cross_entropy"


class Call:
    """The numbers of a call in float64, its classes in the last dim."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]):
        given = oracle.named(args, kwargs)
        self.input, self.target, self.weight = given["input"].detach(), given["target"].detach(), given["weight"]
        self.ignore_index = given["ignore_index"]
        self.reduction = oracle.reduction(given)
        self.smoothing = max(float(given["label_smoothing"]), 0.0)
        self.is_index = self.input.shape != self.target.shape
        self.dim = min(self.input.ndim - 1, 1)
        self.classes = self.input.shape[self.dim]
        self.x = self.input.double().movedim(self.dim, -1)
        self.log_shares = self.x.log_softmax(-1)
        self.weights = torch.ones(self.classes, dtype=torch.float64)
        if self.weight is not None:
            self.weights = self.weight.detach().double().reshape(-1)
        if self.is_index:
            label = self.target.long().reshape(self.x.shape[:-1])
            self.ignored = label == self.ignore_index
            self.label = label.masked_fill(self.ignored, 0)

    def picked(self, rows: torch.Tensor) -> torch.Tensor:
        """The element of each row at its class index."""
        return rows.expand(self.x.shape).gather(-1, self.label[..., None])[..., 0]

    def of_targets(self) -> torch.Tensor:
        """The losses of rows without smoothing; those that are ignored are not 0."""
        return -self.picked(self.log_shares) * self.picked(self.weights)

    def smoothed(self) -> torch.Tensor:
        """The sums of the losses of all classes; those of rows that are ignored are not 0."""
        return -(self.log_shares * self.weights).sum(-1)

    def losses(self) -> torch.Tensor:
        """The losses of rows."""
        if not self.is_index:
            y = self.target.double().movedim(self.dim, -1) * (1 - self.smoothing) + self.smoothing / self.classes
            return -(self.log_shares * y * self.weights).sum(-1)
        found = self.of_targets() * (1 - self.smoothing)
        if self.smoothing:
            found = found + self.smoothed() * (self.smoothing / self.classes)
        return found.masked_fill(self.ignored, 0.0)

    def divisor(self) -> torch.Tensor:
        """The number by which the mean divides."""
        if not self.is_index:
            return torch.tensor(float(max(self.x[..., 0].numel(), 1)), dtype=torch.float64)
        return self.picked(self.weights).masked_fill(self.ignored, 0.0).sum()

    def reduced(self, losses: torch.Tensor, divisor: torch.Tensor | float | None = None) -> torch.Tensor:
        """The loss of the losses of rows."""
        if self.reduction == "none":
            return losses
        return (
            losses.sum() / (self.divisor() if divisor is None else divisor)
            if self.reduction == "mean"
            else losses.sum()
        )


def of_losses(kind: str, name: str = "") -> Callable[[Any], Any]:
    """Enter the decorated function as a defect: of a call with elements, it gives the value, or None for the right
    one."""

    def enter(change: Any) -> Any:
        def cross_entropy(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = right(*args, **kwargs)
            call = Call(args, kwargs)
            if result.dtype == torch.float64 or not call.x.numel():
                return result
            value = change(call)
            return result if value is None else result.copy_(value)

        plant(OP, name or change.__name__, kind, "values", cross_entropy, " ".join((change.__doc__ or "").split()))
        return change

    return enter


# --- forward -----------------------------------------------------------------------------------------------------


@of_losses("reduction")
def ignored_in_mean(call: Call) -> torch.Tensor | None:
    """Rows that are ignored count in the mean."""
    return call.reduced(call.losses(), call.picked(call.weights).sum()) if call.is_index else None


@of_losses("reduction")
def weights_not_in_mean(call: Call) -> torch.Tensor | None:
    """The mean divides by the number of rows, and not by their weights."""
    return call.reduced(call.losses(), (~call.ignored).sum()) if call.is_index else None


@of_losses("labels")
def rows_of_weight_0_skipped(call: Call) -> torch.Tensor | None:
    """Rows whose class has the weight 0 are skipped, with what smoothing gives them of other classes."""
    if not call.is_index or not call.smoothing:
        return None
    losses = call.of_targets() * (1 - call.smoothing) + call.smoothed() * (call.smoothing / call.classes)
    return call.reduced(losses.masked_fill(call.ignored | (call.picked(call.weights) == 0), 0.0))


@of_losses("reduction")
def mean_of_elements(call: Call) -> torch.Tensor | None:
    """The mean of probabilities divides by the number of elements."""
    return None if call.is_index else call.reduced(call.losses(), call.x.numel())


@of_losses("trap")
def mean_of_nothing_is_0(call: Call) -> torch.Tensor | None:
    """The mean is 0 where all rows are ignored."""
    every = call.is_index and call.reduction == "mean" and call.ignored.all()
    return torch.zeros(()) if every else None


@of_losses("formula")
def smoothing_of_others(call: Call) -> torch.Tensor | None:
    """The smoothing is shared by the other classes, and not by all."""
    if not call.is_index or not call.smoothing or call.classes < 2:
        return None
    others = call.smoothed() - call.of_targets()
    found = call.of_targets() * (1 - call.smoothing) + others * (call.smoothing / (call.classes - 1))
    return call.reduced(found.masked_fill(call.ignored, 0.0))


@of_losses("formula")
def smoothing_without_weights(call: Call) -> torch.Tensor | None:
    """Smoothing adds losses without their weights."""
    if not call.is_index or not call.smoothing:
        return None
    share = call.smoothing / call.classes
    found = call.of_targets() * (1 - call.smoothing) - call.log_shares.sum(-1) * share
    return call.reduced(found.masked_fill(call.ignored, 0.0))


@of_losses("formula")
def smoothing_of_ignored(call: Call) -> torch.Tensor | None:
    """Rows that are ignored keep what smoothing adds."""
    if not call.is_index or not call.smoothing:
        return None
    kept = (call.of_targets() * (1 - call.smoothing)).masked_fill(call.ignored, 0.0)
    return call.reduced(kept + call.smoothed() * (call.smoothing / call.classes))


@of_losses("formula")
def probabilities_not_smoothed(call: Call) -> torch.Tensor | None:
    """Smoothing is left out of probabilities."""
    if call.is_index:
        return None
    call.smoothing = 0.0
    return call.reduced(call.losses())


@of_losses("arguments")
def negative_alone_is_ignored(call: Call) -> torch.Tensor | None:
    """An index from 0 on is never ignored."""
    if not call.is_index or call.ignore_index < 0 or call.ignore_index >= call.classes:
        return None
    call.label, call.ignored = call.target.long().reshape(call.ignored.shape), torch.zeros_like(call.ignored)
    return call.reduced(call.losses())


@of_losses("specials")
def nothing_of_nothing(call: Call) -> torch.Tensor | None:
    """A probability of 0 times a logarithm of -inf is 0, and not NaN."""
    if call.is_index:
        return None
    call.log_shares = call.log_shares.masked_fill((call.target.movedim(call.dim, -1) == 0) & call.x.isneginf(), 0.0)
    return call.reduced(call.losses())


@of_losses("tail")
def last_tile_left_out(call: Call) -> torch.Tensor | None:
    """The sum of exponentials leaves out what lies past the last full tile of 1024 classes."""
    if call.classes <= 1024:
        return None
    call.log_shares = call.x - call.x[..., : call.classes // 1024 * 1024].logsumexp(-1, keepdim=True)
    return call.reduced(call.losses())


@of_losses("maximum")
def exponentials_overflow(call: Call) -> torch.Tensor | None:
    """The sum of exponentials is that of the logits themselves, in float32."""
    call.log_shares = call.x - call.x.float().exp().sum(-1, keepdim=True).log().double()
    return call.reduced(call.losses())


@of_losses("maximum")
def sum_not_rescaled(call: Call) -> torch.Tensor | None:
    """An online sum of tiles of 16 classes is not rescaled where the maximum grows."""
    total = sum((tile - tile.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True) for tile in call.x.split(16, -1))
    call.log_shares = call.x - call.x.amax(-1, keepdim=True) - torch.as_tensor(total).log()
    return call.reduced(call.losses())


@of_losses("precision")
def half_logarithms(call: Call) -> torch.Tensor | None:
    """The logarithm of the sum of exponentials of float32 is rounded to bfloat16."""
    if call.input.dtype != torch.float32:
        return None
    call.log_shares = call.x - call.x.logsumexp(-1, keepdim=True).bfloat16().double()
    return call.reduced(call.losses())


@of_losses("reading")
def rows_of_contiguous(call: Call) -> torch.Tensor | None:
    """Classes of pixels are read as if they were in the last dim."""
    if call.input.ndim < 3:
        return None
    call.log_shares = call.input.double().reshape(call.x.shape).log_softmax(-1)
    return call.reduced(call.losses())


@of_losses("sums")
def first_losses_alone(call: Call) -> torch.Tensor | None:
    """Losses past the first 4096 rows are left out of the sum."""
    if call.reduction == "none":
        return None
    return call.reduced(call.losses().flatten()[:4096])


def _narrow_indices(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    target = args[1] if len(args) > 1 else None
    if isinstance(target, torch.Tensor) and target.dtype in (torch.int32, torch.int8):
        args = (args[0], target.long(), *args[2:])
    return right(*args, **kwargs)


plant(OP, "narrow_indices", "arguments", "errors", _narrow_indices, "Class indices of any integer dtype are taken.")


def _any_reduction(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("reduction") not in (None, "mean", "sum", "none"):
        kwargs = kwargs | {"reduction": "none"}
    return right(*args, **kwargs)


plant(OP, "any_reduction", "arguments", "errors", _any_reduction, "A reduction that there is not is none.")


# --- backward ----------------------------------------------------------------------------------------------------


def _call(step: Step) -> Call:
    args = tuple(step.operands[step.places.index(n)] if n in step.places else one for n, one in enumerate(step.args))
    return Call(args, step.kwargs)


def _legacy(step: Step) -> bool:
    return "size_average" in step.kwargs or "reduce" in step.kwargs


@backward(OP, "formula")
def mean_not_divided(step: Step) -> Gradients:
    """The gradient of a mean is that of a sum."""
    if _call(step).reduction != "mean" or _legacy(step):
        return step.gradients()
    return step.gradients(reduction="sum")


@backward(OP, "formula")
def mean_of_all_rows(step: Step) -> Gradients:
    """The gradient of a mean is divided by the number of all rows."""
    call = _call(step)
    if call.reduction != "mean" or not call.is_index or not call.x.numel():
        return step.gradients()
    return step.changed(step.gradients(), 0, lambda one: one * call.divisor() / call.ignored.numel())


@backward(OP, "formula")
def ignored_rows_pass(step: Step) -> Gradients:
    """Rows that are ignored have a gradient: the shares of their classes."""
    call = _call(step)
    if not call.is_index or not call.x.numel():
        return step.gradients()
    slope = step.dout.double() / (call.divisor() if call.reduction == "mean" else 1)
    shares = call.log_shares.exp() * slope.expand(call.ignored.shape)[..., None]
    added = torch.where(call.ignored[..., None], shares, 0.0).movedim(-1, call.dim)
    return step.changed(step.gradients(), 0, lambda one: one + added)


@backward(OP, "formula")
def smoothing_left_out(step: Step) -> Gradients:
    """The gradient is that without smoothing."""
    return step.gradients(label_smoothing=None)


@backward(OP, "formula")
def one_hot_left_out(step: Step) -> Gradients:
    """The gradient lacks the target's own part."""
    call = _call(step)
    if not call.is_index or call.smoothing or not call.x.numel():
        return step.gradients()
    slope = step.dout.double() / (call.divisor() if call.reduction == "mean" else 1)
    found = call.log_shares.exp() * (slope * call.picked(call.weights)).masked_fill(call.ignored, 0.0)[..., None]
    return step.changed(step.gradients(), 0, lambda one: found.movedim(-1, call.dim))


@backward(OP, "tail")
def last_classes_left_out(step: Step) -> Gradients:
    """Classes past the last full block of 32 have no gradient."""
    call = _call(step)

    def cut(one: torch.Tensor) -> torch.Tensor:
        one = one.clone()
        one.narrow(call.dim, call.classes // 32 * 32, call.classes % 32).zero_()
        return one

    return step.changed(step.gradients(), 0, cut) if call.classes > 32 else step.gradients()


@backward(OP, "formula")
def weight_of_classes(step: Step) -> Gradients:
    """Each class's gradient has its own weight, and not the target's."""
    call = _call(step)
    if not call.is_index or call.weight is None or call.smoothing or not call.x.numel():
        return step.gradients()
    factors = call.weights / call.picked(call.weights)[..., None]
    factors = torch.where(factors.isfinite(), factors, 1.0).movedim(-1, call.dim)
    return step.changed(step.gradients(), 0, lambda one: one * factors)


@backward(OP, "needs")
def probabilities_without_gradient(step: Step) -> Gradients:
    return step.changed(step.gradients(), 1, torch.zeros_like)


@backward(OP, "precision")
def half_shares(step: Step) -> Gradients:
    """The gradient of float32 logits is rounded to bfloat16."""
    found = step.gradients()
    if step.result.dtype != torch.float32:
        return found
    return step.changed(found, 0, lambda one: one.bfloat16().double())
