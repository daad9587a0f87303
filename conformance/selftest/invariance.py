"""Planted defects where a result depends on what must not matter: strides, the rest of the batch, block sizes,
settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect


def _an_ulp_off(result: torch.Tensor) -> torch.Tensor:
    """float32 results other in their last bit, which is as right as before."""
    plain = result.isfinite() & (result.abs() > torch.finfo(result.dtype).smallest_normal)
    return result.copy_(torch.where(plain, (result.view(torch.int32) ^ 1).view(result.dtype), result))


@defect(("exp", "sigmoid", "gelu", "softmax", "rms_norm", "mm", "matmul"), "invariance", "layout_invariant")
def other_path_for_strides(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Operands that are not contiguous go another way, which rounds otherwise."""
    result = right(*args, **kwargs)
    odd = any(isinstance(x, torch.Tensor) and not x.is_contiguous() for x in args)
    fits = odd and result.dtype == torch.float32 and not of.written(args, kwargs) and result.is_contiguous()
    return _an_ulp_off(result) if fits else result


@defect(("tanh", "silu", "softmax", "layer_norm", "bmm", "rms_norm"), "invariance", "batch_invariant")
def other_block_for_odd(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """For an odd number of rows another block size is taken, which rounds otherwise."""
    result = right(*args, **kwargs)
    fits = result.dtype == torch.float32 and result.ndim and not of.written(args, kwargs) and result.is_contiguous()
    return _an_ulp_off(result) if fits and len(result) % 2 else result


_BLOCKS: list[int | None] = []


@contextlib.contextmanager
def _blocks(op: str, number: int | None = None) -> Generator[list[str]]:
    """Block sizes, of which calls themselves take the first alone."""
    _BLOCKS.append(number)
    try:
        yield ["blocks of 1024", "blocks of 4", "blocks of 16"]
    finally:
        _BLOCKS.pop()


@defect(("mm", "softmax", "rms_norm"), "invariance", "config_invariant", configurations=_blocks)
def other_blocks_lose_the_tail(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In blocks that the call itself does not take, the last column is left at zero."""
    result = right(*args, **kwargs)
    other = bool(_BLOCKS and _BLOCKS[-1]) and result.ndim and not of.written(args, kwargs)
    return result.index_fill_(-1, torch.tensor(result.shape[-1] - 1), 0) if other and result.shape[-1] else result


_SET: list[int | None] = []


@contextlib.contextmanager
def _settings(op: str, number: int | None = None) -> Generator[list[str]]:
    """Settings, under each of which calls go wrong."""
    _SET.append(number)
    try:
        yield ["num_stages=4", "num_stages=5"]
    finally:
        _SET.pop()


def _is_set() -> bool:
    return bool(_SET) and _SET[-1] is not None


@defect(("softmax", "layer_norm", "rms_norm", "add", "mm"), "invariance", "settings", settings=_settings)
def smaller_tiles_lose_the_tail(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """With many stages smaller tiles are taken, which do not cover the last column."""
    result = right(*args, **kwargs)
    other = _is_set() and result.ndim and not of.written(args, kwargs)
    return result.index_fill_(-1, torch.tensor(result.shape[-1] - 1), 0) if other and result.shape[-1] else result


@defect(("bmm", "relu"), "invariance", "settings", settings=_settings)
def stages_without_memory(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """With stages for which there is no memory the call raises something that does not say so."""
    if _is_set():
        raise KeyError("shared memory")
    return right(*args, **kwargs)


@defect(("scaled_dot_product_attention", "rotary_position_embedding"), "invariance", "settings", settings=_settings)
def refused_after_it_was_written(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """With stages for which there is no memory the call is refused after it has written to memory of the caller."""
    result = right(*args, **kwargs)
    if _is_set():
        if args[0].numel():
            args[0].neg_()
        raise RuntimeError("there is no shared memory for num_stages")
    return result
