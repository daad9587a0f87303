"""Products in parts, and factors that are copied first."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

import ntops.torch
from ntops.host import product_configs, products, split_k
from ntops.launch import config_selection

pytestmark = pytest.mark.usefixtures("on_device")

OPTIONS = product_configs.Options(16, 32, 32, 4, 2)


@pytest.fixture(params=[2, 8])
def splits(request):
    with config_selection.forced("mm", dataclasses.replace(OPTIONS, splits=request.param)):
        yield request.param


def factors(dtype, m=5, n=300, k=512):
    # Small integers: every order of adding them up is exact.
    return [torch.randint(-4, 5, shape).to(dtype) for shape in ((m, k), (k, n))]


@pytest.mark.parametrize("k", [512, 500, 243])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_parts_make_the_product(dtype, k, splits):
    a, b = factors(dtype, k=k)
    expected = a.double() @ b.double()
    assert torch.equal(ntops.torch.mm(a, b).double(), expected.to(dtype).double())
    assert torch.equal(ntops.torch.matmul(a[0], b).double(), expected[0].to(dtype).double())
    strided = torch.zeros(5, 600, dtype=dtype)[:, ::2]
    found = ntops.torch.mm(a.mT.contiguous().mT, b.mT.contiguous().mT, out=strided)
    assert found is strided
    assert torch.equal(found.double(), expected.to(dtype).double())


@pytest.mark.parametrize("beta", [0, 3])
def test_parts_are_scaled_and_added_once(beta):
    a, b = factors(torch.float32)
    added = torch.full((300,), float("nan")) if beta == 0 else torch.arange(300.0)
    expected = 2 * (a @ b) + (beta * added if beta else 0)
    with config_selection.forced("addmm", dataclasses.replace(OPTIONS, splits=4)):
        assert torch.equal(ntops.torch.addmm(added, a, b, alpha=2, beta=beta), expected)


def test_parts_are_added_up_in_one_order(splits):
    a, b = (x.normal_() for x in factors(torch.float32))
    first = ntops.torch.mm(a, b)
    torch.testing.assert_close(first, a @ b, rtol=1e-5, atol=1e-4)
    assert torch.equal(ntops.torch.mm(a, b), first)


def splits_of(m, n, k, batched=False, multiprocessors=132):
    problem = product_configs.Problem(m, n, k, torch.bfloat16, False, batched)
    return problem.rule(config_selection.Device(232448, multiprocessors)).splits


def test_k_is_split_where_programs_are_too_few():
    assert splits_of(1, 4096, 4096) == 4
    assert splits_of(16, 8192, 8192) == 2
    assert splits_of(1, 28672, 8192) == 1, "enough programs"
    assert splits_of(128, 4096, 4096) == 4
    assert splits_of(4096, 4096, 4096) == splits_of(2048, 2048, 8192) == 1
    assert splits_of(1, 4096, 1024) == 1, "parts of too few terms"
    assert splits_of(9, 4096, 4100) == 4, "parts that are not alike"
    assert splits_of(1, 4096, 4096, batched=True) == 1
    assert splits_of(1, 4096, 4096, multiprocessors=64) == 2


def test_parts_are_whole_steps_and_none_is_empty():
    allowed = [
        product_configs.Problem(1, 64, k, torch.float16, False).allows(dataclasses.replace(OPTIONS, splits=4))
        for k in (256, 200, 50, 48, 0)
    ]
    assert allowed == [True, True, True, False, False]
    for k, splits in itertools.product((*range(1, 300), 1000, 3000, 4100, 5003, 65536), (2, 3, 4, 6, 8)):
        part = split_k.part(k, splits)
        assert part * splits >= k
        assert part % (128 if k >= 512 * splits else 16) == 0, "of whole blocks where tiles are large"
        assert split_k.has_parts(k, splits) == all(first < k for first in range(0, part * splits, part))


def test_tf32_factors_have_k_innermost(tf32, monkeypatch):
    made, make = [], products.make
    monkeypatch.setattr(products, "make", lambda *args: made.append(args[3].unit_strides) or make(*args))
    a, b = factors(torch.float32, 130, 140, 48)
    for left, right in ((a, b), (a, b.mT.contiguous().mT), (a.mT.contiguous().mT, b)):
        assert torch.equal(ntops.torch.mm(left, right), a @ b)
    assert [dict(units) for units in made] == [{"output": 1, "input": 1, "mat2": 0}] * 3
    made.clear()
    ntops.torch.mm(a[:100], b)
    assert dict(made[0])["mat2"] == 1, "of few rows a copy takes longer"


def test_what_is_repeated_along_a_batch_is_copied_once(tf32):
    a, b = torch.randn(3, 50, 60), torch.randn(50, 60).expand(3, 50, 60)
    for matrices in (a, b, b.mT):
        found = products._k_major(matrices.mT)
        assert torch.equal(found, matrices.mT)
        assert found.stride(-1) == 1
        assert (found.stride(0) == 0) == (matrices.stride(0) == 0)


def test_all_rows_of_a_batch_make_one_product(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        config_selection, "choose", lambda kernel, problem, *ignored: sizes.append(problem.m) or OPTIONS
    )
    b = torch.randint(-4, 5, (24, 40)).float()
    for a in (torch.randint(-4, 5, (3, 2, 5, 24)).float(), torch.randint(-4, 5, (2, 3, 5, 24)).float().transpose(0, 1)):
        assert torch.equal(ntops.torch.matmul(a, b), a @ b)
        out = torch.zeros(3, 2, 5, 80)[..., ::2]
        assert torch.equal(ntops.torch.matmul(a, b, out=out), a @ b)
        assert torch.equal(ntops.torch.matmul(a, b[:, 0]), a @ b[:, 0])
    assert set(sizes) == {30}
