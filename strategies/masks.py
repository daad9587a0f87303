"""The recipes of attention masks: bool (True takes part) or added to scores (0 or -inf), or scores' slopes."""

from __future__ import annotations

import math

import numpy as np

from strategies.chunks import Chunk, spread
from strategies.dtypes import Format
from strategies.encoding import Bits, encode


def kept_where(kept: np.ndarray, form: Format) -> Bits:
    """Of a mask: True or 0 where kept, else False or -inf."""
    if form.kind == "bool":
        return kept.astype(np.uint8)
    return np.where(kept, form.carrier.type(0), form.carrier.type(form.sign_bit | form.inf_bits))


def masked(chunk: Chunk) -> Bits:
    """Three in four are kept."""
    return kept_where(chunk.words() >> np.uint64(62) != 0, chunk.form)


def prefix(words: np.ndarray, chunk: Chunk) -> Bits:
    """Of each row of the last dim so many of the first are kept, from none to all: a batch that was padded."""
    columns = chunk.shape[-1] if chunk.shape else 1
    row, column = np.divmod(chunk.index().astype(np.uint64), np.uint64(columns))
    return kept_where(column < spread(words, row) % np.uint64(columns + 1), chunk.form)


def late(words: np.ndarray, chunk: Chunk) -> Bits:
    """All are kept up to a quarter or a half of the rows, and from there three in four."""
    columns = max(chunk.shape[-1] if chunk.shape else 1, 1)
    rows = math.prod(chunk.shape[:-1])
    early = chunk.index() // columns < rows * (1 + int(words[0] & np.uint64(1))) // 4
    return kept_where(early | (chunk.words() >> np.uint64(62) != 0), chunk.form)


def causal(words: np.ndarray, chunk: Chunk) -> Bits:
    """Of each matrix the keys up to the query's own, counted from the first or, half of the time, from the last."""
    row, column, rows, columns = _places(chunk)
    return kept_where(column <= row + (columns - rows) * int(words[0] & np.uint64(1)), chunk.form)


def window(words: np.ndarray, chunk: Chunk) -> Bits:
    """Of each matrix one to eight keys up to the query's own, and none to two of the first keys, which all queries
    see."""
    row, column, *_ = _places(chunk)
    width, first = 1 + int(words[0] % np.uint64(8)), int(words[1] % np.uint64(3))
    return kept_where((column <= row) & ((column > row - width) | (column < first)), chunk.form)


def slopes(words: np.ndarray, chunk: Chunk) -> Bits:
    """Of each matrix a slope of its own times the distance of a key before the query; half of the time keys behind it
    are left out (ALiBi)."""
    row, column, rows, columns = _places(chunk)
    head = chunk.index() // (rows * columns) + int(words[1] % np.uint64(4))
    slope = np.ldexp(-1.0, -1 - head % 8)
    behind = -math.inf if words[0] & np.uint64(1) and chunk.form.infinity else 0.0
    return encode(np.where(column > row, behind, (row - column) * slope), chunk.form)


def _places(chunk: Chunk) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return the row and the column of each element in its matrix, of the last two dims, and the sizes of these."""
    rows, columns = (max(size, 1) for size in (1, 1, *chunk.shape)[-2:])
    row, column = np.divmod(chunk.index(), columns)
    return row % rows, column, rows, columns
