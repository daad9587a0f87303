"""Planted defects of the fused operators: of each part, and of where one ends and the next begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from conformance.ops import fused_gated_mlp as mlp
from conformance.ops import fused_rmsnorm_rope as norm
from conformance.selftest import correct
from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

NORM, MLP = "fused_rmsnorm_rope", "fused_gated_mlp"
BOTH = (NORM, MLP)

# --- norm and rotation -----------------------------------------------------------------------------------------------


def _arguments(
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    head_dim: int | None = None,
) -> dict[str, Any]:
    """All of them in float64, tables by pairs."""
    size = cos.shape[1] if head_dim is None else head_dim
    cos, sin = (norm.once(table, interleaved, size).double() for table in (cos, sin))
    wide = {"x": x.double(), "weight": weight.double(), "cos": cos, "sin": sin}
    return wide | {"eps": eps, "interleaved": interleaved, "head_dim": size, "dtype": x.dtype}


def _normalized(x: torch.Tensor, weight: torch.Tensor, eps: float, **_: Any) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **more: Any) -> torch.Tensor:
    return norm.rotated(x, cos, sin, more["interleaved"], more["head_dim"])


def _with(**changes: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], torch.Tensor]:
    """The right formula with other arguments."""

    def change(given: dict[str, Any]) -> torch.Tensor:
        given = given | {name: made(given) for name, made in changes.items()}
        return _rotated(**given | {"x": _normalized(**given)})

    return change


def _norm(name: str, kind: str, change: Callable[[dict[str, Any]], torch.Tensor | None], about: str) -> None:
    """``change`` of all arguments gives the value in float64; None where it is right."""

    def value(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        given = _arguments(*args, **kwargs)
        return change(given) if given["x"].numel() and given["dtype"] in correct.NARROW else None

    plant(NORM, name, kind, "values", of.instead(value), about)


def _per_head(given: dict[str, Any]) -> torch.Tensor:
    heads = given["x"].unflatten(-1, (-1, given["head_dim"]))
    scaled = heads / (heads.square().mean(-1, keepdim=True) + given["eps"]).sqrt()
    return _rotated(**given | {"x": scaled.flatten(2) * given["weight"]})


def _in_half(given: dict[str, Any]) -> torch.Tensor | None:
    if given["dtype"] not in of.HALF:
        return None
    total = torch.zeros(given["x"].shape[:2], dtype=given["dtype"])
    for part in given["x"].square().split(16, -1):
        total = (total.double() + part.sum(-1)).to(given["dtype"])
    scale = (total.double() / given["x"].shape[2] + given["eps"]).sqrt()[..., None]
    return _rotated(**given | {"x": given["x"] / scale * given["weight"]})


def _without_last(given: dict[str, Any]) -> torch.Tensor | None:
    if given["x"].shape[2] == given["head_dim"]:
        return None
    found, normalized = _with()(given), _normalized(**given)
    found[..., -given["head_dim"] :] = normalized[..., -given["head_dim"] :]
    return found


def _short_sum(given: dict[str, Any]) -> torch.Tensor | None:
    x = given["x"]
    kept = x.shape[2] // 64 * 64
    if not kept or kept == x.shape[2]:
        return None
    scale = (x[..., :kept].square().sum(-1, keepdim=True) / x.shape[2] + given["eps"]).sqrt()
    return _rotated(**given | {"x": x / scale * given["weight"]})


_norm(
    "eps_outside",
    "eps",
    lambda g: _rotated(**g | {"x": g["x"] / (g["x"].square().mean(-1, keepdim=True).sqrt() + g["eps"]) * g["weight"]}),
    "eps is added to the root",
)
_norm("eps_squared", "eps", _with(eps=lambda g: g["eps"] ** 2), "eps is squared with the elements")
_norm("eps_fixed", "eps", _with(eps=lambda g: 1e-6), "eps is always 1e-6")
_norm("eps_of_torch", "eps", _with(eps=lambda g: 1e-5 if g["eps"] == 1e-6 else g["eps"]), "eps is 1e-5 by default")
_norm("per_head", "norm", _per_head, "each head is normalized alone")
_norm("centered", "norm", _with(x=lambda g: g["x"] - g["x"].mean(-1, keepdim=True)), "the mean is subtracted")
_norm("weight_left_out", "weight", _with(weight=lambda g: torch.ones_like(g["weight"])), "the weight is left out")
_norm("weight_plus_one", "weight", _with(weight=lambda g: 1 + g["weight"]), "the weight is 1 more")
_norm(
    "weight_of_first_head",
    "weight",
    _with(weight=lambda g: g["weight"][: g["head_dim"]].repeat(len(g["weight"]) // g["head_dim"])),
    "every head has the weight of the first",
)
_norm(
    "weight_last",
    "weight",
    lambda g: _with(weight=lambda g: torch.ones_like(g["weight"]))(g) * g["weight"],
    "the weight is multiplied with after the rotation",
)
_norm("other_pairs", "pairs", _with(interleaved=lambda g: not g["interleaved"]), "interleaved means the other one")
_norm("never_interleaved", "pairs", _with(interleaved=lambda g: False), "pairs are always half a head apart")
_norm(
    "pairs_of_rows",
    "pairs",
    _with(
        head_dim=lambda g: g["x"].shape[2],
        cos=lambda g: g["cos"].repeat(1, g["x"].shape[2] // g["head_dim"]),
        sin=lambda g: g["sin"].repeat(1, g["x"].shape[2] // g["head_dim"]),
    ),
    "pairs are half a row apart, not half a head",
)
_norm("other_direction", "sign", _with(sin=lambda g: -g["sin"]), "rotates the other way")
_norm(
    "tables_swapped", "tables", _with(cos=lambda g: g["sin"], sin=lambda g: g["cos"]), "sine and cosine change places"
)
_norm(
    "first_position",
    "tables",
    _with(cos=lambda g: g["cos"][:1].expand(g["cos"].shape), sin=lambda g: g["sin"][:1].expand(g["sin"].shape)),
    "every position is the first",
)
_norm(
    "last_positions",
    "tables",
    _with(
        cos=lambda g: g["cos"][len(g["cos"]) - g["x"].shape[1] :],
        sin=lambda g: g["sin"][len(g["sin"]) - g["x"].shape[1] :],
    ),
    "of longer tables the last rows are read",
)
_norm("last_head", "tail", _without_last, "the last head is not rotated")
_norm("sum_tail", "tail", _short_sum, "what lies past the last 64 columns is not summed")
_norm("half_sum", "accumulation", _in_half, "half types sum their squares in the half type")
_norm(
    "rounded_between",
    "precision",
    lambda g: _rotated(**g | {"x": _normalized(**g).to(g["dtype"]).double()}) if g["dtype"] in of.HALF else None,
    "half types are rounded between norm and rotation",
)


@defect(NORM, "refusals", "errors")
def width_guessed(right, x, weight, cos, sin, eps=1e-6, *, interleaved=False, head_dim=None):
    """Without head_dim, a table that does not fit is taken for one of half the width."""
    tensors = all(isinstance(t, torch.Tensor) for t in (x, cos))
    if head_dim is None and tensors and cos.ndim == 2 and x.ndim == 3 and cos.shape[1]:
        wide = x.shape[2] % cos.shape[1] or cos.shape[1] % 2
        head_dim = 2 * cos.shape[1] if wide and x.shape[2] % (2 * cos.shape[1]) == 0 else None
    return right(x, weight, cos, sin, eps, interleaved=interleaved, head_dim=head_dim)


@defect(NORM, "refusals", "errors")
def positions_wrap(right, x, weight, cos, sin, eps=1e-6, **kwargs):
    """Tables that are too short begin anew."""
    if all(isinstance(t, torch.Tensor) and t.ndim > 1 and len(t) for t in (x, cos, sin)) and x.ndim == 3:
        cos, sin = (t.repeat(x.shape[1] // len(t) + 1, *(1,) * (t.ndim - 1)) for t in (cos, sin))
    return right(x, weight, cos, sin, eps, **kwargs)


# --- gated MLP -----------------------------------------------------------------------------------------------------


def _mlp(name: str, kind: str, change: Callable[..., torch.Tensor | None], about: str) -> None:
    """``change`` of x, gate and up, in float64 and transposed, the activation, its name and the dtype gives the value;
    None where it is right."""

    def value(x: Any, gate: Any, up: Any, activation: str = "silu") -> torch.Tensor | None:
        if x.dtype not in correct.NARROW or not x.numel() or not gate.numel():
            return None
        wide = (x.double(), gate.double().mT, up.double().mT)
        return change(*wide, mlp.ACTIVATIONS[activation], activation, x.dtype)

    plant(MLP, name, kind, "values", of.instead(value), about)


def _with_activation(**others: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor | None]:
    def change(x, gate, up, act, name, dtype):
        return others[name](x @ gate) * (x @ up) if name in others else None

    return change


def _summed(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A product whose blocks of 16 terms are added up in the half type."""
    total = torch.zeros((*x.shape[:-1], weight.shape[1]), dtype=dtype)
    for start in range(0, x.shape[-1], 16):
        total += (x[..., start : start + 16] @ weight[start : start + 16]).to(dtype)
    return total.double()


