import sys
from pathlib import Path

# So that "defects:NAME" is an implementation, here and in child processes of the tests.
sys.path.insert(0, str(Path(__file__).parent))
