"""A small language model in plain torch, as Llama is built, with random weights."""

import torch
from torch import nn
from torch.nn import functional as F

HEADS, KV_HEADS, DIM = 4, 2, 16
WIDTH = HEADS * DIM


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, KV_HEADS * DIM, bias=False) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=True)
        self.gate, self.up = (nn.Linear(WIDTH, 96, bias=False) for _ in range(2))
        self.down = nn.Linear(96, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        h = self.norm(x)
        query, key, value = (
            part.view(*h.shape[:2], -1, DIM).transpose(1, 2) for part in (self.query(h), self.key(h), self.value(h))
        )
        attended = F.scaled_dot_product_attention(
            _rotated(query, cos, sin), _rotated(key, cos, sin), value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _rotated(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Model(nn.Module):
    """Two layers; tokens (B, T) below 7 to logits (B, T, 7)."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(7, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, 7, bias=False)

        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.ndim == 1)

    def forward(self, tokens):
        x = self.embedding(tokens)
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] / 100 ** (
            torch.arange(0, DIM, 2, device=tokens.device) / DIM
        )
        cos, sin = (part.repeat(1, 2) for part in (angles.cos(), angles.sin()))

        for layer in self.layers:
            x = layer(x, cos, sin)

        return self.head(self.norm(x))
