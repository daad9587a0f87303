"""The interpreter, installed before any test module imports Triton."""

import sys
from pathlib import Path

from ntops import interpreter

interpreter.install()
# The package kernels is shared with a process that must not import ntops, so it is no part of another.
sys.path.insert(0, str(Path(__file__).parent))
