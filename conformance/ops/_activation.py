"""What silu and gelu share: one floating-point tensor, no ``out``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st

from conformance.cases import Argument, Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _large, _models, _scenes, _unary
from conformance.ops._gradients import Formula
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names

DTYPES = dtype_names.FLOATING


def cases(op: str, name: str, values: Sequence[Argument]) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls with the keyword ``name`` at one of ``values``, or (None) without it."""

    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        names = [dtype for dtype in dtypes if dtype in DTYPES]
        value = draw(st.sampled_from(values))
        options = {"layouts": elementwise.WRITABLE} if value is True else {}
        return elementwise.case(op, (draw(_unary.inputs(names, True, **options)),), **{name: value})

    return draws


def spec(
    name: str,
    function: Callable[..., torch.Tensor],
    expected: Callable[[Call], Expected],
    legal: Callable[[Sequence[str]], st.SearchStrategy[Case]],
    refused: Callable[[Sequence[str]], st.SearchStrategy[Case]],
    flops: int,
    slope: Formula,
) -> OpSpec:
    """The OpSpec of an activation; what it refuses whatever its keywords are is added to ``refused``."""

    def all_refused(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        names = [dtype for dtype in dtypes if dtype in DTYPES]
        return st.one_of(refused(names), _unary.no_tensors(name), *_unary.unsupported(name, DTYPES))

    return OpSpec(
        name=name,
        reference=function,
        cases=legal,
        large=_large.grown(legal),
        scenes=_scenes.of_elements(legal),
        refused=all_refused,
        dtypes=DTYPES,
        inplace=name == "silu",
        batch=elementwise.batch,
        parts=elementwise.parts,
        mixes=False,
        expected=expected,
        gradients=slope,
        benchmarks=elementwise.benchmarks(name, 1, element_flops=flops),
        sampled=_models.unary(name, 1.5, flops),
    )
