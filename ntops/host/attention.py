"""Attention: the launch of its kernels, and the call that keeps what its gradient needs."""

import functools
import math

import torch

from ntops._runtime import INTERPRETED
from ntops.host import attention_hopper, matrix_copy
from ntops.host.attention_arguments import check_call
from ntops.host.attention_configs import Problem, block_dims, in_pieces
from ntops.host.dim_order import collapse, common_unit, contiguous_strides, ordered_dims
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels import attention as kernels
from ntops.launch import boundary, config_selection, recorder
from ntops.launch.configuration import settled
from ntops.launch.devices import on_device
from ntops.launch.recorder import repeatable
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

# The largest number of elements that one load takes.
_VECTOR = 8
_LONG_MASK = 64
"""Queries and keys from which on a mask is copied where its rows are not aligned."""
_LOG2E = 1 / math.log(2)


def new_output(query, value_dim):
    """Allocate an output for the query, with the query's order of dims in memory."""
    shape = (*query.shape[:-1], value_dim)
    strides = [0] * len(shape)
    step = 1
    order = ordered_dims(query.shape, [query.stride()])

    # The head dim stays innermost, so that rows are written contiguously.
    for dim in (len(shape) - 1, *(dim for dim in order if dim != len(shape) - 1)):
        strides[dim] = step
        step *= max(shape[dim], 1)

    return recorder.empty(shape, strides, query.dtype, query.device)


def _strides(tensor):
    """Return a tensor's strides, with 0 for a dim of one element, along which nothing moves."""
    return [stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]


def _distinct(tensor):
    """Return a view with one element along each dim of stride 0."""
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]


def _aligned(mask):
    """Return the mask; if its rows are not aligned to 16 bytes, a copy of it whose rows are. A mask whose matrices are
    not evenly spaced stays as it is."""
    distinct = _distinct(mask)
    unit = 16 // mask.element_size()

    if distinct.stride(3) != 1 or all(stride % unit == 0 for stride in distinct.stride()[:3]):
        return mask

    shape, (steps,) = collapse(distinct.shape[:2], [distinct.stride()[:2]], in_order=True)

    if len(shape) > 1:
        return mask

    matrices = distinct.as_strided((*shape, *distinct.shape[2:]), (*steps, *distinct.stride()[2:]))
    return matrix_copy.aligned(matrices).unflatten(0, distinct.shape[:2]).expand(mask.shape)


