"""Labels as those of language models lie."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from conformance.cases import Case
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import Special, TensorSpec
from strategies.values import LISTED


@st.composite
def prompted(draw: st.DrawFn, dtype: str) -> tuple[TensorSpec, TensorSpec]:
    """Logits and labels of a conversation: those of a prompt, which are ignored, lie between others."""
    few = dtype == "float64"
    before, behind = (draw(st.integers(1, 9 if few else 300)) for _ in range(2))
    prompt, classes = 270 if few else draw(st.integers(260, 800)), draw(st.integers(2, 4 if few else 40))
    labels = ",".join(str(draw(st.integers(0, classes - 1))) for _ in range(3))
    rows, ignored = before + prompt + behind, Special(before, "-100", prompt)
    target = TensorSpec((rows,), "int64", LISTED + labels, specials=(ignored,))
    return TensorSpec((rows, classes), dtype, "normal", draw(tensors.SEEDS)), target


@st.composite
def of_bytes(draw: st.DrawFn, dtype: str) -> tuple[TensorSpec, TensorSpec]:
    """Rows of logits and labels of uint8, -100 modulo 256 among them: a class, and not the index that is ignored."""
    classes = draw(st.sampled_from((157, 200, 256, 300)))
    labels = [-100 % 256, *draw(st.lists(st.integers(0, min(classes, 256) - 1), max_size=4))]
    rows = draw(st.integers(1, 7))
    input = draw(tensors.tensors((rows, classes), dtype, specials=()))
    return input, TensorSpec((rows,), "uint8", LISTED + ",".join(map(str, labels)))


def many_words(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    """Calls of ``cross_entropy`` of a few tokens, whose classes come first, and labels of more than 16 bits."""
    # The oracle of float64 takes long.
    found = [one for one in dtypes if one in dtype_names.FLOATING and one != "float64"]
    return _many_words(found) if found else st.nothing()


@st.composite
def _many_words(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    classes, tokens = (1 << 16) + draw(st.integers(40, 9000)), draw(st.integers(1, 3))
    labels = [draw(st.integers(1 << 16, classes - 1)), *draw(st.lists(st.integers(0, classes - 1), max_size=3))]
    target = TensorSpec((1, tokens), "int64", LISTED + ",".join(map(str, labels)))
    input = TensorSpec((1, classes, tokens), draw(st.sampled_from(dtypes)), "normal", draw(tensors.SEEDS))
    reduction = draw(st.sampled_from(("mean", "sum", "none")))
    return Case(op="cross_entropy", args=(input, target), kwargs={"reduction": reduction})
