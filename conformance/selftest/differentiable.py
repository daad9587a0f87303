"""Right implementations with gradients: those of torch's function in float64, rounded once.

They share no formula with the oracle of ``gradients``, and are what its defects are built on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from conformance import float_formats
from conformance import spec as specs
from conformance.forms import FACTORS
from conformance.ops import _attention
from conformance.ops.rotary_position_embedding import pairs
from conformance.selftest import attention, correct
from conformance.selftest.defect_registry import plant

Gradients = list[torch.Tensor | None]
Operands = Sequence[torch.Tensor]
Wrong = Callable[["Step"], Gradients]
LOSSES = ("cross_entropy", "linear_cross_entropy")
"""Ops whose targets are class indices or probabilities."""


@dataclasses.dataclass
class Step:
    """A backward pass. ``place`` names operands: by the number or name of the argument that each is."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: tuple[int | str, ...]
    operands: tuple[torch.Tensor, ...]
    needed: tuple[bool, ...]
    result: torch.Tensor
    dout: torch.Tensor

    def gradients(
        self, dout: torch.Tensor | None = None, operands: Operands | None = None, graph: bool = False, **kwargs: Any
    ) -> Gradients:
        """In float64, of each operand that needs one. Others may be given in place of the step's own, and other keyword
        arguments; one that is None is left out. ``graph``: whether they know ``dout``, but not the operands."""
        operands, dout = self.operands if operands is None else operands, self.dout if dout is None else dout
        leaves = [
            self._computed(one).double().requires_grad_(needed) if one.is_floating_point() or needed else one
            for one, needed in zip(map(torch.Tensor.detach, operands), self._floating, strict=True)
        ]
        named = {name: x for name, x in (self.kwargs | kwargs).items() if x is not None and name != "dtype"}
        args, named = _filled(self.args, named, self.places, [self._wide(one) for one in leaves])
        args = tuple(map(self._number, args))
        with torch.enable_grad():
            result = _reference(self.op, self.result)(*args, **{name: self._number(x) for name, x in named.items()})
            wanted = [one for one in leaves if one.requires_grad]
            if not result.requires_grad:
                # Of nothing there is no graph.
                return [torch.zeros_like(one) if one.requires_grad else None for one in leaves]
            found = torch.autograd.grad(result, wanted, dout.double(), allow_unused=True, create_graph=graph)
        # Those of a sum are the very dout, which may have a graph while those of others have none.
        each = iter(found if graph else [one if one is None else one.detach() for one in found])
        return [
            torch.zeros_like(one) if gradient is None else gradient
            for one in leaves
            for gradient in ([next(each)] if one.requires_grad else [None])
        ]

    def _computed(self, operand: torch.Tensor) -> torch.Tensor:
        """The operand in the dtype of the result; a mask of attention counts as it is."""
        return operand if self.op == attention.OP else operand.to(self.result.dtype)

    @property
    def _floating(self) -> list[bool]:
        # torch has no gradient of weights of class indices.
        constant = self.op in LOSSES and not all(one.is_floating_point() for one in self.operands)
        pairs = zip(self.places, self.operands, strict=True)
        return [one.is_floating_point() and not (constant and place in (2, "weight")) for place, one in pairs]

    def _wide(self, operand: torch.Tensor) -> torch.Tensor:
        elementwise = operand.dtype != torch.bool or self.op != attention.OP
        elementwise = elementwise and self.op not in LOSSES
        return operand.double() if elementwise and not operand.is_floating_point() else operand

    def _number(self, value: Any) -> Any:
        """A number as it is in the dtype that is computed in."""
        if isinstance(value, bool) and self.op == "pow":
            return float(value)
        if type(value) is not float:
            return value
        return torch.tensor(value, dtype=torch.float64).to(float_formats.compute_dtype(self.result.dtype)).item()

    def argument(self, name: int | str) -> torch.Tensor | None:
        """The operand at a place, if there is one."""
        return self.operands[self.places.index(name)] if name in self.places else None

    def only(self, number: int, others: Gradients) -> Gradients:
        """The right gradients, but that of operand ``number`` from ``others``."""
        both = zip(others, self.gradients(), strict=True)
        return [other if n == number else right for n, (other, right) in enumerate(both)]

    def changed(self, found: Gradients, name: int | str, change: Callable[[torch.Tensor], torch.Tensor]) -> Gradients:
        """The same with another gradient of the operand at a place."""
        return [
            change(one) if place == name and one is not None else one
            for place, one in zip(self.places, found, strict=True)
        ]


def _reference(op: str, result: torch.Tensor) -> Callable[..., torch.Tensor]:
    references = {
        attention.OP: _attention.by_math,
        "rotary_position_embedding": rotated,
        "dropout": partial(_dropped, result),
        "rms_norm": partial(_root_normed, result),
    }
    return references.get(op, specs.registry()[op].reference)


