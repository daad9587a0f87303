"""What activations share: one floating-point tensor, keywords, no ``out``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds
from conformance.cases import Argument, Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _models, _scenes, _unary
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import Layout

DTYPES = dtype_names.FLOATING
INPLACE: Mapping[str, Sequence[Argument]] = {"inplace": (None, None, None, False, True)}
"""The keyword of activations that can write their input."""


def cases(op: str, keywords: Mapping[str, Sequence[Argument]]) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls with each keyword at one of its values, or (None) without it."""

    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        names = [dtype for dtype in dtypes if dtype in DTYPES]
        given = {name: draw(st.sampled_from(values)) for name, values in keywords.items()}
        options = {"layouts": elementwise.WRITABLE} if given.get("inplace") else {}
        return elementwise.case(op, (draw(_unary.inputs(names, True, **options)),), **given)

    return draws


def expanded(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls that write an input several of whose elements share an address."""

    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        small = tensors.tensors((4, 3), dtypes, layouts="contiguous")
        shared = small.map(lambda x: type(x)(x.shape, x.dtype, x.values, x.seed, Layout(expanded=(0,))))
        return shared.map(lambda x: Case(op=op, args=(x,), kwargs={"inplace": True}))

    return draws


def rounded(
    formula: Callable[..., np.ndarray],
    precise: Callable[..., mpmath.mpf] | None = None,
    *,
    ulps: float = 0.0,
    bound: Callable[..., np.ndarray] | None = None,
) -> Callable[[Call], Expected]:
    """The oracle of an activation.

    ``formula`` and ``precise``: as of ``_unary``, of the input and of keywords; ``formula`` may take numbers of mpmath,
    too. What is added to half an ulp: so many ``ulps`` of the compute dtype, or ``bound``, a function of the value, the
    dtype and the input."""

    def expected(call: Call) -> Expected:
        dtype, given = call.args[0].dtype, {name: one for name, one in call.kwargs.items() if name != "inplace"}
        exact = partial(precise, **given) if precise else lambda x: np.asarray(formula(x, **given)).item()
        x, value, low = _unary.value_of(call.args[0], dtype, partial(formula, **given), exact)
        added = bound(value, dtype, x) if bound else bounds.ulps(ulps, value, dtype)
        return expectations.within(call, value, added, dtype, low=low, signed_zero=True)

    return expected


def spec(
    name: str,
    expected: Callable[[Call], Expected],
    gradient: gradients.Formula,
    *,
    keywords: Mapping[str, Sequence[Argument]] = INPLACE,
    refused: Callable[[Sequence[str]], st.SearchStrategy[Case]] | None = None,
    flops: int,
) -> OpSpec:
    """The OpSpec of an activation of ``torch.nn.functional``.

    ``keywords``: the values of each keyword, in the order of its arguments; ``refused``: the calls that torch refuses,
    beside those with another dtype or none."""
    legal, more = cases(name, keywords), refused or expanded(name)

    def all_refused(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        names = [dtype for dtype in dtypes if dtype in DTYPES]
        return st.one_of(more(names), _unary.no_tensors(name), *_unary.unsupported(name, DTYPES))

    return OpSpec(
        name=name,
        reference=getattr(torch.nn.functional, name),
        cases=legal,
        large=_large.grown(legal),
        scenes=_scenes.of_elements(legal),
        refused=all_refused,
        dtypes=DTYPES,
        inplace="inplace" in keywords,
        batch=elementwise.batch,
        parts=elementwise.parts,
        mixes=False,
        expected=expected,
        gradients=gradient,
        benchmarks=elementwise.benchmarks(name, 1, element_flops=flops),
        sampled=_models.unary(name, 1.5, flops),
    )
