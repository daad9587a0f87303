"""What tests of op specs share: cases that a strategy draws, torch's answers to them, and what a case has."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch

from conformance import cases, cpu_cuda_differences, deviations, drawing, profiles
from conformance.cases import Case, Same
from conformance.compare import Comparison, compare
from conformance.spec import Call, registry
from strategies import dtypes as dtype_names
from strategies import layouts
from strategies.specs import TensorSpec


def drawn(strategy, examples: int, start: int = 0) -> list[Case]:
    """As many examples of a strategy, the same ones on every run."""
    return drawing.drawn(strategy, start, examples)


def missing(strategy, wanted: set, found: Callable[[Case], set], examples: int = 1000) -> set:
    """What of ``wanted`` so many examples do not show, drawn in rounds as the suite draws them, since those of one are
    much alike."""
    left = set(wanted)
    for start in range(examples // profiles.ROUND):
        if not left:
            break
        left -= set().union(*map(found, drawn(strategy, profiles.ROUND, start)))
    return left


def call(case: Case) -> Call:
    args, kwargs, _ = cases.materialize(case)
    return Call(args, kwargs, None)


def by_torch(case: Case) -> torch.Tensor:
    """torch's own answer; torch warns where it resizes an ``out``."""
    args, kwargs, _ = cases.materialize(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cpu_cuda_differences.answer(case.op, registry()[case.op].reference, Call(args, kwargs, None))(
            *args, **kwargs
        )


def judged(case: Case) -> Comparison:
    return compare(by_torch(case), registry()[case.op].expected(call(case)))


def failures(found: list[Case]) -> list[tuple[Case, Comparison]]:
    """Where torch fails and has no excuse. What was drawn more than once is judged once."""
    return [
        (case, result)
        for case in {cases.case_id(case): case for case in found}.values()
        if not (result := judged(case)).passed and not deviations.named_deviation(case, "values", "cpu")
    ]


def normal(op: str, dtype: str, length: int) -> Case:
    """A call on normal(0, 1) data, with rows or sums of ``length``."""
    if op == "mm":
        return Case(op=op, args=(TensorSpec((24, length), dtype), TensorSpec((length, 24), dtype)))
    operand = TensorSpec((length,), dtype)
    return Case(op=op, args={"relu": (operand,), "softmax": (operand, 0)}.get(op, (operand, operand)))


def stepped(output: torch.Tensor, steps: int) -> torch.Tensor:
    """Every element moved away from zero by as many numbers of its dtype."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[output.element_size()]
    return (output.view(bits) + steps).view(output.dtype)


def features(case: Case) -> set[str]:
    """What a case has that another may lack."""
    tensors = [argument for argument in case.args if isinstance(argument, TensorSpec)]
    scalars = [argument for argument in case.args[:2] if isinstance(argument, bool | int | float)]
    found = {f"layout {layouts.layout_class(tensor.layout, tensor.shape)}" for tensor in tensors}
    found |= {f"special {special.value}" for tensor in tensors for special in tensor.specials}
    found |= {f"dtype {tensor.dtype}" for tensor in tensors}
    found |= {f"{type(scalar).__name__} scalar" for scalar in scalars if case.op != "softmax"}
    found |= {f"{name} {value}" for name, value in case.kwargs.items() if isinstance(value, bool | str)}
    if len({tensor.dtype for tensor in tensors}) > 1:
        found.add("mixed dtypes")
    if case.args[1:] and Same(0) in case.args:
        found.add("same operand")
    if any(not tensor.shape for tensor in tensors):
        found.add("0-d")
    if any(0 in tensor.shape for tensor in tensors):
        found.add("empty")
    if len({tensor.shape for tensor in tensors}) > 1:
        found.add("broadcast")
    if any(math.prod(tensor.shape) > 1024 for tensor in tensors):
        found.add("several blocks")
    if "alpha" in case.kwargs:
        found.add(f"alpha {type(case.kwargs['alpha']).__name__}")
    if not isinstance(case.args[0], TensorSpec):
        found.add("scalar first")
    return found | _of_out(case)


def _of_out(case: Case) -> set[str]:
    match case.kwargs.get("out"):
        case None:
            return {"no out"}
        case Same():
            return {"out is an input"}
        case TensorSpec() as out:
            result = by_torch(
                Case(op=case.op, args=case.args, kwargs={k: v for k, v in case.kwargs.items() if k != "out"})
            )
            found = {"out"}
            if out.shape == (0,) != tuple(result.shape):
                found.add("empty out")
            elif out.shape != tuple(result.shape):
                found.add("out of another size")
            elif layouts.layout_class(out.layout, out.shape) not in ("contiguous", "offset"):
                found.add("strided out")
            if dtype_names.to_torch(out.dtype) != result.dtype:
                found.add("out of another dtype")
            return found
    raise AssertionError(case)
