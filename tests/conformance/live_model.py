"""A transformer of 12 layers in plain torch, and wrong kernels for the calls that it makes."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from conformance.live_calls import named

WIDTH, HEADS, LAYERS, WORDS = 24, 2, 12, 31


class Attention(nn.Module):
    """torch's function in the even layers, and its parts in the odd ones."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), not layer % 2

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = torch.softmax(q @ k.mT * 0.25, -1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.activation = (nn.GELU(), nn.SiLU(), nn.ReLU(), torch.sigmoid)[layer % 4]

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(layer), Perceptron(layer)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


class Model(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        torch.manual_seed(23)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(map(Block, range(layers)))

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return x


def words() -> torch.Tensor:
    return torch.arange(14).view(2, 7) * 5 % WORDS


# --- wrong kernels -----------------------------------------------------------------------------------------------


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """The padding up to a power of two counts in the mean."""
    scale = torch.rsqrt(input.square().sum(-1, keepdim=True) / 32 + 1e-6)
    return input * scale if weight is None else input * scale * weight


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """The padding up to a power of two counts in the variance."""
    centred = input - input.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True) + 8 / 24 * input.mean(-1, keepdim=True).square()
    return centred * torch.rsqrt(variance + eps) * weight + bias


def softmax(input, dim, dtype=None):
    """The maximum is not that of the row, and 2^x takes the place of e^x."""
    powers = torch.exp2(input - input.amax())
    return powers / powers.sum(dim, keepdim=True)


def gelu(input, approximate="none"):
    """The approximation, whatever is asked for."""
    return functional.gelu(input, approximate="tanh")


def silu(input, inplace=False):
    """Right, but it leaves its input changed."""
    result = functional.silu(input)
    input.detach().view(-1)[0] += 1
    return result


def relu(input, inplace=False):
    """The last element is not written."""
    result = functional.relu(input)
    result.view(-1)[-1] = -1.0
    return result


def sigmoid(input):
    """By way of float16."""
    return torch.sigmoid(input.half()).to(input.dtype)


def linear(input, weight, bias=None):
    """The loop over K ends before the last tile."""
    return functional.linear(input[..., :-4], weight[:, :-4], bias)


def matmul(input, other):
    """As bfloat16."""
    return (input.bfloat16() @ other.bfloat16()).to(input.dtype)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Each row sees the one that follows it."""
    seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(1)
    return functional.scaled_dot_product_attention(query, key, value, seen)


def add(input, other, *, alpha=1):
    """One element of the first row is off by 2^-20."""
    result = torch.add(input, other, alpha=alpha)
    result[(0,) * result.ndim] *= 1 + 2.0**-20
    return result


def mul(input, other):
    """Cut off, and not rounded."""
    return torch.mul(input, other) * (1 - 2.0**-23)


class Planted(TorchFunctionMode):
    """Takes torch's calls to wrong kernels, in the layers where they are planted: as a library does that takes all."""

    def __init__(self, model: Model, plants: set[tuple[int, str]]) -> None:
        super().__init__()
        self._layer, self._plants = None, plants
        for number, layer in enumerate(model.layers):
            layer.register_forward_pre_hook(lambda *_, number=number: setattr(self, "_layer", number))
            layer.register_forward_hook(lambda *_: setattr(self, "_layer", None))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        which, kwargs = named(func), kwargs or {}
        if which is None or (self._layer, which.op) not in self._plants:
            return func(*args, **kwargs)
        kwargs.pop("_stacklevel", None)
        return globals()[which.op](*args, **kwargs)


wrong = SimpleNamespace(gelu=gelu, softmax=softmax, relu=relu, addmm=lambda *_: torch.zeros(1), mul=mul)
