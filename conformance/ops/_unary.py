"""What functions of one tensor share: those that round, by a formula, and those that are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, cpu_cuda_differences, oracle
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _models, _scenes
from conformance.running import Running
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors

Formula = Callable[[np.ndarray], np.ndarray]
"""A function in float64, accurate to a few of its ulps."""
Precise = Callable[[mpmath.mpf], mpmath.mpf]
"""The same function of a number that is finite and not zero, where its value is not NaN."""
Bound = Callable[[np.ndarray, torch.dtype], np.ndarray]
"""What is added to half an ulp, of the value and the dtype of the result."""


# --- calls -------------------------------------------------------------------------------------------------------


def float_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a function with float results: that of its operand, or the default one."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


@st.composite
def inputs(draw: st.DrawFn, dtypes: Sequence[str], by_mpmath: bool, **options: Any) -> tensors.TensorSpec:
    """One tensor; where float64 is costly it is kept small."""
    dtype = draw(dtype_names.dtypes(dtypes))
    budget = elementwise.elements(dtype) if by_mpmath else elementwise.elements()
    return draw(tensors.tensors(elementwise.shapes_of_results(budget=budget), dtype, **options))


def cases(
    op: str, supported: Sequence[str], result: Callable[[torch.dtype], torch.dtype], exact: bool
) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls with ``out``, which has the very dtype of the result where torch computes exactly."""

    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        names = [name for name in dtypes if name in supported]
        input = draw(inputs(names, not exact))
        found = result(dtype_names.to_torch(input.dtype))
        out = draw(elementwise.outs(input.shape, found, (input,), dtypes, exact=exact))
        return elementwise.case(op, (input,), out=out)

    return draws


def no_tensors(op: str) -> st.SearchStrategy[Case]:
    """Calls without a tensor."""
    return st.sampled_from((1.5, 2, True, *elementwise.WRONG_TYPES)).map(lambda x: Case(op=op, args=(x,)))


def unsupported(op: str, supported: Sequence[str]) -> list[st.SearchStrategy[Case]]:
    """Calls with dtypes that torch refuses; none where it takes all."""
    names = [name for name in dtype_names.ALL if name not in supported]
    if not names:
        return []
    small = tensors.tensors(elementwise.shapes_of_results(budget=512), names, layouts=elementwise.WRITABLE)
    # Of no elements torch takes some dtypes that it refuses otherwise.
    some = small.filter(lambda spec: 0 not in spec.shape)
    return [some.map(lambda x: Case(op=op, args=(x,)))]


def refused(
    op: str, supported: Sequence[str], result: Callable[[torch.dtype], torch.dtype], exact: bool
) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        kinds = [no_tensors(op), *unsupported(op, supported)]
        # One dtype after the other, since each may have a result of another one.
        for name in dtype_names.by_simplicity(name for name in dtypes if name in supported):
            found = result(dtype_names.to_torch(name))
            kinds.append(elementwise.refused_outs(op, (name,), found, others=(), exact=exact))
        small = tensors.tensors((3,), [name for name in dtypes if name in supported])
        kinds.append(small.map(lambda x: Case(op=op, args=(x,), kwargs={"out": "x"})))
        return st.one_of(kinds)

    return draws


# --- oracles -----------------------------------------------------------------------------------------------------