def launch(output, query, key, value, mask, lower_right, scale, slots=None, new_rows=0, statistics=None, chosen=None):
    """Run attention.

    :param output: (B, Hq, L, Ev), not empty; the result is written to it.
    :param query: (B, Hq, L, E).
    :param key: (B, Hkv, S, E).
    :param value: (B, Hkv, S, Ev).
    :param mask: (B, Hq, L, S'), bool or floating; or ``None``. With ``slots``, keys past S' take no part.
    :param lower_right: Whether the last query sees the last key, else the first query the first key; ``None``: each
        query sees every key.
    :param scale: The factor of the scores.
    :param slots: An integer tensor (B,) if the sequences of a cache differ in length: sequence b has ``slots[b] +
        new_rows`` keys.
    :param statistics: ``None``, or (2, B, Hq, L), contiguous, in the compute dtype, to be written: the largest score of
        each row, in units of log2, or with a float mask in natural units; and the sum of the row's weights. If no key
        takes part in a row, they are minus infinity and 0.
    :param chosen: The configuration; ``None``: :func:`~ntops.host.attention_configs.config` chooses.
    """
    operands = {"query": query, "key": key, "value": value, "mask": mask, "lower_right": lower_right, "scale": scale}
    operands |= {"slots": slots, "new_rows": new_rows}
    batch, query_heads, queries, head_dim = query.shape
    heads, keys, value_dim = key.shape[1], key.shape[2], value.shape[3]
    group = query_heads // heads
    dtype = query.dtype
    compute_dtype = accumulate_dtype(dtype)
    ieee = torch.get_float32_matmul_precision() == "highest"

    if mask is not None:
        keys = min(keys, mask.shape[-1])

    if lower_right is False and slots is None:
        # No query sees a later key.
        keys = min(keys, queries)

    is_float_mask = mask is not None and mask.dtype.is_floating_point
    # The kernel takes positive scales only, so that the largest product is the largest score.
    magnitude, sign = (abs(scale), math.copysign(1, scale)) if scale else (1.0, 0.0)
    tensors = (query, key, value, output)
    strides = [_strides(tensor) for tensor in tensors]
    unit_strides = all(tensor.stride(3) == 1 or tensor.shape[3] == 1 for tensor in tensors)

    if unit_strides:
        strides = [[*own[:3], 1] for own in strides]

    aligned = settled(
        "aligned",
        unit_strides
        and all(stride % _VECTOR == 0 for own in strides for stride in own[:3])
        and all(tensor.data_ptr() % 16 == 0 for tensor in tensors),
    )
    mask_bytes = 0 if mask is None else mask.element_size()
    causal = lower_right is not None
    is_ieee = ieee and dtype is torch.float32
    # The user's compiler options are for Triton's kernel.
    is_plain = slots is None and sign > 0 and not (get_default_num_warps() or get_default_num_stages())
    mask_strides = [0] * 4 if mask is None else _strides(mask)
    is_bool_of_float64 = mask is not None and not is_float_mask and dtype is torch.float64
    # Of a mask that is copied the strides are others.
    mask_aligned = (
        mask_strides[3] == 1 and all(stride % 16 == 0 for stride in mask_strides[:3]) and not is_bool_of_float64
    )
    # With few dims, reading a float mask takes as long as all else: 2 x 64 x 512 x 64 takes 51 us in Triton's kernel,
    # which prefetches it, and 66 us in the other. If the mask is not aligned, Triton's kernel takes 5 times as long.
    is_plain = is_plain and not (is_float_mask and mask_aligned and head_dim <= 64)
    gluon = settled("gluon", is_plain and unit_strides and attention_hopper.takes(tensors, strides))
    index = query.device.index or 0
    # The interpreter's products are exact, and three take three times as long.
    tf32x3 = is_ieee and aligned and not INTERPRETED and config_selection.device(index).hopper

    if chosen is None:
        problem = Problem(
            *(group * queries, batch * heads, keys, head_dim, value_dim, dtype),
            *(is_ieee, causal, mask_bytes, aligned, gluon, group, tf32x3),
        )
        run = functools.partial(launch, **operands)
        chosen = config_selection.choose("scaled_dot_product_attention", problem, index, run, output)

    if mask is not None and not is_float_mask:
        mask = mask.view(torch.uint8)

    factor = magnitude if is_float_mask else magnitude * _LOG2E

    if chosen.warp_groups > 1:
        multiprocessors = config_selection.device(index).multiprocessors
        attention_hopper.launch(
            tensors, strides, mask, mask_strides, lower_right, factor, statistics, chosen, multiprocessors
        )
        return

    dims = head_dim, value_dim, dtype, ieee, aligned, chosen.tf32x3
    block_e, block_ev = block_dims(*dims)
    row_tiles = -(-group * queries // chosen.block_m)
    is_split = chosen.splits > 1
    is_saved = statistics is not None
    partial = output
    maxima, normalizers = statistics if is_saved else (output, output)
    rows = batch * query_heads * queries

    if is_split:
        parts = chosen.splits * rows
        memory = recorder.empty((parts * (value_dim + 2),), (1,), compute_dtype, query.device)
        partial, maxima, normalizers = memory.split((parts * value_dim, parts, parts))

    if is_bool_of_float64:
        # Triton 3.6 and 3.7 fail to compile a float64 product whose operands come from 8-bit loads.
        mask = _distinct(mask).to(torch.int32).expand(mask.shape)
        mask_strides = _strides(mask)

    extents = [chosen.block_n * row + max(block_e, block_ev) * dim for _, _, row, dim in strides[1:3]]

    if mask is not None and not mask_aligned and min(queries, keys) >= _LONG_MASK:
        mask = _aligned(mask)
        mask_strides = _strides(mask)

    is_vector = mask is not None and mask_strides[3] == 1
    mask_unit = common_unit(mask_strides[:3], mask.element_size()) if settled("mask_vectors", is_vector) else 1
    unit = _VECTOR if aligned else 1
    dim_unit = _VECTOR if head_dim % _VECTOR == value_dim % _VECTOR == 0 else 1
    is_wide = max(*extents, chosen.block_n * mask_strides[3]) >= 2**31
    kind = kernels.NO_MASK if mask is None else kernels.FLOAT_MASK if is_float_mask else kernels.BOOL_MASK

    with on_device(query.device):
        recorder.launch(
            kernels.attend,
            (batch * heads * row_tiles, chosen.splits),
            {
                "num_warps": get_default_num_warps() or chosen.num_warps,
                "num_stages": get_default_num_stages() or chosen.num_stages,
            },
            output,
            partial,
            maxima,
            normalizers,
            query,
            key,
            value,
            query if mask is None else mask,
            query if slots is None else slots,
            *(step for own in strides for step in (*(stride // unit for stride in own[:3]), own[3])),
            *(stride // mask_unit for stride in mask_strides[:3]),
            mask_strides[3],
            heads,
            group,
            queries,
            keys,
            head_dim // dim_unit,
            value_dim // dim_unit,
            new_rows,
            row_tiles,
            factor,
            sign,
            TRITON_DTYPES[compute_dtype],
            "ieee" if ieee else "tf32",
            chosen.tf32x3,
            kind.value,
            causal,
            bool(lower_right),
            slots is not None,
            is_split,
            is_saved,
            sign > 0,
            in_pieces(*dims),
            is_wide,
            unit_strides,
            mask_strides[3] == 1,
            unit,
            mask_unit,
            dim_unit,
            head_dim % block_e == 0,
            value_dim == block_ev,
            chosen.block_m,
            chosen.block_n,
            block_e,
            block_ev,
        )

        if is_split:
            recorder.launch(
                kernels.combine,
                (rows,),
                {},
                output,
                partial,
                maxima,
                normalizers,
                statistics if is_saved else output,
                *output.stride(),
                rows,
                query_heads,
                queries,
                value_dim,
                chosen.splits,
                _LOG2E if is_float_mask else 1.0,
                TRITON_DTYPES[compute_dtype],
                is_saved,
                16,
                block_ev,
            )


@repeatable(state=torch.get_float32_matmul_precision)
def attention_with_statistics(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    causal_variant=None,
):
    """Compute :func:`ntops.torch.scaled_dot_product_attention`, and what its gradient needs.

    :return: The output, and the statistics of :func:`launch`, (2, B, Hq, L), or (2, Hq, L) without a batch dim.
    """
    nothing = (None, None)
    checked = check_call(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, causal_variant, nothing, nothing
    )
    output = new_output(query, value.shape[-1])
    shape = (2, *query.shape[:-1])
    statistics = recorder.empty(shape, contiguous_strides(shape), accumulate_dtype(query.dtype), query.device)

    if boundary.has_work(output):
        tensors = [x if x is None or x.ndim == 4 else x.unsqueeze(0) for x in (output, query, key, value, checked.mask)]
        saved = statistics if statistics.ndim == 4 else statistics.unsqueeze(1)
        launch(*tensors, checked.lower_right, checked.scale, statistics=saved)

    return output, statistics
