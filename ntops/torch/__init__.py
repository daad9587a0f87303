"""The operators, with the signatures and the semantics of PyTorch's functions on CUDA.

Every public function of a module of this package that has the module's name is exported; so are the modules of
:mod:`ntops.modules`.
"""

import importlib
import pkgutil

from ntops.host.offers import conformance_claims, conformance_configurations, conformance_settings
from ntops.modules import FP8Linear, FusedGatedMLP, FusedRMSNormRoPE, replace, restore
from ntops.torch.utils import (
    get_default_max_num_configs,
    get_default_num_stages,
    get_default_num_warps,
    set_default_max_num_configs,
    set_default_num_stages,
    set_default_num_warps,
)

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
]
