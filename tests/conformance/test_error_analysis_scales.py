"""Bounds that are derived from a reference hold for what torch computes in float32, from operands of every scale."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional

from conformance import mode_calls
from conformance.compare import compare
from conformance.error_analysis import NoRule, analyse
from conformance.spec import Expected

ROWS, COLUMNS = 4, 40
PLACES = torch.arange(ROWS)
ZEROS = torch.zeros(ROWS, COLUMNS, dtype=torch.long)
SCALES = {
    "normal": lambda x: x,
    "every exponent": lambda x: x.sign() * 2.0 ** (torch.rand(x.shape, dtype=torch.float64) * 276 - 149),
    "subnormal": lambda x: (x * 20).round() * 2.0**-149,
    "near overflow": lambda x: x.sign() * (0.3 + 0.6 * torch.rand(x.shape, dtype=torch.float64)) * 2.0**127,
    "squares near overflow": lambda x: x * 2.0**63,
    "squares vanish": lambda x: x * 2.0**-74,
    "integers": lambda x: (x * 3).round(),
    "far from zero": lambda x: x * 0.01 + 100,
    "negative": lambda x: -x.abs() * 30,
}


def image(x):
    return x.view(1, ROWS, 5, 8)


FUNCTIONS = {
    # Each is multiplied, so that what an element lost grows to a size at which it shows.
    **{
        name: lambda x, y, of=of: of(x) * y
        for name, of in {
            "gelu": functional.gelu,
            "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
            "silu": functional.silu,
            "sigmoid": torch.sigmoid,
            "tanh": torch.tanh,
            "mish": functional.mish,
            "softplus": functional.softplus,
            "exp": torch.exp,
            "expm1": torch.expm1,
            "erf": torch.erf,
            "erfc": torch.erfc,
            "hardswish": functional.hardswish,
            "hardsigmoid": functional.hardsigmoid,
            "elu": functional.elu,
            "celu": lambda x: functional.celu(x, 1.3),
            "logsigmoid": functional.logsigmoid,
            "softsign": functional.softsign,
            "tanhshrink": functional.tanhshrink,
            "sqrt": lambda x: x.abs().sqrt(),
            "rsqrt": lambda x: x.abs().rsqrt(),
            "reciprocal": torch.reciprocal,
            "log": lambda x: x.abs().log(),
            "log1p": lambda x: x.abs().log1p(),
            "cosh": torch.cosh,
            "sin": torch.sin,
            "tan": torch.tan,
            "sinc": torch.sinc,
            "cube": lambda x: x**3,
            "softmax": lambda x: x.softmax(-1),
        }.items()
    },
    "prod": lambda x, y: x.prod(-1),
    "cumprod": lambda x, y: x.cumprod(-1),
    "cumsum": lambda x, y: x.cumsum(-1),
    "logcumsumexp": lambda x, y: x.logcumsumexp(-1),
    "logsumexp": lambda x, y: x.logsumexp(-1),
    "logaddexp": torch.logaddexp,
    "mean": lambda x, y: x.mean(-1) * y[:, 0],
    "variance": lambda x, y: x.var(-1),
    "var_mean": lambda x, y: torch.var_mean(x, -1)[1],
    "std_mean": lambda x, y: torch.std_mean(x, -1)[0],
    "norm": lambda x, y: x.norm(dim=-1),
    "norm of one": lambda x, y: x[:, :1].norm(dim=-1),
    "norm 3": lambda x, y: torch.linalg.vector_norm(x, 3, -1),
    "normalize": lambda x, y: functional.normalize(x, dim=-1),
    "rms_norm": lambda x, y: functional.rms_norm(x, (COLUMNS,), y[0], 1e-5),
    "layer_norm": lambda x, y: functional.layer_norm(x, (COLUMNS,), y[0], y[1]),
    "group_norm": lambda x, y: functional.group_norm(x[None], 2, y[0, :ROWS], y[1, :ROWS]),
    "instance_norm": lambda x, y: functional.instance_norm(x[None]),
    "batch_norm": lambda x, y: functional.batch_norm(x, y[0], y[1].abs(), y[2], y[3], False),
    "batch_norm of a batch": lambda x, y: functional.batch_norm(x, None, None, y[2], y[3], True),
    "mm": lambda x, y: (x @ y.T) * x[:, :ROWS],
    "addmm": lambda x, y: torch.addmm(x[:, :ROWS], x, y.T, beta=0.7, alpha=1.3),
    "linear": lambda x, y: functional.linear(x, y, x[0, :ROWS]),
    "convolution": lambda x, y: functional.conv1d(x[None], y[:, :3].reshape(ROWS, 1, 3), x[:, 0], groups=ROWS),
    "average": lambda x, y: functional.avg_pool2d(image(x), 2),
    "linear interpolation": lambda x, y: functional.interpolate(x[None], scale_factor=2, mode="linear"),
    "bilinear interpolation": lambda x, y: functional.interpolate(image(x), scale_factor=2, mode="bilinear"),
    "fold": lambda x, y: functional.fold(x[:, :12].reshape(1, 4, 12), (4, 5), 2),
    "index_add": lambda x, y: x.index_add(0, torch.tensor([0, 0]), y[:2]),
    "scatter_add": lambda x, y: x.scatter_add(1, ZEROS, y),
    "scatter_mean": lambda x, y: x.scatter_reduce(1, ZEROS, y, "mean"),
    "scatter_amax": lambda x, y: (x * 1.1).scatter_reduce(1, ZEROS, y, "amax"),
    "cummax": lambda x, y: torch.exp(torch.cummax(x, -1).values - x),
    "median": lambda x, y: (x * 1.1).median(-1).values,
    "median of all": lambda x, y: (x * 1.1).median(),
    "kthvalue": lambda x, y: (x * 1.1).kthvalue(3, -1).values,
    "cdist": torch.cdist,
    "pairwise_distance": functional.pairwise_distance,
    "cosine_similarity": lambda x, y: functional.cosine_similarity(x, y, -1),
    "binary_cross_entropy": lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "cross_entropy": lambda x, y: functional.cross_entropy(x, PLACES, label_smoothing=0.1),
    "kl_div": lambda x, y: functional.kl_div(x, y, reduction="batchmean", log_target=True),
    "huber": lambda x, y: functional.huber_loss(x, y, delta=0.7),
    "local_response_norm": lambda x, y: functional.local_response_norm(x[None], 3),
}


def differences(function, of_x, of_y):
    """The comparisons that fail of a function's first result, for operands of two scales, of float32 and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        x, y = (SCALES[one](torch.randn(ROWS, COLUMNS, dtype=torch.float64)).to(dtype) for one in (of_x, of_y))
        (derived, *_), _ = analyse(function, (x, y), {})
        with torch.no_grad():
            result = function(x.float(), y.float()).to(derived.dtype)
        found = compare(result, Expected(derived.value, derived.bound, derived.judged))
        if not found.passed:
            yield dtype, of_x, of_y, found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_torch_computes_in_float32_is_within_the_bound(name):
    torch.manual_seed(0)
    pairs = itertools.product(SCALES, repeat=2)
    chosen = [pair for number, pair in enumerate(pairs) if number % 4 == 0]
    assert {one for pair in chosen for one in pair} == set(SCALES)
    assert [one for pair in chosen for one in differences(FUNCTIONS[name], *pair)] == []


