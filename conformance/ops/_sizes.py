"""How large cases are, in one place: modest, since kernels also run under an interpreter."""

ELEMENTS = 1 << 13
"""Elements of an elementwise result, mostly."""
MANY_ELEMENTS = 1 << 16
"""Elements of an elementwise result now and then, to span many blocks."""
ROWS, COLUMNS = 130, 5000
"""Rows and row length of a reduction; their product is within ``ELEMENTS`` mostly."""
PRODUCT_DIM, PRODUCT_WORK = 200, 1 << 20
"""M, N and mostly K of a matrix product, and M * N * K."""
PRODUCT_TERMS = 2100
"""The longest K."""
FLOAT64_ELEMENTS = 1 << 10
"""Elements that mpmath evaluates."""
FLOAT64_WORK = 1 << 18
"""Products of a float64 matrix product, which are summed in double-double."""
