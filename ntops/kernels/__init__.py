"""The kernels: a module for each op, with ``arrangement``, ``application`` and ``premake``, and what they share.

``docs/kernels.md`` says which are written in NineToothed, in Triton and in Gluon. Those in Gluon, for one kind of GPU,
are imported by the first call that runs one.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.endswith("hopper"):
        importlib.import_module(f"{__name__}.{_module.name}")