def test_a_sine_whose_operand_is_not_known_may_be_anything():
    found = analyse(lambda x: (x * 1.1).sin(), (torch.tensor([1e30, 1.0]),), {})[0][0]
    assert found.bound[0] >= 2
    assert found.bound[1] < 1e-6
    near_a_pole = torch.tensor([math.pi / 2 / 1.1, 1.0])
    assert analyse(lambda x: (x * 1.1).tan(), (near_a_pole,), {})[0][0].judged.tolist() == [False, True]


def test_products_of_places_have_no_rule():
    with pytest.raises(NoRule, match="scatter_reduce of products"):
        analyse(lambda x: x.scatter_reduce(1, ZEROS, x, "prod"), (torch.ones(ROWS, COLUMNS),), {})


def test_tf32_that_cuts_bits_off_is_within_the_bound_where_terms_are_alike():
    """As it is of operands that are expanded along K: nothing averages."""
    row, column = torch.rand(2, 200, generator=torch.Generator().manual_seed(0)) + 1
    with mode_calls.reduced_precision(True):
        (found, *_), _ = analyse(torch.mm, (row[:, None].expand(200, 128), column.expand(128, 200)), {})
    cut = [(one.view(torch.int32) & ~0x1FFF).view(torch.float32).double() for one in (row, column)]
    error = (128 * cut[0][:, None] * cut[1] - found.value).abs()
    assert (error <= found.bound).all()
    assert (found.bound <= 2.0**-8 * found.value).all()
