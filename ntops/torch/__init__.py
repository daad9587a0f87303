"""The operators, with the signatures and the semantics of PyTorch's functions on CUDA.

Every public function of a module of this package that has the module's name is exported; so are the modules of
:mod:`ntops.modules`.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from ntops._runtime import INTERPRETED
from ntops.host.conformance_info import claims, conformance_configurations, conformance_settings
from ntops.launch import boundary, compiler_hash
from ntops.torch.utils import (
    get_default_max_num_configs,
    get_default_num_stages,
    get_default_num_warps,
    set_default_max_num_configs,
    set_default_num_stages,
    set_default_num_warps,
)

if TYPE_CHECKING:
    from ntops.aten import use
    from ntops.modules import FP8Linear, FusedGatedMLP, FusedRMSNormRoPE, replace, restore

OPERATORS = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "utils"))

for _name in OPERATORS:
    globals()[_name] = getattr(importlib.import_module(f"{__name__}.{_name}"), _name)

__all__ = [  # noqa: PLE0604  (the names of the operators follow from the files)
    *OPERATORS,
    "FP8Linear",
    "FusedGatedMLP",
    "FusedRMSNormRoPE",
    "conformance_claims",
    "conformance_configurations",
    "conformance_settings",
    "get_default_max_num_configs",
    "get_default_num_stages",
    "get_default_num_warps",
    "replace",
    "restore",
    "set_default_max_num_configs",
    "set_default_num_stages",
    "set_default_num_warps",
    "use",
]
_OVER_OPERATORS = {"use": "ntops.aten"}
_OVER_OPERATORS |= dict.fromkeys(
    ("FP8Linear", "FusedGatedMLP", "FusedRMSNormRoPE", "replace", "restore"), "ntops.modules"
)
"""Exports that are built on the operators, with their modules: imported on first access, and so after the operators."""


def __getattr__(name):
    if name in _OVER_OPERATORS:
        return getattr(importlib.import_module(_OVER_OPERATORS[name]), name)

    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})


if not INTERPRETED:
    compiler_hash.keep()

# This registers the operators, which are all defined now, as torch.ops.ntops.
importlib.import_module("ntops.library")
conformance_claims = claims(boundary.OPERATORS)