def _kept(size: int) -> int:
    return size // 32 * 32


_mlp("swapped", "operands", lambda x, g, u, act, *_: act(x @ u) * (x @ g), "gate and up change places")
_mlp("activation_of_product", "operands", lambda x, g, u, act, *_: act((x @ g) * (x @ u)), "the product is activated")
_mlp("activation_of_both", "operands", lambda x, g, u, act, *_: act(x @ g) * act(x @ u), "both are activated")
_mlp("added", "operands", lambda x, g, u, act, *_: act(x @ g) + x @ u, "the two are added")
_mlp("gate_twice", "operands", lambda x, g, u, act, *_: act(x @ g) * (x @ g), "the gate's weight serves for both")
_mlp("always_silu", "activation", _with_activation(gelu=functional.silu, gelu_tanh=functional.silu), "always silu")
_mlp("gelu_by_tanh", "activation", _with_activation(gelu=mlp.ACTIVATIONS["gelu_tanh"]), "gelu is its approximation")
_mlp("tanh_by_erf", "activation", _with_activation(gelu_tanh=mlp.ACTIVATIONS["gelu"]), "gelu_tanh is gelu")
_mlp("quick_gelu", "activation", _with_activation(gelu=lambda x: x * torch.sigmoid(1.702 * x)), "gelu by a sigmoid")
_mlp("sigmoid", "activation", _with_activation(silu=torch.sigmoid), "silu is the sigmoid")
_mlp(
    "half_accumulator",
    "accumulation",
    lambda x, g, u, act, _, dtype: act(_summed(x, g, dtype)) * _summed(x, u, dtype) if dtype in of.HALF else None,
    "half types are accumulated in the half type, a block of 16 at a time",
)
_mlp(
    "rounded_between",
    "precision",
    lambda x, g, u, act, _, dtype: (
        act((x @ g).to(dtype).double()).to(dtype).double() * (x @ u).to(dtype).double() if dtype in of.HALF else None
    ),
    "half types are rounded before and after the activation",
)
_mlp(
    "inner_tail_of_up",
    "tail",
    lambda x, g, u, act, *_: (
        act(x @ g) * (x[..., : _kept(len(u))] @ u[: _kept(len(u))]) if _kept(len(u)) != len(u) else None
    ),
    "of up's sum what lies past the last block of 32 terms is left out",
)
_mlp(
    "inner_tail",
    "tail",
    lambda x, g, u, act, *_: (
        act(x[..., : _kept(len(u))] @ g[: _kept(len(u))]) * (x[..., : _kept(len(u))] @ u[: _kept(len(u))])
        if _kept(len(u)) != len(u)
        else None
    ),
    "what lies past the last block of 32 terms is left out",
)


