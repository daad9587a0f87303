"""Products on the CUDA cores: few rows, and tiles of float32 in IEEE arithmetic."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hopper import hopper

import ntops.torch
from ntops.host import few_rows, mm_fma, product_configs
from ntops.launch import config_selection

pytestmark = pytest.mark.usefixtures("on_device")

SIZES = [(1, 70, 500), (3, 33, 1), (5, 40, 129), (100, 2, 300), (16, 16, 700), (9, 50, 64), (8, 3, 3000), (4, 7, 0)]
DTYPES = [torch.float32, torch.float64]


def whole(*shape, dtype=torch.float32):
    """Small integers: every order of adding them up is exact."""
    return torch.randint(-4, 5, shape).to(dtype)


def laid_out(matrix):
    """The matrix with either dim innermost, and with rows that begin nowhere in particular."""
    wide = torch.empty(*matrix.shape[:-1], matrix.shape[-1] + 3, dtype=matrix.dtype)[..., 1:-2]
    return matrix, matrix.mT.contiguous().mT, wide.copy_(matrix)


def form(m, n, k, dtype, ieee=True, described=False, batched=False):
    return product_configs.Problem(m, n, k, dtype, ieee, batched, described).rule(config_selection.Device(232448, 132))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_few_rows_of_all_layouts(sizes, dtype):
    m, n, k = sizes
    assert form(m, n, k, dtype).form == product_configs.FEW_ROWS
    a, b, added = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype), whole(n, dtype=dtype)
    expected = a @ b
    for left, right in itertools.product(laid_out(a), laid_out(b)):
        assert torch.equal(ntops.torch.mm(left, right), expected)
        out = torch.full((n, m), 7, dtype=dtype).mT
        assert ntops.torch.addmm(added, left, right, beta=2, alpha=3, out=out) is out
        assert torch.equal(out, 3 * expected + 2 * added)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_layout_changes_no_bit_of_few_rows(dtype):
    a, b = torch.randn(6, 700, dtype=dtype), torch.randn(700, 40, dtype=dtype)
    results = [ntops.torch.mm(left, right) for left, right in itertools.product(laid_out(a), laid_out(b))]
    assert all(torch.equal(results[0], one) for one in results)


ANYWHERE = [(3, 700, 300), (1, 1031, 517), (2, 264, 1000), (8, 133, 1032), (5, 1100, 129), (4, 2055, 64)]
"""Columns and terms that fill tiles of each class, or end or begin within a vector of 8."""


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float16, *DTYPES], ids=str)
@pytest.mark.parametrize("sizes", ANYWHERE, ids=str)
def test_classes_of_rows_change_no_bit(sizes, dtype, parts, monkeypatch):
    """Programs take classes of terms with columns innermost, and of columns with K innermost."""
    m, n, k = sizes
    options = product_configs.Options(min(max(1 << (m - 1).bit_length(), 2), 4), 16, 128, 4, 4, parts, 4)
    a, b, added = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.randn(n).to(dtype)

    monkeypatch.setattr(few_rows, "_DEEP", 0)
    monkeypatch.setattr(few_rows, "_BROAD", 0)

    def made(right, large):
        monkeypatch.setattr(few_rows, "_LARGE", large)
        with config_selection.forced("mm", options), config_selection.forced("addmm", options):
            product, turned = ntops.torch.mm(a, right), ntops.torch.mm(right.mT, a.mT)
            assert torch.equal(product, turned.mT)
            return product, ntops.torch.addmm(added, a, right, beta=2, alpha=3)

    plain = made(b.mT.contiguous().mT, 2**40)
    for right in laid_out(b):
        for large in (0, 2**40):
            assert all(map(torch.equal, plain, made(right, large)))
    # Of these every order of adding up is exact, and half types hold the sums.
    a, b, added = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype).clamp(-1, 1), whole(n, dtype=dtype)
    exact = a.double() @ b.double()
    for right, large in itertools.product(laid_out(b), (0, 2**40)):
        product, sum = made(right, large)
        assert torch.equal(product.double(), exact)
        assert torch.equal(sum.double(), 3 * exact + 2 * added.double())


@pytest.mark.parametrize("sizes", [(3, 700, 256), (1, 600, 129), (2, 265, 512)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_layout_changes_no_sign_of_zero(sizes, dtype, monkeypatch):
    """Products that are too small for the dtype are -0.0, to which no 0.0 may be added."""
    m, n, k = sizes
    tiny = 1e-30 if dtype is torch.float32 else 1e-200
    monkeypatch.setattr(few_rows, "_DEEP", 0)
    monkeypatch.setattr(few_rows, "_BROAD", 0)
    a, b = torch.full((m, k), tiny, dtype=dtype), torch.full((k, n), -tiny, dtype=dtype)
    found = []
    for large, right in itertools.product((0, 2**40), laid_out(b)):
        monkeypatch.setattr(few_rows, "_LARGE", large)
        found.append(ntops.torch.mm(a, right).signbit())
    # The interpreter rounds products of float64 before it adds them.
    assert found[0].all() or dtype is torch.float64
    assert all(torch.equal(found[0], one) for one in found)


def test_a_class_of_terms_has_sums_only_where_there_are_few_rows():
    options = product_configs.Options(8, 16, 128, 4, 4, form=product_configs.FEW_ROWS)

    def classes(m, n, k, lay=lambda factor: factor, splits=1):
        a, b, out = (torch.empty(*shape, dtype=torch.float16, device="meta") for shape in ((m, k), (k, n), (m, n)))
        turned = few_rows.classes_of_terms(dataclasses.replace(options, splits=splits), out.mT, lay(b).mT, a.mT)
        assert few_rows.classes_of_terms(dataclasses.replace(options, splits=splits), out, a, lay(b)) == turned
        return turned

    assert classes(8, 5003, 896) == few_rows.CLASSES
    assert classes(8, 5003, 896, lambda b: torch.empty(5003, 896, device="meta").mT) == 1, "K innermost"
    assert classes(8, 5003, 896, splits=2) == 1, "small parts"
    assert classes(8, 2**20, 4) == 1, "more sums than elements"
    assert classes(1, 16, 2**22) == 1, "few columns"


def test_parts_of_any_number_of_terms():
    """A part may have more than 2^31 terms; here it only says so."""
    a, b, out = whole(1, 300), whole(300, 70), torch.empty(1, 70)
    arguments = (*(1, 70, 300), *(5, 1), 2**25, *(0, 70, 1), *(0, 300, 1), *(0, 70, 1))
    few_rows.kernels.multiply[(5,)](out, a, b, *arguments, False, *(2, 16, 128), *(1, False), 1)
    assert torch.equal(out, a @ b)


def test_few_rows_of_half_types_that_begin_anywhere():
    for dtype in (torch.float16, torch.bfloat16):
        for m, n, k in ((3, 27, 37), (1, 27, 40), (3, 32, 37)):
            a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype)
            assert form(m, n, k, dtype, False).form == product_configs.FEW_ROWS
            assert torch.equal(ntops.torch.mm(a, b), a @ b)
            assert form(k, m, n, dtype, False).form == product_configs.FEW_ROWS, "few columns"
        assert form(4096, 4, 4096, dtype, False).form == product_configs.POINTERS, "columns of a factor that fits"
        assert form(4096, 1, 4096, dtype, False).form == product_configs.FEW_ROWS, "a single one"
        # Tensor cores multiply more rows, copied if they do not fit.
        assert form(4, 5003, 5003, dtype, False, described=True).form == product_configs.FEW_ROWS
        assert form(5, 5003, 5003, dtype, False, described=True).form == product_configs.HOPPER
        assert form(16, 1000, 1001, dtype, False, described=True).form == product_configs.HOPPER
    assert form(3, 32, 40, torch.float16, False).form == product_configs.POINTERS
    assert form(3, 32, 40, torch.float32, False).form == product_configs.POINTERS, "TF32"
    assert form(17, 100, 40, torch.float64).form == product_configs.POINTERS


def test_few_rows_of_batches():
    a, b = whole(2, 3, 4, 50), whole(3, 50, 9)
    for left, right in itertools.product(laid_out(a), laid_out(b)):
        assert torch.equal(ntops.torch.matmul(left, right), a @ b)
    assert torch.equal(ntops.torch.bmm(a[0], b), a[0] @ b)
    assert torch.equal(ntops.torch.matmul(a.mT[:, :1], a), a.mT[:, :1] @ a)
    assert torch.equal(ntops.torch.matmul(a, b[0, :, 0]), a @ b[0, :, 0])
    assert torch.equal(ntops.torch.matmul(b[0, :, 0], b), b[0, :, 0] @ b)


def test_parts_of_few_rows_need_not_be_alike():
    options = product_configs.Options(2, 16, 128, 4, 4, form=product_configs.FEW_ROWS)
    a, b = whole(3, 900), whole(900, 20)
    for splits in (1, 2, 3, 5, 8):
        with config_selection.forced("mm", dataclasses.replace(options, splits=splits)):
            assert torch.equal(ntops.torch.mm(a, b), a @ b)


def test_parts_are_as_many_as_programs_need():
    assert form(1, 1152, 8608, torch.float32).splits == 3
    assert form(1, 500, 5003, torch.float32).splits == 8, "few programs, whose tiles wait for memory"
    assert form(1, 32768, 4096, torch.float32).splits == 1, "enough programs"
    assert form(1, 64, 400, torch.float32).splits == 1, "too few terms"
    assert form(1, 64, 4096, torch.float32, batched=True).splits == 1


def test_tiles_by_sizes():
    def tile(*sizes):
        return mm_fma.fastest(*sizes, 132)

    assert tile(4096, 4096, 4096) == (128, 128, 32, 8, 2, 1)
    assert tile(64, 11008, 4096)[:2] == (64, 128)
    assert tile(32, 8192, 3072)[:2] == (32, 256)
    assert tile(500, 1000, 2000)[-1] > 1, "too few tiles"
    assert mm_fma.fastest(500, 1000, 2000, 132, batch=4)[-1] == 1, "a batch"
    assert {mm_fma.fastest(*point, 132)[:5] for point in mm_fma.POINTS} == set(mm_fma.known())
    for one in mm_fma.known():
        options = product_configs.Options(*one, form=product_configs.FMA)
        resources = product_configs.resources(options, torch.float32)
        assert resources.fit(config_selection.Device(232448, 132))
        warps_m = mm_fma._TILES[one][0]
        assert options.block_m % (16 * warps_m) == 0
        assert options.block_n % (32 * options.num_warps // warps_m) == 0


@hopper
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tile", mm_fma.known(), ids=str)
def test_tiles_of_all_layouts(tile, splits):
    options = product_configs.Options(*tile, splits, product_configs.FMA)
    for m, n, k in ((17, 33, 5), (1, 1, 1), (130, 200, 700), (200, 130, 33), (256, 256, 256)):
        a, b, added = whole(m, k), whole(k, n), whole(m, n)
        expected = a @ b
        with config_selection.forced("mm", options), config_selection.forced("addmm", options):
            for left, right in itertools.product(laid_out(a), laid_out(b)):
                assert torch.equal(ntops.torch.mm(left, right), expected)
                assert torch.equal(ntops.torch.mm(left, right, out=torch.ones(n, m).mT), expected)
                assert torch.equal(ntops.torch.addmm(added, left, right, beta=2, alpha=3), 3 * expected + 2 * added)
                assert torch.equal(ntops.torch.addmm(added[0], left, right), expected + added[0])


@hopper
@pytest.mark.parametrize("tile", mm_fma.known(), ids=str)
def test_tiles_of_batches(tile):
    options = product_configs.Options(*tile, form=product_configs.FMA)
    a, b = whole(3, 50, 70), whole(3, 70, 60)
    with config_selection.forced("bmm", options):
        for left, right in itertools.product(laid_out(a), laid_out(b)):
            assert torch.equal(ntops.torch.bmm(left, right), a @ b)
        assert torch.equal(ntops.torch.bmm(a, b[:1].expand(3, -1, -1)), a @ b[:1])
        assert torch.equal(ntops.torch.bmm(a[:1].expand(3, -1, -1), b), a[:1] @ b)


@hopper
def test_tiles_round_as_ieee_arithmetic():
    a, b = torch.randn(300, 1000), torch.randn(1000, 200)
    expected = a.double() @ b.double()
    bound = 4 * 2**-24 * 1000**0.5 * (a.abs().double() @ b.abs().double())
    assert ((ntops.torch.mm(a, b) - expected).abs() <= bound).all()
    assert form(300, 200, 1000, torch.float32, described=True).form == product_configs.FMA
    special = a.clone()
    special[0, 0], special[1, 0] = float("nan"), float("inf")
    assert torch.equal(ntops.torch.mm(special, b).isfinite(), (special @ b).isfinite())
