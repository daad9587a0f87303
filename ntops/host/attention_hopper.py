"""Attention on Hopper: tell which calls the Gluon kernel takes, and launch it."""

import math

import torch

from ntops._runtime import INTERPRETED
from ntops.launch import recorder
from ntops.launch.devices import is_hopper, next_power_of_2, on_device

REGISTERS = {2: 168, 3: 128, 4: 96}
"""The registers of a thread at the start, by the number of groups of warps: as many as all threads can have. The groups
later take over those of the loading warp."""


CACHED = 24 * 2**20
"""Up to this many bytes of keys and values, programs may read those of all heads at a time, out of the L2 cache:
causal 1 x 32 x 1500 x 128 (23 MiB) takes 15 % less time so than in pairs of tiles, 2 x 32 x 1024 x 128 (32 MiB) takes 9
% more."""


def takes(tensors, strides):
    """Tell whether the kernel takes these tensors: on Hopper, of a half type, with strides that tensor descriptors
    allow.

    :param tensors: Query, key, value and output.
    :param strides: Their strides; those of the last dim are 1.
    """
    query, key, value, _ = tensors
    unit = 16 // query.element_size()

    return (
        not INTERPRETED
        and is_hopper()
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[3] == value.shape[3]
        and query.shape[3] > 32
        # A tile holds queries of one head only.
        and query.shape[2] >= 64
        and key.shape[2] > 0
        and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
        and all(stride % unit == 0 for own in strides for stride in own[:3])
        # Tensor descriptors have no dims of stride 0.
        and all(
            stride > 0 or size == 1
            for tensor, own in zip(tensors, strides, strict=True)
            for size, stride in zip(tensor.shape, own, strict=True)
        )
    )


def block_of(head_dim):
    """Return the number of dims of a tile for this head dim; dims beyond the head dim are zeros."""
    return max(next_power_of_2(head_dim), 64)


def tiles(head_dim):
    """Return the number of row tiles whose queries fit shared memory."""
    return 2 if block_of(head_dim) <= 128 else 1


def taken(head_dim):
    """Return the number of a tile's dims over which queries and keys are multiplied."""
    block = block_of(head_dim)
    return block * 3 // 4 if head_dim * 4 <= block * 3 and block > 64 else block


def schedule(heads, row_tiles, causal, key_bytes, multiprocessors):
    """Return the number of units of work, the units of a head, how many heads' units alternate, and the number of
    programs that share the units.

    A program prefetches from one tile to the next: causal 1 x 14 x 2048 x 128 takes 35.5 us so, and 50.8 with a program
    for each tile. Causal tiles differ in work. Programs take nearly the same of the tiles of all heads, those with the
    most keys first; or they take pairs, each of a tile of many keys and one of few: see ``CACHED``.

    :param heads: The number of query heads of all sequences.
    :param key_bytes: The bytes of all keys and values.
    """
    pairs = heads * -(-row_tiles // 2)
    turns = -(-pairs // multiprocessors)

    # Pairs that leave more multiprocessors idle cost more than reading keys again.
    if causal and key_bytes > CACHED and pairs >= 0.8 * turns * multiprocessors:
        return pairs, -(-row_tiles // 2), 1, min(pairs, multiprocessors)

    tiles = heads * row_tiles

    return tiles, row_tiles, heads if causal else 1, min(tiles, multiprocessors)


def launch(tensors, strides, mask, mask_strides, lower_right, scale, statistics, chosen, multiprocessors):
    """Launch the kernel.

    :param mask: Bytes or floats, (B, Hq, L, S), or ``None``; ``mask_strides`` are its strides.
    :param lower_right: See ``attention.launch``.
    :param scale: The positive factor that brings scores to units of log2, or with a float mask to natural units.
    :param statistics: See ``attention.launch``.
    :param chosen: The configuration.
    :param multiprocessors: The device's number of multiprocessors; each runs one program.
    """
    # Import here, so that calls of the other kernel do not pay for it (37 ms).
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from ntops.kernels import attention_hopper as kernels
    from ntops.kernels.attention import BOOL_MASK, FLOAT_MASK, NO_MASK

    query, key, _, _ = tensors
    batch, query_heads, queries, head_dim = query.shape
    heads, keys = key.shape[1:3]
    blocks = (chosen.block_m, chosen.block_n, chosen.block_n, chosen.block_m)
    block_e = block_of(head_dim)
    descriptors = [
        # Nothing moves along a dim of one element, but a descriptor needs a stride for it.
        TensorDescriptor(x, list(x.shape), [stride or 16 for stride in own], [1, 1, block, block_e], kernels.LAYOUT)
        for x, own, block in zip(tensors, strides, blocks, strict=True)
    ]
    kind = NO_MASK if mask is None else FLOAT_MASK if mask.dtype.is_floating_point else BOOL_MASK
    mask_unit = math.gcd(2, *mask_strides[:3])
    row_tiles = -(-queries // (chosen.block_m * chosen.warp_groups))
    # A causal call of more keys than queries reads the first ones alone, unless it is lower right.
    seen = min(keys, queries) if lower_right is False else keys
    key_bytes = 2 * batch * heads * seen * head_dim * key.element_size()
    units, units_per_head, together, programs = schedule(
        batch * query_heads, row_tiles, lower_right is not None, key_bytes, multiprocessors
    )

    is_saved = statistics is not None
    maxima, normalizers = statistics if is_saved else (tensors[3], tensors[3])

    with on_device(query.device):
        recorder.launch(
            kernels.attend,
            (programs,),
            {"num_warps": chosen.num_warps, "maxnreg": REGISTERS[chosen.warp_groups]},
            *descriptors,
            maxima,
            normalizers,
            tensors[3] if mask is None else mask,
            *(stride // mask_unit for stride in mask_strides[:3]),
            mask_strides[3],
            heads,
            query_heads // heads,
            queries,
            keys,
            keys - queries if lower_right else 0,
            units,
            units_per_head,
            row_tiles,
            together,
            scale,
            lower_right is not None,
            chosen.block_n,
            block_e,
            chosen.num_stages,
            chosen.warp_groups,
            tiles(head_dim),
            taken(head_dim),
            kind.value,
            mask_unit,
            mask_strides[3] == 1,
            mask_strides[2] != 0,
            is_saved,
        )
