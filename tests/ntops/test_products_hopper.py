"""Products in the form for Hopper: operands and results of any layout, parts of K, and the choice of tiles."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hopper import hopper

import ntops.torch
from ntops.host import mm_hopper, product_configs
from ntops.launch import config_selection

pytestmark = pytest.mark.usefixtures("on_device")


H200 = config_selection.Device(232448, 132)


# Of tiles as they are, of turned ones, of those with columns of two blocks, and of those that are stored in parts.
KINDS = (128, 256, 64, 8, 3), (16, 64, 128, 4, 10), (128, 144, 64, 8, 5), (96, 128, 64, 8, 7), (256, 128, 32, 8, 4)
kinds = pytest.mark.parametrize("described", KINDS, indirect=True, ids=str)


@pytest.fixture(params=(*mm_hopper._HALF, *mm_hopper._TF32), ids=str)
def described(request, tf32):
    """The dtype of operands in each configuration."""
    options = product_configs.Options(*request.param, form=product_configs.HOPPER)
    with contextlib.ExitStack() as forced:
        for kernel in ("mm", "addmm", "bmm"):
            forced.enter_context(config_selection.forced(kernel, options))
        yield torch.float16 if request.param in mm_hopper._HALF else torch.float32


def turned(matrices):
    return matrices.mT.contiguous().mT


def spread(matrices):
    """The same in memory of which no descriptor can be: the last dim takes every third element."""
    return torch.stack([matrices] * 3, -1)[..., 0]


def moved(matrices):
    """The same one element behind an address that a descriptor can have."""
    return torch.cat([matrices.flatten()[:1], matrices.flatten()])[1:].view(matrices.shape)


def small(*shape, dtype=torch.half):
    """Small integers: products of theirs are exact."""
    return torch.randint(-4, 5, shape).to(dtype)


@hopper
@kinds
@pytest.mark.parametrize("lay", [torch.Tensor.contiguous, turned, spread, moved], ids=lambda one: one.__name__)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_operands_of_any_layout_are_described(lay, batch, described):
    a, b = small(*batch, 140, 72, dtype=described), small(*batch, 72, 264, dtype=described)
    function = ntops.torch.bmm if batch else ntops.torch.mm
    assert torch.equal(function(lay(a), lay(b)), a @ b)
    out = lay(torch.zeros(*batch, 140, 264, dtype=described))
    assert function(a, b, out=out) is out
    assert torch.equal(out, a @ b)


@hopper
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 4097, 4096), (8, 4096, 4096), (4, 1024, 16384), (16, 2048, 1280), (2, 33, 96)])
def test_the_layout_of_a_factor_changes_no_bit_of_few_rows(shape, dtype):
    """Rows that descriptors do not fit go to the other kernel, which takes K in the same parts."""
    m, n, k = shape
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    expected = ntops.torch.mm(a, b)
    for lay in (turned, spread, moved):
        assert torch.equal(ntops.torch.mm(a, lay(b)), expected)
        assert torch.equal(ntops.torch.addmm(torch.zeros(n, dtype=dtype), a, lay(b)), expected)


@hopper
@kinds
@pytest.mark.parametrize("m", [9, 139])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_what_lies_between_the_columns_of_a_result_is_left_alone(m, batch, described):
    a, b = small(*batch, m, 72, dtype=described), small(*batch, 72, 264, dtype=described)
    columns = torch.full((*batch, 264, 144), 7, dtype=described)
    out = columns[..., :m].mT
    (ntops.torch.bmm if batch else ntops.torch.mm)(a, b, out=out)
    assert torch.equal(out, a @ b)
    assert (columns[..., m:] == 7).all()


@hopper
@pytest.mark.parametrize("lay", [torch.Tensor.contiguous, turned, spread, moved], ids=lambda one: one.__name__)
@pytest.mark.parametrize("n", [1, 77, 78])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_rows_of_results_begin_anywhere(batch, n, lay, described):
    a, b = small(*batch, 139, 72, dtype=described), small(*batch, 72, n, dtype=described)
    around = lay(torch.full((*batch, 141, n + 3), 7, dtype=described))
    out = around[..., 1:-1, 1:-2]
    (ntops.torch.bmm if batch else ntops.torch.mm)(a, b, out=out)
    expected = torch.full_like(around, 7)
    expected[..., 1:-1, 1:-2] = a @ b
    assert torch.equal(around, expected)
    if not batch:
        for shape in ((n,), (139, 1), (139, n)):
            added = small(*shape, dtype=described)
            assert torch.equal(ntops.torch.addmm(added, a, b, alpha=2, out=out), torch.addmm(added, a, b, alpha=2))


@hopper
def test_rows_of_many_results_begin_anywhere(described):
    a, b = small(1030, 40, dtype=described), small(40, 1021, dtype=described)
    assert torch.equal(ntops.torch.mm(a, b), a @ b)


@hopper
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("splits", [2, 3, 8])
@pytest.mark.parametrize("k", [1000, 4100, 4608])
@pytest.mark.parametrize("tile", [*mm_hopper._HALF, *mm_hopper._TF32], ids=str)
def test_parts_of_any_length_make_the_product(tile, k, splits):
    dtype = torch.float16 if tile in mm_hopper._HALF else torch.float32
    a, b = torch.randint(-1, 2, (70, k)).to(dtype), torch.randint(-1, 2, (k, 261)).to(dtype)
    with config_selection.forced("mm", product_configs.Options(*tile, splits, product_configs.HOPPER)):
        assert torch.equal(ntops.torch.mm(a, b), a @ b)


@hopper
@pytest.mark.parametrize("k", [8, 1000])
@pytest.mark.parametrize("m", [1, 17, 300])
def test_tiles_are_filled_with_zeros(m, k, described):
    """Beyond the end of each dim; and where a program has several, one after the other."""
    a, b = small(m, k, dtype=described), small(k, 2056, dtype=described)
    assert torch.equal(ntops.torch.mm(a, b), a @ b)
    many = small(300, m, k, dtype=described)
    assert torch.equal(ntops.torch.bmm(many, b[:, :72].expand(300, k, 72)), many @ b[:, :72])


@hopper
@kinds
@pytest.mark.parametrize("beta", [0, 3])
@pytest.mark.parametrize("shape", [(), (264,), (140, 1), (140, 264), (264, 140)])
def test_what_is_described_is_scaled_and_added(beta, shape, described):
    a, b = small(140, 72, dtype=described), small(72, 264, dtype=described)
    added = torch.full(shape, float("nan"), dtype=described) if beta == 0 else small(*shape, dtype=described)
    added = added.mT if shape == (264, 140) else added
    expected = torch.addmm(added, a, b, alpha=2, beta=beta)
    for lay in (torch.Tensor.contiguous, turned):
        out = lay(torch.zeros(140, 264, dtype=described))
        assert torch.equal(ntops.torch.addmm(added, a, b, alpha=2, beta=beta, out=out), expected)


@hopper
@kinds
def test_calls_that_come_again_are_of_their_own_memory(described):
    """They are recorded, descriptors and all."""
    for _ in range(3):
        a, b, added = small(9, 72, dtype=described), small(72, 264, dtype=described), small(9, 264, dtype=described)
        assert torch.equal(ntops.torch.mm(a, b), a @ b)
        assert torch.equal(ntops.torch.addmm(added, a, b), torch.addmm(added, a, b))


def test_terms_are_innermost_in_copies():
    """Hopper's matrix units take no others of float32 from memory."""
    matrices = moved(torch.randn(3, 12, 16)), spread(torch.randn(3, 12, 16)), moved(torch.randn(3, 16, 12)).mT
    for one in matrices:
        found, is_turned = mm_hopper._read(one)
        assert torch.equal(found, one)
        assert (is_turned, found.is_contiguous()) == (False, True)
        for is_turned in (False, True):
            # What is added lies as what is stored does.
            found = mm_hopper._laid_out(one[:, :, 1:], is_turned)
            assert torch.equal(found.mT if is_turned else found, one[:, :, 1:])
            assert mm_hopper._describable(found) is not None


