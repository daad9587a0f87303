"""How large cases are, in one place: modest, since kernels also run under an interpreter."""

ELEMENTS = 1 << 13
"""Elements of an elementwise result, mostly."""
MANY_ELEMENTS = 1 << 16
"""Elements of an elementwise result now and then, to span many blocks."""
LARGE_TERMS = 64
"""M * N * K of a large square product, by the elements that a large call may have: 1024 cubed of 2^24."""
WHOLE = 1 << 20
"""Elements of a large result that is judged whole."""
COUNTED = 1 << 19
"""Elements of a dropout, all of which are counted."""
COUNTED_QUICKLY = 1 << 22
"""The same where kernels are compiled: masks that come again after 2^20 elements show."""
LARGE_LOSSES = 3 << 16
"""Elements of the logits of many rows of a few classes, whose losses are judged whole."""
FLOAT64_ROWS = 1 << 14
"""Elements of a large call whose rows mpmath evaluates as a whole."""
ROWS, COLUMNS = 130, 5000
"""Rows and row length of a reduction; their product is within ``ELEMENTS`` mostly."""
LONG_COLUMNS = (16385, 20000)
"""Rows that kernels walk tile by tile."""
LONG_HEADS = ((130, 64), (263, 32), (9, 1000))
"""Heads and pairs of a head of rows that are walked likewise; so are half as many heads of float64."""
MODEL_HEADS = ((8, 64), (17, 32), (32, 16))
"""Heads and pairs of a head of rows that are not walked."""
SEQUENCES = (1, 1, 2, 3)
"""Sequences of a large call, half of the time one."""
PROMPT_HEADS = ((8, 64), (12, 32), (32, 64), (40, 48))
"""The same of large calls, of many tokens."""
PRODUCT_DIM, PRODUCT_WORK = 200, 1 << 20
"""M, K and N of a matrix product, and M * N * K."""
PRODUCT_MODEST = 70
"""M, K and N of ops that share the kernel of ``mm``."""
PRODUCT_BATCH, PRODUCT_BATCH_WORK = 40, 1 << 18
"""Products of a batch, and all their M * N * K but for a batch of two."""
PRODUCT_WIDE = (128, 129, 200, 257, 300)
"""One dim of a product that is otherwise small."""
PRODUCT_BLOCKS, PRODUCT_BLOCKS_FLOAT64 = (64, 128, 129, 130), (32, 33, 64, 66)
"""All dims of a product, each of which spans several blocks, the last of them full or not."""
PRODUCT_WEIGHT, PRODUCT_WEIGHT_FLOAT64 = 1 << 17, 1 << 16
"""Elements of a weight of one token."""
PRODUCT_TERMS = (257, 511, 1000, 1024, 2049)
"""A long K."""
PRODUCT_DEEP = (1025, 1027, 1030)
"""A long K of a product of several blocks of rows and columns."""
FLOAT64_ELEMENTS = 1 << 10
"""Elements that mpmath evaluates."""
FLOAT64_ELEMENTWISE = 3 * 1024 + 1
"""The same of an elementwise result, of which each costs less: several blocks."""
FLOAT64_WORK = 1 << 18
"""M * N * K of a float64 product, whose terms are summed in double-double; mostly."""
ATTENTION_WORK, FLOAT64_ATTENTION_WORK = 1 << 20, 1 << 14
"""Products of elements of queries, keys and values of an attention; float64 is evaluated by mpmath."""

# What is timed, on a GPU: large enough to pass its caches.
BENCHMARK_ROWS = (
    *((rows, columns, "bfloat16") for rows, columns in ((8192, 1024), (8192, 4096), (4096, 16384), (1024, 65536))),
    *((rows, columns, "float32") for rows, columns in ((8192, 1024), (8192, 4096), (4096, 16384), (1024, 65536))),
    (1, 4096, "bfloat16"),
)
"""Rows, columns and dtype of reductions; the last is a single row, whose time is the host's."""
BENCHMARK_SQUARES = (
    *((size, "bfloat16") for size in (1024, 2048, 4096, 8192)),
    (4096, "float16"),
    (4096, "float32"),
    (64, "bfloat16"),
)
"""Square products; the last is a call whose time is the host's."""
BENCHMARK_TOKENS = (1, 16, 128, 4096)
BENCHMARK_WEIGHTS = ((4096, 4096), (4096, 11008), (11008, 4096), (8192, 8192), (8192, 28672), (28672, 8192))
"""K and N of linear layers of models of 7 and of 70 billion parameters; M are the tokens."""
