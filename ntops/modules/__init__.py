"""Modules over the operators, and the function that puts them into a model; exported from ``ntops.torch``."""

from ntops.modules.fp8_linear import FP8Linear
from ntops.modules.fused_gated_mlp import FusedGatedMLP
from ntops.modules.fused_rmsnorm_rope import FusedRMSNormRoPE
from ntops.modules.replacement import replace, restore

__all__ = ["FP8Linear", "FusedGatedMLP", "FusedRMSNormRoPE", "replace", "restore"]
