"""Every configuration that a heuristic can choose is listed, and can be had for any call."""

import dataclasses
import itertools

import pytest
import torch

import ntops
from ntops.host import attention_configs, elementwise, few_rows, mm_hopper, product_configs, products, rope, rows
from ntops.host.promotion import accumulate_dtype
from ntops.launch import config_selection, configuration, recorder

SIZES = (*(2**power + more for power in range(15) for more in (-1, 0, 1) if 2**power + more > 0), 10**5, 2**20)
HALF = torch.bfloat16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("memory", "described"), [(65536, False), (232448, False), (232448, True)])
def test_products_list_all(dtype, memory, described):
    """But for the number of splits, which any may have."""
    described = described and dtype is not torch.float64
    # Of so many terms, that each number of parts divides them. Of fewer, small products have other forms; of rows that
    # begin anywhere, others.
    rest = (3 * 2**13, dtype, False, memory, 132, described)
    others = ((terms, *rest[1:]) for terms in (1024, 1001, 128, 101, 64))

    def blocks(options):
        return dataclasses.replace(options, splits=1)

    known = product_configs.config.alternatives(1, 1, *rest)
    sizes = (*SIZES, *(11 * 2**power for power in range(12)))
    kinds = [rest, *others]
    found = [product_configs.config(m, n, *one) for m, n in itertools.product(sizes, sizes) for one in kinds]
    assert {blocks(options) for options in found} == {blocks(options) for options in known}
    assert {options.splits for options in known} > {1}
    assert product_configs.FEW_ROWS in {options.form for options in known}
    assert (product_configs.HOPPER in {options.form for options in known}) == described


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("described", [False, True])
def test_products_list_the_same_for_any_number_of_products(dtype, described):
    """A fixed configuration is a number, so it must mean the same for a batch and for a part of it."""
    rest = (1024, dtype, False, 232448, 132, described and dtype is not torch.float64, True)
    known = [product_configs.config.alternatives(1, 1, *rest, products) for products in (1, 2, 3, 64, 1000)]
    assert all(one == known[0] for one in known)
    assert len(known[0]) > 1
    sizes = (*SIZES, *(11 * 2**power for power in range(12)))[::2]
    found = {
        product_configs.config(m, n, terms, *rest[1:], products)
        for m, n, terms, products in itertools.product(sizes, sizes, (1024, 128, 64), (1, 3, 64, 1000))
    }
    assert found <= {*known[0]}


