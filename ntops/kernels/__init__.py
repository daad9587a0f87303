"""The kernels: a module for each op, with ``arrangement``, ``application`` and ``premake``, and shared helpers.

``docs/kernels.md`` says which are written in NineToothed, in Triton and in Gluon. Each module is imported on first
access; those in Gluon, for one kind of GPU, by the first call that runs one.
"""

import importlib
import pkgutil

__all__ = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.endswith("hopper")]


def __getattr__(name):
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")

    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
