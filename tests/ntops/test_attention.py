"""Attention in every form of its inputs against its definition in float64."""

import itertools

import pytest
import torch
from attention_definition import DEVICE, DTYPES, assert_attends, random

import ntops
from ntops.kernels.scaled_dot_product_attention import CausalVariant

attend = ntops.torch.scaled_dot_product_attention
# Queries and keys: fewer, as many, more, across blocks; enough keys and few enough queries that keys are split.
LENGTHS = [(1, 1), (37, 53), (64, 64), (70, 33), (130, 129), (3, 300), (1, 513)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("causal", [None, CausalVariant.UPPER_LEFT, CausalVariant.LOWER_RIGHT])
def test_lengths_and_causal_variants(dtype, queries, keys, causal):
    query, key, value = (random(2, 2, size, 32, dtype=dtype, seed=i) for i, size in enumerate((queries, keys, keys)))
    result = attend(query, key, value, is_causal=causal is not None, causal_variant=causal)
    shift = {None: None, CausalVariant.UPPER_LEFT: 0, CausalVariant.LOWER_RIGHT: keys - queries}[causal]
    assert_attends(result, query, key, value, causal=shift)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "value_dim"), [(1, 1), (1, 256), (24, 16), (40, 1), (65, 17), (128, 96), (200, 64)])
@pytest.mark.parametrize("queries", [20, 100])
def test_head_dims(dtype, dim, value_dim, queries):
    query, key = random(1, 2, queries, dim, dtype=dtype), random(1, 2, 70, dim, dtype=dtype, seed=1)
    value = random(1, 2, 70, value_dim, dtype=dtype, seed=2)
    assert_attends(attend(query, key, value), query, key, value)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (6, 3), (6, 2), (6, 1), (7, 1), (12, 4)])
@pytest.mark.parametrize("queries", [1, 5, 50])
@pytest.mark.parametrize("causal", [None, 0, 40])
def test_grouped_heads(heads, kv_heads, queries, causal):
    query = random(2, heads, queries, 16)
    key, value = random(2, kv_heads, queries + 40, 16, seed=1), random(2, kv_heads, queries + 40, 24, seed=2)
    variant = CausalVariant.LOWER_RIGHT if causal else CausalVariant.UPPER_LEFT
    result = attend(query, key, value, is_causal=causal is not None, enable_gqa=True, causal_variant=variant)
    assert_attends(result, query, key, value, causal=causal)


MASK_SHAPES = [
    shape for count in range(5) for shape in itertools.product(*([1, size] for size in (2, 4, 37, 70)[-count:]))
]


