"""Reductions: tiles, parts, dims, strides, dtypes and refusals that a few drawn cases may miss."""

import contextlib
import math

import pytest
import torch
from differentiable import doubled, gradients, tensor

import ntops
from ntops.host import reduction_arguments, reductions
from ntops.launch import config_selection

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("sum", "mean", "amax", "amin")


def _both(name, x, *args, **kwargs):
    found = getattr(ntops.torch, name)(x, *args, **kwargs)
    expected = getattr(torch, name)(x.double(), *args, **kwargs)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [(1, 16, 1, 1), (2, 16, 2, 1), (4, 8, 64, 1), (16, 1, 4, 1)])
def test_parts_of_rows_are_reduced_in_turn(name, options):
    x = torch.randn(3, 5, 71, generator=torch.Generator().manual_seed(0)).to(DEVICE)

    with config_selection.forced(name, reductions.Options(*options)):
        for dim in (0, 1, 2, (0, 2), (2, 1), None):
            _both(name, x, dim)


def test_few_long_rows_are_split_up_and_many_are_not():
    few, many = (reductions.config(1, rows, 1 << 16, False, 2, 4) for rows in (4, 4096))
    tiles = (1 << 16) // few.block_columns
    assert few.steps < tiles <= many.steps
    assert _both("sum", torch.randn(1, 70_000, device=DEVICE), 1).shape == (1,)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_copied_for_the_strides(name, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    x = torch.randn(4, 6, 9, 10, device=DEVICE)

    for view in (x.permute(2, 0, 3, 1), x[:, ::2, 1:, ::3], x[:, :1].expand(4, 7, 9, 10), x.transpose(1, 3)):
        for dim in (0, 2, (0, 2), (1, 3), None):
            _both(name, view, dim)


def test_neighbours_in_memory_are_read_together():
    """Whichever dim they lie along."""
    assert reductions.config(1, 8192, 8192, True, 2, 4).block_rows == 64
    assert reductions.config(1, 8192, 8192, False, 2, 4).block_columns == 4096


@pytest.mark.parametrize("name", ["sum", "mean", "amax"])
def test_torchs_other_names(name):
    x = torch.randn(3, 4, device=DEVICE)
    ours, torchs = getattr(ntops.torch, name), getattr(torch, name)
    torch.testing.assert_close(ours(x, axis=1, keepdims=True), torchs(x, axis=1, keepdims=True))
    compiled = torch.compile(lambda x: ours(x, axis=0), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), torchs(x, 0))

    for kwargs in ({"axis": 1, "dim": 1}, {"dims": 1}):
        with pytest.raises(TypeError):
            ours(x, **kwargs)

    with pytest.raises(TypeError):
        ours(x, 1, axis=1)


@pytest.mark.parametrize("call", [lambda f, x: f(x, keepdim=True), lambda f, x: f(x, out=x.new_empty(()))])
@pytest.mark.parametrize("name", ["sum", "mean", "amax"])
def test_arguments_without_dim_are_taken_as_torch_does(name, call):
    x = torch.randn(3, 4, device=DEVICE)

    try:
        expected = call(getattr(torch, name), x)
    except TypeError:
        with pytest.raises(TypeError, match="dim"):
            call(getattr(ntops.torch, name), x)
    else:
        torch.testing.assert_close(call(getattr(ntops.torch, name), x), expected)


def test_nan_is_the_largest_and_the_smallest():
    x = torch.tensor([[1, math.nan, math.inf], [math.nan, -math.inf, 0], [1, 2, 0]], device=DEVICE)

    for find in (ntops.torch.amax, ntops.torch.amin):
        assert [math.isnan(one) for one in find(x, 1).tolist()] == [True, True, False]
        assert math.isnan(find(x))


