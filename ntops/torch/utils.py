"""Public names of :mod:`ntops.launch`: the library's settings, and making kernels from ``premake``."""

from ntops.launch.kernel_sources import Config, Specialization, make
from ntops.launch.settings import (
    get_default_max_num_configs,
    get_default_num_stages,
    get_default_num_warps,
    set_default_max_num_configs,
    set_default_num_stages,
    set_default_num_warps,
)

__all__ = [
    "Config",
    "Specialization",
    "get_default_max_num_configs",
    "get_default_num_stages",
    "get_default_num_warps",
    "make",
    "set_default_max_num_configs",
    "set_default_num_stages",
    "set_default_num_warps",
]