def test_matrices_are_described_as_they_are_or_turned():
    one = torch.randn(3, 12, 16)
    for matrices, expected in ((one, False), (one.mT, True), (one[:1, :1], False), (one[:, :1].mT, True)):
        found, is_turned = mm_hopper._described(matrices)
        assert is_turned == expected
        assert torch.equal(found.mT if is_turned else found, matrices)
        assert found.stride(-1) == 1
        assert all(stride % 4 == 0 and stride for stride in found.stride()[:2])
    assert mm_hopper._described(spread(one)) == mm_hopper._described(moved(one)) == (None, False)
    assert mm_hopper._read(one[:1].expand(3, 12, 16))[0].shape == (1, 12, 16), "one for all the batch"


def chosen(m, n, k, **given):
    problem = product_configs.Problem(m, n, k, **{"dtype": torch.bfloat16, "ieee": False, "described": True} | given)
    found = problem.rule(H200)
    assert problem.allows(found)
    assert problem.resources(found).fit(H200)
    assert found in problem.candidates(H200)
    return found.form, found.block_m, found.block_n


def test_the_form_for_hopper_takes_what_is_large():
    for m, n in ((4096, 4096), (1024, 4096), (2048, 2048)):
        assert chosen(m, n, 4096) == (product_configs.HOPPER, 128, 256)
        assert chosen(m, n, 4096, dtype=torch.float32) == (product_configs.HOPPER, 256, 128)
    assert chosen(64, 64, 64)[0] == chosen(128, 128, 128)[0] == product_configs.POINTERS
    assert chosen(4096, 4096, 4096, described=False)[0] == product_configs.POINTERS


