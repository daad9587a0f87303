"""Rotate heads, also of normalized rows: check tables, choose configurations, lay out pairs, and launch."""

import dataclasses
import functools
import operator

import torch

from ntops.host.dim_order import contiguous_strides, specialize
from ntops.host.norms import walkable
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.host.rows import LONGEST_TILE, WALKED_TILE
from ntops.kernels import fused_rmsnorm_rope, normed_rotation, rotary_position_embedding
from ntops.launch import autotuning, boundary, recorder
from ntops.launch.configuration import heuristic
from ntops.launch.devices import multiprocessors, next_power_of_2, on_device, shared_memory
from ntops.launch.kernel_sources import Config, make
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

# A tile has 4096 elements, 32 for each thread.
_TILE = 2048

_STAGES = 3
"""The number of rows that each program of ``normed_rotation`` holds or prefetches, unless the user sets the stages."""
_APART = (("output", "rotated"), ("x0", "x1"), ("w0", "w1"))


def check_tables(x, cos, sin, head_dim):
    """Refuse tables that do not fit the rows of ``x``, (B, T, hidden), and return the number of pairs in a head.

    :raises TypeError: ``head_dim`` is not an int.
    :raises RuntimeError: Shapes do not fit.
    :raises NotImplementedError: A head is too long.
    """
    length, hidden = x.shape[1:]

    for name, table in (("cos", cos), ("sin", sin)):
        if table.ndim != 2 or table.shape[0] < length:
            raise RuntimeError(
                f"argument '{name}' must be (T', head_dim) or (T', head_dim / 2) with T' of at least {length}, not "
                f"{tuple(table.shape)}"
            )

    if sin.shape != cos.shape:
        raise RuntimeError(f"arguments 'cos' {tuple(cos.shape)} and 'sin' {tuple(sin.shape)} must have one shape")

    width = cos.shape[1]

    if head_dim is None:
        head_dim, given = width, f"the width of the tables is {width}; with tables of half a head's width, give it"
    else:
        if isinstance(head_dim, bool):
            raise TypeError("argument 'head_dim' must be an int, not bool")

        try:
            head_dim = operator.index(head_dim)
        except TypeError:
            raise TypeError(f"argument 'head_dim' must be an int, not {type(head_dim).__name__}") from None

        given = f"it is {head_dim}"

    if head_dim < 2 or head_dim % 2 or hidden % head_dim:
        raise RuntimeError(f"argument 'head_dim' must be even and divide the {hidden} columns of 'x': {given}")

    if head_dim > LONGEST_TILE:
        raise NotImplementedError(f"argument 'head_dim' is {head_dim}; heads of more than {LONGEST_TILE} are left out")

    if width not in (head_dim, head_dim // 2):
        raise RuntimeError(
            f"argument 'cos' has {width} columns, but 'head_dim' {head_dim} takes {head_dim} or {head_dim // 2}"
        )

    return head_dim // 2


def config(heads, pairs, compute_dtype, interleaved):
    """Choose the configuration for rows with this many heads and pairs, and the kernel that takes it.

    The choice does not depend on the number of rows, so that a row has the same bits in every batch.

    :return: The configuration, whether a program walks over the heads of its rows, and whether it takes heads whole,
        not the first and the second elements of their pairs apart.
    """
    registers = compute_dtype.itemsize // 4
    block_pairs = next_power_of_2(pairs)
    # Tiles of 16384 elements spilled up to 176 bytes per thread, with 16 warps and with 32 (compiled, not timed: such
    # rows have heads that are not powers of two).
    longest = max(WALKED_TILE // (2 * block_pairs * registers), 1)
    block_heads = min(next_power_of_2(heads), longest)
    looped = heads > longest
    # Loads of neighbours that are apart are slow, so only rows too long for a tile use them.
    whole = interleaved and not looped
    width = 2 * block_heads * block_pairs * registers
    blocks = (
        # As for the norms, a tile of about 4096 registers keeps a program busy; narrow rows share a tile.
        ("block_rows", max(4096 // width, 1)),
        ("block_heads", block_heads),
        ("block_pairs", block_pairs),
    )

    return Config(blocks, 4 if width <= 4096 else 8 if width <= 8192 else 16), looped, whole


def _warps(heads, pairs, compute_dtype):
    """Return the warps of a ``normed_rotation`` program, or 0 if the kernel does not take such rows: a program has one
    row at a time, which must keep a warp busy."""
    columns = 2 * next_power_of_2(heads) * pairs
    # With this many pairs, rows and tables begin at multiples of 16 elements.
    fits = compute_dtype is torch.float32 and pairs >= 16 and pairs == next_power_of_2(pairs)

    return columns // 1024 if fits and 1024 <= columns <= LONGEST_TILE else 0


def _stages(columns, pairs, x):
    """Return the rows that each program of ``normed_rotation`` holds or prefetches: the user's number, as far as it
    fits.

    :param columns: The columns of a row, padding included.
    """
    wanted = get_default_num_stages()

    if wanted is None:
        return _STAGES

    # Shared memory holds a row, its tables of up to 4 bytes an element, and scratch for the reduction.
    room = shared_memory(x.device.index or 0) - 1024
    return max(min(wanted, room // (columns * x.element_size() + 8 * pairs)), 1)


def norm_and_rotate(x, weight, cos, sin, eps, pairs, interleaved):
    """Run ``fused_rmsnorm_rope`` on checked arguments, with ``pairs`` pairs in a head."""
    batch, length, hidden = x.shape
    output = recorder.empty(x.shape, contiguous_strides(x.shape), x.dtype, x.device)

    if not boundary.has_work(output):
        return output

    shape = (batch, length, hidden // (2 * pairs))
    compute_dtype = accumulate_dtype(x.dtype)
    # Rows are loaded, and so summed, like those of contiguous tensors.
    x, weight = walkable(x, 2), walkable(weight)
    # The halves of a full-width table are equal, so one half is enough.
    step = 2 if interleaved and cos.shape[1] != pairs else 1
    tables = [walkable(table[:length, : step * pairs : step], 1) for table in (cos, sin)]
    num_warps = _warps(shape[2], pairs, compute_dtype)

    if num_warps:
        rows, num_warps = batch * length, get_default_num_warps() or num_warps
        # As many programs as run at a time, with about 110 registers per thread. On an H200 4 x 4096 rows of 4096 bf16
        # take 73.7 us with three per multiprocessor, 74.9 with four (a copy 65.8); rows of 8192 take 143.6 with two
        # (127.3).
        resident = max((12 if num_warps <= 4 else 16) // num_warps, 1)
        programs = resident * multiprocessors(x.device.index or 0)

        with on_device(x.device):
            recorder.launch(
                normed_rotation.norm_and_rotate,
                (min(rows, programs),),
                {"num_warps": num_warps},
                output,
                x,
                weight,
                *tables,
                *(rows, length),
                *(stride // 16 for stride in (*x.stride()[:2], *(table.stride(0) for table in tables))),
                eps,
                shape[2],
                next_power_of_2(shape[2]),
                pairs,
                interleaved,
                TRITON_DTYPES[compute_dtype],
                _stages(2 * next_power_of_2(shape[2]) * pairs, pairs, x),
            )

        return output

    chosen, looped, whole = config(shape[2], pairs, compute_dtype, interleaved)
    rows = {"output": output, "input": x, "weight": weight.expand(x.shape)}
    views = {name: tensor.unflatten(2, (shape[2], 2 * pairs)) for name, tensor in rows.items()}

    if not whole:
        views = {
            name: view[..., part::2] if interleaved else view[..., part * pairs : (part + 1) * pairs]
            for names, view in zip(_APART, views.values(), strict=True)
            for part, name in enumerate(names)
        }

    for name, table in zip(("cos", "sin"), tables, strict=True):
        views[name] = table.as_strided((batch, length, 1, pairs), (0, table.stride(0), 0, 1))

    arguments = {"interleaved": whole, "looped": looped}
    arguments["scalars"] = tuple((name, scalar_type(compute_dtype)) for name in ("count", "eps"))
    kernel = make(fused_rmsnorm_rope.premake, arguments, chosen, specialize(views))

    with on_device(x.device):
        kernel(*views.values(), float(hidden), eps, TRITON_DTYPES[compute_dtype])

    return output


@heuristic(("heads", "pairs"), tuple((1 << head, 1 << pair) for pair in range(4, 9) for head in range(12 - pair)))
def tiles(heads, pairs):
    """Choose the configuration for positions with this many heads and pairs: a program takes whole positions if it can,
    so that it reads an angle once for all heads."""
    block_pairs = min(max(next_power_of_2(pairs), 16), 256)
    block_heads = min(next_power_of_2(heads), _TILE // block_pairs)
    block_rows = _TILE // (block_heads * block_pairs)

    return Config((("block_rows", block_rows), ("block_heads", block_heads), ("block_pairs", block_pairs)), 4)


def rotate(output, input, sin, cos, interleaved, chosen=None):
    """Launch ``rotary_position_embedding`` on checked arguments, with a table row for each position. ``output`` may be
    ``input``; where ``chosen`` is ``None``, :func:`tiles` chooses."""
    one = input.shape[1] == 1
    # Sequences of one position share its angles, so they become the rows of one sequence, which fill tiles.
    operands = {"output": output, "input": input}
    operands = {name: tensor.transpose(0, 1) if one else tensor for name, tensor in operands.items()}
    batch, length, heads, columns = operands["input"].shape
    pairs = columns // 2

    if interleaved:
        views = operands
    else:
        halves = [tensor[..., start : start + pairs] for tensor in operands.values() for start in (0, pairs)]
        views = dict(zip(("output", "rotated", "first", "second"), halves, strict=True))

    for name, table in (("sin", sin), ("cos", cos)):
        strides = (0, 0 if one else table.stride(0), 0, table.stride(1))
        views[name] = table.as_strided((batch, length, 1, pairs), strides)

    compute_dtype = accumulate_dtype(input.dtype)
    arguments = {"interleaved": interleaved}

    if chosen is None:
        key = rotary_position_embedding.premake, heads, pairs, input.dtype, interleaved
        run = functools.partial(rotate, input=input, sin=sin, cos=cos, interleaved=interleaved)
        chosen = autotuning.fastest(key, tiles(heads, pairs), lambda: tiles.alternatives(heads, pairs), run, output)

    blocks = dict(chosen.blocks)

    # Lanes for rows beyond the sequence would be idle.
    if blocks["block_rows"] > (rows := next_power_of_2(length)):
        chosen = dataclasses.replace(chosen, blocks=tuple((blocks | {"block_rows": rows}).items()))

    kernel = make(rotary_position_embedding.premake, arguments, chosen, specialize(views))

    with on_device(input.device):
        kernel(*views.values(), TRITON_DTYPES[compute_dtype])
