import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    # What was imported and collected stays: garbage is not looked for in it again and again.
    gc.freeze()
