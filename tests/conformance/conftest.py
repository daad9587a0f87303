import sys
from pathlib import Path

# Without a GPU ntops has to be imported before triton, and the harness's tests may import that by way of torch.
import ntops  # noqa: F401  isort: skip
import pytest
import torch

# So that "defects:NAME" is an implementation, here and in child processes of the tests.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def leaves_torch_as_it_was():
    """What is judged in this process may change modes that the tests after it would meet."""
    yield
    left = torch.is_grad_enabled(), torch.get_default_dtype()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    assert left == (True, torch.float32)
