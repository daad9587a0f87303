"""Calls that a running model makes, as cases: copy their operands, judge their results, save them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from conformance import cases, corpus, deviations, forms
from conformance import spec as specs
from conformance.calls import Outcome
from conformance.cases import Case
from conformance.checks import DEVIATION, FAILED, Finding, Trial
from conformance.checks.call_record import malformed
from conformance.checks.result import judged as judged_values
from conformance.guards import memory_of, same
from conformance.implementations import Implementation
from conformance.runner import Prepared
from conformance.spec import Call
from strategies import stored
from strategies.specs import TensorSpec
from strategies.tensors import keep

ALIASES = {
    "absolute": "abs",
    "and": "bitwise_and",
    "clip": "clamp",
    "divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "invert": "bitwise_not",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "or": "bitwise_or",
    "subtract": "sub",
    "true_divide": "div",
    "truediv": "div",
}
"""Other names that torch, or Python, has for ops. Not taken from ``ntops.aten``: importing ntops in a process whose
model does not use it may switch on the interpreter."""
LINEAR = "linear"
"""torch's function that is judged as the product that it is: ``mm``, or ``addmm`` with a bias."""
_IGNORED = ("_stacklevel", "cudnn_enable")
"""Arguments of torch's functions that say nothing about the result."""
_PLAIN = torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl
_REASON = 120
"""The most characters that are kept of the reason why a call was not judged."""


class Unjudged(Exception):
    """A call that is not judged. The message says why."""


class Named(msgspec.Struct, frozen=True):
    """The op that a function of torch computes, and how the two differ."""

    op: str
    swapped: bool = False
    """Its operands are in the other order."""
    inplace: bool = False
    """It writes its first operand."""


def named(function: Callable[..., Any]) -> Named | None:
    """Return the op that a function, method or operator of torch computes, found by its name; None: none."""
    name = str(getattr(function, "__name__", "")).partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if found := _op(name):
            return Named(found)
        if name[:1] in ("r", "i") and (found := _op(name[1:])):
            return Named(found, swapped=name[0] == "r", inplace=name[0] == "i")
        return None
    if name == "rsub":
        return Named("sub", swapped=True)
    if found := _op(name):
        return Named(found)
    return Named(found, inplace=True) if name.endswith("_") and (found := _op(name[:-1])) else None


def _op(name: str) -> str | None:
    # Of "__rdiv__" and "__div__" torch has both spellings.
    found = ALIASES.get(name, name)
    return found if found == LINEAR or found in specs.registry() else None


