"""The gradients of attention on Hopper: tell which calls the Gluon kernels take, and launch them."""

import math

import torch

from ntops._runtime import INTERPRETED
from ntops.host.attention_hopper import block_of
from ntops.launch import config_selection, recorder
from ntops.launch.devices import is_hopper, on_device

ROWS, TILE = 64, 128
"""The rows of a block, and those of a program's tile."""
REGISTERS = 168
"""The registers of a thread at the start: as many as all threads can have. The groups later take over those of the
loading warp."""
STAGES = 4
"""The blocks that shared memory holds, of what a program walks over."""
_LOG2E = 1 / math.log(2)


def takes(query, key, value, mask):
    """Tell whether the kernels take a call: of a half type on Hopper, with one head dim of up to 128, and without a
    mask or with one of bools that all heads and queries of a batch share.

    :param mask: Of any shape that broadcasts to (B, Hq, L, S).
    """
    return (
        not INTERPRETED
        and is_hopper()
        and query.dtype in (torch.float16, torch.bfloat16)
        and (mask is None or (mask.dtype is torch.bool and is_of_keys(mask)))
        and query.shape[3] == value.shape[3]
        and 32 < query.shape[3] <= 128
        and query.shape[3] % 8 == 0
        and min(query.shape[2], key.shape[2]) >= ROWS
    )


def is_of_keys(mask):
    """Tell whether all heads and queries of a batch share a mask."""
    steps = zip(mask.shape[-3:-1], mask.stride()[-3:-1], strict=True)
    return all(size == 1 or step == 0 for size, step in steps)


def describable(tensor):
    """Return the tensor, or a contiguous copy of it where tensor descriptors do not allow its strides."""
    *steps, unit = tensor.stride()
    sizes = tensor.shape[:3]
    fits = unit == 1 and not tensor.data_ptr() % 16 and not any(step % 8 for step in steps)

    if fits and all(step > 0 or size == 1 for size, step in zip(sizes, steps, strict=True)):
        return tensor

    return tensor.clone(memory_format=torch.contiguous_format)


def together(heads, tiles, multiprocessors):
    """Return the number of heads whose tiles are taken together. If programs are few, the longest ones come first: the
    gradients of keys of 4 x 32/8 x 2048 x 128, causal, take 439 us instead of 539. Else those of one head, which share
    memory: of 1 x 16 x 16384 x 128, causal, 3435 us instead of 3523."""
    return heads if heads * tiles <= 8 * multiprocessors else 1


def launch(found, tensors, saved, mask, lower_right, scale):
    """Launch the kernels.

    :param found: The gradients of query, key and value, to be written; those of key and value may be ``None``.
    :param tensors: The gradient of the output, the output, query, key and value, as :func:`describable` returns them.
    :param mask: Of bool, as :func:`takes` takes it, expanded to (B, Hq, L, S); or ``None``.
    :param saved: The statistics of the forward pass, (2, B, Hq, L), contiguous.
    """
    # Import here, so that calls of the other kernels do not pay for it (37 ms).
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from ntops.kernels import attention_keys_backward_hopper as of_keys
    from ntops.kernels import attention_queries_backward_hopper as of_queries
    from ntops.kernels.attention_backward_hopper import STATISTICS_LAYOUT
    from ntops.kernels.attention_hopper import LAYOUT

    gradient, output, query, key, value = tensors
    batch, query_heads, queries, head_dim = query.shape
    heads, keys = key.shape[1:3]
    dims = block_of(head_dim)
    rows = batch * query_heads
    # Rows of statistics begin at multiples of 16 bytes.
    row_stride = -(-queries // 4) * 4
    statistics = recorder.empty((rows * 2, row_stride), (row_stride, 1), torch.float32, query.device)
    block = [1, 1, ROWS, dims]

    def describe(tensor):
        # Nothing moves along a dim of one element, but a descriptor needs a stride for it.
        steps = [step or 16 for step in tensor.stride()]
        return TensorDescriptor(tensor, list(tensor.shape), steps, block, LAYOUT)

    to_query, to_key, to_value = found
    gradient, output, query, key, value, to_query = map(describe, (*tensors, to_query))
    sizes = (heads, query_heads // heads, queries, keys, keys - queries if lower_right else 0, batch)
    causal = lower_right is not None
    masked = (
        (tensors[1], 0, 0, False) if mask is None else (mask.view(torch.uint8), mask.stride(0), mask.stride(3), True)
    )
    options = {"num_warps": 4, "maxnreg": REGISTERS}
    multiprocessors = config_selection.device(tensors[2].device.index or 0).multiprocessors

    with on_device(tensors[2].device):
        tiles = -(-queries // TILE)
        recorder.launch(
            of_queries.to_queries,
            (rows * tiles,),
            options,
            *(gradient, output, query, key, value, to_query, *saved, statistics, row_stride, *sizes, tiles),
            *(together(rows, tiles, multiprocessors), scale * _LOG2E, scale, *masked, causal, STAGES),
        )

        if to_key is not None:
            tiles = -(-keys // TILE)
            shape = [rows * 2, queries]
            of_rows = TensorDescriptor(statistics, shape, [row_stride, 1], [2, ROWS], STATISTICS_LAYOUT)
            recorder.launch(
                of_keys.to_keys,
                (batch * heads * tiles,),
                options,
                *(gradient, query, key, value, describe(to_key), describe(to_value), of_rows, *sizes, tiles),
                *(together(batch * heads, tiles, multiprocessors), scale * _LOG2E, scale, *masked, causal, STAGES),
            )
