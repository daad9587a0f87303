"""Inside of torch.autocast a result has the dtype that torch's function of the same name gives it."""

import contextlib

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional

import ntops

HALVES = (torch.float16, torch.bfloat16)
X, M = ((4, 4), (4, 4))
HEADS = (1, 2, 4, 16)
CALLS = {
    **dict.fromkeys(("abs", "neg", "exp", "rsqrt", "sin", "cos", "sigmoid", "tanh", "isnan", "isinf"), ((X,), {})),
    **dict.fromkeys(("relu", "silu", "gelu", "dropout"), ((X,), {})),
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge", "mm", "matmul"), ((X, M), {})
    ),
    "clamp": ((X, 0.0, 1.0), {}),
    "softmax": ((X, 1), {}),
    **dict.fromkeys(("cumsum", "mean", "sum"), ((X, 1), {})),
    "bmm": (((2, 4, 4), (2, 4, 4)), {}),
    "addmm": (((4,), X, M), {}),
    "layer_norm": ((X, [4], (4,), (4,)), {}),
    "rms_norm": ((X, [4], (4,)), {}),
    "scaled_dot_product_attention": ((HEADS, HEADS, HEADS, (4, 4)), {}),
}
"""Arguments by operator; tuples are shapes of tensors. Functions of integers alone, and those that torch lacks, are not
here."""
ONLY_OURS = {
    "fused_gated_mlp": ((X, M, M), True),
    "rotary_position_embedding": (((1, 4, 2, 8), (4, 4), (4, 4)), False),
    "fused_rmsnorm_rope": (((1, 4, 16), (16,), (4, 8), (4, 8)), False),
}
"""Whether operators that torch lacks compute in the lower precision."""


def _torchs(name):
    return getattr(functional, name, None) or getattr(torch, name)


@contextlib.contextmanager
def _autocast(device, dtype):
    """``torch.autocast``, also for a GPU that is not there, with fake tensors of it."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)

    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


def _outcome(function, args, kwargs):
    try:
        result = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (what is refused is to be refused likewise)
        return "refused", type(error) if isinstance(error, NotImplementedError) else None

    return result.dtype


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_result_has_torchs_dtype(device, name):
    shapes, kwargs = CALLS[name]

    for lower in HALVES:
        for dtypes in ((torch.float32,), HALVES[:1], HALVES[1:], (torch.float64,), (torch.float32, lower)):
            if (name, device, len(dtypes)) == ("layer_norm", "cpu", 2):
                continue  # torch's own takes such parameters on the CPU alone.

            with FakeTensorMode(allow_non_fake_inputs=True):
                args = [
                    torch.empty(one, dtype=dtypes[min(place, 1) % len(dtypes)], device=device)
                    if isinstance(one, tuple)
                    else one
                    for place, one in enumerate(shapes)
                ]

                with _autocast(device, lower):
                    expected = _outcome(_torchs(name), args, kwargs)
                    assert _outcome(getattr(ntops.torch, name), args, kwargs) == expected, (lower, dtypes)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ONLY_OURS)
def test_what_torch_lacks_computes_in_the_precision_of_its_parts(device, name):
    shapes, lowered = ONLY_OURS[name]

    with FakeTensorMode(), _autocast(device, torch.bfloat16):
        args = [torch.empty(shape, device=device) for shape in shapes]
        assert getattr(ntops.torch, name)(*args).dtype is (torch.bfloat16 if lowered else torch.float32)


def test_values_are_those_of_the_lower_precision():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = torch.randn(2, 16, 16, device=device)

    with torch.autocast(device, dtype=torch.bfloat16):
        found = ntops.torch.mm(a, b)

        with torch.autocast(device, enabled=False):
            assert ntops.torch.mm(a, b).dtype is torch.float32

    assert torch.equal(found, ntops.torch.mm(a.bfloat16(), b.bfloat16()))
    assert ntops.torch.mm(a, b).dtype is torch.float32


def test_what_is_written_is_not_cast():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, out = torch.randn(3, 16, 16, device=device)

    with torch.autocast(device, dtype=torch.bfloat16):
        assert ntops.torch.mm(a, b, out=out).dtype is torch.float32

    assert torch.equal(out, ntops.torch.mm(a, b))


def test_new_rows_of_a_cache_have_its_dtype():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    query, key, value = torch.randn(3, 1, 2, 4, 16, device=device)
    keys, values = torch.zeros(2, 1, 2, 8, 16, dtype=torch.bfloat16, device=device)
    cache = {"present_key": keys, "present_value": values, "present_key_slot": 2}

    with torch.autocast(device, dtype=torch.bfloat16):
        assert ntops.torch.scaled_dot_product_attention(query, key, value, **cache).dtype is torch.bfloat16

    assert torch.equal(keys[:, :, 2:6], key.bfloat16())
