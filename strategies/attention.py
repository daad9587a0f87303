"""Calls of attention: one structure that is drawn as a whole and shrinks part by part.

Sizes, masks, causal variants, scale and cache forms depend on one another, so they are not drawn as so many tensors.
What shrinking leaves is one query and one key of one element, float32, without mask, scale or cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from strategies import attention_sizes as _sizes
from strategies import dtypes as _dtypes
from strategies import layouts as _layouts
from strategies import scalars as _scalars
from strategies import tensors as _tensors
from strategies.shapes import Shape
from strategies.specs import Layout, Special, TensorSpec
from strategies.values import LISTED, MASKED, MASKS, SLOPES

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
_FLOAT_MASKS = ("normal", "zeros", "ascending", "large_mean", "descending", *MASKS, *SLOPES)
_BOOL_MASKS = ("constant", "normal", "one_hot", "zeros", *MASKS)
_SCENES = st.sampled_from((*("as many",) * 4, *("token",) * 4, *("part",) * 2, "prompt"))
PADDED = 512
"""Keys that are masked from the left, where there are more."""
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
        found = draw(_sizes.large(large))
        square, long = min(found.queries, found.keys) > 1000, found.keys > 4096
        # Of heads as models have them many calls are of the plainest kind, for which kernels have paths of their own.
        plain = found.dim > 32 and draw(_sizes.FLAG)
        # A position in each cache is written out in the case: of few sequences only.
        form = "none" if square or long or plain else draw(st.sampled_from((*("none",) * 4, "views", "elsewhere")))
    elif scenes:
        scene = "as many" if dtype == "float64" else draw(_SCENES)
        as_many, square = scene == "as many", scene == "prompt"
        found = draw(_sizes.as_many(dtype == "float64") if as_many else _sizes.context(scene))
        form = "none" if as_many or square else draw(st.sampled_from(("none", "views", "position", "positions")))
    else:
        form = draw(st.sampled_from((*("none",) * 3, "views", "elsewhere", "position", "positions")))
        found = draw(_sizes.of_form(form, float64_work if dtype == "float64" else work, dtype == "float64"))
    scales = (_scale(dtype, 4.0), _scale(dtype, 4.0), _LARGE_SCALES, st.just(0.0))
    scale = draw(draw(st.sampled_from(scales))) if not plain and draw(_sizes.ONE_OF_THREE) else None
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
        stale = draw(_sizes.FLAG)
        caches = [
            _poisoned(spec, found, slot) if stale else spec
            for spec in (keys(capacity, _layouts.WRITABLE), values(capacity, _layouts.WRITABLE))
        ]
        cache = Positions(*caches, slot, draw(_sizes.FLAG))

    # The call with neither is the commonest.
    masked = as_many or (not plain and draw(_sizes.ONE_OF_THREE if large or form == "none" else _sizes.FLAG))
    mask = draw(masks(found, dtype, 3 if as_many else None)) if masked and not square else None
    possible = _NOT_CAUSAL if long or mask is not None else _CAUSAL
    if possible is _CAUSAL and found.queries > found.keys > 1:
        possible = _TALL
    if square or plain:
        possible = _PLAIN if plain else _SQUARE
    causal, variant = draw(st.sampled_from(possible))
    grouped = draw(_sizes.RARELY)
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
def _slots(draw: st.DrawFn, found: _sizes.Sizes, each: bool) -> tuple[int | TensorSpec, _sizes.Sizes]:
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


def _poisoned(cache: TensorSpec, found: _sizes.Sizes, slot: int | TensorSpec) -> TensorSpec:
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
def _padded(draw: st.DrawFn, found: _sizes.Sizes, kind: str) -> TensorSpec:
    """A mask of all queries alike whose first keys, of which there are several tiles, take no part: sequences that are
    padded on the left."""
    masked = draw(st.sampled_from([count for count in (PADDED, 1024, 2048, 4096) if count < found.keys]))
    spec = draw(_tensors.tensors((1, found.keys), kind, values="zeros", specials=()))
    if kind == "bool":
        return msgspec.structs.replace(spec, specials=(Special(masked, "max", found.keys),))
    return msgspec.structs.replace(spec, specials=(Special(0, draw(st.sampled_from(("-inf", MASKED))), masked),))


@st.composite
def masks(draw: st.DrawFn, found: _sizes.Sizes, dtype: str, rank: int | None = None) -> TensorSpec:
    """A mask of the scores: bool, of the queries' dtype or float32 for half types; of any shape of two dims or more, or
    of ``rank`` dims, that broadcasts; with rows that are masked as a whole."""
    kinds = ("bool", dtype, "float32") if dtype in _dtypes.HALF else ("bool", dtype)
    kind = draw(st.sampled_from(kinds))
    scores = found.scores()
    first = len(scores) - rank if rank else draw(st.sampled_from((0, 0, 1, 2))) % (len(scores) - 1)
    shape = scores[first:]
    # Bit n is for the n-th dim from the last.
    ones = draw(st.integers(0, 15)) if draw(_sizes.FLAG) else 0
    shape = tuple(1 if ones >> (len(shape) - 1 - dim) & 1 else size for dim, size in enumerate(shape))
    recipes = _BOOL_MASKS if kind == "bool" else _FLOAT_MASKS
    if kind != dtype and kind == "float32":
        # Of a large mean, half types keep nothing but that.
        recipes += ("large_mean",) * 3
    recipe = draw(st.sampled_from(recipes))
    if found.keys > PADDED and draw(_sizes.FLAG):
        return draw(_padded(found, kind))
    special = draw(st.sampled_from(((), ("min",) if kind == "bool" else ("-inf", "min", MASKED))))
    return draw(_tensors.tensors(shape, kind, values=recipe, specials=special))
