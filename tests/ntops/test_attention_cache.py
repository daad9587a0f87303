"""KV caches: what is written, what is read, and what is refused before anything is written."""

import pytest
import torch
from attention_definition import DEVICE, assert_attends, random

import ntops
from ntops.kernels.scaled_dot_product_attention import CausalVariant

attend = ntops.torch.scaled_dot_product_attention
HEADS, KV_HEADS, DIM, VALUE_DIM, CAPACITY = 4, 2, 24, 16, 90
LAYOUTS = ["contiguous", "rows first", "sliced"]


def caches(batch, layout="contiguous", dtype=torch.float32, capacity=CAPACITY):
    """A key and a value cache full of NaN, which must neither be read nor changed."""
    shapes = [(batch, KV_HEADS, capacity, DIM), (batch, KV_HEADS, capacity, VALUE_DIM)]
    made = []

    for b, heads, rows, width in shapes:
        if layout == "rows first":
            made.append(torch.full((b, rows, heads, width), torch.nan, dtype=dtype, device=DEVICE).transpose(1, 2))
        elif layout == "sliced":
            base = torch.full((b + 1, heads, rows + 3, 2 * width + 1), torch.nan, dtype=dtype, device=DEVICE)
            made.append(base[1:, :, 2:-1, 1::2])
        else:
            made.append(torch.full((b, heads, rows, width), torch.nan, dtype=dtype, device=DEVICE))

    return made


def new_rows(batch, count, dtype=torch.float32, seed=0):
    return (
        random(batch, HEADS, count, DIM, dtype=dtype, seed=seed),
        random(batch, KV_HEADS, count, DIM, dtype=dtype, seed=seed + 100),
        random(batch, KV_HEADS, count, VALUE_DIM, dtype=dtype, seed=seed + 200),
    )


def bits(tensor):
    """What is in memory, to be compared with NaN and all."""
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["int", "tensor", "views"])
def test_prefill_then_chunks_then_tokens(form, layout, dtype):
    cached = caches(2, layout, dtype)
    histories = []
    slot = 0

    for step, count in enumerate((37, 1, 1, 20, 1)):
        query, key, value = new_rows(2, count, dtype, step)
        histories.append((key, value))
        stop = slot + count
        causal = {"is_causal": True, "enable_gqa": True}

        if form == "views":
            views = [cache[:, :, slot:stop] for cache in cached]
            result = attend(
                query,
                *(cache[:, :, :stop] for cache in cached),
                **causal,
                causal_variant=CausalVariant.LOWER_RIGHT,
                present_key=key,
                present_value=value,
                present_key_slot=views[0],
                present_value_slot=views[1],
            )
        else:
            where = slot if form == "int" else torch.tensor([slot, slot], device=DEVICE)
            result = attend(query, key, value, **causal, **_positions(cached, where))

        keys, values = (torch.cat(parts, 2) for parts in zip(*histories, strict=True))
        assert_attends(result, query, keys, values, causal=slot)
        expected = [torch.full_like(cache, torch.nan) for cache in cached]

        for cache, rows, wanted in zip(cached, (keys, values), expected, strict=True):
            wanted[:, :, :stop] = rows
            assert torch.equal(bits(cache), bits(wanted))

        slot = stop


def _positions(cached, slot):
    return {"present_key": cached[0], "present_value": cached[1], "present_key_slot": slot}


