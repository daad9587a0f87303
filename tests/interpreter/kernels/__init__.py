"""Raw Triton kernels that between them use every construct, and random launches of them.

Nothing here knows ntops: the same launches run under Triton's own interpreter or compiled (see ``outcomes.py``).
"""

from kernels import arithmetic, blocks, control, memory
from kernels.registry import FAMILIES, NOT_LIKE_STOCK, launches, run

__all__ = ["FAMILIES", "NOT_LIKE_STOCK", "arithmetic", "blocks", "control", "launches", "memory", "run"]
