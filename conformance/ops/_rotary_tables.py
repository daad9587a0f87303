"""Tables of sines and cosines that are not alike."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from strategies import dtypes
from strategies.specs import Layout, TensorSpec


@st.composite
def unlike(draw: st.DrawFn, table: TensorSpec, length: int | None, names: Sequence[str]) -> TensorSpec:
    """Draw what the second table may be beside the first: as it is, mostly; of another length, or of another dtype.

    :param length: The rows of a table that is cut; None: both must have one shape.
    """
    kind = draw(st.sampled_from(("alike", "alike", "alike", "alike", "cut", "cast")))
    if kind == "cast":
        return msgspec.structs.replace(table, dtype=draw(dtypes.dtypes(names)))
    if kind == "cut" and length is not None and not table.specials and table.layout == Layout():
        return msgspec.structs.replace(table, shape=(length, *table.shape[1:]))
    return table
