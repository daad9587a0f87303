import sys
from pathlib import Path

import pytest

import ntops  # noqa: F401  (before Triton, which tests import: where there is no GPU it chooses the interpreter)

# So that the tests find what they share.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def on_device():
    """New tensors are where kernels run."""
    import torch

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


@pytest.fixture
def tf32():
    """Float32 products are of TF32."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of measured configurations of the test's own, and no tables; what was found before is forgotten."""
    from tuning import GPU

    from ntops.launch import config_selection, tuned_tables

    monkeypatch.setenv("NTOPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuned_tables, "TABLES", tmp_path / "tables")
    monkeypatch.setattr(tuned_tables, "_warned", set())
    config_selection.forget()
    yield tuned_tables.path(GPU)
    config_selection.forget()


@pytest.fixture
def on_gpu(monkeypatch):
    """Calls choose as on a GPU; kernels are launched as they are without."""
    from tuning import GPU, H200

    from ntops.launch import config_selection

    monkeypatch.setattr(config_selection, "gpu", lambda index: GPU)
    monkeypatch.setattr(config_selection, "device", lambda index: H200)


@pytest.fixture
def kernel(monkeypatch):
    """A stand-in for a compiled kernel, which adds a number to floats; calls that launch it can be recorded."""
    from fake_kernels import Kernel

    from ntops.launch import recorder, replay

    monkeypatch.setattr(replay, "current_device", lambda: -1)
    monkeypatch.setattr(replay, "current_stream", lambda device: "stream")
    monkeypatch.setattr(recorder, "_local", recorder._Local())
    return Kernel()
