"""The gradients of attention: the configuration and the launch of their kernels."""

import dataclasses
import math

import torch

from ntops.host import attention_gradients_hopper, gradients
from ntops.host.attention_configs import block_dims, on_plain_cores
from ntops.host.dim_order import contiguous_strides
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels import attention_backward as kernels
from ntops.kernels.attention import BOOL_MASK, FLOAT_MASK, NO_MASK
from ntops.launch import boundary, recorder
from ntops.launch.devices import is_hopper, on_device, shared_memory
from ntops.launch.recorder import repeatable

_LOG2E = 1 / math.log(2)
_PREPARED = 32
"""The queries of a program of ``prepare``."""


@dataclasses.dataclass(frozen=True)
class Config:
    """How a kernel is run: the queries and the keys of a block, and the compiler's options."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def config(block_e, block_ev, dtype, ieee, masked, limit):
    """The configurations of the kernel that takes a block of queries, and of the one that takes a block of keys.

    :param block_e: The head dim of queries and keys, as a block; ``block_ev`` that of values.
    :param ieee: Whether float32 is multiplied as it is, not as TF32.
    :param masked: Whether there is a mask, whose block takes registers.
    :param limit: The shared memory that a program can have, in bytes.
    """
    largest = max(block_e, block_ev)

    if on_plain_cores(dtype, ieee):
        small = Config(16, 16, 4, 1)
        return small, small

    if dtype is torch.float32:
        small = Config(32, 32, 4, 1) if largest > 128 else Config(64, 32, 4, 2)
        return small, Config(small.block_n, small.block_m, small.num_warps, small.num_stages)

    chosen = _of_hopper(largest, masked) if is_hopper() else _of_others(largest, masked)

    def fit(one):
        # What stays, and what is loaded ahead; the scores' gradient goes through shared memory, too.
        rows, moved = max(one.block_m, one.block_n), min(one.block_m, one.block_n)

        while (
            one.num_stages > 1
            and 2 * ((rows + one.num_stages * moved) * (block_e + block_ev) + one.block_m * one.block_n) > limit
        ):
            one = dataclasses.replace(one, num_stages=one.num_stages - 1)

        return one

    return tuple(map(fit, chosen))


# The fastest on an H100 of 26 that spill at most 128 bytes, for 2 x 16 x 2048 queries and keys with head dims of 64,
# 96, 128 and 256, with masks and without. On other targets larger tiles, or tiles shared by fewer warps, spill more.


def _of_hopper(largest, masked):
    if largest <= 64:
        if masked:
            return Config(64, 32, 4, 3), Config(32, 64, 4, 3)

        return Config(64, 64, 4, 3), Config(64, 64, 4, 1)

    if largest <= 128:
        if masked:
            return Config(64, 32, 4, 3), Config(64, 32, 4, 2)

        return Config(128, 64, 8, 3), Config(32, 128, 8, 3)

    if masked:
        return Config(64, 32, 8, 2), Config(64, 32, 8, 2)

    return Config(128, 32, 8, 2), Config(64, 32, 8, 2)


def _of_others(largest, masked):
    if largest <= 128:
        return Config(64, 32, 8, 1), Config(32, 32, 4, 1)

    return Config(32, 16 if masked else 32, 4, 1), Config(32, 16, 4, 1)


@repeatable(state=torch.get_float32_matmul_precision)
def attention(
    gradient,
    output,
    query,
    key,
    value,
    statistics,
    mask,
    lower_right,
    scale,
    to_query,
    to_key,
    to_value,
    to_mask,
):
    """The gradients of attention; without atomics, so that they are the same each time.

    :param gradient: (B, Hq, L, Ev), that of ``output``.
    :param query: (B, Hq, L, E).
    :param key: (B, Hkv, S, E), Hkv a divisor of Hq; ``value`` (B, Hkv, S, Ev).
    :param statistics: (2, B, Hq, L), contiguous: what ``attention_with_statistics`` returned.
    :param mask: Of bool or numbers, broadcasts to (B, Hq, L, S); or ``None``.
    :param lower_right: Whether the last query sees the last key, else the first query the first key; ``None``: each
        query sees every key.
    :param to_query: Whether the gradient of the query is needed; ``to_key``, ``to_value`` and ``to_mask`` likewise.
        Those of key and value come together.
    :return: These, contiguous, ``None`` where they are not needed; that of the mask summed in float32 over what it was
        broadcast to.
    """
    shape = (*query.shape[:3], key.shape[2])
    dtype, device = query.dtype, query.device
    compute_dtype = accumulate_dtype(dtype)
    needed = (to_query, to_key, to_value)
    tensors = (gradient, output, query, key, value)
    gluon = not to_mask and attention_gradients_hopper.takes(query, key, value, mask)
    tensors = [attention_gradients_hopper.describable(one) if gluon else _loadable(one) for one in tensors]
    # The Gluon kernel for queries prepares what the other one reads.
    written = (to_query or gluon, *[to_key or to_value] * 2)

    def empty(*shape, dtype=dtype):
        return recorder.empty(shape, contiguous_strides(shape), dtype, device)

    found = [empty(*tensor.shape) if one else None for tensor, one in zip(tensors[2:], written, strict=True)]
    scores = empty(*shape, dtype=compute_dtype).zero_() if to_mask else None

    if 0 in shape or not gradient.numel():
        found = [one if one is None else one.zero_() for one in found]
    elif gluon:
        of_keys = None if mask is None else mask.expand(shape)
        attention_gradients_hopper.launch(found, tensors, statistics, of_keys, lower_right, scale)
    else:
        mask_given = _loadable_mask(mask, dtype, shape)
        _launch(found, scores, tensors, statistics, mask_given, lower_right, scale, compute_dtype)

    dims = (query.shape[3], key.shape[3], value.shape[3])
    found = [_first(one, size) if wanted else None for one, wanted, size in zip(found, needed, dims, strict=True)]
    return (*found, None if scores is None else gradients.summed(scores, (*mask.shape,), mask.dtype))


def needed_gradients(gradient, output, query, key, value, statistics, attn_mask, is_causal, lower_right, scale, needed):
    """Return the gradients as :func:`attention` does, with a tensor of no elements for each that is not ``needed``."""
    device = query.device

    if boundary.is_abstract():
        tensors = (query, key, value, attn_mask)
        found = [
            recorder.empty(one.shape, contiguous_strides(one.shape), one.dtype, device) if wanted else None
            for one, wanted in zip(tensors, needed, strict=True)
        ]
    else:
        variant = lower_right if is_causal else None
        found = attention(gradient, output, query, key, value, statistics, attn_mask, variant, scale, *needed)

    return tuple(recorder.empty((0,), (1,), query.dtype, device) if one is None else one for one in found)


def _first(tensor, columns):
    """Return the tensor's first columns, contiguous."""
    return tensor if tensor.shape[3] == columns else tensor[..., :columns].contiguous()


