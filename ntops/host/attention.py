"""Attention: its configuration and the launch of its kernels."""

import dataclasses
import functools
import math

import torch

from ntops.host import attention_hopper, choice, repetition
from ntops.host.configuration import heuristic, settled
from ntops.host.iteration import ordered_dims
from ntops.host.launch import next_power_of_2, on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels import attention as kernels
from ntops.torch.utils import get_default_num_stages, get_default_num_warps

_LOG2E = 1 / math.log(2)


@dataclasses.dataclass(frozen=True)
class Config:
    """How attention is run: block sizes, the parts that keys are split into, and the compiler's options."""

    block_m: int
    block_n: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 1
    warp_groups: int = 1
    """More than one: the form for Hopper; the rows, the warps and the registers are those of each group."""


@dataclasses.dataclass(frozen=True)
class Problem(choice.Problem):
    """A call of attention; the fields are the parameters of :func:`config`."""

    OPTIONS = Config
    SIZES = ("rows", "groups", "keys")

    rows: int
    groups: int
    keys: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    ieee: bool
    """Of float32 alone; of other dtypes it changes nothing, so that they have one entry."""
    causal: bool
    mask_bytes: int
    aligned: bool
    gluon: bool = False
    """Whether the form for Hopper, in Gluon, takes the call."""

    def rule(self, device):
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return config(**fields, **dataclasses.asdict(device))

    def space(self, device):
        rows = max(next_power_of_2(self.rows), 16)
        found = list(HOPPER_SPACE[self.head_dim]) if self.gluon else []

        if not self.aligned or on_plain_cores(self.dtype, self.ieee):
            # What takes its operands one by one is bound by that.
            return found

        for block_m, block_n, num_warps, num_stages in _SPACE:
            if block_m > rows or (rows <= 64 and block_m < rows):
                continue

            even = _splits(self.rows, self.groups, self.keys, block_m, device.multiprocessors)
            # Where keys are split, twice the parts may hide more of the latency.
            parts = (even, min(2 * even, max(self.keys // 128, 1))) if even > 1 else (1,)
            found += [Config(block_m, block_n, splits, num_warps, num_stages) for splits in parts]

        return found

    def allows(self, options):
        if options.warp_groups > 1:
            return self.gluon and options in HOPPER_SPACE[self.head_dim]

        return options.splits == 1 or options.splits * 16 <= self.keys

    def resources(self, options):
        block_e, block_ev = block_dims(self.head_dim, self.value_dim, self.dtype, self.ieee, self.aligned)
        itemsize = self.dtype.itemsize

        if options.warp_groups > 1:
            # Beside the groups there is a warp that loads, which counts as four.
            threads = 128 * (options.warp_groups + 1)
            # There are the queries of two tiles.
            whole = dataclasses.replace(options, block_m=2 * options.block_m * options.warp_groups)
            registers = attention_hopper.REGISTERS[options.warp_groups]
            return choice.Resources(_shared(whole, block_e, block_ev, itemsize, 0), registers, threads)

        # Below 64 rows products read registers, and a stage is there that has left shared memory: as those of ``mm``.
        stages = options.num_stages if options.block_m >= 64 else max(options.num_stages - 1, 1)
        staged = dataclasses.replace(options, num_stages=stages)
        shared = _shared(staged, block_e, block_ev, itemsize, self.mask_bytes)
        threads = 32 * options.num_warps
        # The sums, the scores and once more these, as weights in the dtype of values; and of keys and values that are
        # loaded, an address of two registers for 16 bytes of each thread. The constant was read off kernels that
        # Triton 3.7 compiled for sm_90: what exceeds 255 spills more than a few words.
        values = options.block_m * (block_ev + options.block_n) * max(itemsize, 4) // 4
        values += options.block_m * options.block_n * itemsize // 4
        values += options.block_n * (block_e + block_ev) * itemsize // 8

        return choice.Resources(shared, 60 + values // threads, threads)


# Rows, keys, warps and stages, the most promising first.
_SPACE = (
    (128, 128, 8, 3),
    (128, 128, 8, 2),
    (128, 64, 8, 3),
    (128, 64, 4, 3),
    (128, 64, 8, 2),
    (64, 64, 4, 3),
    (64, 128, 4, 3),
    (64, 64, 4, 2),
    (64, 32, 4, 3),
    (128, 32, 4, 3),
    (128, 32, 8, 4),
    (16, 128, 4, 3),
    (16, 64, 4, 3),
    (16, 64, 4, 4),
    (16, 32, 4, 4),
    (16, 128, 4, 2),
    (16, 64, 2, 3),
    (32, 64, 4, 3),
    (32, 128, 4, 2),
    (32, 32, 4, 3),
)
# Those of the form for Hopper, by head dim.
HOPPER_SPACE = {
    64: (Config(64, 64, 1, 4, 4, 4), Config(64, 128, 1, 4, 3, 2)),
    128: (Config(64, 128, 1, 4, 2, 2),),
}


def _shared(options, block_e, block_ev, itemsize, mask_bytes):
    """Shared memory of a program: the tile of queries; and for each stage those of keys, values and mask."""
    stage = itemsize * options.block_n * (block_e + block_ev) + mask_bytes * options.block_m * options.block_n
    return itemsize * options.block_m * block_e + options.num_stages * stage


# A few rows, or many, with keys in eight parts and in one; and what is between them. A few rows of many heads.
_POINTS = (
    (1, 1, 1024),
    (1, 1, 1),
    (1, 1024, 1),
    (32, 1, 1),
    (64, 1, 1),
    (65, 1, 1),
    (65, 1, 1024),
    (2**20, 1024, 1024),
)


@heuristic(("rows", "groups", "keys"), _POINTS)
def config(
    rows,
    groups,
    keys,
    head_dim,
    value_dim,
    dtype,
    ieee,
    causal,
    mask_bytes,
    aligned,
    shared_memory,
    multiprocessors,
    hopper=True,
    gluon=False,
):
    """The configuration of a call. Figures are TFLOP/s of 4 x 32 x 4096 x 128 (or 64) bf16 on an H200, Triton 3.6.

    :param rows: Queries of all the heads that read one key/value head.
    :param groups: Key/value heads of all sequences.
    :param keys: Keys, or the capacity of the cache if they are fewer than that.
    :param head_dim: Of queries and keys.
    :param value_dim: Of values.
    :param dtype: Of the operands.
    :param ieee: Whether float32 is multiplied as it is, not as TF32.
    :param causal: Whether queries see no later keys.
    :param mask_bytes: The size of an element of the mask, 0 without one.
    :param aligned: Whether rows of queries, keys and values are loaded in whole vectors.
    :param shared_memory: What a program can have on the device, in bytes.
    :param multiprocessors: How many the device has.
    :param hopper: Whether it is what the figures are of.
    :param gluon: Whether the form for it takes the call.
    """
    if gluon and groups * (rows // 128) >= multiprocessors and keys >= 256:
        if head_dim == 128:
            # 688 full and 651 causal (torch 658 and 591). A third stage gains nothing.
            return Config(64, 128, num_stages=2, warp_groups=2)

        # 442 causal and 436 full; with four groups 421 and 480 (torch 429 and 483). Four cannot hold 128 keys.
        return Config(64, 128, num_stages=3, warp_groups=2) if causal else Config(64, 64, num_stages=4, warp_groups=4)

    block_e, block_ev = block_dims(head_dim, value_dim, dtype, ieee, aligned)
    largest = max(block_e, block_ev)

    if on_plain_cores(dtype, ieee):
        block_m, block_n, num_warps, num_stages = (32, 32, 4, 1) if block_ev <= 128 else (32, 16, 4, 1)
    elif dtype is torch.float32:
        block_m, block_n, num_warps, num_stages = (64, 64, 8, 2) if largest <= 128 else (32, 32, 4, 2)
    elif largest <= 64:
        # 386 full and 343 causal; with 128 queries 368 and 345.
        block_m, block_n, num_warps, num_stages = 64, 64, 4, 3
    elif largest > 128:
        block_m, block_n, num_warps, num_stages = 128, 32, 8, 3
    elif mask_bytes:
        # With a mask 272 to 314; half the queries or the keys leave less than 250.
        block_m, block_n, num_warps, num_stages = 128, 64, 8, 3
    elif causal:
        # 410 causal, 391 full.
        block_m, block_n, num_warps, num_stages = 64, 64, 4, 3
    else:
        # 420 full, 389 causal. Compiled for sm_80 and sm_100, 128 keys spill.
        block_m, block_n, num_warps, num_stages = 128, 128 if hopper else 64, 8, 3

    if rows <= 64:
        block_m = min(block_m, max(next_power_of_2(rows), 16))
        num_warps = 4

        if dtype.itemsize == 2 and rows <= 16 and not mask_bytes:
            # Decoding: 4.40 TB/s of 16 x 8192 keys, with 64 of them at a time 4.20 (a copy moves 4.12).
            block_n = 128

            if groups > multiprocessors and largest > 64:
                # Programs side by side hide each other's first loads, if there is shared memory for them: 64 x 1024
                # keys take 71.1 us, with three stages 74.8 (torch 69.9). Of 16 x 8192 three take 127 us, and two 154.
                num_stages = min(num_stages, 2)

    if not aligned:
        # Each element that is loaded has an address in registers.
        block_m, block_n = min(block_m, 32), min(block_n, 32 if block_ev <= 128 else 16)
        num_warps, num_stages = 4, min(num_stages, 2)

    def fits():
        options = Config(block_m, block_n, num_stages=num_stages)
        return _shared(options, block_e, block_ev, dtype.itemsize, mask_bytes) <= shared_memory

    while num_stages > 1 and not fits():
        num_stages -= 1

    while block_n > 16 and not fits():
        block_n //= 2

    while block_m > 16 and not fits():
        block_m //= 2

    return Config(block_m, block_n, _splits(rows, groups, keys, block_m, multiprocessors), num_warps, num_stages)


def _splits(rows, groups, keys, block_m, multiprocessors):
    """The parts of the keys: as many as give every multiprocessor one, but each of 128 keys or more.

    Of one sequence of 8192 keys and 8 heads 16 parts were read at 1.93 TB/s and 33 at 1.38 on an H200, before
    ``combine`` took all parts at once; since then 16 are at 2.67.
    """
    programs = groups * -(-rows // block_m)

    return max(min(multiprocessors // programs, keys // 128), 1)


def on_plain_cores(dtype, ieee):
    """Whether products run on the plain cores, out of registers, not on the matrix units."""
    return dtype is torch.float64 or (dtype is torch.float32 and ieee)


def in_pieces(head_dim, dtype, ieee, aligned):
    """Whether the head dim is walked in pieces: where products or addresses take too many registers."""
    return on_plain_cores(dtype, ieee) or (not aligned and head_dim > 64)


def block_dims(head_dim, value_dim, dtype, ieee, aligned):
    """The head dims as blocks, padded to powers of two; of the first, a piece."""
    block_e, block_ev = (max(next_power_of_2(dim), 16) for dim in (head_dim, value_dim))

    if in_pieces(head_dim, dtype, ieee, aligned):
        block_e = min(block_e, 32)

    if not on_plain_cores(dtype, ieee):
        # Triton 3.6 has the matrix units read outside of shared memory where tiles of values are swizzled over fewer
        # bytes (a row of a tile, 128 at most) than those of keys, unless both are pipelined.
        block_e = max(block_e, 64 // dtype.itemsize)
        block_ev = max(block_ev, min(block_e, 128 // dtype.itemsize))

    return block_e, block_ev


def new_output(query, value_dim):
    """An output for the query, with its dims in the same order in memory."""
    shape = (*query.shape[:-1], value_dim)
    strides = [0] * len(shape)
    step = 1
    order = ordered_dims(query.shape, [query.stride()])

    # The head dim stays innermost, so that rows are written whole.
    for dim in (len(shape) - 1, *(dim for dim in order if dim != len(shape) - 1)):
        strides[dim] = step
        step *= max(shape[dim], 1)

    return repetition.empty(shape, strides, query.dtype, query.device)


def _strides(tensor):
    """Strides; 0 along a dim of one element, which is not walked."""
    return [stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]


def _distinct(tensor):
    """One element along each dim that repeats it."""
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]


def launch(output, query, key, value, mask, lower_right, scale, slots=None, new_rows=0, chosen=None):
    """Run attention.

    :param output: (B, Hq, L, Ev), not empty; where it is written.
    :param query: (B, Hq, L, E).
    :param key: (B, Hkv, S, E).
    :param value: (B, Hkv, S, Ev).
    :param mask: (B, Hq, L, S'), bool or floating; or ``None``. Where ``slots`` are given, keys past S' take no part.
    :param lower_right: Whether the last query sees the last key, else the first query the first key; ``None``: each
        query sees every key.
    :param scale: Of the scores.
    :param slots: Where the sequences of a cache differ in length, an integer tensor (B,): sequence b has
        ``slots[b] + new_rows`` keys.
    :param chosen: The configuration; ``None``: it is chosen here.
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

    is_float_mask = mask is not None and mask.dtype.is_floating_point
    # The kernel takes a positive scale only, so that the largest product is the largest score.
    magnitude, sign = (abs(scale), math.copysign(1, scale)) if scale else (1.0, 0.0)
    tensors = (query, key, value, output)
    strides = [_strides(tensor) for tensor in tensors]
    unit_strides = all(tensor.stride(3) == 1 or tensor.shape[3] == 1 for tensor in tensors)

    if unit_strides:
        strides = [[*own[:3], 1] for own in strides]

    aligned = settled(
        "aligned",
        unit_strides
        and all(stride % 16 == 0 for own in strides for stride in own[:3])
        and all(tensor.data_ptr() % 16 == 0 for tensor in tensors),
    )
    mask_bytes = 0 if mask is None else mask.element_size()
    causal = lower_right is not None
    is_ieee = ieee and dtype is torch.float32
    # Who sets the compiler's options means those of Triton's form.
    is_plain = mask is None and slots is None and sign > 0 and not (get_default_num_warps() or get_default_num_stages())
    gluon = settled("gluon", is_plain and aligned and attention_hopper.takes(tensors, strides))
    index = query.device.index or 0

    if chosen is None:
        problem = Problem(
            *(group * queries, batch * heads, keys, head_dim, value_dim, dtype),
            *(is_ieee, causal, mask_bytes, aligned, gluon),
        )
        run = functools.partial(launch, **operands)
        chosen = choice.choose("scaled_dot_product_attention", problem, index, run, output)

    if chosen.warp_groups > 1:
        multiprocessors = choice.device(index).multiprocessors
        attention_hopper.launch(tensors, strides, lower_right, magnitude * _LOG2E, chosen, multiprocessors)
        return

    block_e, block_ev = block_dims(head_dim, value_dim, dtype, ieee, aligned)
    row_tiles = -(-group * queries // chosen.block_m)
    is_split = chosen.splits > 1
    partial = maxima = normalizers = output
    rows = batch * query_heads * queries

    if is_split:
        parts = chosen.splits * rows
        memory = repetition.empty((parts * (value_dim + 2),), (1,), compute_dtype, query.device)
        partial, maxima, normalizers = memory.split((parts * value_dim, parts, parts))

    kernel = kernels.attend_aligned if aligned else kernels.attend

    if mask is not None and not is_float_mask:
        # Where Triton (3.6, 3.7) has 8-bit loads feed a float64 product, it fails to compile.
        mask = _distinct(mask).to(torch.int32).expand(mask.shape) if dtype is torch.float64 else mask.view(torch.uint8)

    extents = [chosen.block_n * row + max(block_e, block_ev) * dim for _, _, row, dim in strides[1:3]]
    mask_strides = [0] * 4 if mask is None else _strides(mask)
    mask_aligned = mask_strides[3] == 1 and all(stride % 16 == 0 for stride in mask_strides[:3])
    mask_unit = 16 if settled("mask_aligned", mask_aligned) else 1
    is_wide = max(*extents, chosen.block_n * mask_strides[3]) >= 2**31
    kind = kernels.NO_MASK if mask is None else kernels.FLOAT_MASK if is_float_mask else kernels.BOOL_MASK

    with on_device(query.device):
        repetition.launch(
            kernel,
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
            *(stride for own in strides for stride in own),
            *(stride // mask_unit for stride in mask_strides[:3]),
            mask_strides[3],
            heads,
            group,
            queries,
            keys,
            head_dim,
            value_dim,
            new_rows,
            row_tiles,
            magnitude if is_float_mask else magnitude * _LOG2E,
            sign,
            TRITON_DTYPES[compute_dtype],
            "ieee" if ieee else "tf32",
            kind.value,
            causal,
            bool(lower_right),
            slots is not None,
            is_split,
            sign > 0,
            in_pieces(head_dim, dtype, ieee, aligned),
            is_wide,
            unit_strides,
            mask_strides[3] == 1,
            mask_unit,
            head_dim % block_e == 0,
            value_dim == block_ev,
            chosen.block_m,
            chosen.block_n,
            block_e,
            block_ev,
        )

        if is_split:
            repetition.launch(
                kernels.combine,
                (rows,),
                {},
                output,
                partial,
                maxima,
                normalizers,
                *output.stride(),
                rows,
                query_heads,
                queries,
                value_dim,
                chosen.splits,
                _LOG2E if is_float_mask else 1.0,
                TRITON_DTYPES[compute_dtype],
                16,
                block_ev,
            )
