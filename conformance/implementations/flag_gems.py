"""FlagGems 5.0.2, with torch's signatures: ``--implementation conformance.implementations.flag_gems``.

Each function calls the one that the library registers for torch's function of that name, with the arguments that
torch's dispatcher would give it, but not through the dispatcher, so that only the library answers. It needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.implementations import NotProvided

try:
    import flag_gems as gems
except ImportError as error:
    raise ImportError(
        f"FlagGems cannot be imported ({error}); install what it needs with pip install 'ntops[flag-gems]', and itself "
        "with pip install --no-deps flag-gems==5.0.2: it asks for another NumPy"
    ) from error

conformance_left_out = {
    **dict.fromkeys(("abs", "neg", "bitwise_not"), "no form with out="),
    "dropout": "no form in place, and none for a probability of 0 or 1",
    "scaled_dot_product_attention": "no causal variant and no KV cache",
}


def _without_out(out: torch.Tensor | None) -> None:
    if out is not None:
        raise NotProvided("FlagGems registers no form of this function with out=")


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        _without_out(out)
        return function(input)

    return call


def _check(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: torch.Tensor) -> torch.Tensor:
        return function(input)

    return call


def _binary(tensors: Callable[..., Any], number: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: torch.Tensor, other: Any, *, out: torch.Tensor | None = None) -> torch.Tensor:
        _without_out(out)
        return (tensors if isinstance(other, torch.Tensor) else number)(input, other)

    return call


def _bitwise(tensors: Callable[..., Any], second: Callable[..., Any], first: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of two tensors, or of a number in place of the second or the first."""
    with_tensor = _binary(tensors, second)

    def call(input: Any, other: Any, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(input, torch.Tensor):
            return with_tensor(input, other, out=out)
        _without_out(out)
        return first(input, other)

    return call


abs = _unary(gems.abs)
neg = _unary(gems.neg)
rsqrt = _unary(gems.rsqrt)
sin = _unary(gems.sin)
cos = _unary(gems.cos)
sigmoid = _unary(gems.sigmoid)
tanh = _unary(gems.tanh)
bitwise_not = _unary(gems.bitwise_not)
isnan = _check(gems.isnan)
isinf = _check(gems.isinf)
mul = _binary(gems.mul, gems.mul)
eq = _binary(gems.eq, gems.eq_scalar)
ne = _binary(gems.ne, gems.ne_scalar)
lt = _binary(gems.lt, gems.lt_scalar)
le = _binary(gems.le, gems.le_scalar)
gt = _binary(gems.gt, gems.gt_scalar)
ge = _binary(gems.ge, gems.ge_scalar)
bitwise_and = _bitwise(gems.bitwise_and_tensor, gems.bitwise_and_scalar, gems.bitwise_and_scalar_tensor)
bitwise_or = _bitwise(gems.bitwise_or_tensor, gems.bitwise_or_scalar, gems.bitwise_or_scalar_tensor)


def add(input: Any, other: Any, *, alpha: float = 1, out: torch.Tensor | None = None) -> torch.Tensor:
    _without_out(out)
    return gems.add(input, other, alpha=alpha)


def sub(input: Any, other: Any, *, alpha: float = 1, out: torch.Tensor | None = None) -> torch.Tensor:
    _without_out(out)
    return gems.sub(input, other, alpha=alpha)


def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is None:
        return gems.div_mode(input, other, rounding_mode)
    if rounding_mode is not None:
        _without_out(out)
    return gems.true_divide_out(input, other, out)


def pow(input: Any, exponent: Any, *, out: torch.Tensor | None = None) -> torch.Tensor:
    _without_out(out)
    if not isinstance(input, torch.Tensor):
        return gems.pow_scalar(input, exponent)
    return (gems.pow_tensor_tensor if isinstance(exponent, torch.Tensor) else gems.pow_tensor_scalar)(input, exponent)


def clamp(input: torch.Tensor, min: Any = None, max: Any = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
    _without_out(out)
    bounds = [bound for bound in (min, max) if bound is not None]
    tensors = [bound for bound in bounds if isinstance(bound, torch.Tensor)]
    if tensors and len(tensors) < len(bounds):
        raise NotProvided("torch makes a tensor of a number beside one, before it asks FlagGems")
    return (gems.clamp_tensor if tensors else gems.clamp)(input, min, max)


def exp(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return gems.exp(input) if out is None else gems.exp_out(input, out)


def relu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return (gems.relu_ if inplace else gems.relu)(input)


def silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return (gems.silu_ if inplace else gems.silu)(input)


def gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return gems.gelu(input, approximate=approximate)


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Leave the cast from float16 to float32 to the kernel, as torch does; any other comes before it."""
    if (input.dtype, dtype) == (torch.float16, torch.float32):
        return gems.softmax(input, dim, True)
    return gems.softmax(input if dtype is None else input.to(dtype), dim, False)


def mm(input: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return gems.mm(input, mat2) if out is None else gems.mm_out(input, mat2, out=out)


def bmm(input: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return gems.bmm(input, mat2) if out is None else gems.bmm_out(input, mat2, out)


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if out is None:
        return gems.addmm(input, mat1, mat2, beta=beta, alpha=alpha)
    return gems.addmm_out(input, mat1, mat2, beta=beta, alpha=alpha, out=out)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    return gems.layer_norm(input, normalized_shape, weight, bias, eps)[0]


def rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    return gems.rms_norm(input, normalized_shape, weight, eps)


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Call the library only where torch asks it: where elements may be dropped, and not in place."""
    if inplace or not training or not 0 < p < 1:
        raise NotProvided("FlagGems registers dropout with a probability between 0 and 1, not in place")
    return gems.dropout(input, p, training)[0]


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **more: Any,
) -> torch.Tensor:
    if any(argument is not None for argument in more.values()):
        raise NotProvided(f"torch's attention, and FlagGems', has no {' or '.join(more)}")
    return gems.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def rotary_position_embedding(
    input: torch.Tensor,
    sin_table: torch.Tensor,
    cos_table: torch.Tensor,
    interleaved: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Rotate by the library's function, which takes queries and keys together, and in place returns views of them."""
    key = input.new_zeros(*input.shape[:2], 1, input.shape[3])
    result = gems.apply_rotary_pos_emb(input, key, cos_table, sin_table, None, interleaved, inplace)[0]
    return input if inplace else result
