"""``conformance.benchmarks.tiles`` times products and tiles that calls can have."""

from __future__ import annotations

import torch

from conformance.benchmarks import tiles
from ntops.host import mm_hopper, product_configs
from ntops.launch.config_selection import Device

H200 = Device(232448, 132)


def test_products_are_those_that_descriptors_take_as_they_are():
    found = tiles.drawn(60, [1, 2])
    assert found == tiles.drawn(60, [1, 2])
    assert {one[4] for one in found} == {"bfloat16", "float32"}
    assert {one[5] for one in found} == {False, True}
    for _, _, n, k, dtype, _ in found:
        unit = 8 if dtype == "bfloat16" else 4
        assert n % unit == k % unit == 0


def test_every_configuration_is_one_that_a_call_can_have():
    for product in tiles.drawn(60, [1]):
        batch, m, n, k, dtype, _ = product
        kind = {"dtype": getattr(torch, dtype), "ieee": False, "batched": bool(batch), "described": True}
        problem = product_configs.Problem(m, n, k, **kind, products=max(batch, 1))
        found = [*tiles.configurations(product, H200.multiprocessors)]
        assert found
        for options in found:
            assert problem.exists(options)
            assert problem.allows(options)
            assert problem.resources(options).fit(H200)
        *rule, _ = mm_hopper.fastest(m, n, k, kind["dtype"], H200.multiprocessors, batch)
        assert product_configs.Options(*rule, form=product_configs.HOPPER) in found
