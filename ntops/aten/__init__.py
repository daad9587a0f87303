"""Replace torch's functions, methods and operators with ntops' own: ``ntops.torch.use``."""

from ntops.aten.block import use

__all__ = ["use"]
