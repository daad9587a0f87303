import math

import torch

from ntops.kernels.fused_gated_mlp import ACTIVATIONS
from ntops.torch.fused_gated_mlp import fused_gated_mlp


class FusedGatedMLP(torch.nn.Module):
    """``act(x @ gate_weight.T) * (x @ up_weight.T)`` in one kernel: see :func:`ntops.torch.fused_gated_mlp`.

    The projection back to ``hidden_dim`` is not part of it. Gradients are supported.

    :param hidden_dim: The size of the rows of ``x``, (..., hidden_dim).
    :param intermediate_dim: The size of the rows of the result, (..., intermediate_dim).
    :param activation: "silu", "gelu" or "gelu_tanh".
    :raises ValueError: Another activation.
    """

    def __init__(self, hidden_dim, intermediate_dim, activation="silu", device=None, dtype=None):
        super().__init__()

        if activation not in ACTIVATIONS:
            raise ValueError(f"argument 'activation' is {activation!r}; valid are {', '.join(ACTIVATIONS)}")

        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        shape = (intermediate_dim, hidden_dim)
        self.gate_weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.up_weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_linear(cls, gate, up, activation="silu"):
        """Return a module with the weights of two linear layers: their own parameters, not copies.

        :param gate: A :class:`torch.nn.Linear` without bias.
        :param up: Another one, with a weight of the same shape.
        :raises TypeError: One is not a linear layer.
        :raises ValueError: One has a bias, or the shapes differ.
        """
        for name, linear in (("gate", gate), ("up", up)):
            if not isinstance(linear, torch.nn.Linear):
                raise TypeError(f"argument '{name}' must be a torch.nn.Linear, not {type(linear).__name__}")

            if linear.bias is not None:
                raise ValueError(f"argument '{name}' has a bias, which fused_gated_mlp leaves out")

        if gate.weight.shape != up.weight.shape:
            raise ValueError(
                f"arguments 'gate' {tuple(gate.weight.shape)} and 'up' {tuple(up.weight.shape)} must have weights of "
                "one shape"
            )

        module = cls(gate.in_features, gate.out_features, activation, device="meta")
        module.gate_weight = gate.weight
        module.up_weight = up.weight

        return module.train(gate.training)

    def reset_parameters(self):
        """Draw new weights, as :class:`torch.nn.Linear` does."""
        for weight in (self.gate_weight, self.up_weight):
            torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    def forward(self, x):
        """Return (..., intermediate_dim) for ``x``, (..., hidden_dim)."""
        return fused_gated_mlp(x, self.gate_weight, self.up_weight, self.activation)

    def extra_repr(self):
        return f"{self.hidden_dim}, {self.intermediate_dim}, activation={self.activation!r}"
