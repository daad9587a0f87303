"""Long rows: who walks over them, and that parts of a batch have the bits of the whole."""

import pytest
import torch

import ntops.torch
from ntops.host import rows
from ntops.launch import config_selection
from ntops.launch.kernel_sources import make

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NORMS = {
    "rms_norm": lambda library, x, weight, bias: library.rms_norm(x, x.shape[-1:], weight, 1e-5),
    "layer_norm": lambda library, x, weight, bias: library.layer_norm(x, x.shape[-1:], weight, bias),
    "softmax": lambda library, x, weight, bias: library.softmax(x, -1),
}


@pytest.fixture
def walks(monkeypatch):
    """A list with an item for each call that a kernel of ``long_rows`` took."""
    found = []
    walk = rows._walk
    monkeypatch.setattr(rows, "_walk", lambda *args: (found.append(args), walk(*args)))
    return found


@pytest.mark.parametrize("columns", [64, 72, 70], ids=["tiles", "part of a tile", "not aligned"])
@pytest.mark.parametrize("parameters", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("op", NORMS)
def test_rows_are_walked_a_tile_at_a_time(op, parameters, columns, walks):
    x = torch.randn(2, 3, 2, columns, device=DEVICE)[:, 1:]
    weight, bias = (torch.randn(columns, device=DEVICE) if has else None for has in parameters)
    expected = NORMS[op](torch.nn.functional, x, weight, bias)

    with config_selection.forced(op, rows.Options(1, 32, 4)):
        found = NORMS[op](ntops.torch, x, weight, bias)
        part = NORMS[op](ntops.torch, x[1:, 1:, 1:], weight, bias)

    torch.testing.assert_close(found, expected)
    assert torch.equal(found[1:, 1:, 1:], part)
    assert len(walks) == (2 if columns % 4 == 0 else 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_of_rows_that_are_walked(dtype, walks):
    x = torch.randn(3, 48, device=DEVICE).to(dtype)
    weight = torch.randn(48, device=DEVICE).to(dtype)

    for op, call in NORMS.items():
        with config_selection.forced(op, rows.Options(1, 16, 4)):
            torch.testing.assert_close(
                call(ntops.torch, x, weight, weight), call(torch.nn.functional, x, weight, weight)
            )

    assert len(walks) == (0 if dtype is torch.float64 else len(NORMS))


@pytest.mark.parametrize(("shape", "filled"), [((3, 64), 1), ((2, 64, 64), 2), ((3, 48), None)])
@pytest.mark.parametrize("op", NORMS)
def test_rows_that_fill_their_tile_are_not_masked(op, shape, filled, monkeypatch):
    made = []
    monkeypatch.setattr(rows, "make", lambda *args: made.append(args[3].filled) or make(*args))
    x = torch.randn(*shape, device=DEVICE)
    x = x.mT if len(shape) == 3 else x
    weight, bias = torch.randn(2, x.shape[-1], device=DEVICE)

    with config_selection.forced(op, rows.Options(1, 64, 4)):
        found = NORMS[op](ntops.torch, x, weight, bias)

    torch.testing.assert_close(found, NORMS[op](torch.nn.functional, x, weight, bias))
    # The norms copy what is transposed.
    last = filled if op == "softmax" else filled and 1
    assert made == [() if filled is None else (("output", last),)]


INF, NAN, LOWEST = float("inf"), float("nan"), torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    "row",
    [
        *([-INF] * 32, [INF] + [0] * 31, [0] * 31 + [INF], [-INF] * 16 + [1] * 16, [NAN] + [0] * 31),
        *([LOWEST] * 32, [3e38, -3e38] * 16, [-INF, 1] * 16),
    ],
)
def test_softmax_of_rows_that_are_walked(row, walks):
    x = torch.tensor([row, [0.0] * 32], device=DEVICE)

    with config_selection.forced("softmax", rows.Options(1, 16, 4)):
        found = ntops.torch.softmax(x, -1)

    torch.testing.assert_close(found, torch.softmax(x, -1), equal_nan=True)
    assert len(walks) == 1


@pytest.mark.parametrize("columns", [16, 1024, 16385, 1 << 20, 5449729])
@pytest.mark.parametrize("compute_dtype", [torch.float32, torch.float64])
def test_no_configuration_walks_far_in_narrow_tiles(columns, compute_dtype):
    known = rows.config.alternatives(columns, compute_dtype, compute_dtype, 4)
    assert rows.config(columns, compute_dtype, compute_dtype, 4) in known
    assert all(-(-columns // one.block_columns) <= 64 or one.block_columns >= 2048 for one in known)


@pytest.mark.parametrize("lanes", ["contiguous", "strided"])
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_what_a_lane_adds_up_thousands_of_times_is_right(norm, lanes):
    """Each sum rounds to one side for thousands of steps: 63 roundings were lost."""
    columns = 3_000_001
    x = torch.full((columns,), 0.1, device=DEVICE)
    x[:16] = 65504.0

    if norm == "rms_norm":
        x[16:] *= 100
    given = x if lanes == "contiguous" else torch.stack((x, x), -1)[..., 0]

    for input in (given[None], given[None, 16:]) if norm == "rms_norm" else (given[None],):
        found = getattr(ntops.torch, norm)(input, (input.shape[-1],), eps=1e-3)
        exact = getattr(torch.nn.functional, norm)(input.double(), (input.shape[-1],), eps=1e-3)
        assert ((found - exact) / exact).abs().max() < 6 * 2**-24 * (1 + (norm == "layer_norm"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(3, 40, 5), (2, 3, 600, 40), (2, 3, 4, 5, 6), (4, 300, 1), (5, 1, 3), (7, 64, 64)])
def test_rows_along_another_dim_have_the_same_bits_in_any_batch_and_layout(shape, dtype):
    x, dim = torch.randn(shape, device=DEVICE).to(dtype), len(shape) - 2
    found = ntops.torch.softmax(x, dim)
    torch.testing.assert_close(found, torch.softmax(x.float(), dim).to(dtype))
    assert torch.equal(ntops.torch.softmax(x[..., :1], dim), found[..., :1])
    assert torch.equal(ntops.torch.softmax(x[:1], dim), found[:1])
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert torch.equal(ntops.torch.softmax(turned, dim), found)


def test_rows_along_another_dim_treat_what_is_not_finite_as_others_do():
    for columns in (5, 300):
        x = torch.randn(3, columns, 4, device=DEVICE)
        x[0, :, 0], x[1, 2, 1], x[2, 2, 2], x[2, :2, 3] = -torch.inf, torch.inf, torch.nan, -torch.inf
        torch.testing.assert_close(ntops.torch.softmax(x, 1), torch.softmax(x, 1), equal_nan=True)
