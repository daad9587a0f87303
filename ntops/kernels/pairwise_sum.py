"""Sum in pairs, so that the bits do not depend on which thread has which value."""

import triton
import triton.language as tl


@triton.jit
def pairwise_sum(values, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr):
    """Sum (ROWS, COLUMNS, COUNT) values along the last dim: number l and l + COUNT / 2 first, and 0 and 1 last."""
    if COUNT == 1:
        return values.reshape(ROWS, COLUMNS)
    else:
        first, second = tl.split(values.reshape(ROWS, COLUMNS, 2, COUNT // 2).permute(0, 1, 3, 2))
        return pairwise_sum(first + second, ROWS, COLUMNS, COUNT // 2)
