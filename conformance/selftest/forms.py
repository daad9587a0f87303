"""Planted defects of other calls: in place, into an operand, of operands that share memory, beside a NaN."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.attention import attention
from conformance.selftest.defect_registry import defect, plant

Right = Callable[..., Any]


@defect("silu rotary_position_embedding", "in place", "inplace")
def rounds_in_place(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """In place float32 is rounded otherwise in the last bit."""
    result = right(input, *args, **kwargs)
    if kwargs.get("inplace") is not True or result.dtype != torch.float32:
        return result
    plain = result.isfinite() & (result.abs() > 1e-30)
    return result.copy_(torch.where(plain, torch.nextafter(result, torch.zeros(())), result))


@defect("relu dropout", "in place", "inplace")
def refuses_in_place(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """In place is refused."""
    result = right(input, *args, **kwargs)
    if kwargs.get("inplace") is True:
        raise NotImplementedError("not in place")
    return result


@defect("relu silu", "in place", "call_forms")
def flag_compared(right: Right, input: Any, *args: Any, inplace: Any = False, **kwargs: Any) -> Any:
    """A flag that is 1 counts as False: another tensor is returned."""
    return right(input, *args, inplace=inplace is True, **kwargs)


@defect("layer_norm rms_norm", "widened", "call_forms")
def int_counts_dims(right: Right, input: Any, normalized_shape: Any, *args: Any, **kwargs: Any) -> Any:
    """An int for the shape is taken, for the number of dims that are normalized."""
    if type(normalized_shape) is int and normalized_shape > 0:
        normalized_shape = tuple(input.shape[-normalized_shape:])
    return right(input, normalized_shape, *args, **kwargs)


@defect("layer_norm rms_norm", "widened", "errors")
def bool_for_int(right: Right, input: Any, normalized_shape: Any, *args: Any, **kwargs: Any) -> Any:
    """A bool for the shape is taken for an int."""
    if isinstance(normalized_shape, int):
        normalized_shape = (int(normalized_shape),)
    return right(input, normalized_shape, *args, **kwargs)


@defect("add exp bitwise_and ge neg", "out", "out_argument")
def operand_for_out(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An operand is refused for out=."""
    result = right(*args, out=out, **kwargs)
    if any(out is x for x in args if isinstance(x, torch.Tensor)):
        raise RuntimeError("out must not be an operand")
    return result