@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("causal", [None, CausalVariant.UPPER_LEFT, CausalVariant.LOWER_RIGHT, "default"])
def test_sequences_of_different_lengths(count, slot_dtype, causal):
    positions = [0, 50, 13, CAPACITY - count]
    cached = caches(4)
    before = [random(*cache.shape, seed=7 + i) for i, cache in enumerate(cached)]

    for sequence, position in enumerate(positions):
        for cache, rows in zip(cached, before, strict=True):
            cache[sequence, :, :position] = rows[sequence, :, :position]

    query, key, value = new_rows(4, count)
    how = {} if causal is None else {"is_causal": True, "causal_variant": None if causal == "default" else causal}
    slots = torch.tensor(positions, dtype=slot_dtype, device=DEVICE)
    result = attend(query, key, value, enable_gqa=True, **how, **_positions(cached, slots), present_value_slot=slots)

    for i, position in enumerate(positions):
        part = slice(i, i + 1)
        keys, values = (
            torch.cat([rows[part, :, :position], new[part]], 2) for rows, new in zip(before, (key, value), strict=True)
        )
        shift = None if causal is None else 0 if causal is CausalVariant.UPPER_LEFT else position
        assert_attends(result[part], query[part], keys, values, causal=shift)

        for cache, rows in zip(cached, (keys, values), strict=True):
            assert torch.equal(bits(cache[part, :, : position + count]), bits(rows))
            assert cache[part, :, position + count :].isnan().all()


@pytest.mark.parametrize("slot", [5, [5, 30]])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_a_cache(slot, dtype):
    cached = caches(2)
    old = [random(*cache.shape, seed=9) for cache in cached]
    positions = slot if isinstance(slot, list) else [slot, slot]

    for cache, rows in zip(cached, old, strict=True):
        for i, position in enumerate(positions):
            cache[i, :, :position] = rows[i, :, :position]

    query, key, value = new_rows(2, 3)
    mask = random(1, HEADS, 3, max(positions) + 3)
    mask = mask > 0 if dtype is torch.bool else mask
    where = torch.tensor(slot, device=DEVICE) if isinstance(slot, list) else slot
    result = attend(query, key, value, mask, enable_gqa=True, **_positions(cached, where))

    for i, position in enumerate(positions):
        keys, values = (cache[i : i + 1, :, : position + 3] for cache in cached)
        assert_attends(result[i : i + 1], query[i : i + 1], keys, values, mask=mask[..., : position + 3])


@pytest.mark.parametrize("split", [False, True])
def test_long_caches_are_read_in_parts(split):
    query, key, value = new_rows(3, 1)
    cached = caches(3, capacity=700 if split else 100)
    lengths = [690, 3, 200] if split else [90, 3, 20]

    for i, position in enumerate(lengths):
        for cache in cached:
            cache[i, :, :position] = random(*cache[i, :, :position].shape, seed=i)

    slots = torch.tensor(lengths, device=DEVICE)
    result = attend(query, key, value, enable_gqa=True, is_causal=True, **_positions(cached, slots))

    for i, position in enumerate(lengths):
        keys, values = (cache[i : i + 1, :, : position + 1] for cache in cached)
        assert_attends(result[i : i + 1], query[i : i + 1], keys, values)


def test_three_dims():
    cached = [cache[0] for cache in caches(1)]
    query, key, value = (rows[0] for rows in new_rows(1, 8))
    result = attend(query, key, value, is_causal=True, enable_gqa=True, **_positions(cached, 0))
    assert_attends(result, query, key, value, causal=0)

    with pytest.raises(RuntimeError, match="must be an int where tensors have no batch dim"):
        attend(query, key, value, enable_gqa=True, **_positions(cached, torch.tensor([0], device=DEVICE)))


