"""Attention in the form for Hopper: which calls it takes, and its launch."""

import torch

from ntops._runtime import INTERPRETED
from ntops.host import repetition
from ntops.host.launch import is_hopper, on_device

REGISTERS = {2: 168, 3: 128, 4: 96}
"""What a thread starts with, as many as all can have, by the number of groups of warps. Then these take those of the
warp that loads."""


def takes(tensors, strides):
    """Whether it takes these tensors: on Hopper, of a half type and 64 or 128 dims, with enough queries to fill a tile.

    :param tensors: Query, key, value and output.
    :param strides: Theirs, aligned and with unit strides of the last dim.
    """
    query, key, value, _ = tensors

    return (
        not INTERPRETED
        and is_hopper()
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[3] == value.shape[3]
        and query.shape[3] in (64, 128)
        # Tiles are of one head's queries.
        and query.shape[2] >= 256
        and key.shape[2] > 0
        # Tensor descriptors walk no dim in place.
        and all(
            stride > 0 or size == 1
            for tensor, own in zip(tensors, strides, strict=True)
            for size, stride in zip(tensor.shape, own, strict=True)
        )
    )


def schedule(heads, row_tiles, causal, multiprocessors):
    """How many units of work there are, how many of them a head has, and how many programs take them in turn.

    A program for each multiprocessor loads ahead from one unit to the next. Its units have to be alike, so that causal
    tiles come in pairs, and to fill the multiprocessors; where they do not, there is a program for each tile. Causal,
    4 x 32 x 4096 x 128 takes 900 us (each tile by itself 925), and 1 x 8 x 16384 x 128 takes 805 (788). Single tiles in
    turn, not pairs, take 888 and 1316. (All before queries were loaded ahead; all but the pairs are of another run.)

    :param heads: Query heads of all sequences.
    """
    units_per_head = -(-row_tiles // 2) if causal else row_tiles
    units = heads * units_per_head
    turns = -(-units // multiprocessors)

    if units < 0.9 * turns * multiprocessors:
        return heads * row_tiles, row_tiles, heads * row_tiles

    return units, units_per_head, min(units, multiprocessors)


def launch(tensors, strides, lower_right, scale, chosen, multiprocessors):
    """Run it.

    :param lower_right: As for ``attention.launch``.
    :param scale: Of the scores, positive, to units of log2.
    :param chosen: The configuration.
    :param multiprocessors: How many the device has: each runs one program.
    """
    # Calls that take the other form need not wait for this import (37 ms).
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from ntops.kernels import attention_hopper as kernels

    query, key, _, _ = tensors
    batch, query_heads, queries, head_dim = query.shape
    heads, keys = key.shape[1:3]
    blocks = (chosen.block_m, chosen.block_n, chosen.block_n, chosen.block_m)
    descriptors = [
        # A dim of one element is not walked, but has to have a stride.
        TensorDescriptor(x, list(x.shape), [stride or 16 for stride in own], [1, 1, block, head_dim], kernels.LAYOUT)
        for x, own, block in zip(tensors, strides, blocks, strict=True)
    ]
    row_tiles = -(-queries // (chosen.block_m * chosen.warp_groups))
    units, units_per_head, programs = schedule(batch * query_heads, row_tiles, lower_right is not None, multiprocessors)

    with on_device(query.device):
        repetition.launch(
            kernels.attend,
            (programs,),
            {"num_warps": chosen.num_warps, "maxnreg": REGISTERS[chosen.warp_groups]},
            *descriptors,
            heads,
            query_heads // heads,
            queries,
            keys,
            keys - queries if lower_right else 0,
            units,
            units_per_head,
            row_tiles,
            scale,
            lower_right is not None,
            chosen.block_n,
            head_dim,
            chosen.num_stages,
            chosen.warp_groups,
        )
