"""The error message for an unknown name, with the nearest valid ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(what: str, name: str, valid: Iterable[str]) -> str:
    """Return the message: the valid names that are nearest, then all of them."""
    names = list(valid)
    near = difflib.get_close_matches(name.lower(), names)
    every = f"alid are {', '.join(names)}"
    return f"unknown {what} {name!r}; " + (f"did you mean {' or '.join(near)}? V{every}" if near else f"v{every}")