@pytest.mark.parametrize("name", ["amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool])
def test_the_ends_of_integers(name, dtype):
    low, high = reduction_arguments.limits(dtype)
    x = torch.full((3, 70), low, device=DEVICE, dtype=dtype)
    x[1] = high
    assert getattr(ntops.torch, name)(x, 1).tolist() == [low, high, low]


@pytest.mark.parametrize("name", ["amax", "amin"])
@pytest.mark.parametrize(
    ("shape", "args", "error"),
    [((0, 3), (0,), IndexError), ((0, 3), (), RuntimeError), ((2, 0), ((0, 1),), IndexError)],
)
def test_no_elements_have_no_extreme(name, shape, args, error):
    for library in (torch, ntops.torch):
        with pytest.raises(error):
            getattr(library, name)(torch.ones(shape, device=DEVICE), *args)

    assert getattr(ntops.torch, name)(torch.ones(0, 3, device=DEVICE), 1).shape == (0,)


@pytest.mark.parametrize("values", [[1.0, 3.0, 3.0, 2.0], [1.0, math.nan, 3.0, 2.0], [math.inf, math.inf, 0.0, 1.0]])
def test_ties_share_the_gradient(values):
    x = torch.tensor([values], device=DEVICE, requires_grad=True)
    given = torch.tensor([6.0], device=DEVICE)
    found, want = (gradients(library.amax, (x, 1), given)[0] for library in (ntops.torch, torch))
    torch.testing.assert_close(found, want, equal_nan=True)


def test_half_types_are_added_up_in_float32():
    x = torch.full((3, 4099), 1.0, dtype=torch.bfloat16, device=DEVICE)
    assert ntops.torch.sum(x, 1).tolist() == [4096.0] * 3
    assert ntops.torch.sum(x, 1, dtype=torch.float32).tolist() == [4099.0] * 3


def test_integers_and_bools():
    x = torch.tensor([[100, 100, 100], [-128, -128, 1]], dtype=torch.int8, device=DEVICE)
    assert ntops.torch.sum(x, 1).tolist() == [300, -255]
    assert ntops.torch.sum(x, 1, dtype=torch.int8).tolist() == [44, 1]
    assert ntops.torch.sum(x > 0).item() == 4
    assert ntops.torch.sum(x > 0, 1, dtype=torch.bool).tolist() == [True, True]
    assert ntops.torch.sum(x > 100, 1, dtype=torch.bool).tolist() == [False, False]


def test_no_elements():
    assert ntops.torch.sum(torch.ones(0, 3, device=DEVICE), 0).tolist() == [0.0] * 3
    assert all(math.isnan(one) for one in ntops.torch.mean(torch.ones(0, 3, device=DEVICE), 0).tolist())
    assert ntops.torch.sum(torch.ones(0, 3, device=DEVICE), 1).shape == (0,)


def test_out_may_be_a_part_of_the_input():
    x = torch.randn(5, 5, device=DEVICE)
    expected = x.sum(0)
    torch.testing.assert_close(ntops.torch.sum(x, 0, out=x[:, 1]), expected)
    torch.testing.assert_close(x[:, 1], expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("args", "kwargs", "error", "says"),
    [
        ((3,), {}, IndexError, "dim"),
        (((0, -2),), {}, RuntimeError, "twice"),
        ((1.0,), {}, TypeError, "dim"),
        ((True,), {}, TypeError, "dim"),
        ((0, 1), {}, TypeError, "keepdim"),
    ],
)
def test_refusals(name, args, kwargs, error, says):
    with pytest.raises(error, match=says):
        getattr(ntops.torch, name)(torch.ones(2, 3, device=DEVICE), *args, **kwargs)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_refused_dtypes(name):
    function, x = getattr(ntops.torch, name), torch.ones(2, 3, device=DEVICE)

    with pytest.raises(TypeError, match="dtype"):
        function(x, 0, dtype="float32")

    with pytest.raises(NotImplementedError, match="dtype"):
        function(x, 0, dtype=torch.complex64)

    with pytest.raises(RuntimeError, match="out"):
        function(x, 0, dtype=torch.float32, out=torch.ones(3, device=DEVICE).double())


def test_a_mean_of_integers_needs_a_dtype():
    x = torch.ones(2, 3, dtype=torch.int32, device=DEVICE)

    with pytest.raises(RuntimeError, match="dtype"):
        ntops.torch.mean(x)

    assert ntops.torch.mean(x, dtype=torch.float64).item() == 1


@pytest.mark.parametrize("name", [*NAMES, "logsumexp"])
@pytest.mark.parametrize(("shape", "dim", "keepdim"), [((3, 4, 5), (0, -1), False), ((3, 4), 1, True), ((), 0, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients(name, shape, dim, keepdim, dtype):
    x = tensor(*shape, dtype=dtype)
    given = tensor(*getattr(torch, name)(x, dim, keepdim).shape, dtype=dtype, seed=1, requires_grad=False)
    (found,) = gradients(getattr(ntops.torch, name), (x, dim, keepdim), given)
    (want,) = gradients(getattr(torch, name), (*doubled([x]), dim, keepdim), given.cpu().double())
    assert found.dtype is dtype
    torch.testing.assert_close(found.cpu().double(), want, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=0)


@pytest.mark.parametrize("name", [*NAMES, "logsumexp"])
def test_second_derivatives(name):
    x = tensor(3, 4, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: getattr(ntops.torch, name)(x * x, 1), (x,))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 1)])
def test_batches_of_vmap(name, dim):
    x = torch.randn(3, 4, 5, device=DEVICE)
    found = torch.vmap(lambda one: getattr(ntops.torch, name)(one, dim), in_dims=1)(x)
    torch.testing.assert_close(found, torch.stack([getattr(torch, name)(one, dim) for one in x.unbind(1)]))

    with pytest.raises(IndexError):
        torch.vmap(lambda one: getattr(ntops.torch, name)(one, 2))(x)


def _same_place(x, *args):
    found, expected = ntops.torch.argmax(x, *args), torch.argmax(x.cpu(), *args)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("options", [None, (1, 16, 1, 1), (2, 16, 2, 1), (4, 8, 64, 1), (16, 1, 4, 1)])
def test_the_first_of_equals_in_any_strides_and_parts(options):
    x = torch.randint(0, 3, (3, 5, 70), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    fixed = config_selection.forced("argmax", reductions.Options(*options)) if options else contextlib.nullcontext()

    with fixed:
        for view in (x, x.float(), x.transpose(0, 2), x[:, ::2, 1:], x[:, :1].expand(3, 4, 70)):
            for dim in (None, 0, 1, -1):
                _same_place(view, dim)
                _same_place(view, dim, True)


@pytest.mark.parametrize("place", [0, 4095, 4096, 99_998])
def test_the_place_in_a_row_of_several_parts(place):
    x = torch.zeros(100_000, device=DEVICE)
    x[place:] = 1
    assert ntops.torch.argmax(x).item() == place
    x[-1] = math.nan
    assert ntops.torch.argmax(x).item() == 99_999


def test_rows_of_the_least_element():
    _same_place(torch.full((2, 100), -math.inf, device=DEVICE), 1)
    _same_place(torch.full((2, 100), -(2**63), device=DEVICE), 1)


@pytest.mark.parametrize("dim", [None, 0, -1])
def test_places_in_batches_of_vmap(dim):
    x = torch.randn(3, 4, 5, device=DEVICE)
    found = torch.vmap(lambda one: ntops.torch.argmax(one, dim), in_dims=1)(x)
    assert torch.equal(found, torch.stack([one.argmax(dim) for one in x.unbind(1)]))


@pytest.mark.parametrize(
    ("make", "args", "error"),
    [
        (lambda: torch.ones(2, 3).bool(), (1,), RuntimeError),
        (lambda: torch.ones(0, 3), (), IndexError),
        (lambda: torch.ones(0, 3), (0,), IndexError),
        (lambda: torch.ones(2, 3), ((0,),), TypeError),
        (lambda: torch.ones(2, 3), (2,), IndexError),
    ],
)
def test_places_that_are_refused(make, args, error):
    for library in (torch, ntops.torch):
        with pytest.raises(error):
            library.argmax(make().to(DEVICE), *args)


def test_a_place_has_no_gradient():
    assert not ntops.torch.argmax(torch.ones(2, 3, device=DEVICE, requires_grad=True), 1).requires_grad


@pytest.mark.parametrize("repeats", [1, 100, 7000])
@pytest.mark.parametrize(
    "values",
    [
        [-math.inf] * 3,
        [math.inf, 1.0, math.inf],
        [math.inf, -math.inf, 0.0],
        [math.nan, 1.0, math.inf],
        [math.nan] * 3,
        [-math.inf, 1.0, -math.inf],
        [3e38, -3e38, 0.0],
    ],
)
def test_logsumexp_of_infinities(values, repeats):
    x = torch.tensor([values], device=DEVICE).repeat(1, repeats)
    torch.testing.assert_close(ntops.torch.logsumexp(x, 1), torch.logsumexp(x, 1), equal_nan=True)


def test_logsumexp_writes_any_floating_out():
    x, out = torch.randn(2, 3, device=DEVICE).half(), torch.empty(3, dtype=torch.float64, device=DEVICE)
    assert ntops.torch.logsumexp(x, 0, out=out) is out
    # Results below 4 in float16: half an ulp, and no more where they are cast to the dtype of out.
    torch.testing.assert_close(out, x.double().logsumexp(0), rtol=0, atol=1.01 * 2.0**-10)

    for library in (torch, ntops.torch):
        with pytest.raises(RuntimeError):
            library.logsumexp(x, 0, out=torch.empty(3, dtype=torch.int64, device=DEVICE))

        with pytest.raises(RuntimeError):
            library.logsumexp(x, 0, out=torch.empty(1, device=DEVICE).half().expand(3))

        for dim in (None, ()):
            with pytest.raises((TypeError, RuntimeError)):
                library.logsumexp(x, dim)


def test_logsumexp_of_integers_and_of_no_elements():
    assert ntops.torch.logsumexp(torch.ones(2, 3, dtype=torch.int8, device=DEVICE), 0).dtype is torch.float32
    assert ntops.torch.logsumexp(torch.ones(0, 3, device=DEVICE), 0).tolist() == [-math.inf] * 3


def test_the_gradient_of_a_wide_mean_is_rounded_once():
    x = torch.zeros(64, 385, device=DEVICE)
    given = torch.arange(1, 65, dtype=torch.float64, device=DEVICE) / 7
    (gradient,) = torch.func.vjp(lambda one: ntops.torch.mean(one, -1, dtype=torch.float64), x)[1](given)
    assert torch.equal(gradient, (given / 385).to(torch.float32)[:, None].expand(64, 385))


@pytest.mark.parametrize("dims", [None, 0, -1, (0, 2)], ids=str)
def test_gradients_of_means_have_memory_of_their_own(dims):
    """As torch's, and unlike those of sums: a user may write to them."""
    x = torch.randn(3, 4, 5, device=DEVICE).requires_grad_()
    (gradient,) = torch.autograd.grad(ntops.torch.mean(x, dims).sum(), x)
    assert gradient.stride() == x.stride()
    gradient.mul_(2)
    assert torch.equal(gradient, torch.full_like(x, 2 / (x.numel() / ntops.torch.mean(x, dims).numel())))


@pytest.mark.parametrize("dtype", [None, torch.float64], ids=str)
def test_gradients_of_sums_have_the_strides_of_torchs(dtype):
    x = torch.randn(3, 4, 5, device=DEVICE).requires_grad_()
    ours, theirs = (torch.autograd.grad(f(x, 1, dtype=dtype).sum(), x)[0] for f in (ntops.torch.sum, torch.sum))
    assert ours.stride() == theirs.stride()
    assert torch.equal(ours, theirs)