def value_of(
    input: torch.Tensor, dtype: torch.dtype, formula: Formula, precise: Precise
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The operand, the function's value, and for float64 the rest of that."""
    x = oracle.operand(input, dtype)
    with np.errstate(all="ignore"):
        value, low = np.asarray(formula(x)), None
    if dtype == torch.float64:
        value, low = oracle.refine(value, precise, x)
    # A zero that comes of underflow may have either sign.
    underflow = (value == 0) & (x != 0) & np.isfinite(x)
    return x, np.where(underflow, np.finfo(np.float64).smallest_subnormal, value), low


def spec(
    name: str,
    slope: Callable[[Running, Running], Running],
    *,
    ulps: float | None = None,
    formula: Formula | None = None,
    precise: Precise | None = None,
    bound: Bound | None = None,
) -> OpSpec:
    """The OpSpec of a function whose results are floats, of integers too.

    ``slope``: its gradient, as of ``_gradients.of_input``. ``ulps``: its bound, where it is neither of ``bounds.ULPS``
    nor ``bound``. NumPy and mpmath have the function under the same name, where ``formula`` and ``precise`` are not
    given."""
    function, formula = getattr(torch, name), formula or getattr(np, name)
    precise, bound = precise or getattr(mpmath, name), bound or partial(bounds.ulps, name if ulps is None else ulps)

    def expected(call: Call) -> Expected:
        dtype = float_of(call.args[0].dtype)
        _, value, low = value_of(call.args[0], dtype, formula, precise)
        return expectations.within(call, value, bound(value, dtype), dtype, low=low, signed_zero=True)

    return OpSpec(
        name=name,
        reference=function,
        cases=cases(name, dtype_names.ALL, float_of, False),
        large=_large.grown(cases(name, dtype_names.ALL, float_of, False)),
        scenes=_scenes.of_elements(cases(name, dtype_names.ALL, float_of, False)),
        refused=refused(name, dtype_names.ALL, float_of, False),
        dtypes=dtype_names.ALL,
        outs=OUTS,
        batch=elementwise.batch,
        parts=elementwise.parts,
        expected=expected,
        gradients=gradients.of_input(slope),
        benchmarks=elementwise.benchmarks(name, 1),
        sampled=_models.unary(name, 0.2, 1),
    )


def exact_spec(
    name: str,
    dtypes: tuple[str, ...] = dtype_names.ALL,
    *,
    benchmark: str = "bfloat16",
    gradient: gradients.Formula | None = None,
) -> OpSpec:
    """The OpSpec of a function that rounds nothing, with results of the operand's dtype."""
    function = getattr(torch, name)

    def expected(call: Call) -> Expected:
        answer = cpu_cuda_differences.answer(name, function, call)
        return expectations.exactly(call, answer(*call.args), signed_zero=True)

    return OpSpec(
        name=name,
        reference=function,
        cases=cases(name, dtypes, lambda dtype: dtype, True),
        large=_large.grown(cases(name, dtypes, lambda dtype: dtype, True)),
        scenes=_scenes.of_elements(cases(name, dtypes, lambda dtype: dtype, True)),
        refused=refused(name, dtypes, lambda dtype: dtype, True),
        dtypes=dtypes,
        outs=OUTS,
        batch=elementwise.batch,
        parts=elementwise.parts,
        expected=expected,
        gradients=gradient,
        benchmarks=elementwise.benchmarks(name, 1, dtype=benchmark),
    )


def question_spec(name: str) -> OpSpec:
    """The OpSpec of a question about each element, answered with a bool; there is no ``out``."""
    function = getattr(torch, name)

    def all_cases(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        return inputs(dtypes, False).map(lambda x: Case(op=name, args=(x,)))

    def all_refused(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        small = tensors.tensors((3,), dtypes)
        return st.one_of(
            no_tensors(name),
            small.map(lambda x: Case(op=name, args=(x, x))),
            small.map(lambda x: Case(op=name, args=(x,), kwargs={"out": tensors.TensorSpec((3,), "bool")})),
        )

    return OpSpec(
        name=name,
        reference=function,
        cases=all_cases,
        large=_large.grown(all_cases),
        scenes=_scenes.of_elements(all_cases),
        refused=all_refused,
        dtypes=dtype_names.ALL,
        batch=elementwise.batch,
        parts=elementwise.parts,
        mixes=False,
        expected=lambda call: expectations.exactly(call, function(*call.args)),
        benchmarks=elementwise.benchmarks(name, 1, result="bool"),
    )
