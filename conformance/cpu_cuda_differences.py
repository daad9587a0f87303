"""CPU substitutes for torch references that differ from CUDA: calls that CUDA alone takes, and calls that the CPU lays
out or rounds in another way. CUDA's semantics hold everywhere, so a reference computed on the CPU needs them, unless
``semantics`` are those of the CPU."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from conformance import cases, semantics
from conformance.cases import Case, Same
from conformance.spec import Call
from strategies.specs import Layout, TensorSpec

Function = Callable[..., torch.Tensor]
HALF = (torch.float16, torch.bfloat16)
FLOAT32_MAX = torch.finfo(torch.float32).max
SPEED = "values"
"""The ``check`` of a stand-in that is there for its speed: it means what torch's CPU means."""


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A kind of call whose answer on the CPU is not CUDA's."""

    name: str
    ops: tuple[str, ...]
    check: str
    """The check that torch itself fails on the CPU: "errors" or "metadata"; "values" marks a reference replaced for its
    speed, which excuses no failure."""
    applies: Callable[[Call], bool]
    answer: Function
    """Called on the CPU, torch's function before the arguments: gives CUDA's shape, dtype and strides, and values that
    may be CUDA's."""
    case: Case
    """A case that shows it."""


def find(op: str, call: Call) -> StandIn | None:
    """Return the stand-in for torch's function on the CPU in a call of ``op``; None where none is needed."""
    needed = (one for one in STAND_INS if one.check == SPEED or not semantics.of_cpu())
    return next((stand_in for stand_in in needed if op in stand_in.ops and stand_in.applies(call)), None)


def cpu_alone_refuses(case: Case) -> bool:
    """Tell whether torch refuses a call on the CPU that it takes on CUDA."""
    args, kwargs, _ = cases.materialize(case)
    call = Call(args, kwargs, None)
    return any(one.check == "errors" and case.op in one.ops and one.applies(call) for one in STAND_INS)


def answer(op: str, function: Function, call: Call) -> Function:
    """Return the function to call on the CPU in place of torch's ``function``: that itself where nothing stands in for
    it."""
    found = find(op, call)
    return functools.partial(found.answer, function) if found else function


# --- what CUDA alone takes ---------------------------------------------------------------------------------------


def _of_bool(call: Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], torch.Tensor) and call.args[0].dtype == torch.bool


