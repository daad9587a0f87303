"""Calls of attention: one structure that is drawn as a whole and shrinks part by part.

Sizes, masks, causal variants, scale and cache forms depend on one another, so they are not drawn as so many tensors.
What shrinking leaves is one query and one key of one element, float32, without mask, scale or cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from strategies import dtypes as _dtypes
from strategies import layouts as _layouts
from strategies import models as _models
from strategies import scalars as _scalars
from strategies import tensors as _tensors
from strategies.shapes import Shape, near, sizes
from strategies.specs import Layout, Special, TensorSpec
from strategies.values import LISTED, MASKED, MASKS

MAX_DIM = 256
VARIANTS = ("UPPER_LEFT", "LOWER_RIGHT")


class Views(msgspec.Struct, frozen=True):
    """New rows, which are written into ``[start, start + n)`` of what attention reads, or into tensors of their own."""

    present_key: TensorSpec
    present_value: TensorSpec
    start: int
    elsewhere: tuple[TensorSpec, TensorSpec] | None = None


class Positions(msgspec.Struct, frozen=True):
    """Caches into which ``key`` and ``value`` are written at ``slot``: of all sequences, or of each one (int64)."""

    key: TensorSpec
    value: TensorSpec
    slot: int | TensorSpec
    both: bool = False
    """Whether the slot is given for the values too."""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """One call. query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), or all without B."""

    query: TensorSpec
    key: TensorSpec
    value: TensorSpec
    mask: TensorSpec | None = None
    causal: bool = False
    variant: str | None = None
    """One of ``VARIANTS``; without ``causal`` it means nothing."""
    scale: float | None = None
    grouped: bool = False
    """enable_gqa."""
    cache: Views | Positions | None = None


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


REGIMES = (
    ("normal", "normal"),
    ("normal", "normal"),
    ("normal_small", "normal"),
    ("zeros", "normal"),
    ("normal_large", "normal"),
    ("normal_large", "one_hot"),
    ("integers", "integers"),
    ("ascending", "uniform"),
    ("positive", "positive"),
    ("normal_large", "normal_large"),
)
"""Recipes of query and key: weights of a few keys, of all alike, of all equal, of one key alone; scores beyond
those that half types hold exactly, of one sign, and beyond the largest number of float16 before they are scaled."""
VALUES = ("normal", "integers", "ascending", "uniform", "one_hot", "positive", "near_overflow", "normal_large")
_FLOAT_MASKS = ("normal", "zeros", "ascending", "large_mean", "descending", *MASKS)
_BOOL_MASKS = ("constant", "normal", "one_hot", "zeros", *MASKS)

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
_SCENES = st.sampled_from((*("as many",) * 4, *("token",) * 4, *("part",) * 2, "prompt"))
_CONTEXTS = (st.integers(520, 1023), st.integers(1025, 2047), st.integers(2049, 2300))
"""Keys of a context: around the numbers from which on kernels split them."""
PADDED = 512
"""Keys that are masked from the left, where there are more."""
_CAP = st.integers(1, 3000)
"""Of long lengths and head dims of models: mostly none. Where a short one fails too, shrinking gets there by this."""
_DIMS = sizes(1, MAX_DIM)
_MODELS = st.sampled_from((64, 80, 96, 128, 192, 256))
"""Head dims of models."""
_WIDE_DIMS = st.sampled_from((129, 160, 192, 256))
_FLAG, _RARELY = st.booleans(), st.integers(0, 9).map(lambda n: n == 9)
_ONE_OF_THREE = st.integers(0, 2).map(lambda n: n == 2)
_AT_TIMES = st.integers(0, 4).map(lambda n: n == 4)
"""Whether special values are planted."""


@st.composite
def attentions(
    draw: st.DrawFn,
    dtypes: Sequence[str] = _dtypes.FLOATING,
    *,
    work: int = 1 << 20,
    float64_work: int = 1 << 14,
    large: int = 0,
    scenes: bool = False,
) -> Attention:
    """A call that torch takes: at most ``work`` products of elements of queries, keys and values together, with
    float64 ``float64_work``, which an oracle evaluates in extended precision. ``large``: instead, but for float64,
    many heads, sequences, keys or queries, of about so many elements at most. ``scenes``: as many sequences as heads,
    and a mask of three dims, which is of heads all the same; or a token, a part of a prompt or a prompt of a context
    that models have."""
    dtype = draw(_dtypes.dtypes(dtypes))
    long = square = plain = as_many = False
    if large and dtype != "float64":
        found = draw(_large_sizes(large))
        square, long = min(found.queries, found.keys) > 1000, found.keys > 4096
        # Of heads as models have them many calls are of the plainest kind, for which kernels have paths of their own.
        plain = found.dim > 32 and draw(_FLAG)
        # A position in each cache is written out in the case: of few sequences only.
        form = "none" if square or long or plain else draw(st.sampled_from((*("none",) * 4, "views", "elsewhere")))
    elif scenes:
        scene = "as many" if dtype == "float64" else draw(_SCENES)
        as_many, square = scene == "as many", scene == "prompt"
        found = draw(_as_many(dtype == "float64") if as_many else _context(scene))
        form = "none" if as_many or square else draw(st.sampled_from(("none", "views", "position", "positions")))
    else:
        form = draw(st.sampled_from((*("none",) * 3, "views", "elsewhere", "position", "positions")))
        found = draw(_sizes(form, float64_work if dtype == "float64" else work, dtype == "float64"))
    scales = (_scale(dtype, 4.0), _scale(dtype, 4.0), _LARGE_SCALES, st.just(0.0))
    scale = draw(draw(st.sampled_from(scales))) if not plain and draw(_ONE_OF_THREE) else None
    # Of scores that are all zero, or of which one counts, a large scale changes nothing.
    regimes = REGIMES if scale is None or abs(scale) < 8 else REGIMES[:3]
    query_recipe, key_recipe = draw(st.sampled_from(regimes))
    value_recipe = draw(st.sampled_from(VALUES))
    special = draw(_AT_TIMES)
    projected = draw(_AT_TIMES)

    def tensor(shape: Shape, recipe: str, specials: tuple[str, ...] = (), layouts=_layouts.CLASSES) -> TensorSpec:
        planted = specials if special else ()
        spec = draw(_tensors.tensors(shape, dtype, values=recipe, specials=planted, layouts=layouts))
        return msgspec.structs.replace(spec, layout=draw(_projections(shape))) if projected else spec

    def keys(count: int, layouts: Sequence[str] = _layouts.CLASSES) -> TensorSpec:
        return tensor(found.rows(count), key_recipe, ("nan",), layouts)

    def values(count: int, layouts: Sequence[str] = _layouts.CLASSES) -> TensorSpec:
        return tensor(found.rows(count, True), value_recipe, ("nan", "inf", "-inf", "-0", "tiny"), layouts)

    query = tensor(found.query(), query_recipe, ("nan",))
    cache: Views | Positions | None = None
    if form in ("none", "views", "elsewhere"):
        layouts = _layouts.CLASSES if form == "none" else _layouts.WRITABLE
        key, value = keys(found.keys, layouts), values(found.keys, layouts)
        if form != "none":
            new = found.new
            start = found.keys - new if draw(st.integers(0, 3)) < 3 else draw(st.integers(0, found.keys - new))
            elsewhere = (keys(new, _layouts.WRITABLE), values(new, _layouts.WRITABLE)) if form == "elsewhere" else None
            cache = Views(keys(new), values(new), start, elsewhere)
    else:
        key, value = keys(found.new), values(found.new)
        slot, found = draw(_slots(found, form == "positions"))
        capacity = found.keys + draw(st.sampled_from((0, 1, 3, 17, 130, 1, 0, 1100)))
        stale = draw(_FLAG)
        caches = [
            _poisoned(spec, found, slot) if stale else spec
            for spec in (keys(capacity, _layouts.WRITABLE), values(capacity, _layouts.WRITABLE))
        ]
        cache = Positions(*caches, slot, draw(_FLAG))

    # The call with neither is the commonest.
    masked = as_many or (not plain and draw(_ONE_OF_THREE if large or form == "none" else _FLAG))
    mask = draw(masks(found, dtype, 3 if as_many else None)) if masked and not square else None
    possible = _NOT_CAUSAL if long or mask is not None else _CAUSAL
    if possible is _CAUSAL and found.queries > found.keys > 1:
        possible = _TALL
    if square or plain:
        possible = _PLAIN if plain else _SQUARE
    causal, variant = draw(st.sampled_from(possible))
    grouped = draw(_RARELY)
    return Attention(
        query=query,
        key=key,
        value=value,
        mask=mask,
        causal=causal,
        variant=variant,
        scale=scale,
        grouped=grouped or found.ratio > 1,
        cache=cache,
    )


@st.composite
def _projections(draw: st.DrawFn, shape: Shape) -> Layout:
    """The layout of heads as projections give them, (B, L, H, D), whole or with others in one."""
    *batch, heads, _, dim = shape
    more = draw(st.sampled_from((0, heads, 2 * heads)))
    order = (*range(len(batch)), len(batch) + 1, len(batch), len(batch) + 2)
    offset = draw(st.sampled_from((0, more))) * dim
    return Layout(order=order, padding=(*(0 for _ in batch), more, 0, 0), offset=offset if 0 not in shape else 0)


_PLAIN = ((False, None),)
_NOT_CAUSAL = ((False, None), (False, None), (False, None), (False, "LOWER_RIGHT"))
_CAUSAL = ((False, None), (False, "LOWER_RIGHT"), (True, None), (True, "UPPER_LEFT"), (True, "LOWER_RIGHT"))

_TALL = (*_CAUSAL, (True, "LOWER_RIGHT"), (True, "LOWER_RIGHT"))
"""With more queries than keys, of which the first see none."""


_SQUARE = ((True, None), (True, None), (True, "UPPER_LEFT"), (True, "LOWER_RIGHT"))


_LARGE_SCALES = st.sampled_from((12.0, 16.0, 32.0, -16.0))


def _scale(dtype: str, magnitude: float) -> st.SearchStrategy[float]:
    return _scalars.scalars(dtype, magnitude=magnitude, specials=False)


@st.composite
def _sizes(draw: st.DrawFn, form: str, work: int, float64: bool) -> Sizes:
    # The simplest of each choice takes the fewest draws, since shrinking goes there. Whatever is over the budget is
    # lowered: the batch first, head dims last.
    batch: int | None = draw(st.sampled_from((1, 2, 3, 5, 1, 2, 3, 0)))
    if draw(_RARELY) and form != "positions":
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
            keys = draw(several) if draw(_FLAG) else queries
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
    if draw(_ONE_OF_THREE):
        dim = min(draw(_MODELS), draw(_CAP))
    value_dim = draw(draw(st.sampled_from((*(st.just(dim),) * 4, _DIMS, _WIDE_DIMS))))
    if not float64 and draw(_ONE_OF_THREE):
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
    if form != "none" and draw(_RARELY):
        new = draw(st.integers(0, keys))
    return Sizes(batch, heads, ratio, queries, keys, new, dim, value_dim)


@st.composite
def _as_many(draw: st.DrawFn, float64: bool) -> Sizes:
    """As many sequences as query heads."""
    ratio, heads = draw(st.sampled_from(((1, 2), (1, 3), (2, 1), (2, 2), (1, 4))))
    most = 9 if float64 else 24
    queries, keys = draw(sizes(1, most)), draw(sizes(2, most))
    dim = draw(sizes(1, 16 if float64 else 64))
    return Sizes(heads * ratio, heads, ratio, queries, keys, min(queries, keys), dim, dim)


@st.composite
def _context(draw: st.DrawFn, scene: str) -> Sizes:
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
def _large_sizes(draw: st.DrawFn, elements: int) -> Sizes:
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
            queries, keys = min(queries, 4) if draw(_ONE_OF_THREE) else 1, draw(st.integers(1025, 2200))
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


@st.composite
def _slots(draw: st.DrawFn, found: Sizes, each: bool) -> tuple[int | TensorSpec, Sizes]:
    """Where the new rows go, and the sizes with the keys that are then read at most."""
    last = found.keys - found.new
    if not each:
        return last, found
    slots = [last, *(draw(st.integers(0, last)) for _ in range((found.batch or 1) - 1))]
    # The longest sequence is not always the first.
    turn = draw(st.integers(0, len(slots) - 1))
    slots = slots[turn:] + slots[:turn]
    dtype = draw(st.sampled_from(("int64", "int32")))
    layouts = ("contiguous", "offset", "sliced")
    shape = () if found.batch is None else (found.batch,)
    layout = _layouts.draw_layout(draw, shape, layouts)
    spec = TensorSpec(shape, dtype, LISTED + ",".join(map(str, slots)), layout=layout)
    return spec, found if found.batch else msgspec.structs.replace(found, keys=found.new)


def _poisoned(cache: TensorSpec, found: Sizes, slot: int | TensorSpec) -> TensorSpec:
    """The cache with NaN from the first new row of each sequence on: none of it may be read as it is."""
    capacity, columns = cache.shape[-2:]
    slots = (
        [slot] * (found.batch if found.batch is not None else 1)
        if isinstance(slot, int)
        else [int(number) for number in slot.values.removeprefix(LISTED).split(",")][: found.batch]
    )
    specials = [
        Special((row * capacity + start) * columns, "nan", (capacity - start) * columns)
        for row, start in enumerate(start for start in slots for _ in range(found.heads))
        if capacity > start
    ]
    return msgspec.structs.replace(cache, specials=tuple(specials))


@st.composite
def _padded(draw: st.DrawFn, found: Sizes, kind: str) -> TensorSpec:
    """A mask of all queries alike whose first keys, of which there are several tiles, take no part: sequences that are
    padded on the left."""
    masked = draw(st.sampled_from([count for count in (PADDED, 1024, 2048, 4096) if count < found.keys]))
    spec = draw(_tensors.tensors((1, found.keys), kind, values="zeros", specials=()))
    if kind == "bool":
        return msgspec.structs.replace(spec, specials=(Special(masked, "max", found.keys),))
    return msgspec.structs.replace(spec, specials=(Special(0, draw(st.sampled_from(("-inf", MASKED))), masked),))


@st.composite
def masks(draw: st.DrawFn, found: Sizes, dtype: str, rank: int | None = None) -> TensorSpec:
    """A mask of the scores: bool, of the queries' dtype or float32 for half types; of any shape of two dims or more, or
    of ``rank`` dims, that broadcasts; with rows that are masked as a whole."""
    kinds = ("bool", dtype, "float32") if dtype in _dtypes.HALF else ("bool", dtype)
    kind = draw(st.sampled_from(kinds))
    scores = found.scores()
    first = len(scores) - rank if rank else draw(st.sampled_from((0, 0, 1, 2))) % (len(scores) - 1)
    shape = scores[first:]
    # Bit n is for the n-th dim from the last.
    ones = draw(st.integers(0, 15)) if draw(_FLAG) else 0
    shape = tuple(1 if ones >> (len(shape) - 1 - dim) & 1 else size for dim, size in enumerate(shape))
    recipes = _BOOL_MASKS if kind == "bool" else _FLOAT_MASKS
    if kind != dtype and kind == "float32":
        # Of a large mean, half types keep nothing but that.
        recipes += ("large_mean",) * 3
    recipe = draw(st.sampled_from(recipes))
    if found.keys > PADDED and draw(_FLAG):
        return draw(_padded(found, kind))
    special = draw(st.sampled_from(((), ("min",) if kind == "bool" else ("-inf", "min", MASKED))))
    return draw(_tensors.tensors(shape, kind, values=recipe, specials=special))