@pytest.mark.parametrize("tensors", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rows_list_all(dtype, tensors):
    rest = (dtype, accumulate_dtype(dtype), tensors)
    known = set(rows.config.alternatives(1, *rest))
    assert {rows.config(columns, *rest) for columns in SIZES} == known


@pytest.mark.parametrize(
    ("columns", "dtype", "tensors", "tile", "num_warps"),
    [
        (16384, HALF, 2, 4096, 16),
        (20480, HALF, 2, 4096, 16),
        (32768, HALF, 4, 8192, 32),
        (65536, HALF, 3, 8192, 32),
        (32768, torch.float32, 2, 4096, 32),
        (65536, torch.float32, 2, 8192, 32),
        (16384, torch.float32, 3, 4096, 32),
        (32768, torch.float32, 3, 8192, 32),
        (65536, torch.float32, 4, 4096, 32),
    ],
)
def test_rows_that_are_walked(columns, dtype, tensors, tile, num_warps):
    """In tiles that divide them, where they are not too long for that to matter."""
    assert rows.config(columns, dtype, torch.float32, tensors) == rows.Options(1, tile, num_warps)


@pytest.mark.parametrize(("interleaved", "heads", "pairs"), [(False, 128, 64), (True, 170, 48), (False, 8, 1024)])
def test_rows_of_heads_are_walked_before_they_spill(interleaved, heads, pairs):
    chosen, looped, whole = rope.config(heads, pairs, torch.float32, interleaved)
    blocks = dict(chosen.blocks)
    assert (2 * blocks["block_heads"] * blocks["block_pairs"], looped, whole) == (8192, True, False)
    assert rope.config(heads // 4, pairs, torch.float32, interleaved)[1:] == (False, interleaved)


@pytest.mark.parametrize(("ndim", "across", "count"), [(1, None, 1), (2, None, 13), (2, 0, 14), (3, 1, 14)])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("light", [False, True])
def test_elementwise_lists_all(ndim, across, count, itemsize, light):
    known = set(elementwise.config.alternatives(ndim, across, 1, 1, 1, itemsize, light))
    sizes = itertools.product(SIZES, (1, 64), (1, 2, 3, 4, 8, 9, 16, 17, 33, 64, 2048))
    found = {elementwise.config(ndim, across, *one, itemsize, light) for one in sizes}
    assert found == known
    # Of larger elements, and where next to nothing is computed, long rows and short ones are tiled alike.
    assert len(known) == (max(count - 1, 1) if itemsize == 4 or light else count)


@pytest.mark.parametrize(("dtype", "ieee"), [(torch.float16, False), (torch.float32, True), (torch.float32, False)])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_attention_lists_all(dtype, ieee, dim):
    """But for the number of splits, of which any is like any other."""
    for causal, mask_bytes, aligned in itertools.product((False, True), (0, 1), (False, True)):
        rest = (dim, dim, dtype, ieee, causal, mask_bytes, aligned, 232448, 132)

        def blocks(config):
            return config.block_m, config.block_n, config.num_warps, config.num_stages

        known = attention_configs.config.alternatives(1, 1, 1, *rest)
        sizes = itertools.product(SIZES, (1, 1024), (1, 500, 10**6))
        found = [attention_configs.config(*size, *rest) for size in sizes]
        assert {blocks(config) for config in found} == {blocks(config) for config in known}
        assert {config.splits for config in known} == {1, 16}


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("sizes", [(7, 8), (1, 512), (16, 4096), (64, 64), (300, 200)])
def test_no_part_of_a_product_is_empty(sizes, described):
    """161,536 terms in 128 parts of whole blocks would fill 127 of them."""
    kinds = list(itertools.product((HALF, torch.float32), (0, 161_536, *range(1024, 400_000, 4_099))))
    chosen = [
        (k, product_configs.config(*sizes, k, dtype, False, 232448, 132, described=described)) for dtype, k in kinds
    ]
    of_rows = [(k, options) for k, options in chosen if options.form == product_configs.FEW_ROWS]
    assert all(product_configs._has_parts(options, *sizes, k) for k, options in chosen if (k, options) not in of_rows)
    few = [(-(-k // options.block_k), options) for k, options in of_rows]
    assert all((options.splits - 1) * -(-steps // options.splits) < max(steps, 1) for steps, options in few)
    assert len({options.splits for _, options in chosen}) > 1


def test_a_fixed_one_is_had_whatever_the_sizes(monkeypatch):
    made = []
    monkeypatch.setattr(products, "make", lambda *arguments: made.append(arguments[2]) or (lambda *tensors: None))
    monkeypatch.setattr(few_rows, "launch", lambda chosen, *tensors: made.append(chosen))
    monkeypatch.setattr(mm_hopper, "launch", lambda chosen, *tensors: made.append(chosen))
    # Of so few terms there are no parts.
    few, many = (torch.empty(size, 10, dtype=HALF, device=DEVICE) for size in (10, 100))

    with configuration.fixed() as names:
        ntops.torch.mm(few, few.mT)

    assert len(names) > 10

    for number in range(len(names) + 1):
        with configuration.fixed(number) as same:
            ntops.torch.mm(few, few.mT)
            ntops.torch.mm(many, many.mT)

        assert same == names
        assert made[-1] == made[-2]

    # The first one, all, and again the first of these.
    assert len(set(made[1::2])) == len(names)
    assert made[1] == made[-1]

    ntops.torch.mm(few, few.mT)
    assert made[-1] == made[0]


def test_what_was_measured_does_not_hide_the_others(monkeypatch):
    made = []
    monkeypatch.setattr(products, "make", lambda *arguments: made.append(arguments[2]) or (lambda *tensors: None))
    monkeypatch.setattr(few_rows, "launch", lambda chosen, *tensors: made.append(chosen))
    monkeypatch.setattr(mm_hopper, "launch", lambda chosen, *tensors: made.append(chosen))
    measured = product_configs.Options(32, 64, 32, 4, 2)
    monkeypatch.setattr(config_selection, "_measured", lambda *arguments: measured)
    square = torch.empty(100, 100, dtype=HALF, device=DEVICE)

    with configuration.fixed() as names:
        ntops.torch.mm(square, square)

    assert len(names) > 10
    assert dict(made[-1].blocks) == {"block_size_m": 32, "block_size_n": 64, "block_size_k": 32}

    with configuration.fixed(0):
        ntops.torch.mm(square, square)

    assert made[-1] != made[0]


def test_no_choice_is_one_name_and_no_kernel_none():
    with configuration.fixed(1) as names:
        ntops.torch.add(torch.ones(3, device=DEVICE), 1)

    assert len(names) == 1

    with configuration.fixed(1) as names:
        ntops.torch.add(torch.ones(0, device=DEVICE), 1)

    assert names == []


def test_a_property_that_did_not_hold_is_not_used():
    assert configuration.settled("aligned", True)

    with configuration.fixed(0):
        assert configuration.settled("other", True)
        assert not configuration.settled("other", False)
        assert not configuration.settled("aligned", False)
        assert not configuration.settled("aligned", True)

    with configuration.fixed():
        assert configuration.settled("aligned", True)


def test_recorded_calls_are_forgotten(monkeypatch):
    forgotten = []
    monkeypatch.setattr(recorder, "forget", lambda: forgotten.append(True))

    with configuration.fixed(0):
        assert len(forgotten) == 1

    assert len(forgotten) == 2

    with configuration.fixed():
        assert len(forgotten) == 3

    # What was recorded while the library chose may be repeated.
    assert len(forgotten) == 3
