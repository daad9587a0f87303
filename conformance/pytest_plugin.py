"""The pytest plugin that comes with the wheel: ``pytest --pyargs conformance`` knows the suite's options.

Every project whose environment holds the wheel loads this file. It imports nothing, and adds an option only where the
suite is named on the command line.
"""

from __future__ import annotations

SUITE = "conformance"


def pytest_load_initial_conftests(early_config, args):
    """Register the suite's conftest.py before the command line is parsed: pytest looks for such files in folders that
    are named, and with ``--pyargs`` a package is named."""
    if "--pyargs" not in args or not any(_names_suite(argument) for argument in args):
        return
    from pathlib import Path

    # Imported late: it imports the harness, and torch with it.
    from conformance import conftest

    # Under the name that pytest gives it when it collects the folder, so that it is not registered twice.
    name = str(Path(conftest.__file__))
    if not early_config.pluginmanager.has_plugin(name):
        early_config.pluginmanager.register(conftest, name)


def _names_suite(argument):
    return argument == SUITE or argument.startswith((f"{SUITE}.", f"{SUITE}::"))
