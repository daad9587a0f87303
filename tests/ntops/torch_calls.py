"""Calls of torch's functions, methods and operators, by the operator of ours that each of them is."""

import functools

import torch
from operator_calls import DEVICE, tensor
from torch.nn import functional as F

from ntops.host import families


def floats(*shape):
    return torch.randn(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(len(shape)))


X, Y, P, ROWS = floats(4, 5), floats(5), floats(4, 5).abs() + 0.5, floats(2, 3, 5)
K, J = tensor(4, 5, dtype=torch.int32) * 6, tensor(5, dtype=torch.int32) * 3
Q, W, B = floats(1, 2, 4, 16), floats(4, 5), floats(4)

FORMS = {
    "abs": [lambda: torch.abs(X), lambda: X.abs(), lambda: abs(X), lambda: torch.absolute(X)],
    "add": [
        lambda: torch.add(X, Y, alpha=2),
        lambda: torch.add(X, Y, out=tensor(4, 5)),
        lambda: X.add(Y),
        lambda: X + Y,
        lambda: 1 + X,
        lambda: X.clone().add_(Y),
    ],
    "addmm": [
        lambda: torch.addmm(B, X, W.mT, beta=2),
        lambda: B.addmm(X, W.mT),
        lambda: tensor(4, 4).addmm_(X, W.mT),
    ],
    "amax": [lambda: torch.amax(X, 1), lambda: X.amax(), lambda: X.amax(axis=(0, 1), keepdim=True)],
    "amin": [lambda: torch.amin(X, 1), lambda: X.amin(), lambda: X.amin((0, 1), keepdims=True)],
    "argmax": [lambda: torch.argmax(X, 1), lambda: X.argmax(), lambda: X.argmax(dim=-1, keepdim=True)],
    "bitwise_and": [lambda: torch.bitwise_and(K, J), lambda: K & J, lambda: 3 & K],
    "bitwise_not": [lambda: torch.bitwise_not(K), lambda: ~(X > 0)],
    "bitwise_or": [lambda: torch.bitwise_or(K, J), lambda: K | J, lambda: K.clone().__ior__(J)],
    "bmm": [lambda: torch.bmm(Q[0], Q[0].mT), lambda: Q[0].bmm(Q[0].mT)],
    "clamp": [lambda: torch.clamp(X, max=0.5), lambda: X.clamp(Y), lambda: X.clip(0, 1), lambda: X.clone().clamp_(0)],
    "cross_entropy": [
        lambda: F.cross_entropy(X, J[:4].long(), ROWS[0, 0].abs(), label_smoothing=0.1),
        lambda: torch.nn.CrossEntropyLoss(reduction="none")(X, X.softmax(1)),
    ],
    "cumsum": [
        lambda: torch.cumsum(X, 1),
        lambda: X.cumsum(dim=-2, dtype=torch.float64),
        lambda: K.cumsum(axis=0),
        lambda: X.clone().cumsum_(1),
    ],
    "div": [
        lambda: torch.div(X, Y, rounding_mode="floor"),
        lambda: X / Y,
        lambda: 2 / P,
        lambda: X // 0.3,
        lambda: 7 // J,
        lambda: torch.floor_divide(K, 4),
        lambda: X.true_divide(2),
    ],
    "dropout": [lambda: F.dropout(X, 1.0), lambda: torch.nn.Dropout(1.0)(X), lambda: torch.dropout(X, 1.0, True)],
    "eq": [lambda: torch.eq(X, Y), lambda: X == X, lambda: X.clone().eq_(X)],
    "ge": [lambda: X.ge(Y), lambda: X >= Y],
    "gelu": [lambda: F.gelu(X), lambda: torch.nn.GELU("tanh")(X)],
    "gt": [lambda: torch.greater(X, Y), lambda: X > 0],
    "isinf": [lambda: torch.isinf(X), lambda: X.isinf()],
    "isnan": [lambda: torch.isnan(X), lambda: X.isnan()],
    "layer_norm": [
        lambda: F.layer_norm(X, (5,), Y, Y),
        lambda: torch.nn.LayerNorm(5, device=DEVICE)(X),
        lambda: torch.layer_norm(X, (5,), Y),
    ],
    "le": [lambda: torch.le(X, Y), lambda: X <= Y],
    "linear": [
        lambda: F.linear(ROWS, W, B),
        lambda: F.linear(ROWS.mT.contiguous().mT, W),
        lambda: F.linear(Y, W, B),
        lambda: F.linear(ROWS[:0], W, B),
        lambda: F.linear(ROWS[:, :, :0], W[:, :0], B),
    ],
    "linear_cross_entropy": [
        lambda: F.linear_cross_entropy(X, W, J[:4].long(), linear_bias=B, label_smoothing=0.1),
        lambda: F.linear_cross_entropy(Y, W, J[0].long()),
    ],
    "log_softmax": [
        lambda: F.log_softmax(X, dim=-1, dtype=torch.float64),
        lambda: torch.log_softmax(X, 0),
        lambda: X.log_softmax(1),
    ],
    "logsumexp": [lambda: torch.logsumexp(X, 1), lambda: X.logsumexp((0, 1), keepdim=True)],
    "lt": [lambda: torch.lt(X, Y), lambda: X < Y],
    "matmul": [lambda: torch.matmul(X, W.mT), lambda: ROWS @ W.mT, lambda: ROWS.matmul(Y)],
    "mm": [lambda: torch.mm(X, W.mT), lambda: X.mm(W.mT)],
    "mul": [lambda: torch.mul(X, Y), lambda: 3 * X, lambda: X.clone().mul_(Y), lambda: torch.multiply(X, 2)],
    "ne": [lambda: X != Y, lambda: torch.not_equal(X, Y)],
    "neg": [lambda: -X, lambda: torch.negative(X)],
    "pow": [lambda: X.pow(2), lambda: X**2, lambda: 2**X, lambda: P.clone().pow_(0.5)],
    "relu": [lambda: F.relu(X), lambda: torch.relu(X), lambda: X.clone().relu_(), lambda: F.relu(X.clone(), True)],
    "rms_norm": [lambda: F.rms_norm(X, (5,), Y), lambda: torch.nn.RMSNorm(5, device=DEVICE)(X)],
    "scaled_dot_product_attention": [lambda: F.scaled_dot_product_attention(Q, Q, Q, is_causal=True)],
    "silu": [lambda: F.silu(X), lambda: torch.nn.SiLU(inplace=True)(X.clone())],
    "softmax": [
        lambda: F.softmax(X, dim=-1, dtype=torch.float64),
        lambda: torch.softmax(X, 0),
        lambda: X.softmax(1),
    ],
    "sub": [lambda: torch.sub(X, Y, alpha=3), lambda: X - Y, lambda: 1 - X, lambda: torch.rsub(X, Y, alpha=2)],
    "mean": [lambda: torch.mean(X, 1), lambda: X.mean(), lambda: X.mean((0, 1), keepdim=True)],
    "sum": [lambda: torch.sum(X, 1), lambda: X.sum(), lambda: X.sum((0, 1), keepdim=True)],
}


def _forms(name):
    calls = [getattr(one, name) for one in (torch, F) if hasattr(one, name)]
    written = [lambda: getattr(P.clone(), f"{name}_")()] if hasattr(torch.Tensor, f"{name}_") else []
    return [*(functools.partial(call, P) for call in calls), *written]


FORMS |= {name: _forms(name) for name in families.members("floating", "activation") if name not in FORMS}

if not hasattr(F, "linear_cross_entropy"):
    # torch has it from 2.13 on.
    del FORMS["linear_cross_entropy"]
