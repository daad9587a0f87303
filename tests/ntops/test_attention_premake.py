"""The form of attention in NineToothed, which others build ahead of time."""

import pytest
import torch
from attention_definition import DEVICE, assert_attends, random

import ntops  # noqa: F401  (it chooses compiled or interpreted before Triton is imported, which NineToothed does)

# isort: split
import ninetoothed

from ntops.kernels.scaled_dot_product_attention import premake


@pytest.mark.parametrize(("queries", "keys"), [(37, 53), (70, 33)])
@pytest.mark.parametrize("how", ["full", "upper left", "lower right", "mask"])
def test_the_form_in_ninetoothed(queries, keys, how):
    query = random(2, 6, queries, 24)
    key, value = random(2, 2, keys, 24, seed=1), random(2, 2, keys, 40, seed=2)
    mask = random(2, 6, queries, keys, seed=3)
    mask[:, :, 5] = -torch.inf
    shift = {"upper left": 0, "lower right": keys - queries}.get(how)
    blocks = {"block_size_m": 32, "block_size_n": 32, "block_size_e": 32, "block_size_ev": 64}
    kernel = ninetoothed.make(
        *premake(
            is_causal=shift is not None,
            is_masked=how == "mask",
            compute_dtype="fp32",
            input_precision="ieee",
            **blocks,
        ),
        kernel_name="attention",
        num_warps=4,
        num_stages=1,
    )
    output = torch.empty(2, 6, queries, 40, device=DEVICE)
    by_group = [tensor.unflatten(1, (2, 3)) for tensor in (output, query, mask)]
    kernel(by_group[0], by_group[1], key[:, :, None], value[:, :, None], by_group[2], 24**-0.5, shift or 0)
    assert_attends(output, query, key, value, mask=mask if how == "mask" else None, causal=shift)