@defect("mul tanh mm clamp", "out", "out_argument")
def strided_out(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An out= that is not contiguous is replaced by one that is."""
    result = right(*args, out=out, **kwargs)
    return result if out is None or out.is_contiguous() else result.contiguous()


@defect(of.WITH_OUT, "versions", "versions")
def out_unseen(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """The version of out= does not move, as of one that a kernel wrote behind torch's back."""
    with _same_version(out):
        return right(*args, out=out, **kwargs)


@defect(of.WITH_INPLACE, "versions", "versions")
def inplace_unseen(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The version of what is written in place does not move."""
    with _same_version(input):
        return right(input, *args, **kwargs)


@defect("add exp softmax layer_norm mm quantize_fp8 fused_gated_mlp", "versions", "versions")
def input_seen(right: Right, first: Any, *args: Any, **kwargs: Any) -> Any:
    """The version of the first operand moves, though it is only read."""
    result = right(first, *args, **kwargs)
    if isinstance(first, torch.Tensor):
        torch.autograd.graph.increment_version(first)
    return result


@defect("relu dropout", "versions", "versions")
def always_seen(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The version of the operand moves whether it is written in place or not."""
    result = right(input, *args, **kwargs)
    torch.autograd.graph.increment_version(input)
    return result


@defect("scaled_dot_product_attention", "versions", "versions")
def cache_unseen(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The versions of the caches do not move."""
    with _same_version(*args[1:], *kwargs.values()):
        return attention("", right, *args, **kwargs)


def _same_version(*values: Any) -> contextlib.AbstractContextManager[None]:
    tensors = tuple(value for value in values if isinstance(value, torch.Tensor))
    return torch.autograd._unsafe_preserve_version_counter(tensors)


@defect("mul sub eq", "alias", "aliasing")
def assumes_apart(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Operands that begin in one storage are taken for the same, wherever they are in it."""
    result = right(input, other, **kwargs)
    tensors = [x for x in (input, other) if isinstance(x, torch.Tensor)]
    same = len({x.untyped_storage().data_ptr() for x in tensors}) == 1 < len(tensors)
    if same and kwargs.get("out") is None and input.storage_offset() != other.storage_offset() and input.numel():
        return result.copy_(right(input, input.clone()))
    return result


@defect("sub mul gt", "alias", "plain_operands")
def halves_in_the_usual_order(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Halves of the columns of one tensor are read in their order in memory, whichever is the first operand."""
    if _are_beside(input, other) and input.storage_offset() - other.storage_offset() == other.shape[-1]:
        input, other = other, input
    return right(input, other, **kwargs)


@defect("fused_gated_mlp", "alias", "plain_operands")
def rows_in_turns_the_other_way(
    right: Right, x: Any, gate_weight: Any, up_weight: Any, activation: Any = "silu"
) -> Any:
    """Weights that are merged row by row are taken to begin with the up projection."""
    both = gate_weight, up_weight
    if _are_beside(*both) and up_weight.storage_offset() - gate_weight.storage_offset() == up_weight.shape[-1]:
        both = up_weight, gate_weight
    return right(x, *both, activation)


def _are_beside(first: Any, second: Any) -> bool:
    """Tell whether these are alike, with rows twice as far apart as they are long, in one storage."""
    both = all(isinstance(x, torch.Tensor) and x.ndim > 1 and x.numel() for x in (first, second))
    if not both or first.shape != second.shape or first.stride() != second.stride():
        return False
    return first.stride(-2) == 2 * first.shape[-1] and first.untyped_storage()._cdata == second.untyped_storage()._cdata


def _one_buffer() -> Right:
    buffers: dict[tuple[Any, ...], torch.Tensor] = {}

    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if of.written(args, kwargs) or not result.numel() or any(result is x for x in args):
            return result
        return buffers.setdefault((*result.shape, *result.stride(), result.dtype), result.clone()).copy_(result)

    return wrong


for _op in ("cos", "softmax", "mm", "rms_norm"):
    plant(_op, "one_buffer", "alias", "aliasing", _one_buffer(), "every call of a shape returns the same memory")


@defect("softmax layer_norm rms_norm", "specials", "special_values")
def nan_disturbs(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A NaN anywhere changes the last bit of other rows."""
    result = right(input, *args, **kwargs)
    if result.ndim > 1 and bool(input.isnan().any()):
        result.copy_(torch.nextafter(result, torch.zeros((), dtype=result.dtype)))
    return result


@defect("mm bmm", "names", "keywords")
def other_for_mat2(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """The second matrix is called other."""
    return right(input, other, out=out)


@defect("softmax tanh isnan gelu", "names", "keywords")
def x_for_input(right: Right, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The first parameter is called x."""
    return right(x, *args, **kwargs)


@defect("sub lt div", "names", "keywords")
def names_change_places(right: Right, *args: Any, input: Any = None, other: Any = None, **kwargs: Any) -> Any:
    """By name, input and other are each other."""
    return right(*args, **kwargs) if args else right(other, input, **kwargs)


WITH_STRINGS = "gelu div cross_entropy linear_cross_entropy fused_gated_mlp"


@defect(WITH_STRINGS, "names", "call_forms")
def enums_by_their_text(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A string is looked up by how it prints, and one that is not known means the default: a member of an enum."""
    return right(*args, **{name: x for name, x in kwargs.items() if not isinstance(x, str) or str(x) == x})


@defect(WITH_STRINGS, "names", "call_forms")
def plain_strings_alone(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A string of a class of its own is refused."""
    result = right(*args, **kwargs)
    if any(isinstance(x, str) and type(x) is not str for x in (*args, *kwargs.values())):
        raise TypeError("an option must be str")
    return result


@defect("pow clamp addmm", "names", "keywords")
def by_position_alone(right: Right, input: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The first parameter has no name."""
    return right(input, *args, **kwargs)
