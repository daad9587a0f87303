import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

sys.path.append(str(Path(__file__).parent / "support"))
# Tests start programs in folders of their own, which find the checkout and what this process finds by PYTHONPATH.
_FOUND = dict.fromkeys((str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _FOUND))

# How long an example takes depends on what else the machine does. ``test_load.py`` sees that no test says otherwise.
# Explaining a failure means to trace what is called, and tests of shrinking have many failures.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=PHASES)
settings.load_profile("tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    # What was imported and collected stays: garbage is not looked for in it again and again.
    gc.freeze()


@pytest.fixture
def calls():
    """How many functions, of Python or C, a function calls: what is quick on any machine, however busy, makes few."""

    def count(function):
        seen = 0

        def profile(frame, event, arg):
            nonlocal seen
            seen += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            function()
        finally:
            sys.setprofile(before)
        return seen

    return count
