"""Planted defects of options that are words: words are taken that torch refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.selftest.contexts import Right
from conformance.selftest.defect_registry import defect

OPTIONS = {
    "div": ("rounding_mode", ("floor", "trunc")),
    "gelu": ("approximate", ("none", "tanh")),
    "cross_entropy": ("reduction", ("none", "mean", "sum")),
    "linear_cross_entropy": ("reduction", ("none", "mean", "sum")),
    "fused_gated_mlp": ("activation", ("silu", "gelu", "gelu_tanh")),
    "quantize_fp8": ("granularity", ("tensor", "row", "block")),
}
"""The option of each op, and its words."""


def _taken(right: Right, args: tuple[Any, ...], kwargs: dict[str, Any], alike: Callable[[str, str], bool]) -> Any:
    """Make the call with the word of the op's option that a given one is ``alike``."""
    name, words = _option(kwargs)
    given = kwargs.get(name)
    found = [word for word in words if isinstance(given, str) and alike(given, word)]
    return right(*args, **kwargs | ({name: found[0]} if found else {}))


def _option(kwargs: dict[str, Any]) -> tuple[str, Sequence[str]]:
    known = [option for option in OPTIONS.values() if option[0] in kwargs]
    return known[0] if known else ("", ())


@defect(" ".join(OPTIONS), "refusals", "errors")
def option_by_its_first_letter(right: Right, *args: Any, **kwargs: Any) -> Any:
    """An option is packed into its first letter."""
    return _taken(right, args, kwargs, lambda given, word: given[:1] == word[0])


@defect(" ".join(OPTIONS), "refusals", "errors")
def option_in_any_capitals(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Capitals and blanks of an option do not count."""
    return _taken(right, args, kwargs, lambda given, word: given.strip().lower() == word)


@defect("div cross_entropy", "refusals", "errors")
def option_by_its_beginning(right: Right, *args: Any, **kwargs: Any) -> Any:
    """As many letters of an option are compared as its word has."""
    return _taken(right, args, kwargs, lambda given, word: given.startswith(word))
