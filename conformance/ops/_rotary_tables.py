"""Tables of sines and cosines that are not alike."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from strategies import dtypes
from strategies.specs import Layout, TensorSpec


@st.composite
def unlike(draw: st.DrawFn, tables: Sequence[TensorSpec], length: int | None, names: Sequence[str]) -> list[TensorSpec]:
    """Draw what one of two tables may be beside the other: as it is, mostly; of another length, or of another dtype.

    :param length: The rows of a table that is cut; None: both must have one shape.
    """
    kind = draw(st.sampled_from(("alike", "alike", "alike", "alike", "cut", "cast")))
    if kind == "alike":
        return [*tables]
    changed = draw(st.integers(0, 1))
    table = tables[changed]
    if kind == "cast":
        table = msgspec.structs.replace(table, dtype=draw(dtypes.dtypes(names)))
    elif length is not None and not table.specials and table.layout == Layout():
        table = msgspec.structs.replace(table, shape=(length, *table.shape[1:]))
    return [table if place == changed else other for place, other in enumerate(tables)]
