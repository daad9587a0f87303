"""Attention in the form for Hopper: against its definition and the other form on such a GPU, its schedule anywhere."""

import dataclasses
import itertools

import pytest
import torch
from attention_definition import assert_attends, random
from hopper import hopper

import ntops
from ntops.host import attention_configs, attention_hopper, attention_times
from ntops.kernels.scaled_dot_product_attention import CausalVariant
from ntops.launch import config_selection

OP = "scaled_dot_product_attention"
H200 = config_selection.Device(232448, 132)
attend = ntops.torch.scaled_dot_product_attention
DIMS = (64, 72, 96, 128, 192, 256)
CONFIGS = [pytest.param(dim, one, id=f"{dim}-{one}") for dim in DIMS for one in attention_configs.hopper_space(dim, 0)]
MASKED = [pytest.param(dim, one, id=f"{dim}-{one}") for dim in DIMS for one in attention_configs.hopper_space(dim, 1)]
PORTABLE = attention_configs.Config(64, 64, 1, 4, 2)


# --- the schedule and the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 8, 40, 128, 200])
@pytest.mark.parametrize("row_tiles", [1, 2, 7, 32, 128])
def test_every_tile_is_taken_once_and_programs_do_alike(heads, row_tiles, causal, cached, monkeypatch):
    from ntops.kernels import attention_hopper as kernels

    monkeypatch.setattr(kernels, "_place", kernels._place.fn)
    key_bytes = attention_hopper.CACHED + (not cached)
    given = heads, row_tiles, causal, key_bytes, H200.multiprocessors
    units, units_per_head, together, programs = attention_hopper.schedule(*given)
    taken, work = [], [0] * programs

    for program in range(programs):
        for turn in range(kernels._count.fn(program, programs, units)):
            place = turn, program, programs, units_per_head, row_tiles, together
            head, tile, other, has_other = kernels._unit.fn(*place)

            for one in (tile, other)[: 1 + has_other]:
                taken.append((head, one))
                work[program] += one + 1 if causal else 1

    assert sorted(taken) == [(head, tile) for head in range(heads) for tile in range(row_tiles)]

    if units_per_head < row_tiles:
        assert max(work) <= -(-units // programs) * (row_tiles + 1)
    else:
        assert programs == min(len(taken), H200.multiprocessors)
        mean = sum(work) / programs
        assert max(work) < max(mean + 2, 1.01 * mean) or len(taken) == programs


def problem(queries=4096, keys=4096, heads=32, dim=128, gluon=True, **others):
    known = attention_configs.Problem(queries, heads, keys, dim, dim, torch.bfloat16, False, False, 0, True, gluon)
    return dataclasses.replace(known, **others)


def test_what_is_chosen():
    for dim, causal, mask in itertools.product(DIMS, (False, True), (0, 1, 2)):
        large = problem(dim=dim, causal=causal, mask_bytes=mask)
        chosen, space = large.rule(H200), attention_configs.hopper_space(dim, mask)
        assert chosen in space
        assert set(space) <= set(large.candidates(H200))
        assert not dataclasses.replace(large, gluon=False).allows(chosen)

    for other in (problem(gluon=False), problem(queries=128), problem(heads=1, queries=1000), problem(128, dim=64)):
        assert other.rule(H200).warp_groups == 1


def test_a_form_that_is_estimated_is_one_that_may_be_chosen():
    for (dims, _), forms in attention_times.FORMS.items():
        known = {
            (one.block_m, one.block_n, one.num_stages, one.warp_groups) for one in attention_configs.HOPPER_SPACE[dims]
        }
        found = {(one.block_m, one.block_n, one.num_stages, one.warp_groups) for one in forms if one.warp_groups > 1}
        assert found
        assert found <= known


def test_what_is_measured_has_the_parts_that_the_rule_takes():
    device = config_selection.Device(multiprocessors=132, shared_memory=232448, hopper=True)
    problem = attention_configs.Problem(4, 8, 1500, 128, 128, torch.bfloat16, False, False, 0, True)
    chosen = problem.rule(device).splits
    assert chosen > 1
    assert chosen in {one.splits for one in problem.space(device)}


def test_tiles_leave_little_of_the_last_turn_idle():
    for queries, heads, groups in ((4608, 24, 2), (1500, 16, 1), (2048, 80, 4), (577, 256, 2), (4096, 128, 4)):
        assert problem(queries, queries, heads, 64).rule(H200).warp_groups == groups
    # Keys that are padded to 128 would be, or to 64.
    for keys, block in ((154, 64), (512, 128), (4096, 128)):
        assert problem(keys=keys).rule(H200).block_n == block


def test_a_fixed_configuration_may_be_any_of_both_forms():
    fields = {field.name: getattr(problem(), field.name) for field in dataclasses.fields(problem())}
    known = attention_configs.config.alternatives(**fields, **dataclasses.asdict(H200))
    assert {config.warp_groups for config in known} == {1, 2}
    # Of a group of heads there are sizes among the alternatives with fewer rows than heads.
    grouped = attention_configs.config.alternatives(**fields | {"group": 8, "causal": True}, **dataclasses.asdict(H200))
    assert {config.warp_groups for config in grouped} == {1, 2}


# --- on a GPU ------------------------------------------------------------------------------------------------------


def inputs(queries, keys, dim, dtype=torch.bfloat16, batch=2, heads=4, kv_heads=2):
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim)
    return [random(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


def check(config, tensors, causal=None, mask=None, **how):
    """The result in this configuration. It and that of the other form are both within the bound of the definition, so
    that they are within twice the bound of each other."""
    query, key, _ = tensors
    variants = {None: None, "upper left": CausalVariant.UPPER_LEFT, "lower right": CausalVariant.LOWER_RIGHT}
    how |= {"enable_gqa": True, "is_causal": causal is not None, "causal_variant": variants[causal]}
    how |= {} if mask is None else {"attn_mask": mask}
    asked = config_selection.asked(attend, *tensors, **how)
    assert asked is not None
    assert asked[1].allows(config), "the form takes the call"

    with config_selection.forced(OP, config):
        result = attend(*tensors, **how)

    with config_selection.forced(OP, PORTABLE):
        portable = attend(*tensors, **how)

    shift = {None: None, "upper left": 0, "lower right": key.shape[2] - query.shape[2]}[causal]

    for found in (result, portable):
        assert_attends(found, *tensors, mask, causal=shift, scale=how.get("scale"))

    assert result.stride() == portable.stride()

    return result


@hopper
@pytest.mark.parametrize(("dim", "config"), CONFIGS)
@pytest.mark.parametrize("causal", [None, "upper left", "lower right"])
def test_lengths_and_causal_variants(dim, config, causal):
    for queries, keys in ((64, 64), (256, 256), (300, 1), (257, 700), (700, 257), (1000, 1024)):
        check(config, inputs(queries, keys, dim), causal)


@hopper
@pytest.mark.parametrize(("dim", "config"), MASKED)
@pytest.mark.parametrize("kind", ["bool", "added", "float32"])
def test_masks(dim, config, kind):
    for queries, keys in ((64, 64), (300, 1), (257, 700), (1000, 333)):
        tensors = inputs(queries, keys, dim)
        for shape in ((2, 4, queries, keys), (queries, keys), (2, 1, 1, keys), (4, 1, keys), (1, 1, queries, 1)):
            kept = random(*shape) > -0.5
            mask = kept
            if kind != "bool":
                dtype = torch.float32 if kind == "float32" else torch.bfloat16
                mask = random(*shape, dtype=dtype, seed=1).masked_fill(~kept, -torch.inf)
                # With few dims the portable form takes float masks that are aligned; these are not.
                mask = torch.nn.functional.pad(mask, (0, 1))[..., :-1] if dim <= 64 else mask
            check(config, tensors, mask=mask)
    # All of what a row has is masked: by a mask of bools or -inf it is 0, by the least finite number it counts alike.
    query, key, value = inputs(100, 200, dim)
    least = torch.full((100, 200), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16, device=query.device)
    with config_selection.forced(OP, config):
        found = attend(query, key, value, least, enable_gqa=True)
        nothing = attend(query, key, value, torch.zeros_like(least, dtype=torch.bool), enable_gqa=True)
    expected = value.float().mean(2, keepdim=True).repeat_interleave(2, 1).expand_as(found)
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.02)
    assert not nothing.any()


@hopper
@pytest.mark.parametrize("dim", DIMS)
def test_float16(dim):
    check(attention_configs.hopper_space(dim, 0)[0], inputs(300, 400, dim, torch.float16), "upper left")


@hopper
@pytest.mark.parametrize(("dim", "config"), CONFIGS)
@pytest.mark.parametrize("causal", [None, "upper left"])
def test_programs_take_several_units(dim, config, causal):
    check(config, inputs(1100, 640, dim, batch=3, heads=40, kv_heads=8), causal)


@hopper
@pytest.mark.parametrize(("dim", "config"), CONFIGS)
def test_layouts_and_scales(dim, config):
    base = random(2, 300, 3, 4, dim, dtype=torch.bfloat16)
    result = check(config, [base[:, :, i].transpose(1, 2) for i in range(3)], "upper left", scale=0.3)
    assert result.transpose(1, 2).is_contiguous()
    check(config, [x[:1, :2, 8:] for x in inputs(300, 400, dim)], scale=2.0)


@hopper
@pytest.mark.parametrize(("dim", "config"), CONFIGS)
def test_what_is_not_finite_goes_where_it_takes_part(dim, config):
    query, key, value = inputs(300, 400, dim)
    key[:, :, 170, 3] = torch.nan

    with config_selection.forced(OP, config):
        result = attend(query, key, value, is_causal=True, enable_gqa=True)
        key[:, :, 170] = torch.inf
        infinite = attend(query.abs(), key, value, enable_gqa=True)
        value[:, :, 170, 5] = torch.nan
        one = attend(query, key.nan_to_num(0, 0, 0), value, enable_gqa=True)

    assert result[:, :, :170].isfinite().all()
    assert result[:, :, 170:].isnan().all()
    assert infinite.isnan().all()
    assert one.isnan().all((0, 1, 2)).tolist() == [dim == 5 for dim in range(dim)]


@hopper
def test_what_it_does_not_take_goes_to_the_other_form():
    query, key, value = inputs(300, 400, 128)
    misaligned = random(2, 4, 300, 130, dtype=torch.bfloat16)[..., 1:129]
    calls = [
        ((query, key, value), {"scale": -1.0}),
        ((query[:, :, :40], key, value), {}),
        ((misaligned, key, value), {}),
        ((query, key[:, :1].expand(2, 2, 400, 128), value), {}),
        ((query, key, value[..., :64]), {}),
        ((query.float(), key.float(), value.float()), {}),
    ]

    for tensors, how in calls:
        _, found = config_selection.asked(attend, *tensors, enable_gqa=True, **how)
        assert not found.gluon


@hopper
def test_shapes_need_a_kernel_each_for_full_and_causal_and_calls_that_come_again_are_of_their_own_tensors():
    from ntops.kernels.attention_hopper import attend as kernel

    def compiled():
        return sum(len(cache[0]) for cache in kernel.device_caches.values())

    before = compiled()

    for size in range(4096, 4106):
        query, key, value = inputs(size, 600 + size % 7, 128, batch=1, heads=5, kv_heads=5)

        for causal in (False, True):
            first = attend(query, key, value, is_causal=causal)
            again = attend(query * 2, key, value, is_causal=causal)
            assert torch.equal(attend(query, key, value, is_causal=causal), first)
            assert not torch.equal(again, first)
            assert_attends(first, query, key, value, causal=0 if causal else None)

    assert compiled() - before <= 2
