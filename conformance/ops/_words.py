"""Words that are nearly those which an option can be."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from conformance.cases import Argument


def wrong(legal: Sequence[str], others: Sequence[Argument]) -> st.SearchStrategy[Argument]:
    """Draw a word that nobody takes for one of ``legal``: one with a beginning or an end too few or too many, in other
    capitals, beside blanks, in parts, or the empty one. Who packs an option into a letter, strips or lowers it takes
    some.

    :param others: What else may be drawn.
    """
    near = [
        word
        for one in legal
        for word in (
            one[0],
            one[:-1],
            one[1:],
            one + "s",
            one + "_",
            one.capitalize(),
            one.upper(),
            f" {one}",
            f"{one} ",
            f"{one}\n",
            f"{one}\0",
            f"{one},{one}",
        )
    ]
    words = [word for word in dict.fromkeys((*near, "")) if word not in legal]
    return st.one_of(st.sampled_from(words), st.sampled_from(others))
