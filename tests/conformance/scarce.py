"""torch, in a process that may not have much more memory than it has when this is imported."""

import resource
from pathlib import Path

import torch

eq = torch.eq
_pages = int(Path("/proc/self/statm").read_text().split()[0])
_most = _pages * resource.getpagesize() + 2**30
resource.setrlimit(resource.RLIMIT_AS, (_most, _most))