@pytest.mark.parametrize("shape", sorted({shape if len(shape) < 5 else shape[1:] for shape in MASK_SHAPES}))
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast(shape, kind):
    query, key, value = random(2, 4, 37, 16), random(2, 2, 70, 16, seed=1), random(2, 2, 70, 16, seed=2)
    mask = random(*shape, seed=3)
    mask = mask > -0.5 if kind == "bool" else mask
    assert_attends(attend(query, key, value, mask, enable_gqa=True), query, key, value, mask=mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask_dtype", [None, torch.float32])
def test_values_of_float_masks(dtype, mask_dtype):
    """Finite numbers, -inf, the least number, which has no finite logarithm to base 2, and rows without a key."""
    query, key, value = (random(1, 2, size, 16, dtype=dtype, seed=i) for i, size in enumerate((9, 300, 300)))
    mask_dtype = mask_dtype or dtype
    mask = random(1, 1, 9, 300, dtype=mask_dtype, seed=4)
    mask[..., 0, 100:] = -torch.inf
    mask[..., 1, :200] = -torch.inf
    mask[..., 2, :] = -torch.inf
    mask[..., 3, 7:] = torch.finfo(mask_dtype).min
    mask[..., 4, :] = torch.finfo(torch.bfloat16 if mask_dtype is torch.float64 else mask_dtype).min
    mask[..., 5, ::2] = -20
    mask[..., 6, 299] = 12
    result = attend(query, key, value, mask)
    # In float64 alone the sum with the least number still tells scores apart; elsewhere that row is their mean.
    rows = [row for row in range(9) if row != 4 or dtype is torch.float64]
    assert_attends(result[:, :, rows], query[:, :, rows], key, value, mask=mask[:, :, rows])
    assert result[:, :, 2].eq(0).all()

    if dtype is not torch.float16:
        assert (result[:, :, 4].double() - value.double().mean(-2)).abs().max() < 0.05


@pytest.mark.parametrize("keys", [70, 300])
def test_rows_without_a_key_are_0(keys):
    query, key, value = random(2, 2, 3, 16), random(2, 2, keys, 16, seed=1), random(2, 2, keys, 16, seed=2)
    mask = torch.ones(2, 1, 3, keys, dtype=torch.bool, device=DEVICE)
    mask[0, :, 1] = False
    mask[1, :, 2, :200] = False
    assert_attends(attend(query, key, value, mask), query, key, value, mask=mask)
    shifted = attend(
        random(1, 1, 90, 16),
        key[:1, :1, :60],
        value[:1, :1, :60],
        is_causal=True,
        causal_variant=CausalVariant.LOWER_RIGHT,
    )
    assert shifted[..., :30, :].eq(0).all()
    assert shifted[..., 30:, :].ne(0).all()


def test_layouts():
    base = random(2, 90, 3, 4, 64)
    query, key, value = (base[:, :, i].transpose(1, 2) for i in range(3))
    mask = random(2, 1, 180, 90, seed=5).mT[..., ::2]
    assert_attends(result := attend(query, key, value, mask), query, key, value, mask=mask)
    # Dims keep the order that the query's have, so that the heads can be joined without a copy.
    assert result.transpose(1, 2).is_contiguous()
    assert attend(query.contiguous(), key, value).is_contiguous()
    sliced = base[:, 1::2, 1, :, 3:60:3].transpose(1, 2)
    assert_attends(attend(sliced, sliced, value[:, :, 1::2]), sliced, sliced, value[:, :, 1::2])
    flipped = random(2, 4, 64, 90).mT
    assert_attends(attend(query, flipped, flipped), query, flipped, flipped)
    expanded = random(1, 1, 1, 64).expand(2, 4, 70, 64)
    assert_attends(attend(expanded, expanded, expanded), expanded, expanded, expanded)


def test_three_dims():
    query, key, value = random(4, 9, 16), random(2, 33, 16, seed=1), random(2, 33, 8, seed=2)
    mask = random(4, 1, 33) > 0
    assert_attends(attend(query, key, value, mask, enable_gqa=True), query, key, value, mask=mask)
    assert_attends(attend(query, query, query, is_causal=True), query, query, query, causal=0)


@pytest.mark.parametrize("scale", [None, 1, 0.3, 0.0, -0.7, torch.tensor(2.0)])
@pytest.mark.parametrize("masked", [False, True])
def test_scales(scale, masked):
    query, key, value = random(1, 2, 9, 16), random(1, 2, 200, 16, seed=1), random(1, 2, 200, 16, seed=2)
    mask = random(9, 200) if masked else None
    how = {"scale": None if scale is None else float(scale), "mask": mask}
    assert_attends(attend(query, key, value, mask, scale=scale), query, key, value, **how)


@pytest.mark.parametrize("shape", [(0, 2, 5, 7), (2, 0, 5, 7), (2, 2, 0, 7), (2, 2, 5, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_empty(shape, causal):
    batch, heads, queries, keys = shape
    result = attend(random(batch, heads, queries, 8), *random(2, batch, heads, keys, 8), is_causal=causal)
    assert result.shape == (batch, heads, queries, 8)
    assert result.eq(0).all()


def test_what_is_not_finite_goes_where_it_takes_part():
    query, key, value = random(1, 1, 4, 16), random(1, 1, 6, 16, seed=1), random(1, 1, 6, 16, seed=2)
    key[..., 3, 2] = torch.nan
    result = attend(query, key, value, is_causal=True)
    assert result[..., :3, :].isfinite().all()
    assert result[..., 3, :].isnan().all()
    mask = torch.arange(6, device=DEVICE) != 3
    assert attend(query, key, value, mask).isfinite().all()
    key[..., 3, :] = torch.inf
    assert attend(query.abs(), key, value).isnan().all()
    value[..., 3, 5] = torch.nan
    assert attend(query, key.nan_to_num(0, 0, 0), value).isnan().all(-2).squeeze().tolist() == [
        i == 5 for i in range(16)
    ]


@pytest.mark.parametrize("variant", [1, 2])
def test_torch_s_variants(variant):
    from torch.nn.attention.bias import CausalVariant as torch_variants

    assert [int(member) for member in torch_variants] == [int(member) for member in CausalVariant]
    query, key = random(1, 1, 5, 8), random(1, 1, 9, 8, seed=1)
    results = [
        attend(query, key, key, is_causal=True, causal_variant=v(variant)) for v in (CausalVariant, torch_variants)
    ]
    assert torch.equal(*results)


@pytest.mark.slow
def test_configurations_agree(monkeypatch):
    from ntops.host import attention_configs

    query, key, value = random(1, 4, 70, 40), random(1, 2, 300, 40, seed=1), random(1, 2, 300, 24, seed=2)
    mask = random(1, 4, 70, 300) > 0

    for block_m, block_n, splits in itertools.product((16, 64), (16, 64), (1, 2, 5, 40)):
        chosen = attention_configs.Config(block_m, block_n, splits)
        monkeypatch.setattr(attention_configs, "config", lambda *, chosen=chosen, **sizes: chosen)

        for how, arguments in (
            ({}, {}),
            ({"mask": mask}, {"attn_mask": mask}),
            ({"causal": 230}, {"is_causal": True, "causal_variant": CausalVariant.LOWER_RIGHT}),
        ):
            assert_attends(attend(query, key, value, enable_gqa=True, **arguments), query, key, value, **how)