def rotated(
    input: torch.Tensor,
    sin_table: torch.Tensor,
    cos_table: torch.Tensor,
    interleaved: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """The rotation, of functions that have gradients."""
    x0, x1 = pairs(input, interleaved)
    sin, cos = (table[: input.shape[1], None] for table in (sin_table, cos_table))
    y0, y1 = x0 * cos - x1 * sin, x0 * sin + x1 * cos
    return torch.stack((y0, y1), -1).flatten(-2) if interleaved else torch.cat((y0, y1), -1)


def _dropped(result: torch.Tensor, input: torch.Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Dropout with the mask that a result shows."""
    # Numbers alone would be of the default dtype.
    return torch.where(result == 0, 0.0, input * (1 / (1 - p) if p < 1 else 0.0))


def _root_normed(
    result: torch.Tensor, input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> Any:
    """rms_norm with the default epsilon of the call, not that of float64."""
    eps = torch.finfo(float_formats.compute_dtype(result.dtype)).eps if eps is None else eps
    return torch.nn.functional.rms_norm(input, normalized_shape, weight, eps)


def _filled(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[int | str], operands: Operands
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with these operands in their places."""
    given = dict(zip(places, operands, strict=True))
    named = {name: given.get(name, value) for name, value in kwargs.items()}
    return tuple(given.get(place, value) for place, value in enumerate(args)), named


class _Call(torch.autograd.Function):
    """A call whose operands are given one by one; ``how``: the right function, what is wrong with its backward pass,
    and the other arguments."""

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], *operands: torch.Tensor) -> Any:
        right, _, _, args, kwargs, places, unseen = how
        args, kwargs = _filled(args, kwargs, places, operands)
        result = right(*args, **kwargs)
        ctx.how = how
        saved = (*operands, result)
        ctx.kept = [one.detach() if _is_unseen(one, unseen) else None for one in saved]
        ctx.save_for_backward(*(None if _is_unseen(one, unseen) else one for one in saved))
        return result

    @staticmethod
    def backward(ctx: Any, *douts: torch.Tensor) -> Any:
        _, wrong, op, args, kwargs, places, _ = ctx.how
        *operands, result = (
            seen if kept is None else kept for kept, seen in zip(ctx.kept, ctx.saved_tensors, strict=True)
        )
        step = Step(op, args, kwargs, places, tuple(operands), ctx.needs_input_grad[1:], result, *douts)
        found = step.gradients() if wrong is None else wrong(step)
        return None, *(
            gradient.to(one.dtype) if gradient is not None and needed else None
            for one, gradient, needed in zip(operands, found, step.needed, strict=True)
        )


def _is_unseen(tensor: torch.Tensor, unseen: str) -> bool:
    return unseen == "all" or (unseen == "indices" and not tensor.is_floating_point())


def differentiable(
    op: str, wrong: Wrong | None = None, unseen: str = "", keeps_lists: bool = False
) -> Callable[..., Any]:
    """The op with gradients. ``wrong``: what its backward pass gives instead. ``unseen``: of what is saved for that,
    what autograd does not know: "all", or "indices", which are all tensors of integers and bools. ``keeps_lists``:
    whether the caller's own lists are kept for it."""
    # torch's own attention has known deviations.
    right = attention.right() if op == attention.OP else correct.right(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        if specs.registry()[op].gradients is not None:
            # Where autograd's formulas take a number alone.
            kwargs = {name: _as_number(name, one) for name, one in kwargs.items()}
            names = itertools.chain(specs.parameters(op), itertools.repeat(""))
            args = tuple(_as_number(name, one) for name, one in zip(names, args, strict=False))
        if not keeps_lists:
            args = tuple(map(_own, args))
            kwargs = {name: _own(one) for name, one in kwargs.items()}
        named = {**dict(enumerate(args)), **kwargs}
        places = tuple(place for place, value in named.items() if isinstance(value, torch.Tensor))
        operands = tuple(named[place] for place in places)
        follows = torch.is_grad_enabled() and any(one.requires_grad for one in operands)
        out = kwargs.get("out")
        if follows and isinstance(out, torch.Tensor) and out.is_floating_point():
            raise RuntimeError("functions with an out are not differentiated")
        if follows and kwargs.get("inplace") is True:
            # Saved tensors may not change.
            return args[0].copy_(call(args[0].clone(), *args[1:], **kwargs | {"inplace": False}))
        if not follows or out is not None or specs.registry()[op].gradients is None or writes(kwargs):
            return right(*args, **kwargs)
        if op in LOSSES:
            # torch refuses to differentiate weights of class indices.
            specs.registry()[op].reference(*args, **kwargs)
        result = right(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or any(result is x for x in operands):
            return result
        # A random operator draws once.
        return _Call.apply((lambda *_, **__: result, wrong, op, args, kwargs, places, unseen), *operands)

    return call


def is_number(name: str, argument: Any) -> bool:
    """Tell whether an argument of a name is a 0-d tensor in the place of a number or a dim."""
    return name in (*FACTORS, "dim") and isinstance(argument, torch.Tensor) and not argument.ndim


def _as_number(name: str, argument: Any) -> Any:
    return argument.item() if is_number(name, argument) else argument


def _own(argument: Any) -> Any:
    """Return a list as another one, which its owner cannot change; anything else as it is."""
    return [*argument] if type(argument) is list else argument


def writes(kwargs: dict[str, Any]) -> bool:
    """Tell whether a call is given memory to write."""
    return kwargs.get("inplace") is True or kwargs.get("present_key") is not None


@cache
def with_gradients() -> tuple[str, ...]:
    """The ops that have gradients."""
    return tuple(name for name, spec in specs.registry().items() if spec.gradients is not None)


def backward(ops: str | Sequence[str], kind: str, *, unseen: str = "", name: str = "") -> Callable[[Any], Any]:
    """Enter the decorated function as what the backward pass of each of these ops gives, a defect of its own."""

    def enter(wrong: Any) -> Any:
        about = " ".join((wrong.__doc__ or "").split())
        for op in ops.split() if isinstance(ops, str) else ops:
            function = differentiable(op, wrong, unseen)
            full = f"gradient_{name or wrong.__name__}"
            plant(op, full, kind, "gradients", lambda right, *a, _call=function, **k: _call(*a, **k), about)
        return wrong

    return enter


def input_gradient(step: Step, slope: torch.Tensor) -> Gradients:
    """The gradient of the only operand, given the derivative."""
    return [step.dout.double() * slope]


def first_operand(step: Step) -> torch.Tensor:
    """The first operand in float64, as it is in the dtype of the result."""
    return step.operands[0].detach().to(step.result.dtype).double()
