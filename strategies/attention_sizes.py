"""Sizes of calls of attention: batch, heads, queries, keys and head dims, of models and around the edges of blocks."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from strategies import models as _models
from strategies.shapes import Shape, near, sizes

MAX_DIM = 256


class Sizes(msgspec.Struct, frozen=True):
    """``batch`` None: without that dim. ``keys`` are those that attention reads, ``new`` of them in this call."""

    batch: int | None
    heads: int
    ratio: int
    queries: int
    keys: int
    new: int
    dim: int
    value_dim: int

    def query(self) -> Shape:
        return self._with_batch(self.heads * self.ratio, self.queries, self.dim)

    def rows(self, count: int, value: bool = False) -> Shape:
        """Of so many keys or values."""
        return self._with_batch(self.heads, count, self.value_dim if value else self.dim)

    def scores(self) -> Shape:
        return self._with_batch(self.heads * self.ratio, self.queries, self.keys)

    def _with_batch(self, *shape: int) -> Shape:
        return shape if self.batch is None else (self.batch, *shape)


FLAG, RARELY = st.booleans(), st.integers(0, 9).map(lambda n: n == 9)
ONE_OF_THREE = st.integers(0, 2).map(lambda n: n == 2)
_HEADS = st.sampled_from((1, 2, 3, 1, 2, 3, 8))
_RATIOS = st.sampled_from((1, 1, 2, 3, 4, 8, 16, 5, 6, 7))
_LENGTHS = st.sampled_from(
    ("any", "any", "any", "equal", "decode", "long keys", "long queries", "blocks", "chunk", "empty", "cross", "tall")
)
_CAPPED = ("long keys", "long queries", "blocks", "chunk", "cross")
_SMALL = sizes(1, 40)
_LONG = st.sampled_from((65, 129, 200, 257, 300, 600))
_BLOCKS, _BLOCKS_OF_FLOAT64 = st.sampled_from((65, 129, 130, 256)), st.sampled_from((17, 33))
_CHUNK, _HISTORY = st.sampled_from((17, 33, 65)), st.integers(1, 140)
"""Queries of several blocks after a history, as a prompt is computed in parts."""
_PROMPTS = (1070, 1100, 1151, 1024, 1152)
_CONTEXTS = (st.integers(520, 1023), st.integers(1025, 2047), st.integers(2049, 2300))
"""Keys of a context: around the numbers from which on kernels split them."""
_CAP = st.integers(1, 3000)
"""Of long lengths and head dims of models: mostly none. Where a short one fails too, shrinking gets there by this."""
_DIMS = sizes(1, MAX_DIM)
_MODELS = st.sampled_from((64, 80, 96, 128, 192, 256))
"""Head dims of models."""
_WIDE_DIMS = st.sampled_from((129, 160, 192, 256))


@st.composite
def of_form(draw: st.DrawFn, form: str, work: int, float64: bool) -> Sizes:
    """Of a call with at most ``work`` products of elements, whose cache has the form ``form`` (``none``: no cache)."""
    # The simplest of each choice takes the fewest draws, since shrinking goes there. Whatever is over the budget is
    # lowered: the batch first, head dims last.
    batch: int | None = draw(st.sampled_from((1, 2, 3, 5, 1, 2, 3, 0)))
    if draw(RARELY) and form != "positions":
        batch = None
    heads, ratio = draw(_HEADS), draw(_RATIOS)
    queries, keys = draw(_SMALL), draw(_SMALL)
    match lengths := draw(_LENGTHS):
        case "equal":
            queries = keys = draw(sizes(1, 70))
        case "decode":
            queries, keys = 1, draw(sizes(1, 300))
        case "long keys":
            keys = draw(_LONG)
        case "long queries":
            queries = draw(_LONG)
        case "blocks":
            several = _BLOCKS_OF_FLOAT64 if float64 else _BLOCKS
            queries = draw(several)
            keys = draw(several) if draw(FLAG) else queries
        case "chunk":
            queries = draw(_CHUNK)
            keys = queries + draw(_HISTORY)
        case "empty":
            queries, keys = draw(st.sampled_from(((1, 0), (0, 1), (0, 0), (3, 0), (0, 5))))
        case "tall":
            keys = draw(sizes(2, 24))
            queries = keys + draw(_SMALL)
        case "cross":
            # Whole blocks of queries, of an image, and the keys of a text.
            queries, keys = draw(st.sampled_from((64, 128, 256))), draw(_models.widths(_models.KEYS))
    if lengths in _CAPPED:
        cap = draw(_CAP)
        queries, keys = min(queries, cap), min(keys, cap)
    dim = draw(_DIMS)
    if draw(ONE_OF_THREE):
        dim = min(draw(_MODELS), draw(_CAP))
    value_dim = draw(draw(st.sampled_from((*(st.just(dim),) * 4, _DIMS, _WIDE_DIMS))))
    if not float64 and draw(ONE_OF_THREE):
        return draw(_of_model(work, batch, queries, keys))
    if float64:
        queries, keys = min(queries, 65), min(keys, 129)
    # Many query heads to one of keys are models' with several of those; dims are lowered before either.
    together = ratio * heads if ratio * heads > 12 else 1
    if together > 1:
        queries = min(queries, 1 + queries % 8)
    pairs = max(queries * keys, 1)
    dim, value_dim = (min(size, max(work // (2 * pairs * together), 1)) for size in (dim, value_dim))
    each = pairs * (dim + value_dim)
    ratio = min(ratio, max(work // each, 1))
    heads = min(heads, max(work // (each * ratio), 1))
    batch = batch and min(batch, max(work // (each * ratio * heads), 1))
    new = min(queries, keys)
    if form != "none" and draw(RARELY):
        new = draw(st.integers(0, keys))
    return Sizes(batch, heads, ratio, queries, keys, new, dim, value_dim)


@st.composite
def as_many(draw: st.DrawFn, float64: bool) -> Sizes:
    """As many sequences as query heads."""
    ratio, heads = draw(st.sampled_from(((1, 2), (1, 3), (2, 1), (2, 2), (1, 4))))
    most = 9 if float64 else 24
    queries, keys = draw(sizes(1, most)), draw(sizes(2, most))
    dim = draw(sizes(1, 16 if float64 else 64))
    return Sizes(heads * ratio, heads, ratio, queries, keys, min(queries, keys), dim, dim)


@st.composite
def context(draw: st.DrawFn, scene: str) -> Sizes:
    """A token or two of several sequences, a part of a prompt, or a prompt, each of a long context and of few heads."""
    keys = draw(draw(st.sampled_from(_CONTEXTS)))
    match scene:
        case "prompt":
            heads, ratio = draw(st.sampled_from(((2, 2), (2, 1), (1, 2), (2, 3))))
            keys = draw(st.integers(1024, 1040))
            return Sizes(1, heads, ratio, keys, keys, keys, 8, 8)
        case "part":
            heads, ratio, dim = (
                draw(st.sampled_from((1, 2))),
                draw(st.sampled_from((1, 2))),
                draw(st.sampled_from((8, 32))),
            )
            queries = draw(st.integers(16, 40))
            return Sizes(1, heads, ratio, queries, keys + queries, queries, dim, dim)
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    queries, dim = draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((16, 32, 64)))
    return Sizes(batch, heads, draw(st.sampled_from((1, 2, 4))), queries, keys, queries, dim, dim)


@st.composite
def _of_model(draw: st.DrawFn, work: int, batch: int | None, queries: int, keys: int) -> Sizes:
    """Heads as a model has them, and as many queries and keys as there is room for."""
    heads, ratio, dim = draw(_models.heads())
    # A cap is what shrinking lowers.
    heads, ratio, dim = min(heads, draw(_CAP)), min(ratio, draw(_CAP)), min(dim, draw(_CAP))
    heads = min(heads, max(work // (2 * dim * ratio * 32), 1))
    room = max(work // (2 * dim * ratio * heads), 1)
    # Few queries of many keys, as a step of decoding has them, or a prompt.
    queries = min(queries, max(room // max(keys, 1), 1))
    keys = min(keys, max(room // max(queries, 1), 1))
    batch = batch and min(batch, max(room // max(queries * keys, 1), 1))
    new = min(queries, keys)
    return Sizes(batch, heads, ratio, queries, keys, new, dim, dim)


@st.composite
def large(draw: st.DrawFn, elements: int) -> Sizes:
    """Many heads, sequences, keys or queries, of about so many elements at most."""
    few = st.integers(1, 5)
    batch, heads, queries, keys, dim = draw(few), draw(few), draw(few), draw(few), draw(st.integers(1, 16))
    kinds = ("heads", "batch", "keys", "queries", "queries", "context", "square")
    kinds += (*("blocks",) * 2, *("decode",) * 3, "cross")
    match draw(st.sampled_from(kinds)):
        case "context":
            # A token or two of a context that is split in many parts.
            keys, queries = 4097 + draw(st.integers(0, elements >> 8)), min(queries, 2)
        case "square":
            # A prompt of many blocks, the last of which is not full.
            batch, heads, dim = 1, 1, min(dim, 4)
            queries = draw(st.sampled_from(_PROMPTS if elements < 1 << 24 else (*_PROMPTS, 2100, 4170)))
            keys = queries + draw(st.sampled_from((0, 0, 70, -3)))
        case "blocks":
            batch, heads, dim = 1, 1, draw(draw(st.sampled_from((st.integers(33, 64), _MODELS, _MODELS))))
            queries, keys = draw(st.integers(257, 300)), draw(st.integers(257, 330))
        case "decode":
            # A token or two of a context that models have, with their heads.
            heads, ratio, dim = draw(_models.heads())
            batch, heads, ratio, dim = 1, min(heads, 2), min(ratio, draw(_CAP)), min(dim, draw(_CAP))
            queries, keys = min(queries, 4) if draw(ONE_OF_THREE) else 1, draw(st.integers(1025, 2200))
            return Sizes(batch, heads, ratio, queries, keys, min(queries, keys), dim, dim)
        case "cross":
            # Blocks of an image that attend to the keys of a text, with the heads of models.
            heads, _, dim = draw(_models.heads())
            batch, heads, dim = 1, min(heads, 2), min(dim, draw(_CAP))
            queries, keys = draw(st.sampled_from((256, 1024))), draw(_models.widths(_models.KEYS))
        case "heads":
            heads, batch = draw(near(elements >> 12)), min(batch, 2)
        case "batch":
            batch, heads = draw(near(elements >> 10)), heads if elements >= 1 << 24 else min(heads, 2)
        case "keys":
            keys, queries = draw(near(elements >> 8)), min(queries, 2)
        case "queries":
            queries = draw(near(elements >> 11))
    return Sizes(batch, heads, draw(st.sampled_from((1, 1, 2))), queries, keys, min(queries, keys), dim, dim)
