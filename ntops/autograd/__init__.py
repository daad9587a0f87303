"""The operators' gradients for :func:`torch.library.register_autograd`, by the name of the operator."""

from ntops.autograd.formula import Formula
from ntops.autograd.formulas import FORMULAS

__all__ = ["FORMULAS", "Formula"]
