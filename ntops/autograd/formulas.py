"""The operators' gradients for :func:`torch.library.register_autograd`, by the name of the operator."""

from ntops.autograd.attention import FORMULAS as _ATTENTION
from ntops.autograd.elementwise import FORMULAS as _ELEMENTWISE
from ntops.autograd.formula import Formula
from ntops.autograd.fused import FORMULAS as _FUSED
from ntops.autograd.linear_losses import FORMULAS as _LINEAR_LOSSES
from ntops.autograd.losses import FORMULAS as _LOSSES
from ntops.autograd.positions import FORMULAS as _POSITIONS
from ntops.autograd.products import FORMULAS as _PRODUCTS
from ntops.autograd.reductions import FORMULAS as _REDUCTIONS
from ntops.autograd.rows import FORMULAS as _ROWS

FORMULAS: dict[str, Formula] = _ELEMENTWISE | _PRODUCTS | _ROWS | _REDUCTIONS | _ATTENTION | _POSITIONS | _FUSED
FORMULAS |= _LOSSES | _LINEAR_LOSSES
"""Those that :mod:`ntops.host.families` does not declare."""