def test_all_tiles_fit_and_programs_of_theirs_are_whole():
    for dtype in (torch.float16, torch.float32):
        for one in mm_hopper.known(dtype):
            options = product_configs.Options(*one, form=product_configs.HOPPER)
            assert product_configs.resources(options, dtype).fit(H200)
            rows, *blocks = mm_hopper._laid(options, dtype)
            assert rows == 16 * options.num_warps, "64 rows for each group of 4 warps"
            assert all(block & (block - 1) == 0 for block in blocks), "powers of two"
            assert rows * sum(blocks) == options.block_m * options.block_n


def test_a_table_can_have_the_tiles_that_there_are():
    """Those of Hopper have columns of two blocks, or three groups of warps; others are powers of two."""
    problem = product_configs.Problem(300, 300, 300, torch.bfloat16, False, described=True)
    for one in mm_hopper.known(torch.bfloat16):
        assert problem.exists(product_configs.Options(*one, form=product_configs.HOPPER))
    assert not problem.exists(product_configs.Options(128, 144, 32, 8, 5, form=product_configs.HOPPER))
    assert not problem.exists(product_configs.Options(128, 144, 64, 8, 5))
    assert problem.exists(product_configs.Options(128, 128, 64, 8, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_tile_is_the_fastest_somewhere(dtype):
    found = [mm_hopper.fastest(*point, dtype, 132) for point in mm_hopper.POINTS]
    assert {one[:5] for one in found} == {*mm_hopper.known(dtype)}
    assert {one[5] for one in found} > {1}


def test_tiles_are_small_where_programs_would_be_too_few():
    assert chosen(1, 4096, 4096) == chosen(16, 8192, 8192) == (product_configs.HOPPER, 16, 64)
    assert chosen(1, 11008, 4096) == chosen(16, 14336, 4096) == (product_configs.HOPPER, 32, 128), "one wave"
    assert chosen(128, 4096, 4096) == (product_configs.HOPPER, 64, 64)
    assert chosen(1024, 1024, 1024) == chosen(197, 4096, 1024) == (product_configs.HOPPER, 64, 128)
    assert chosen(33, 18432, 7168) == (product_configs.HOPPER, 64, 160), "one wave of nearly all multiprocessors"
    assert chosen(256, 18432, 7168) == (product_configs.HOPPER, 128, 144), "two waves, of which none is nearly empty"
    assert chosen(4572, 2048, 8192) == (product_configs.HOPPER, 192, 128), "no turn that is nearly empty"
    assert chosen(4096, 4096, 4096) == (product_configs.HOPPER, 128, 256)
    assert chosen(128, 28672, 8192) == (product_configs.HOPPER, 128, 256)
    many = {"batched": True, "products": 16}
    assert chosen(1024, 1024, 1024, **many) == (product_configs.HOPPER, 128, 256)
    assert chosen(1024, 128, 1024, batched=True, products=128) == (product_configs.HOPPER, 128, 128), "not half empty"
    assert chosen(1024, 1024, 1024, batched=True) == chosen(1024, 1024, 1024), "a batch of one"
    single = {"dtype": torch.float32}
    assert chosen(16, 8192, 8192, **single) == (product_configs.HOPPER, 16, 64)
    assert chosen(1024, 1024, 1024, **single) == (product_configs.HOPPER, 64, 128)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((5, 8, 16), torch.float16, True),
        ((5, 4, 16), torch.float16, True),
        ((5, 8, 12), torch.float16, True),
        ((200, 130, 12), torch.float16, True),
        ((5, 4, 10), torch.float32, False),
        ((5, 8, 16), torch.float64, False),
        ((5, 8, 0), torch.float16, False),
    ],
    ids=str,
)
def test_what_can_be_described_follows_from_sizes_and_dtype(shape, dtype, expected, monkeypatch):
    m, n, k = shape
    monkeypatch.setattr(mm_hopper, "INTERPRETED", False)
    monkeypatch.setattr(config_selection, "device", lambda index: H200)
    for a in (torch.empty(m, k, dtype=dtype), torch.empty(k, m, dtype=dtype).mT):
        for b in (torch.empty(k, n, dtype=dtype), torch.empty(n, k, dtype=dtype).mT):
            # Of a few rows the other factor is copied only if its K does not fit.
            rows_fit = b.stride(0) * dtype.itemsize % 16 == 0 or b.stride(1) > 1 or k % 8 > 0
            result = torch.empty(m, n, dtype=dtype)
            assert mm_hopper.takes_sizes(result, a, True, 0, 0) == expected
            assert not expected or mm_hopper.takes_layout(result, b, 0) == (m > 16 or rows_fit)
    assert not mm_hopper.takes_sizes(result, a, True, 2, 0)


def test_k_is_split_in_the_form_for_hopper_where_that_pays():
    def splits(m, n, k):
        return mm_hopper.fastest(m, n, k, torch.bfloat16, 132)[-1]

    assert splits(512, 512, 16384) == 8
    assert splits(4096, 4096, 4096) == splits(128, 4096, 4096) == splits(16, 8192, 28672) == 1
    assert mm_hopper.fastest(512, 512, 16384, torch.bfloat16, 132, batch=2)[-1] == 1, "a batch"