REFUSED = [
    ({"present_key_slot": -1}, RuntimeError, "-1; positions are not negative"),
    ({"present_key_slot": CAPACITY - 2}, RuntimeError, "88: with 3 new rows that is past the capacity"),
    ({"present_key_slot": torch.tensor([0, CAPACITY - 2])}, RuntimeError, "past the capacity"),
    ({"present_key_slot": torch.tensor([3, -2])}, RuntimeError, "not negative"),
    ({"present_key_slot": torch.tensor([3])}, RuntimeError, "be a position for each of 2 sequences"),
    ({"present_key_slot": torch.tensor([3, 3]), "present_value_slot": 3}, RuntimeError, "both ints or both tensors"),
    ({"present_key_slot": torch.tensor([True, False])}, TypeError, "an int or a tensor of integers"),
    ({"present_key_slot": "1"}, TypeError, "'present_key_slot' must be an int or a tensor, not str"),
    ({"present_value_slot": 4}, RuntimeError, "must be equal"),
    ({"present_key_slot": torch.tensor([1, 2]), "present_value_slot": torch.tensor([1, 3])}, RuntimeError, "be equal"),
    ({"present_key": None}, RuntimeError, "'present_key' is missing"),
    ({"present_key_slot": None}, RuntimeError, "'present_key_slot' is missing"),
    ({"present_value": torch.zeros(2, KV_HEADS, CAPACITY - 1, VALUE_DIM)}, RuntimeError, "a capacity of 89"),
    ({"present_value": torch.zeros(2, KV_HEADS, CAPACITY, VALUE_DIM + 1)}, RuntimeError, "'present_value' has shape"),
    (
        {"present_value": torch.zeros(2, 1, CAPACITY, VALUE_DIM, device=DEVICE).expand(2, KV_HEADS, -1, -1)},
        RuntimeError,
        "expanded",
    ),
    ({"present_value": torch.zeros(2, KV_HEADS, CAPACITY, VALUE_DIM).half()}, RuntimeError, "float16, but the rows"),
    ({"attn_mask": torch.zeros(3, 5)}, RuntimeError, "'attn_mask' .* does not broadcast"),
    ({"is_causal": True, "attn_mask": torch.zeros(3, 6)}, RuntimeError, "cannot both be given"),
    ({"dropout_p": 0.5}, NotImplementedError, "dropout"),
]


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED)
def test_what_is_refused_leaves_the_cache_as_it_is(changed, error, message):
    cached = [cache.zero_() for cache in caches(2)]
    query, key, value = new_rows(2, 3)
    changed = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) and "slot" not in k else v for k, v in changed.items()}

    with pytest.raises(error, match=message):
        attend(query, key, value, enable_gqa=True, **_positions(cached, 3) | changed)

    assert not any(cache.any() for cache in cached)


def test_views_that_do_not_fit_are_refused():
    cached = [cache.zero_() for cache in caches(2)]
    query, key, value = new_rows(2, 3)
    slots = {"present_key_slot": cached[0][:, :, :3], "present_value_slot": cached[1][:, :, :2]}

    with pytest.raises(RuntimeError, match="'present_value' and 'present_value_slot' must have one shape"):
        attend(query, *cached, enable_gqa=True, present_key=key, present_value=value, **slots)

    assert not any(cache.any() for cache in cached)


def test_out_of_range_positions_on_a_device_write_nothing(monkeypatch):
    """What is on a GPU is not looked at, unless it is asked for; here the kernel itself is called."""
    from ntops.host import kv_cache as caching

    cached = [cache.zero_() for cache in caches(4)]
    _, key, value = new_rows(4, 3)
    caching.write(cached, (key, value), torch.tensor([-2, CAPACITY - 1, 2**40, -(2**40)], device=DEVICE))
    assert torch.equal(cached[0][0, :, :1], key[0, :, 2:])
    assert torch.equal(cached[1][1, :, -1:], value[1, :, :1])
    cached[0][0, :, :1] = cached[0][1, :, -1:] = cached[1][0, :, :1] = cached[1][1, :, -1:] = 0
    assert not any(cache.any() for cache in cached)


@pytest.mark.skipif(DEVICE == "cpu", reason="positions on the CPU are always looked at")
def test_positions_on_a_gpu_are_looked_at_if_asked(monkeypatch):
    cached = [cache.zero_() for cache in caches(2)]
    query, key, value = new_rows(2, 3)
    slots = torch.tensor([0, CAPACITY - 2], device=DEVICE)
    attend(query, key, value, enable_gqa=True, **_positions(cached, slots))
    assert torch.equal(cached[0][0, :, :3], key[0])
    monkeypatch.setenv("NTOPS_CHECK", "1")
    good = torch.tensor([0, CAPACITY - 3], device=DEVICE)

    for _ in range(3):
        attend(query, key, value, enable_gqa=True, **_positions(cached, good))

    with pytest.raises(RuntimeError, match="past the capacity"):
        attend(query, key, value, enable_gqa=True, **_positions(cached, slots))
