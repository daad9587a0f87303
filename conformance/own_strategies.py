"""Load ``strategies``, which ships beside this package, whatever module of that name a project has.

Imported before anything of it. A project's module of that name stays what it is in the judged process, where none of
the harness is; in the harness's own, ``import strategies`` gives this one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "strategies"


def load() -> None:
    """Enter the package beside this one in ``sys.modules``, if another one is there, or would be found."""
    own = Path(__file__).parents[1] / NAME / "__init__.py"
    found = importlib.util.find_spec(NAME)
    if found is not None and found.origin is not None and Path(found.origin) == own:
        return
    spec = importlib.util.spec_from_file_location(NAME, own, submodule_search_locations=[str(own.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


load()