def _loadable(tensor):
    """The tensor, or a copy of it, such that its last dim has the stride 1. Of half types such that rows are loaded in
    vectors: they begin at multiples of 16 elements, and zeros fill their last one.
    """
    unit = tensor.stride(3) == 1 or tensor.shape[3] == 1

    if tensor.dtype.itemsize != 2:
        return tensor if unit else tensor.contiguous()

    *rows, columns = tensor.shape
    steps = [stride for size, stride in zip(rows, tensor.stride(), strict=False) if size > 1]

    if unit and not any(number % 16 for number in (columns, tensor.data_ptr(), *steps)):
        return tensor

    copy = tensor.new_zeros((*rows, -(-columns // 16) * 16))
    copy[..., :columns] = tensor
    return copy


def _loadable_mask(mask, dtype, shape):
    """The mask, if there is one, as kernels load it: expanded to ``shape``, and of numbers."""
    if mask is None or mask.dtype.is_floating_point:
        return mask if mask is None else mask.expand(shape)

    # Where Triton (3.6, 3.7) has 8-bit loads feed a float64 product, it fails to compile.
    return (mask.to(torch.int32) if dtype is torch.float64 else mask.view(torch.uint8)).expand(shape)


def _launch(found, scores, tensors, saved, mask, lower_right, scale, compute_dtype):
    gradient, output, query, key, value = tensors
    query_gradient, key_gradient, value_gradient = found
    batch, query_heads, queries, head_dim = query.shape
    heads, keys, value_dim = key.shape[1], key.shape[2], value.shape[3]
    group = query_heads // heads
    dtype, device = query.dtype, query.device
    ieee = torch.get_float32_matmul_precision() == "highest"
    pieces = on_plain_cores(dtype, ieee)
    block_e, block_ev = (32, 32) if pieces else block_dims(head_dim, value_dim, dtype, ieee, True)

    if is_hopper() and dtype.itemsize == 2:
        # Of smaller ones ptxas 12.8 makes two wgmma of which one reads a register that nothing wrote.
        block_e, block_ev = max(block_e, 64), max(block_ev, 64)

    kind = NO_MASK if mask is None else FLOAT_MASK if mask.dtype.is_floating_point else BOOL_MASK

    of_queries, of_keys = config(block_e, block_ev, dtype, ieee, mask is not None, shared_memory(device.index or 0))
    rows = batch * query_heads * queries
    memory = recorder.empty((3 * rows,), (1,), compute_dtype, device)
    statistics = memory.split(rows)
    strides = {id(tensor): tensor.stride()[:3] for tensor in tensors}
    mask_strides = (0,) * 4 if mask is None else mask.stride()
    any_mask = query if mask is None else mask
    sizes = (heads, group, queries, keys, head_dim, value_dim)
    factor = scale if kind == FLOAT_MASK else scale * _LOG2E
    constants = (
        TRITON_DTYPES[compute_dtype],
        "ieee" if ieee else "tf32",
        kind.value,
        lower_right is not None,
        bool(lower_right),
        pieces,
        head_dim == block_e,
        value_dim == block_ev,
    )
    row_pieces, key_pieces = 1, 1

    if pieces:
        row_pieces = -(-head_dim // block_e)
        key_pieces = max(row_pieces, -(-value_dim // block_ev))

    def launch(kernel, chosen, written, read, programs, tiles, count, *numbers, further=()):
        recorder.launch(
            kernel,
            (programs * tiles, count),
            {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages},
            *written,
            *read,
            any_mask,
            *(stride for tensor in read for stride in strides[id(tensor)]),
            *mask_strides,
            *sizes,
            tiles,
            *numbers,
            *constants,
            *further,
            *(chosen.block_m, chosen.block_n, block_e, block_ev),
        )

    with on_device(device):
        recorder.launch(
            kernels.prepare,
            (-(-rows // _PREPARED),),
            {},
            *statistics,
            gradient,
            output,
            *saved,
            *strides[id(gradient)],
            *strides[id(output)],
            rows,
            query_heads,
            queries,
            value_dim,
            TRITON_DTYPES[compute_dtype],
            _PREPARED,
            min(block_ev, 128),
        )
        read = (gradient, query, key, value)

        if key_gradient is not None:
            tiles = -(-keys // of_keys.block_n)
            written = (key_gradient, value_gradient, *statistics)
            launch(kernels.to_keys, of_keys, written, read, batch * heads, tiles, key_pieces, factor, scale)

        if query_gradient is not None or scores is not None:
            tiles = -(-queries // of_queries.block_m)
            # Where one is not wanted, it is written to memory of its own, or not at all.
            query_gradient = torch.empty_like(query) if query_gradient is None else query_gradient
            written = (query_gradient, memory if scores is None else scores, *statistics)
            programs = batch * query_heads
            further = (scores is not None,)
            launch(
                kernels.to_queries, of_queries, written, read, programs, tiles, row_pieces, factor, scale,
                further=further,
            )  # fmt: skip
