import torch

from ntops.host.promotion import accumulate_dtype
from ntops.torch.fused_rmsnorm_rope import fused_rmsnorm_rope


class FusedRMSNormRoPE(torch.nn.Module):
    """Root mean square norm of rows, then rotation of their heads: see :func:`ntops.torch.fused_rmsnorm_rope`.

    Gradients are supported.

    :param hidden_dim: The size of the rows, a multiple of ``head_dim``.
    :param head_dim: The size of a head, even.
    :param eps: The number that is added to the mean of the squares.
    :param interleaved: Whether pairs are neighbours, not half a head apart.
    :raises ValueError: ``head_dim`` is odd, or does not divide ``hidden_dim``.
    """

    def __init__(self, hidden_dim, head_dim, eps=1e-6, interleaved=False, device=None, dtype=None):
        super().__init__()

        if head_dim < 2 or head_dim % 2 or hidden_dim % head_dim:
            raise ValueError(
                f"argument 'head_dim' is {head_dim}, but must be even and divide 'hidden_dim' {hidden_dim}"
            )

        self.hidden_dim = hidden_dim
        self.head_dim = head_dim
        self.eps = eps
        self.interleaved = interleaved
        self.weight = torch.nn.Parameter(torch.empty(hidden_dim, device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_rms_norm(cls, norm, head_dim, interleaved=False):
        """Return a module with the weight of a norm: its own parameter, not a copy.

        :param norm: A :class:`torch.nn.RMSNorm` of one dim, with a weight.
        :raises TypeError: It is not a :class:`torch.nn.RMSNorm`.
        :raises ValueError: It has several dims or no weight, or ``head_dim`` does not fit.
        """
        if not isinstance(norm, torch.nn.RMSNorm):
            raise TypeError(f"argument 'norm' must be a torch.nn.RMSNorm, not {type(norm).__name__}")

        if len(norm.normalized_shape) != 1 or norm.weight is None:
            raise ValueError(f"argument 'norm' must normalize one dim and have a weight, not {norm}")

        eps = torch.finfo(accumulate_dtype(norm.weight.dtype)).eps if norm.eps is None else norm.eps
        module = cls(norm.normalized_shape[0], head_dim, eps, interleaved, device="meta")
        module.weight = norm.weight

        return module.train(norm.training)

    def reset_parameters(self):
        """Make the weight 1."""
        torch.nn.init.ones_(self.weight)

    def forward(self, x, cos, sin):
        """Normalize and rotate ``x``, (B, T, hidden_dim), by tables of (T', head_dim) or (T', head_dim / 2)."""
        return fused_rmsnorm_rope(
            x, self.weight, cos, sin, self.eps, interleaved=self.interleaved, head_dim=self.head_dim
        )

    def extra_repr(self):
        return f"{self.hidden_dim}, {self.head_dim}, eps={self.eps}, interleaved={self.interleaved}"
