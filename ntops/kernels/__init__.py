"""The kernels: a module for each op, with ``arrangement``, ``application`` and ``premake``."""

import importlib
import pkgutil

__all__ = sorted(module.name for module in pkgutil.iter_modules(__path__))

for _name in __all__:
    importlib.import_module(f"{__name__}.{_name}")