def _same_bools(function: Function, input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    if isinstance(out, torch.Tensor) and out.dtype != torch.bool:
        raise RuntimeError(f"argument 'out' has dtype {out.dtype}; abs wants that of the input")
    return torch.logical_or(input, input, out=out)


def _beyond(number: object, dtype: torch.dtype) -> bool:
    """Tell whether a finite number is beyond the range of a half type, but not of float32, in which it is computed."""
    finite = isinstance(number, int | float) and math.isfinite(number)
    return finite and torch.finfo(dtype).max < abs(number) <= FLOAT32_MAX


def _large_alpha(call: Call) -> bool:
    if len(call.args) != 2 or not all(isinstance(x, torch.Tensor | bool | int | float) for x in call.args):
        return False
    dtype = torch.result_type(*call.args)
    return dtype in HALF and _beyond(call.kwargs.get("alpha"), dtype)


def _in_float32(
    function: Function,
    input: torch.Tensor | float,
    other: torch.Tensor | float,
    *,
    alpha: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    dtype = torch.result_type(input, other)
    wide = (x.to(dtype).float() if isinstance(x, torch.Tensor) else x for x in (input, other))
    found = function(*wide, alpha=alpha)
    return function(input, other, out=out).copy_(found.to(dtype))


def _large_bound(call: Call) -> bool:
    """Tell whether a half input has numbers for bounds, one of them beyond its range; a 0-d tensor beside a number is
    one."""
    if not call.args or not isinstance(call.args[0], torch.Tensor) or call.args[0].dtype not in HALF:
        return False
    given = (*call.args[1:], call.kwargs.get("min"), call.kwargs.get("max"))
    given = [bound for bound in given if bound is not None]
    if all(isinstance(bound, torch.Tensor) for bound in given):
        return False
    numbers = [x.item() if isinstance(x, torch.Tensor) and not x.ndim else x for x in given]
    if not all(isinstance(x, int | float) for x in numbers):
        return False
    finite = [x for x in numbers if math.isfinite(x)]
    return any(_beyond(x, call.args[0].dtype) for x in finite) and all(abs(x) <= FLOAT32_MAX for x in finite)


def _by_rounded(
    function: Function,
    input: torch.Tensor,
    min: torch.Tensor | float | None = None,
    max: torch.Tensor | float | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    low, high = (None if x is None else torch.as_tensor(x).to(input.dtype).item() for x in (min, max))
    return function(input, low, high, out=out)


def norm_of_no_rows(call: Call) -> bool:
    """Tell whether a norm has no rows; rows without elements count as rows."""
    input, *rest = call.args
    shape = rest[0] if rest else ()
    return (
        isinstance(input, torch.Tensor)
        and isinstance(shape, tuple)
        and math.prod(input.shape[: max(input.ndim - len(shape), 0)]) == 0
    )


def _any_dtypes(call: Call) -> bool:
    """Tell whether a layer_norm has no rows, and dtypes that the CPU refuses."""
    return norm_of_no_rows(call) and (not call.args[0].dtype.is_floating_point or _mixed(call))


def _integers(call: Call) -> bool:
    """Tell whether an rms_norm has no rows, of integers."""
    return norm_of_no_rows(call) and not call.args[0].dtype.is_floating_point and not _mixed(call)


def _mixed(call: Call) -> bool:
    return len({x.dtype for _, x in _arguments(call) if isinstance(x, torch.Tensor)}) > 1


def _as_floats(function: Function, input: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    def wide(x: Any) -> Any:
        return x.float() if isinstance(x, torch.Tensor) else x

    found = function(wide(input), *map(wide, args), **{name: wide(x) for name, x in kwargs.items()})
    return found.to(input.dtype)


def _factors_not_asked(call: Call) -> bool:
    """Tell whether there is nothing to multiply: then CUDA casts beta to the dtype, which integers may refuse, and
    ignores alpha."""
    if len(call.args) != 3 or not all(isinstance(x, torch.Tensor) for x in call.args):
        return False
    whole = not any(x.dtype.is_floating_point for x in call.args)
    empty = not (call.args[1].numel() and call.args[2].numel())
    # Bools refuse the 1 that stands for a beta that is left out.
    factors = [call.kwargs.get(name, 1) for name in ("alpha", "beta")]
    if not (empty and all(isinstance(x, int | float) for x in factors)):
        return False
    return whole or any(FLOAT32_MAX < abs(x) < math.inf for x in factors)


def _by_cast_factor(
    function: Function,
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if not (mat1.shape[0] and mat2.shape[1]):
        return function(input, mat1, mat2, out=out)
    return function(input, mat1, mat2, beta=torch.scalar_tensor(beta, dtype=input.dtype).item(), out=out)


def _ignored_input(call: Call) -> bool:
    """Tell whether ``input`` does not broadcast to the product, and ``beta`` is 0: then CUDA looks at none of its
    sizes."""
    beta = call.kwargs.get("beta", 1)
    if len(call.args) != 3 or not isinstance(beta, int | float) or beta != 0:
        return False
    if not all(isinstance(x, torch.Tensor) for x in call.args) or not call.args[1].numel():
        return False
    input, mat1, mat2 = call.args
    result = (*mat1.shape[:1], *mat2.shape[1:])
    try:
        return torch.broadcast_shapes(input.shape, result) != result
    except RuntimeError:
        return True


def _without_input(
    function: Function, input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    return function(input.new_zeros(1), mat1, mat2, **kwargs)


# --- what CUDA lays out in another way ---------------------------------------------------------------------------


def _laid_out_anew(call: Call) -> bool:
    """Tell whether operands are promoted, which copies them on the CPU, and one has gaps or strides of 0, which its
    copy has not."""
    tensors = [x for name, x in _arguments(call) if name != "out" and isinstance(x, torch.Tensor)]
    anew = any(torch.empty_like(x, device="meta").stride() != x.stride() for x in tensors)
    whole = any(not x.dtype.is_floating_point for x in tensors)
    return anew and (whole or len({x.dtype for x in tensors}) > 1)


def _arguments(call: Call) -> list[tuple[str, object]]:
    return [*(("", x) for x in call.args), *call.kwargs.items()]


def _promoted_where_read(
    function: Function, *args: object, out: torch.Tensor | None = None, **kwargs: object
) -> torch.Tensor:
    """Return torch's own answer, with the strides that it has where no operand has to be promoted."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    plain = function(*args, **kwargs)
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    dtype = dtype if plain.dtype == torch.bool else plain.dtype

    def twin(x: object) -> object:
        if not isinstance(x, torch.Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=dtype).fill_(1)

    strides = function(*map(twin, args), **{name: twin(x) for name, x in kwargs.items()}).stride()
    if out is None:
        return torch.empty_strided(plain.shape, strides, dtype=plain.dtype).copy_(plain)
    resized = isinstance(out, torch.Tensor) and out.shape != plain.shape
    found = function(*args, out=out, **kwargs)
    return found.as_strided_(plain.shape, strides).copy_(plain) if resized else found


# --- what CUDA rounds once ---------------------------------------------------------------------------------------


def _half_product(call: Call) -> bool:
    """Tell whether it is a product of half types that torch takes, with something to multiply."""
    tensors = [x for x in call.args if isinstance(x, torch.Tensor)]
    if len(tensors) != len(call.args) or len(tensors) not in (2, 3) or len({x.dtype for x in tensors}) > 1:
        return False
    left, right = tensors[-2:]
    # A copy into elements that share memory is refused, as the product need not be.
    out = call.kwargs.get("out")
    if out is not None and any(size > 1 and not stride for size, stride in zip(out.shape, out.stride(), strict=True)):
        return False
    if left.dtype not in HALF or not (left.ndim and right.ndim and left.numel() and right.numel()):
        return False
    return left.shape[-1] == right.shape[-2 if right.ndim > 1 else -1]


def _summed_in_float32(
    function: Function, *operands: torch.Tensor, out: torch.Tensor | None = None, **factors: float
) -> torch.Tensor:
    """Return the float32 product, rounded once, with torch's own refusals, strides and ``out``, of a product of one
    term."""
    *added, left, right = operands
    terms = (left.narrow(-1, 0, 1), right.narrow(-2 if right.ndim > 1 else -1, 0, 1))
    # An ``out`` may be an operand.
    wide = function(*(x.float() for x in operands), **factors)
    found = function(*added, *terms, out=out, **factors)
    # torch counts one write of ``out``, which this keeps.
    found.data.copy_(wide)
    return found


def _tensor(dtype: str, *shape: int, **more: Any) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, **more)


STAND_INS: tuple[StandIn, ...] = (
    StandIn(
        "abs of bools",
        ops=("abs",),
        check="errors",
        applies=_of_bool,
        answer=_same_bools,
        case=Case(op="abs", args=(_tensor("bool", 5),)),
    ),
    StandIn(
        "alpha beyond a half type",
        ops=("add", "sub"),
        check="errors",
        applies=_large_alpha,
        answer=_in_float32,
        case=Case(op="add", args=(_tensor("float16", 5), Same(0)), kwargs={"alpha": 1e6}),
    ),
    StandIn(
        "a bound beyond a half type",
        ops=("clamp",),
        check="errors",
        applies=_large_bound,
        answer=_by_rounded,
        case=Case(op="clamp", args=(_tensor("float16", 5), 1e6)),
    ),
    StandIn(
        "layer_norm of no rows, of any dtypes",
        ops=("layer_norm",),
        check="errors",
        applies=_any_dtypes,
        answer=_as_floats,
        case=Case(op="layer_norm", args=(_tensor("float16", 0, 5), (5,), _tensor("float64", 5))),
    ),
    StandIn(
        "rms_norm of no rows, of integers",
        ops=("rms_norm",),
        check="errors",
        applies=_integers,
        answer=_as_floats,
        case=Case(op="rms_norm", args=(_tensor("int32", 0, 5), (5,))),
    ),
    StandIn(
        "factors where there is nothing to multiply",
        ops=("addmm",),
        check="errors",
        applies=_factors_not_asked,
        answer=_by_cast_factor,
        case=Case(
            op="addmm",
            args=(_tensor("int32", 2), _tensor("int32", 3, 0), _tensor("int32", 0, 2)),
            kwargs={"beta": 2.5},
        ),
    ),
    StandIn(
        "an input that is ignored, of any size",
        ops=("addmm",),
        check="errors",
        applies=_ignored_input,
        answer=_without_input,
        case=Case(
            op="addmm",
            args=(_tensor("float32", 3, 9), _tensor("float32", 3, 4), _tensor("float32", 4, 2)),
            kwargs={"beta": 0},
        ),
    ),
    # The CPU promotes operands before it looks at their strides, and a promoted copy has no gaps.
    StandIn(
        "operands with gaps that are promoted",
        ops=(
            *("add", "sub", "mul", "div", "pow", "clamp", "eq", "ne", "lt", "le", "gt", "ge"),
            *("bitwise_and", "bitwise_or", "exp", "rsqrt", "sin", "cos", "sigmoid", "tanh"),
        ),
        check="metadata",
        applies=_laid_out_anew,
        answer=_promoted_where_read,
        case=Case(
            op="add",
            args=(_tensor("float32", 2, 2, 1), _tensor("float16", 2, 2, 2, layout=Layout((2, 0, 1), expanded=(1,)))),
        ),
    ),
    # Without AMX or AVX-512 the CPU takes a hundred times as long for these as for float32.
    StandIn(
        "products of half types",
        ops=("mm", "bmm", "addmm", "matmul"),
        check=SPEED,
        applies=_half_product,
        answer=_summed_in_float32,
        case=Case(op="mm", args=(_tensor("float16", 65, 33), _tensor("float16", 33, 17))),
    ),
)
