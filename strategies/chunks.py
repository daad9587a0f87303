"""The elements of a tensor in the making: some at a time, with the random words of which recipes make them."""

from __future__ import annotations

import math

import numpy as np

from strategies.dtypes import Format

_ONE_SIGMA = math.sqrt(8 * (65536**2 - 1) / 12)  # of the sum of eight 16-bit integers


class Chunk:
    """Elements ``start`` to ``stop`` (row-major) of a tensor in the making, with its random words."""

    def __init__(self, philox: np.random.Philox, shape: tuple[int, ...], start: int, stop: int, form: Format):
        self.shape, self.start, self.stop, self.form = shape, start, stop, form
        self._philox = philox

    def words(self) -> np.ndarray:
        """One random 64-bit word per element; for a given recipe always in the same order."""
        return self._philox.random_raw(self.stop - self.start)

    def two_words(self) -> tuple[np.ndarray, np.ndarray]:
        """Two for each element."""
        words = self._philox.random_raw(2 * (self.stop - self.start))
        return words[0::2], words[1::2]

    def index(self) -> np.ndarray:
        return np.arange(self.start, self.stop, dtype=np.int64)

    def normal(self) -> np.ndarray:
        """Sum of eight 16-bit integers, centred, unit variance: bell-shaped within +-4.9."""
        return normal(self._philox.random_raw(2 * (self.stop - self.start)))

    def unit(self) -> np.ndarray:
        """Uniform on the multiples of 2^-53 in [0, 1)."""
        return (self.words() >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(words: np.ndarray) -> np.ndarray:
    """Return of each two words the sum of their eight 16-bit integers, centred, of unit variance."""
    # The four 16-bit fields are added two at a time, in the halves of a word.
    low = np.uint64(0x0000FFFF0000FFFF)
    pairs = (words & low) + ((words >> np.uint64(16)) & low)
    pairs = pairs[0::2] + pairs[1::2]
    total = (pairs & np.uint64(0xFFFFFFFF)) + (pairs >> np.uint64(32))
    return (total.astype(np.float64) - 4 * 65535.0) * (1 / _ONE_SIGMA)


def spread(words: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """31 bits for each row, which differ from row to row."""
    # 2^64 times the golden ratio's fraction spreads the rows (Fibonacci hashing).
    return (words[0] + rows * (np.uint64(0x9E3779B97F4A7C15) ^ (words[1] & np.uint64(0xFF00)))) >> np.uint64(33)
