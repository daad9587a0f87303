"""InfiniTensor's ntops, a package of the same name as ours: ``NTOPS_UPSTREAM=FOLDER --implementation
conformance.implementations.upstream_ntops``, where FOLDER holds its ``ntops`` (``src`` in a checkout of
https://github.com/InfiniTensor/ntops).

Its functions are called as they are. NineToothed tunes each new shape among hundreds of configurations; here among
three, as in the library's own tests. It needs a GPU.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

CONFIGURATIONS = 3
"""The configurations among which a kernel is tuned."""


def _library() -> ModuleType:
    named = os.environ.get("NTOPS_UPSTREAM")
    folder = Path(named or ".").resolve()
    if not named or not (folder / "ntops" / "torch").is_dir():
        raise ImportError(f"the environment variable NTOPS_UPSTREAM must name the folder of its ntops, not {named!r}")
    if not torch.cuda.is_available():
        raise ImportError("InfiniTensor's ntops needs a GPU")
    loaded = sys.modules.get("ntops")
    if loaded is not None and not Path(loaded.__file__ or "").resolve().is_relative_to(folder):
        raise ImportError(f"another package called ntops is imported already, from {loaded.__file__}")
    sys.path.insert(0, str(folder))
    try:
        found, settings = (importlib.import_module(name) for name in ("ntops.torch", "ntops.torch.utils"))
    finally:
        sys.path.remove(str(folder))
    settings.set_default_max_num_configs(CONFIGURATIONS)
    return found


_FOUND = _library()


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("_") or not callable(function := getattr(_FOUND, name, None)):
        raise AttributeError(name)
    return function
