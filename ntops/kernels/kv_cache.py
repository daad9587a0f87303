"""Write new rows of keys and values to their caches, in Triton: NineToothed's tiles cannot have positions read at run
time."""

import triton
import triton.language as tl


@triton.jit
def _write(
    cache,
    new,
    stride_cb,
    stride_ch,
    stride_cs,
    stride_ce,
    stride_nb,
    stride_nh,
    stride_ns,
    stride_ne,
    batch,
    head,
    rows,
    first,
    new_rows,
    width,
    capacity,
    UNIT_STRIDES: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    if UNIT_STRIDES:
        stride_ce = 1
        stride_ne = 1

    dims = tl.arange(0, BLOCK_E).to(tl.int64)
    position = first + rows
    kept = (rows < new_rows) & (position >= 0) & (position < capacity)
    kept = kept[:, None] & (dims < width)[None, :]
    new += batch * stride_nb + head * stride_nh
    cache += batch * stride_cb + head * stride_ch
    values = tl.load(new + (rows * stride_ns)[:, None] + dims[None, :] * stride_ne, mask=kept)
    tl.store(cache + (position * stride_cs)[:, None] + dims[None, :] * stride_ce, values, mask=kept)


_WRITTEN = [
    *(f"stride_{tensor}{kind}{dim}" for kind in "kv" for tensor in "cn" for dim in "bhse"),
    *("slot", "heads", "new_rows", "key_width", "value_width", "capacity", "row_tiles"),
]


@triton.jit(do_not_specialize=_WRITTEN)
def write_rows(
    key_cache,
    value_cache,
    new_key,
    new_value,
    slots,
    stride_ckb,
    stride_ckh,
    stride_cks,
    stride_cke,
    stride_nkb,
    stride_nkh,
    stride_nks,
    stride_nke,
    stride_cvb,
    stride_cvh,
    stride_cvs,
    stride_cve,
    stride_nvb,
    stride_nvh,
    stride_nvs,
    stride_nve,
    slot,
    heads,
    new_rows,
    key_width,
    value_width,
    capacity,
    row_tiles,
    SLOTS: tl.constexpr,
    UNIT_STRIDES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Write the new rows of each sequence to its caches, as far as there is room.

    :param key_cache: (batch, heads, capacity, width); ``value_cache`` likewise. The second dim of the grid chooses.
    :param new_key: (batch, heads, new_rows, width); ``new_value`` likewise.
    :param slots: With SLOTS, the position of the first new row of each sequence, (batch,), contiguous; else ``slot`` is
        the position for all.
    """
    tile = tl.program_id(0)
    head_of_all = tile // row_tiles
    batch = (head_of_all // heads).to(tl.int64)
    head = (head_of_all % heads).to(tl.int64)
    rows = (tile % row_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)

    if SLOTS:
        first = tl.load(slots + batch).to(tl.int64)
    else:
        first = tl.full((), slot, tl.int64)

    if tl.program_id(1) == 0:
        _write(
            key_cache,
            new_key,
            stride_ckb,
            stride_ckh,
            stride_cks,
            stride_cke,
            stride_nkb,
            stride_nkh,
            stride_nks,
            stride_nke,
            batch,
            head,
            rows,
            first,
            new_rows,
            key_width,
            capacity,
            UNIT_STRIDES,
            BLOCK_E,
        )
    else:
        _write(
            value_cache,
            new_value,
            stride_cvb,
            stride_cvh,
            stride_cvs,
            stride_cve,
            stride_nvb,
            stride_nvh,
            stride_nvs,
            stride_nve,
            batch,
            head,
            rows,
            first,
            new_rows,
            value_width,
            capacity,
            UNIT_STRIDES,
            BLOCK_E,
        )
