"""Find the fastest configuration of a kernel on this GPU: measured once, kept, and used by every later call.

``python -m ntops.tune`` measures ntops' own operators; :class:`Autotuner` measures anybody's kernels. See
docs/tuning.md.
"""

from ntops.tune.autotuner import Autotuner, configurations, made
from ntops.tune.operators import tune
from ntops.tune.result import Measured, Result

__all__ = ["Autotuner", "Measured", "Result", "configurations", "made", "tune"]