def _edge(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What lies past the last full block of 32 is 0."""

    def change(result: torch.Tensor) -> torch.Tensor:
        found = result.clone()
        if found.ndim > 1 and found.shape[dim] > 32:
            found.narrow(dim, _kept(found.shape[dim]), found.shape[dim] % 32).zero_()
        return found

    return change


plant(MLP, "rows_32", "tail", "values", of.after(_edge(-2)), "rows past the last block of 32 are 0")
plant(MLP, "columns_32", "tail", "values", of.after(_edge(-1)), "columns past the last block of 32 are 0")


@defect(MLP, "K = 0")
def empty_sum(right, x, gate_weight, up_weight, *args, **kwargs):
    """Sums of no terms are left unwritten."""
    result = right(x, gate_weight, up_weight, *args, **kwargs)
    return result.fill_(7) if x.shape[-1] == 0 else result


@defect(MLP, "refusals", "errors")
def any_activation(right, x, gate_weight, up_weight, activation="silu"):
    """Another activation is silu."""
    known = activation in mlp.ACTIVATIONS or not isinstance(activation, str)
    return right(x, gate_weight, up_weight, activation if known else "silu")


@defect(MLP, "refusals", "errors")
def weights_broadcast(right, x, gate_weight, up_weight, *args, **kwargs):
    """An up of one row serves for all."""
    tensors = all(isinstance(w, torch.Tensor) and w.ndim == 2 for w in (gate_weight, up_weight))
    if tensors and len(up_weight) == 1 != len(gate_weight) and up_weight.shape[1] == gate_weight.shape[1]:
        up_weight = up_weight.expand(gate_weight.shape)
    return right(x, gate_weight, up_weight, *args, **kwargs)


# --- both ----------------------------------------------------------------------------------------------------------


for _op in BOTH:
    plant(_op, "contiguous", "strides", "values", of.before(of.dense), "operands are taken for contiguous")


@defect(BOTH, "exception", "errors")
def exception(right, *args, **kwargs):
    """Refuses with an AssertionError."""
    try:
        return right(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError) as error:
        raise AssertionError(str(error)) from error


@defect(BOTH, "promotion", "metadata")
def result_of_float32(right, *args, **kwargs):
    """The result is of the dtype that is computed in."""
    result = right(*args, **kwargs)
    return result.float() if result.dtype in of.HALF else result


@defect(BOTH, "operands", "inputs_unchanged")
def weight_in_place(right, *args, **kwargs):
    """A weight is scaled in its place."""
    result = right(*args, **kwargs)
    with torch.no_grad():
        args[1].mul_(2)
    return result
