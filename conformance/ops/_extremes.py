"""The largest and smallest elements over dims, and where they are: exact, so that torch on the CPU is the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from hypothesis import strategies as st

from conformance.cases import Case
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _scenes, _special_rows
from conformance.ops import _reductions as reductions
from conformance.running import Running, exact
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors


def spec(name: str, function: Callable[..., torch.Tensor]) -> OpSpec:
    """The OpSpec of the largest or smallest element."""

    def expected(call: Call) -> Expected:
        return expectations.exactly(call, function(*call.args, **{k: v for k, v in call.kwargs.items() if k != "out"}))

    legal = reductions.cases(name, str, lambda dtype: (), empty=False, without_dim=("keepdim", "out"))
    return OpSpec(
        name=name,
        reference=function,
        cases=legal,
        large=_large.reduced(legal),
        scenes=_scenes.of_rows(legal, several=True),
        apart=(
            _scenes.plain_rows(legal),
            _special_rows.marked_rows(legal, several=True),
            lambda dtypes: _tied(name, tuple(dtypes)),
        ),
        refused=reductions.refused(name, str, dtype=False, empty=False),
        dtypes=dtype_names.ALL,
        outs=reductions.OUTS,
        batch=reductions.batch,
        parts=reductions.parts,
        expected=expected,
        gradients=gradient,
        benchmarks=reductions.benchmarks(name),
    )


@st.composite
def _tied(draw: st.DrawFn, name: str, dtypes: Sequence[str]) -> Case:
    """Several dims, of few different numbers: the largest one is met along each of them."""
    dtype, rank = draw(st.sampled_from(list(dtypes))), draw(st.integers(2, 4))
    shape = tuple(draw(st.integers(2, 6)) for _ in range(rank))
    dims = tuple(draw(st.permutations(range(rank)))[: draw(st.integers(2, rank))])
    values = draw(st.sampled_from(("integers", "constant", "one_hot") if dtype != "bool" else ("one_hot",)))
    spec = draw(tensors.tensors(shape, dtype, values=(values,), specials=()))
    return Case(op=name, args=(spec, dims), kwargs={"keepdim": draw(st.booleans())})


def place_spec(name: str, function: Callable[..., torch.Tensor]) -> OpSpec:
    """The OpSpec of the index of the largest or smallest element, the first of equal ones."""

    def expected(call: Call) -> Expected:
        return expectations.exactly(call, function(*call.args, **{k: v for k, v in call.kwargs.items() if k != "out"}))

    def result(dtype: str) -> str:
        return "" if dtype == "bool" else "int64"

    legal = reductions.cases(name, result, lambda dtype: (), empty=False, without_dim=("keepdim", "out"), several=False)
    return OpSpec(
        name=name,
        reference=function,
        cases=legal,
        large=_large.reduced(legal),
        scenes=_scenes.of_rows(legal),
        apart=(_scenes.plain_rows(legal), _special_rows.marked_rows(legal)),
        refused=reductions.refused(name, result, dtype=False, empty=False, several=False),
        dtypes=tuple(dtype for dtype in dtype_names.ALL if dtype != "bool"),
        outs=reductions.OUTS,
        batch=reductions.batch,
        parts=reductions.parts,
        expected=expected,
        benchmarks=reductions.benchmarks(name, "int64"),
    )


def gradient(call: Call, dout: torch.Tensor) -> dict[int | str, Running]:
    """The gradient of the result, shared evenly by the elements that equal it."""
    input, dim = reductions.arguments(*call.args, **call.kwargs)[:2]
    assert isinstance(call.result, torch.Tensor)
    dims = reductions.reduced(dim, input.ndim)
    whole = tuple(1 if place in dims else size for place, size in enumerate(input.shape))
    alike = input.cpu() == call.result.detach().cpu().reshape(whole)
    count = alike.sum(dims, keepdim=True) if dims else alike.long()
    with np.errstate(all="ignore"):
        # torch rounds the number of equal elements to the gradient's dtype.
        share = exact(dout, dout.dtype).laid(lambda array: array.reshape(whole)) * exact(alike, dout.dtype)
        return {0: share / exact(count, dout.dtype)}
