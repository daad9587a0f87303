import sys
from pathlib import Path

# Without a GPU ntops has to be imported before triton, and the harness's tests may import that by way of torch.
import ntops  # noqa: F401

# So that "defects:NAME" is an implementation, here and in child processes of the tests.
sys.path.insert(0, str(Path(__file__).parent))
