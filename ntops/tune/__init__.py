"""Which configuration of a kernel is the fastest on this GPU: measured once, kept, and used by every call after.

``python -m ntops.tune`` measures ntops' own operators; :class:`Autotuner` kernels of anybody. docs/tuning.md.
"""

from ntops.tune.autotuner import Autotuner, configurations, made
from ntops.tune.operators import tune
from ntops.tune.result import Measured, Result

__all__ = ["Autotuner", "Measured", "Result", "configurations", "made", "tune"]
