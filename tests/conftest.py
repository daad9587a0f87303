import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

sys.path.append(str(Path(__file__).parent / "support"))
from sampled import commit, sampled

# Tests start programs in folders of their own, which find the checkout and what this process finds by PYTHONPATH.
_FOUND = dict.fromkeys((str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _FOUND))

# Images of containers often set this. Tests start hundreds of processes, and each would compile every module anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes depends on what else the machine does. ``test_load.py`` sees that no test says otherwise.
# Explaining a failure means to trace what is called, and tests of shrinking have many failures.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=PHASES)
settings.load_profile("tests")


def pytest_addoption(parser):
    told = "run every test, but of its parameters, and of the tests marked slow, one in N: others at each commit"
    parser.addoption("--sample", type=int, default=1, metavar="N", help=told)


def pytest_configure(config):
    if config.option.sample < 1:
        raise pytest.UsageError(f"--sample has to be 1 or more, not {config.option.sample}")


def pytest_report_header(config):
    one_in = config.option.sample
    return f"sample: one in {one_in}, of commit {commit(config.rootpath) or 'unknown'}" if one_in > 1 else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.option.sample > 1:
        kept = sampled(items, config.option.sample, commit(config.rootpath))
        left_out = set(items).difference(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = kept


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
