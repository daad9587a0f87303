"""The kernels: a module for each op, with ``arrangement``, ``application`` and ``premake``."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
