"""What add and sub share: ``input`` plus or minus ``alpha * other``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import bounds, cuda_refusals, features, oracle
from conformance.cases import Argument, Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _models, _scenes
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import scalars, tensors
from strategies.specs import Special, TensorSpec

LEAST = tuple(-(2 ** (bits - 1)) for bits in (8, 16, 32))
"""The least numbers of the integer dtypes; of 64 bits torch takes that too."""


@cache
def alphas(result: torch.dtype) -> st.SearchStrategy[Argument]:
    """A scalar that torch takes for a result of this dtype."""
    name = str(result).removeprefix("torch.")
    if result == torch.bool:
        return st.sampled_from((True, False, 2, 0))
    if result.is_floating_point:
        specials = st.sampled_from((0, 2, -1, 0.0, float("inf"), float("nan"), 1e6, 70001))
        return st.one_of(scalars.scalars(name, magnitude=2.0**7, specials=False), specials)
    return st.one_of(scalars.scalars(name), scalars.scalars(name), scalars.magnitudes(name))


def cases(op: str, supported: Sequence[str]) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    kinds = ("own", *(("bool",) if "bool" in supported else ()), "int", "float", "not finite")

    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        names = [name for name in dtypes if name in supported]
        operands = draw(elementwise.operands(names, wrapping=True, kinds=kinds))
        shape, result = elementwise.result_of(operands)
        out = draw(elementwise.outs(shape, result, operands, names))
        # Left out half the time, as in most calls.
        alpha = draw(alphas(result)) if draw(st.booleans()) else None
        if op == "sub" and alpha in LEAST:
            # torch adds its negative, which the dtype does not hold.
            alpha += 1
        if alpha == 0 and result.is_floating_point:
            operands = operands[0], draw(_not_finite(operands[1]))
        return elementwise.case(op, operands, alpha=alpha, out=out)

    return draws


def negative_alphas(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    """Calls of unsigned integers and a negative alpha, which wraps."""

    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        if "uint8" not in dtypes:
            return st.nothing()
        operand = tensors.tensors((9,), ("uint8",))
        alpha = st.sampled_from((-1, -2, -3, -255))
        return st.builds(lambda x, y, a: Case(op=op, args=(x, y), kwargs={"alpha": a}), operand, operand, alpha)

    return draws


def _not_finite(operand: Argument) -> st.SearchStrategy[Argument]:
    """The operand; of floats half the time with an infinity or a NaN at its end, which times an alpha of 0 is NaN."""
    if not isinstance(operand, TensorSpec) or not elementwise.is_float(operand) or 0 in operand.shape:
        return st.just(operand)

    def planted(value: str) -> TensorSpec:
        return replace(operand, specials=(*operand.specials, Special(math.prod(operand.shape) - 1, value)))

    return st.one_of(st.just(operand), st.sampled_from(("inf", "-inf", "nan")).map(planted))


def refused(op: str, supported: Sequence[str]) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        names = [name for name in dtypes if name in supported]
        return st.one_of(list(_refusals(op, names, "bool" in supported).values()))

    return draws


def _refusals(op: str, names: Sequence[str], bools: bool) -> dict[str, st.SearchStrategy[Case]]:
    def with_alpha(operands: st.SearchStrategy[tensors.TensorSpec], *alphas: Argument) -> st.SearchStrategy[Case]:
        alpha = st.sampled_from(alphas)
        return st.builds(lambda x, a: Case(op=op, args=(x, x), kwargs={"alpha": a}), operands, alpha)

    small = tensors.tensors((3,), names)
    wrong = st.sampled_from(elementwise.WRONG_TYPES)
    kinds = {
        "broadcast": elementwise.unbroadcastable(names).map(lambda pair: elementwise.case(op, pair)),
        "out": elementwise.refused_outs(op, names),
        "numbers": elementwise.numbers_into_out(op, names),
        "type": st.builds(lambda x, other: Case(op=op, args=(x, other)), small, wrong),
        "alpha type": with_alpha(small, "x"),
    }
    if integers := [name for name in names if name in dtype_names.INTEGRAL]:
        kinds["alpha"] = with_alpha(tensors.tensors((4,), integers), 1.0, 0.5, float("inf"), True, 2**70)
        if narrow := [name for name in integers if name in ("int8", "uint8")]:
            kinds["alpha range"] = with_alpha(tensors.tensors((4,), narrow), 300)
    if floats := [name for name in names if name in dtype_names.FLOATING]:
        kinds["alpha of bool"] = with_alpha(tensors.tensors((4,), floats), True)
    logical = tensors.tensors((4,), "bool")
    if "bool" in names:
        kinds["bool alpha"] = with_alpha(logical, 0.5)
    if not bools:
        other = st.one_of(small, logical, st.sampled_from((1, True, 2.5)))
        kinds["bool"] = st.builds(lambda x, y: Case(op=op, args=(x, y)), logical, other)
        kinds["bool other"] = st.builds(lambda x, y: Case(op=op, args=(x, y)), small, st.one_of(logical, st.booleans()))
        kinds["bool input"] = st.builds(lambda x, y: Case(op=op, args=(y, x)), small, st.booleans())
    return kinds


def expected(function: Callable[..., torch.Tensor], sign: int, call: Call) -> Expected:
    """``function`` computes integers exactly; of floats it is ``input + sign * alpha * other``."""
    input, other = call.args
    alpha = call.kwargs.get("alpha", 1)
    dtype = torch.result_type(input, other)
    if not dtype.is_floating_point:
        return expectations.exactly(call, function(input, other, alpha=alpha))
    # torch subtracts by adding with -alpha: of the int 0 that is no -0.
    a, b, factor = (oracle.operand(x, dtype) for x in (input, other, sign * alpha))
    low = None
    if dtype == torch.float64:
        (value, low), product = oracle.add_product(a, factor, b)
    else:
        # At most 48 bits: float64 holds the product exactly.
        with np.errstate(all="ignore"):
            product = np.broadcast_to(factor * b, np.broadcast_shapes(a.shape, b.shape))
            value, low = oracle.two_sum(a, product)
    product = np.broadcast_to(product, value.shape)
    wide = not all(oracle.exact_scalar(x, dtype) for x in (input, other))
    bound = bounds.add(value, product, dtype, exact=alpha in (1, -1), wide=wide)
    finite = np.isfinite(factor) & np.isfinite(b)
    overflow = ~oracle.in_range(product, dtype) | (np.isinf(product) & finite)
    # Of a float64 product that underflows not even the sign is left, unless it is fused with the sum; where it is
    # rounded to a subnormal, that of a sum of 0 is anybody's.
    least = torch.finfo(torch.float64).smallest_normal
    lost = np.where(product == 0, np.abs(value) < least, (value == 0) & (np.abs(product) < least))
    underflow = lost & (np.abs(factor) != 1) & finite & (factor != 0) & (b != 0)
    judged = ~overflow & ~underflow
    once = alpha in (1, -1)
    found = expectations.within(call, value, bound, dtype, low=low, judged=judged, signed_zero=True, once=once)

    def by_rounded(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        term = torch.tensor(sign * alpha, dtype=torch.float64).to(dtype).float() * b
        return a + term, a + term.to(dtype).float()

    return expectations.also_of_scalars(call, found, by_rounded)


def spec(name: str, function: Callable[..., torch.Tensor], sign: int, dtypes: tuple[str, ...]) -> OpSpec:
    """The OpSpec of ``input + sign * alpha * other``."""
    return OpSpec(
        name=name,
        reference=function,
        cases=cases(name, dtypes),
        large=_large.grown(cases(name, dtypes)),
        scenes=_scenes.of_elements(cases(name, dtypes)),
        apart=(
            negative_alphas(name),
            _scenes.special_pairs(name, dtype_names.FLOATING, alpha=(0.0, -0.0, 0, 1, -1.0, 2, 0.1)),
            _scenes.with_numbers(name, _scenes.ROUNDING),
        ),
        refused=refused(name, dtypes),
        dtypes=dtypes,
        outs=OUTS,
        batch=elementwise.batch,
        parts=elementwise.parts,
        features=features.elementwise,
        expected=partial(expected, function, sign),
        gradients=gradients.of(partial(gradients.added, sign=sign), "input", "other"),
        cuda_refuses=partial(cuda_refusals.cuda_refuses, name),
        left_out=cuda_refusals.numbers_alone,
        benchmarks=elementwise.benchmarks(name, 2, strided=True),
        sampled=_models.binary(name, 1),
    )
