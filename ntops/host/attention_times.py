"""Estimate how long the forms of attention take on Hopper, to choose one: 16-bit elements, no mask but a causal one.

A form computes tiles of queries, each of which walks blocks of keys. Its time is the constant part, one for each turn
of tiles that a multiprocessor takes, and one for each block. The constants, in microseconds, are fitted to calls of an
H200 (Triton 3.6, default clocks, L2 cache flushed): 1 to 32 sequences, 8 to 71 heads, 64 to 4096 queries and keys, head
dims 64 to 128. Of 192 calls, each timed in all forms, the choice takes on average 1.0 % longer than the best (causal
0.6 % up to 64 dims and 0.9 % above), at most 21 %.
"""

import dataclasses

from ntops.host import attention_hopper


@dataclasses.dataclass(frozen=True)
class Times:
    """A form and its constants, in microseconds: ``once`` for a call, ``turn`` for each tile that a multiprocessor
    computes in turn, and ``block`` for each block of keys that it reads."""

    block_m: int
    block_n: int
    num_stages: int
    warp_groups: int
    once: float
    turn: float
    block: float
    programs: float = 1
    """The number of programs that a multiprocessor runs at the same speed as one."""


FORMS = {
    (64, False): (
        Times(64, 64, 3, 1, 7.39, 1.65, 0.52, 1.5),
        Times(64, 128, 3, 2, 9.16, 1.04, 1.21),
        Times(64, 64, 4, 4, 10.45, 2.66, 1.05),
    ),
    (64, True): (Times(64, 64, 2, 1, 5.62, 2.59, 0.93, 2), Times(64, 128, 3, 2, 8.63, 1.33, 1.1)),
    (128, False): (Times(64, 128, 2, 2, 10.09, 1.61, 1.49), Times(64, 64, 3, 2, 9.57, 1.12, 0.89)),
    (128, True): (
        Times(64, 64, 3, 1, 6.8, 2.44, 0.65),
        Times(64, 128, 2, 2, 9.67, 1.5, 1.51),
        Times(64, 64, 3, 2, 8.14, 1.5, 0.89),
    ),
}
"""The forms by the head dims of a tile and whether the call is causal. More than one group of warps selects the Hopper
kernel."""


def fastest(queries, group, heads, keys, head_dim, causal, multiprocessors):
    """Return the form that takes the least time.

    :param queries: The number of queries of a head.
    :param group: The number of query heads that read a key/value head.
    :param heads: The number of key/value heads of all sequences.
    """
    given = queries, group, heads, keys, head_dim, causal, multiprocessors
    return min(FORMS[attention_hopper.block_of(head_dim), causal], key=lambda form: microseconds(form, *given))


def microseconds(form, queries, group, heads, keys, head_dim, causal, multiprocessors):
    """Estimate the time of a call; see :func:`fastest`."""
    # Triton's kernel puts the queries of a group into the same tiles.
    packed = group if form.warp_groups == 1 else 1
    rows, heads = queries * packed, heads * group // packed
    size = form.block_m * form.warp_groups
    row_tiles = -(-rows // size)
    most = -(-keys // form.block_n)
    # The first tile of a causal call sees the fewest keys, the last one all; ``keys`` counts none that no query sees.
    fewest = -(-min(max(keys - queries, 0) + -(-size // packed), keys) // form.block_n) if causal else most
    mean = (most + fewest) / 2
    tiles = heads * row_tiles

    if form.warp_groups == 1:
        turns = max(tiles / (multiprocessors * form.programs), 1)
        return form.once + form.turn * turns + form.block * max(turns * mean, most)

    key_bytes = 4 * head_dim * keys * heads // group
    units, units_per_head, _, programs = attention_hopper.schedule(heads, row_tiles, causal, key_bytes, multiprocessors)
    turns = -(-units // programs)

    if units_per_head < row_tiles:
        # Pairs of tiles, each of two means.
        turns *= 2
        blocks = turns * mean
    elif causal and turns > 1:
        # Programs take nearly the same number of blocks.
        turns = tiles / multiprocessors + 0.25
        blocks = max(turns * mean, most)
    else:
        blocks = turns * most

    return form.once + form.turn * turns + form.block * blocks
