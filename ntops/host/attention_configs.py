"""Configurations of attention: the rule that chooses one, and those that it may be forced to take."""

import dataclasses

import torch

from ntops.host import attention_hopper, attention_tf32x3, attention_times
from ntops.launch import config_selection
from ntops.launch.configuration import heuristic
from ntops.launch.devices import next_power_of_2


@dataclasses.dataclass(frozen=True)
class Config:
    """The configuration of attention: block sizes, the number of parts of the keys, and the compiler's options."""

    block_m: int
    block_n: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 1
    warp_groups: int = 1
    """More than one selects the Hopper kernel; ``block_m``, ``num_warps`` and the registers are then per group of
    warps."""
    tf32x3: bool = False
    """Tells whether IEEE float32 products are three in TF32, on the tensor cores."""


@dataclasses.dataclass(frozen=True)
class Problem(config_selection.Problem):
    """A call of attention; the fields are parameters of :func:`config`."""

    OPTIONS = Config
    SIZES = ("rows", "groups", "keys")

    rows: int
    groups: int
    keys: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    ieee: bool
    """Tells whether float32 products are IEEE. False for other dtypes, where it changes nothing, so that they share one
    entry."""
    causal: bool
    mask_bytes: int
    aligned: bool
    gluon: bool = False
    """Tells whether the Hopper kernel, in Gluon, can take the call."""
    group: int = 1
    """The number of query heads that read a key/value head. Measurements serve any number."""
    tf32x3: bool = False
    """Tells whether IEEE products may be three in TF32, which the other fields and the machine decide."""

    def kind(self):
        return {name: value for name, value in super().kind().items() if name not in ("group", "tf32x3")}

    def rule(self, device):
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return config(**fields, **dataclasses.asdict(device))

    def space(self, device):
        rows, chosen = max(next_power_of_2(self.rows), 16), self.rule(device)
        found = list(hopper_space(self.head_dim, self.mask_bytes)) if self.gluon else []

        if self.tf32x3:
            found += [
                Config(*blocks, 1, *options, tf32x3=True)
                for *blocks, options in attention_tf32x3.SPACE
                if blocks[0] <= rows
            ]

        if not self.aligned or on_plain_cores(self.dtype, self.ieee):
            # Loads of single elements bound such a call, whatever the tiles.
            return found

        for block_m, block_n, num_warps, num_stages in _SPACE:
            if block_m > rows or (rows <= 64 and block_m < rows):
                continue

            even = max(_splits(self.rows, self.groups, self.keys, block_m, device.multiprocessors), chosen.splits)
            # Where keys are split, twice as many parts may hide more of the latency.
            parts = (even, min(2 * even, max(self.keys // 128, 1))) if even > 1 else (1,)
            found += [Config(block_m, block_n, splits, num_warps, num_stages) for splits in parts]

        return found

    def allows(self, options):
        if options.warp_groups > 1:
            return self.gluon and options in hopper_space(self.head_dim, self.mask_bytes)

        if options.tf32x3 and not self.tf32x3:
            return False

        return options.splits == 1 or options.splits * 16 <= self.keys

    def resources(self, options):
        dims = self.head_dim, self.value_dim
        block_e, block_ev = block_dims(*dims, self.dtype, self.ieee, self.aligned, options.tf32x3)
        itemsize = self.dtype.itemsize

        if options.warp_groups > 1:
            # Beside the groups, one warp loads; it counts as a group of four warps.
            threads = 128 * (options.warp_groups + 1)
            block_e = block_ev = attention_hopper.block_of(self.head_dim)
            rows = attention_hopper.tiles(self.head_dim) * options.block_m * options.warp_groups
            whole = dataclasses.replace(options, block_m=rows)
            registers = attention_hopper.REGISTERS[options.warp_groups]
            return config_selection.Resources(_shared(whole, block_e, block_ev, itemsize, 0), registers, threads)

        # Below 64 rows products read their operands from registers, so one stage fewer is in shared memory, as in
        # ``mm``.
        stages = options.num_stages if options.block_m >= 64 else max(options.num_stages - 1, 1)
        staged = dataclasses.replace(options, num_stages=stages)
        shared = _shared(staged, block_e, block_ev, itemsize, self.mask_bytes)
        threads = 32 * options.num_warps
        # Registers hold the sums, the scores and the scores again as weights in the dtype of the values; and for the
        # keys and values being loaded, a two-register address for each 16 bytes of a thread. The constant was read off
        # kernels that Triton 3.7 compiled for sm_90: an estimate above 255 spills more than a few words.
        values = options.block_m * (block_ev + options.block_n) * max(itemsize, 4) // 4
        values += options.block_m * options.block_n * itemsize // 4
        values += options.block_n * (block_e + block_ev) * itemsize // 8

        return config_selection.Resources(shared, 60 + values // threads, threads)


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
# The configurations of the Hopper kernel, by the head dims of a tile.
HOPPER_SPACE = {
    64: (Config(64, 64, 1, 4, 4, 4), Config(64, 128, 1, 4, 3, 2)),
    128: (Config(64, 128, 1, 4, 2, 2), Config(64, 64, 1, 4, 3, 2)),
    256: (Config(64, 64, 1, 4, 2, 2),),
}


# The same with a mask, of which a thread holds as many elements as of scores.
MASKED_SPACE = {
    64: (Config(64, 64, 1, 4, 4, 2), Config(64, 128, 1, 4, 3, 2)),
    128: (Config(64, 64, 1, 4, 3, 2), Config(64, 128, 1, 4, 2, 2)),
    256: (Config(64, 64, 1, 4, 2, 2),),
}


def hopper_space(head_dim, mask_bytes):
    """Return the configurations of the Hopper kernel for a head dim."""
    return (MASKED_SPACE if mask_bytes else HOPPER_SPACE)[attention_hopper.block_of(head_dim)]


def _shared(options, block_e, block_ev, itemsize, mask_bytes):
    """Return the bytes of shared memory of a program: the query tile, and for each stage tiles of keys, values and
    mask. Of queries that are split, both parts are there, unless registers hold them."""
    stage = itemsize * options.block_n * (block_e + block_ev) + mask_bytes * options.block_m * options.block_n
    queries = itemsize * options.block_m * block_e * (2 if options.tf32x3 and options.block_m >= 64 else 1)
    return queries + options.num_stages * stage


# Few rows and many rows, each with keys in eight parts and in one; sizes between these; and few rows of many heads.
_POINTS = (
    (1, 1, 4096),
    (1, 1, 1),
    (1, 1024, 1),
    (1, 1024, 64),
    (1, 1024, 1024),
    (32, 1, 1),
    (64, 1, 1),
    (65, 1, 1),
    (65, 1, 4096),
    (577, 256, 2048),
    (2**20, 1024, 4096),
    (2**20, 1024, 154),
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
    group=1,
    tf32x3=False,
):
    """Choose the configuration of a call. Figures are TFLOP/s of 4 x 32 x 4096 x 128 (or 64) bf16 on an H200, Triton
    3.6.

    :param rows: The number of queries of all the heads that read one key/value head.
    :param groups: The number of key/value heads of all sequences.
    :param keys: The number of keys, or the capacity of the cache if that is larger.
    :param head_dim: The head dim of queries and keys.
    :param value_dim: The head dim of values.
    :param dtype: The dtype of the operands.
    :param ieee: Whether float32 products are IEEE, not TF32.
    :param causal: Whether the call has a causal mask.
    :param mask_bytes: Bytes of an element of the mask, 0 without a mask.
    :param aligned: Whether rows of queries, keys and values are loaded in whole vectors.
    :param shared_memory: Bytes of shared memory that a program can have on the device.
    :param multiprocessors: The device's number of multiprocessors.
    :param hopper: Whether the device is of the kind that the figures were measured on.
    :param gluon: Whether the Hopper kernel can take the call.
    :param group: The number of query heads that read a key/value head.
    :param tf32x3: Whether IEEE products may be three in TF32.
    """
    # Above 128 dims Triton's kernel has few keys a tile: 8 heads of 256 x 154 x 256 take 17.4 us in it, 12.1 in this.
    enough = 16 if head_dim > 128 else 48

    if gluon and groups * -(-rows // 128) >= enough:
        if mask_bytes or head_dim > 128:
            chosen = _of_masks_and_wide(rows, keys, head_dim, mask_bytes)
        else:
            queries = max(rows // group, 1)
            form = attention_times.fastest(queries, group, groups, keys, head_dim, causal, multiprocessors)
            chosen = Config(form.block_m, form.block_n, 1, 4, form.num_stages, form.warp_groups)

        if chosen is not None and chosen.warp_groups > 1:
            return chosen

    block_e, block_ev = block_dims(head_dim, value_dim, dtype, ieee, aligned, tf32x3)
    largest = max(block_e, block_ev)

    if tf32x3:
        block_m, block_n, num_warps, num_stages = attention_tf32x3.choose(
            rows, groups, largest, causal, mask_bytes, multiprocessors
        )
    elif on_plain_cores(dtype, ieee):
        # 1 x 32 x 1000 x 64 takes 497 us, and 814 us in tiles of 32 x 32.
        block_m, block_n, num_warps, num_stages = (128, 64, 8, 1) if block_ev <= 128 else (32, 16, 4, 1)
    elif dtype is torch.float32 and largest <= 64 and not causal:
        # TF32 at this size takes 93 us, and 106 us with 8 warps; 2 x 14 x 1000 x 64 causal takes 101 us with 4 and 81
        # with 8.
        block_m, block_n, num_warps, num_stages = 128, 64, 4, 2
    elif dtype is torch.float32:
        block_m, block_n, num_warps, num_stages = (128, 64, 8, 2) if largest <= 128 else (32, 32, 4, 2)
    elif largest <= 64:
        # 386 full and 343 causal; with 128 queries a tile 368 and 345.
        block_m, block_n, num_warps, num_stages = 64, 64, 4, 3
    elif largest > 128:
        block_m, block_n, num_warps, num_stages = 128, 32, 8, 3
    elif mask_bytes:
        # With a mask 272 to 314; half as many queries or keys a tile reach less than 250.
        block_m, block_n, num_warps, num_stages = 128, 64, 8, 3
    elif causal:
        # 410 causal, 391 full.
        block_m, block_n, num_warps, num_stages = 64, 64, 4, 3
    else:
        # 420 full, 389 causal. Compiled for sm_80 and sm_100, 128 keys spill.
        block_m, block_n, num_warps, num_stages = 128, 128 if hopper else 64, 8, 3

    is_decoding = (dtype.itemsize == 2 or tf32x3) and rows <= 16 and not mask_bytes

    if rows <= 64 and not tf32x3:
        block_m = min(block_m, max(next_power_of_2(rows), 16))
        num_warps = 4

        if is_decoding and keys > 256:
            # 4.40 TB/s for 16 x 8192 keys, with 64 keys a tile 4.20 (a copy 4.12). For 16 x 2 heads of 64 keys, 64 keys
            # a tile take 6.4 us, and 128 take 7.8 us. Above 128 dims shared memory holds one stage of 128 keys, so that
            # nothing is prefetched: 16 x 8 heads of 8192 x 160 took 1.74 times as long as torch.
            block_n = 128 if largest <= 128 else 64

        if is_decoding and groups > multiprocessors and keys <= 512:
            # Few keys in many heads: 256 heads of 300 x 128 take 21.5 us so, and 23.5 us in two stages of 128.
            block_n, num_stages = 64, 3
        elif is_decoding and groups > multiprocessors and largest > 64:
            # Programs on one multiprocessor hide each other's first loads if shared memory suffices for several: 64 x
            # 1024 keys take 71.1 us, with three stages 74.8 (torch 69.9). 16 x 8192 keys take 127 us with three stages
            # and 154 with two.
            num_stages = min(num_stages, 2)

    if not aligned:
        # Each element that is loaded by itself has an address in registers.
        block_m, block_n = min(block_m, 32), min(block_n, 32 if block_ev <= 128 else 16)
        num_warps, num_stages = 4, min(num_stages, 2)

    def fitting():
        options = Config(block_m, block_n, num_stages=num_stages, tf32x3=tf32x3)
        return shared_memory // _shared(options, block_e, block_ev, dtype.itemsize, mask_bytes)

    while num_stages > 1 and not fitting():
        num_stages -= 1

    while block_n > 16 and not fitting():
        block_n //= 2

    while block_m > 16 and not fitting():
        block_m //= 2

    if is_decoding:
        splits = _splits_of_decoding(groups, keys, multiprocessors * (2 if tf32x3 else min(fitting(), 2)))
    else:
        splits = _splits(rows, groups, keys, block_m, multiprocessors)

    return Config(block_m, block_n, splits, num_warps, num_stages, tf32x3=tf32x3)


def _splits_of_decoding(groups, keys, programs):
    """Return the number of parts of the keys of a few queries: enough for all programs that run at a time, of 128 keys
    or more, and of 256 or more beyond 16 parts.

    On an H200, adding up the parts takes 4 us: 8 heads of 1500 x 128 take 22.7 us in one part and 13.9 in eight, 16
    heads of 1024 x 80 take 17.6 and 12.7. 4 heads of 512 x 128 gain little, 12.3 and 11.7: few keys are not split.
    """
    return max(min(programs // groups, max(keys // 256, min(keys // 128, 16))), 1) if keys >= 700 else 1


def _splits(rows, groups, keys, block_m, multiprocessors):
    """Return the number of parts of the keys: enough for one part for each multiprocessor, with 256 keys or more in
    each.

    On an H200, 16 parts of one sequence of 8192 keys and 8 heads were read at 1.93 TB/s and 33 at 1.38, before
    ``combine`` took all parts at once; since then 16 are read at 2.67. Combining takes 5 us: 8 sequences of 1024 keys
    and 4 heads take 13.3 us in one part and 14.0 in four.
    """
    programs = groups * -(-rows // block_m)

    return max(min(multiprocessors // programs, keys // 256), 1) if keys >= 2048 else 1


def _of_masks_and_wide(rows, keys, head_dim, mask_bytes):
    """Choose the configuration of the Hopper kernel with a mask or more than 128 dims; ``None`` where Triton's kernel
    is faster: few keys of up to 64 dims. 4 x 12 x 128 x 64 with a mask takes 9.4 us, and 8.1 us in Triton's kernel."""
    if head_dim <= 64 and (rows <= 128 or keys <= 256):
        return None

    if mask_bytes:
        # Bool masks: 8 x 12 x 512 x 64 takes 34.4 us (with 64 keys a tile 39.4), 1 x 8 x 1024 x 128 takes 24.6 (29.2).
        # Masks of half types take registers, so 64 keys a tile: 4 x 64 x 2048 x 128 takes 1730 us (with 128 keys 1963).
        first, second = (*MASKED_SPACE[attention_hopper.block_of(head_dim)], None)[:2]
        return second if mask_bytes == 1 and second else first

    return HOPPER_SPACE[256][0]


def on_plain_cores(dtype, ieee):
    """Tell whether products run on the CUDA cores, out of registers, not on the tensor cores."""
    return dtype is torch.float64 or (dtype is torch.float32 and ieee)


def in_pieces(head_dim, value_dim, dtype, ieee, aligned, tf32x3):
    """Tell whether a kernel walks the head dim in pieces, because products or addresses would take too many
    registers."""
    if tf32x3:
        return max(head_dim, value_dim) > 128

    return on_plain_cores(dtype, ieee) or (not aligned and head_dim > 64)


def block_dims(head_dim, value_dim, dtype, ieee, aligned, tf32x3=False):
    """Return the block sizes of both head dims, padded to powers of two; the first may be a piece of its head dim."""
    block_e, block_ev = (max(next_power_of_2(dim), 16) for dim in (head_dim, value_dim))

    if in_pieces(head_dim, value_dim, dtype, ieee, aligned, tf32x3):
        block_e = min(block_e, 32)

    if tf32x3 or not on_plain_cores(dtype, ieee):
        # Triton 3.6 lets the tensor cores read outside of shared memory if value tiles are swizzled over fewer bytes (a
        # row of a tile, at most 128) than key tiles, unless both are pipelined.
        block_e = max(block_e, 64 // dtype.itemsize)
        block_ev = max(block_ev, min(block_e, 128 // dtype.itemsize))

    return block_e, block_ev
