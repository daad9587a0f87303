"""Planted defects of indexing: blocks and tails, strides, offsets, broadcasting, indices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import correct
from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant
from strategies import shapes

BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


def without_tail(block: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What lies past the last full block is 0."""

    def change(result: torch.Tensor) -> torch.Tensor:
        flat = result.reshape(-1).clone()
        if flat.numel() > block:
            flat[flat.numel() // block * block :] = 0
        return flat.view(result.shape)

    return change


def without_last_block(block: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """One block too few where the size is a multiple of the block."""

    def change(result: torch.Tensor) -> torch.Tensor:
        flat = result.reshape(-1).clone()
        if flat.numel() and flat.numel() % block == 0:
            flat[-block:] = 0
        return flat.view(result.shape)

    return change


def one_past_block(block: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Blocks overlap by one: the first element of each is that before it."""

    def change(result: torch.Tensor) -> torch.Tensor:
        flat = result.reshape(-1).clone()
        flat[block::block] = result.reshape(-1)[block - 1 : -1 : block].clone()[: len(flat[block::block])]
        return flat.view(result.shape)

    return change


for _number, _op in enumerate(of.ALL):
    _block = BLOCKS[_number % len(BLOCKS)]
    plant(_op, f"tail_{_block}", "tail", "values", of.after(without_tail(_block)), f"past blocks of {_block} all is 0")
for _block in (*BLOCKS, 2048, 4096):
    if f"tail_{_block}" != f"tail_{BLOCKS[of.ALL.index('add') % len(BLOCKS)]}":
        plant(
            "add",
            f"tail_{_block}",
            "tail",
            "values",
            of.after(without_tail(_block)),
            f"past blocks of {_block} all is 0",
        )
for _number, _op in enumerate(("mul", "relu", "gt", "exp", "clamp", "softmax", "mm", "bitwise_or")):
    _block = BLOCKS[_number % 4]
    plant(
        _op, f"last_block_{_block}", "tail", "values", of.after(without_last_block(_block)), "a full last block is lost"
    )
for _number, _op in enumerate(("sub", "silu", "neg", "layer_norm", "rotary_position_embedding")):
    _block = BLOCKS[_number % 5]
    plant(_op, f"overlap_{_block}", "tail", "values", of.after(one_past_block(_block)), "blocks overlap by one element")


@defect(("add", "exp", "relu"), "index")
def index16(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Indices are 16-bit integers: elements beyond 32767 are never reached."""
    result = right(*args, **kwargs)
    if result.numel() > 2**15:
        flat = result.reshape(-1).clone()
        flat[2**15 :] = 0
        result.copy_(flat.view(result.shape))
    return result


for _op in of.ALL:
    plant(_op, "strides", "strides", "values", of.before(of.dense), "operands are read as if they were contiguous")
for _op in ("abs", "sub", "eq", "tanh", "gelu", "layer_norm", "rms_norm", "softmax", "bmm", "isnan", "bitwise_not"):
    _wrong = of.before(lambda x: of.dense(x, 0) if x.is_contiguous() else x)
    plant(_op, "offset", "strides", "values", _wrong, "contiguous operands are read from the start of their storage")


def _inner_lost(tensor: Any, other: Any) -> Any:
    """An inner dim of size 1 is taken for a scalar."""
    if isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor) and tensor.ndim > 1:
        wide = other.ndim and other.shape[-1] > 1
        if wide and tensor.shape[-1] == 1 and tensor.numel() > 1:
            return tensor.reshape(-1)[0].expand(tensor.shape)
    return tensor


@defect(of.BINARY, "broadcast")
def broadcast(right: Callable[..., Any], input: Any, other: Any, **kwargs: Any) -> Any:
    """An inner dim of size 1 is broadcast from the very first element."""
    wrong = [_inner_lost(input, other), _inner_lost(other, input)]
    wrong = [x.clone() if isinstance(x, torch.Tensor) else x for x in wrong]
    result = right(input, other, **kwargs)
    again = right(*wrong, **{name: x for name, x in kwargs.items() if name != "out"})
    return result.copy_(again)


@defect(("mul", "ge", "bitwise_and"), "broadcast")
def broadcast_modulo(right: Callable[..., Any], input: Any, other: Any, **kwargs: Any) -> Any:
    """A smaller operand is read at its index modulo its size, which is right for leading dims only."""
    tensors = [x for x in (input, other) if isinstance(x, torch.Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))

    def read(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.numel():
            return x
        flat = x.reshape(-1)
        return flat[torch.arange(shape.numel()) % flat.numel()].view(shape)

    wrong = [read(x) for x in (input, other)]
    result = right(input, other, **kwargs)
    again = right(*wrong, **{name: x for name, x in kwargs.items() if name != "out"})
    return result.copy_(again) if again.shape == result.shape else result


def _first_place(op: str, pattern: str) -> Callable[..., Any]:
    """An operand that broadcasts in this pattern is read in the first place along the dim alone, and is 0 beyond."""

    def value(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        whole = torch.broadcast_shapes(*(x.shape for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)))

        def grows(x: Any) -> bool:
            return isinstance(x, torch.Tensor) and shapes.pattern_of(tuple(x.shape), tuple(whole)) == pattern

        def read(x: Any) -> Any:
            if not grows(x):
                return x
            wide = x.expand(whole).clone()
            for dim in range(-wide.ndim, 0):
                if dim < -x.ndim or x.shape[dim] == 1:
                    wide.narrow(dim, 1, whole[dim] - 1).zero_()
            return wide

        if not any(map(grows, (*args, *kwargs.values()))):
            return None
        return correct.right(op)(*map(read, args), **{name: read(x) for name, x in kwargs.items()})

    return of.instead(value)


for _op, _pattern in itertools.product(("mul", "bitwise_and", "add", "gt", "clamp"), shapes.SMALLER):
    _about = f"an operand {_pattern} that broadcasts is read in the first place along the dim alone"
    plant(_op, f"first_of_{_pattern}", "broadcast", "values", _first_place(_op, _pattern), _about)


def _bounds_lost(right: Callable[..., Any], input: Any, min: Any = None, max: Any = None, **kwargs: Any) -> Any:
    """Tensor bounds of a smaller shape are taken for their first element."""
    result = right(input, min, max, **kwargs)
    small = [
        x.reshape(-1)[0].expand(x.shape).clone()
        if isinstance(x, torch.Tensor) and 1 < x.numel() < result.numel()
        else x
        for x in (min, max)
    ]
    if kwargs.get("out") is not None or input.shape != result.shape:
        return result
    return result.copy_(right(input, *small))


plant("clamp", "broadcast", "broadcast", "values", _bounds_lost)


@defect("addmm", "broadcast")
def broadcast_input(right, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """An input of one column is taken for one row."""
    if out is None and input.ndim == 2 and input.shape[1] == 1 and input.shape[0] == mat2.shape[1] > 1:
        right(input, mat1, mat2, beta=beta, alpha=alpha)
        return right(input.T, mat1, mat2, beta=beta, alpha=alpha)
    if out is None and input.ndim == 2 and input.shape[1] == 1 < input.shape[0]:
        right(input, mat1, mat2, beta=beta, alpha=alpha)
        return right(input[:1], mat1, mat2, beta=beta, alpha=alpha)
    return right(input, mat1, mat2, beta=beta, alpha=alpha, out=out)


@defect("matmul", "broadcast")
def broadcast_batch(right, input, other, *, out=None):
    """Of a batch that broadcasts, every matrix of the other operand meets the first one."""
    result = right(input, other, out=out)
    if out is None and input.ndim > 2 and other.ndim > 2 and other.shape[:-2] != input.shape[:-2] and result.numel():
        return result.copy_(right(input, other.reshape(-1, *other.shape[-2:])[0]).expand(result.shape))
    return result


@defect("matmul", "broadcast", "errors")
def left_aligned_batch(right, input, other, *, out=None):
    """Batch dims are aligned from the left."""
    result = right(input, other, out=out)
    if out is None and input.ndim == 4 and other.ndim == 3 and result.numel():
        return result.copy_(right(input, other[:, None]))
    return result