class LiveCall:
    """One call. Made before the call is; ``judged`` then looks at what it returned.

    Raises Unjudged: there is no case of it.
    """

    def __init__(self, which: Named, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int) -> None:
        with _apart():
            self._read(which, args, kwargs, number)

    def _read(self, which: Named, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int) -> None:
        self.columns = 0
        if which.op == LINEAR:
            which, args, kwargs = self._product(*args, **kwargs)
        self.op, self.inplace = which.op, which.inplace
        self.spec = specs.registry()[which.op]
        if "distribution" in self.spec.checks:
            raise Unjudged("its result is drawn at random")
        args = tuple(reversed(args)) if which.swapped else args
        positional, by_name = self._plain(args, kwargs)
        values = [*positional, *(by_name[name] for name in sorted(by_name))]
        self.live = [one for one in values if isinstance(one, torch.Tensor)]
        self._check()
        self.device = next((one.device for one in self.live if one.ndim), self.live[0].device)
        self.places = [(one.stride(), one.storage_offset()) for one in self.live]
        # Without the strides: values do not depend on them, and a saved case has them.
        self.inputs = tuple(map(_copy, self.live))
        # The number lets the samples of large results differ from call to call.
        placeholders = iter([TensorSpec(tuple(one.shape), _dtype(one), seed=number) for one in self.live])

        def argument(value: Any) -> cases.Argument:
            if isinstance(value, torch.Tensor):
                return next(placeholders)
            try:
                return cases.argument(value)
            except TypeError as error:
                raise Unjudged(str(error)) from None

        self.case = Case(
            op=self.op,
            args=tuple(map(argument, positional)),
            kwargs={name: argument(by_name[name]) for name in sorted(by_name)},
        )

    def _product(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[Named, tuple[Any, ...], dict[str, Any]]:
        """Return ``linear`` as the product that it computes, with its arguments as matrices."""
        if weight.ndim != 2 or not input.ndim or not input.shape[-1]:
            raise Unjudged("it is no product of two matrices")
        self.columns = weight.shape[0]
        rows, turned = input.detach().reshape(-1, input.shape[-1]), weight.detach().t()
        if bias is None:
            return Named("mm"), (rows, turned), {}
        return Named("addmm"), (bias.detach(), rows, turned), {}

    def _plain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as cases have them: required ones by position, others by name unless they are the
        default."""
        names, required = specs.parameters(self.op), specs.parameters(self.op, required=True)
        if len(args) > len(names):
            raise Unjudged(f"it has {len(args)} arguments by position, and {self.op} has {len(names)}")
        given = dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k not in _IGNORED}
        if any(name not in given for name in required):
            raise Unjudged(f"it lacks one of the arguments {', '.join(required)}")
        if given.pop("out", None) is not None:
            raise Unjudged("it has 'out'")
        self.inplace = bool(given.pop("inplace", False)) or self.inplace
        by_name = {k: v for k, v in given.items() if k not in required and not _is_default(self.op, k, v)}
        return [given[name] for name in required], by_name

    def _check(self) -> None:
        if not self.live:
            raise Unjudged("it has no tensor")
        for one in self.live:
            if getattr(type(one).__torch_function__, "__func__", type(one).__torch_function__) not in _PLAIN:
                raise Unjudged(f"an argument is a {type(one).__name__}")
            if one.layout != torch.strided or one.is_meta or one.is_quantized or one.is_neg():
                raise Unjudged("an argument has no memory of its own, or is not strided")
            if _dtype(one) not in self.spec.dtypes:
                raise Unjudged(f"an argument is {_dtype(one)}")
        if any(torch.is_autocast_enabled(one.device.type) for one in self.live):
            raise Unjudged("autocast is on")

    def judged(self, result: Any) -> Finding:
        """Judge the result, and what the call left of its operands. Raises Unjudged."""
        with _apart(self.device):
            return self._judged(result)

    def _judged(self, result: Any) -> Finding:
        args, kwargs = cases.bind(self.case, self.inputs)
        prepared = Prepared(self.case, self.spec, self.device, self.inputs, Call(args, kwargs, None))
        if prepared.refusal is not None:
            raise Unjudged(f"torch refuses it: {prepared.refusal.__name__}")
        if wrong := malformed(result, prepared.reference.value):
            return Finding("values", FAILED, wrong)
        results = [self._flat(one) for one in (result if isinstance(result, tuple) else (result,))]
        if self.inplace and results[0].dtype != prepared.reference.tensors()[0].dtype:
            raise Unjudged("it casts what it writes in place")
        ours = Outcome(self.inputs, tuple(results) if isinstance(result, tuple) else results[0])
        trial = Trial(
            case=self.case,
            spec=self.spec,
            implementation=Implementation("live", None),
            inputs=self.inputs,
            call=prepared.call,
            reference=prepared.reference,
            refusal=None,
            ours=ours,
            attempt=_not_again,
            bare=_not_again,
            derive=_not_again,
            excuse=lambda case, check: None,
        )
        finding = judged_values(trial, ours)
        if finding.status == FAILED and self._is_torchs(ours, prepared.reference):
            name = deviations.named_deviation(self.case, "values", self.device)
            return msgspec.structs.replace(finding, status=DEVIATION) if name else finding
        return finding if finding.status == FAILED else self._operands() or finding

    def _flat(self, result: torch.Tensor) -> torch.Tensor:
        result = _copy(result)
        # As rows, where that is what the product gives.
        return result.reshape(-1, self.columns) if self.columns and result.shape[-1:] == (self.columns,) else result

    @staticmethod
    def _is_torchs(ours: Outcome, theirs: Outcome) -> bool:
        return all(
            a.shape == b.shape and a.dtype == b.dtype and _alike(a, b.cpu())
            for a, b in zip(ours.tensors(), theirs.tensors(), strict=True)
        )

    def _operands(self) -> Finding | None:
        """Find an operand that the call changed: the next operator would be judged on it, and be right."""
        written = self.live[0].untyped_storage().data_ptr() if self.inplace else None
        for number, (now, before) in enumerate(zip(self.live, self.inputs, strict=True)):
            if now.untyped_storage().data_ptr() != written and not _alike(_copy(now), before):
                return Finding("inputs_unchanged", FAILED, f"operand {number}, an input, was changed")
        return None

    def saved(self, note: str, folder: Path) -> Path:
        """Save the case with its data, and return where. Raises StoredError and OSError."""
        made = iter([keep(one, *place, folder) for one, place in zip(self.inputs, self.places, strict=True)])

        def argument(value: cases.Argument) -> cases.Argument:
            return next(made) if isinstance(value, TensorSpec) else value

        args = tuple(map(argument, self.case.args))
        kwargs = {name: argument(self.case.kwargs[name]) for name in sorted(self.case.kwargs)}
        stored.look_in(folder)
        return corpus.keep(msgspec.structs.replace(self.case, args=args, kwargs=kwargs), note, folder)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return same(memory_of(first.contiguous()), memory_of(second.contiguous()))


def _is_default(op: str, name: str, value: Any) -> bool:
    try:
        default = forms.default(op, name)
    except KeyError:
        # torch's table of signatures lacks some; None then says nothing.
        return value is None
    return value is default or (isinstance(value, int | float | str) and value == default)


def _not_again(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a call of a running model is made once")


@contextlib.contextmanager
def _apart(device: torch.device | None = None) -> Generator[None]:
    """Hide what is done within from the model's modes and gradients, and keep its random generators as they are.

    Raises Unjudged for whatever the judge runs into: that ends no model, and is counted.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    try:
        with (
            torch._C.DisableTorchFunction(),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.random.fork_rng(devices),
        ):
            yield
    except Unjudged:
        raise
    # Memory may run out, and a tensor may be of a kind that nothing here knows.
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise Unjudged(f"the judge failed: {told[:_REASON]}") from error
