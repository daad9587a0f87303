"""Float32 attention whose products are three in TF32: errors within the bound of IEEE products, the same infinities and
NaN."""

import dataclasses

import pytest
import torch
from attention_definition import assert_attends, random

import ntops
from ntops.host.attention_configs import Config, Problem
from ntops.launch import config_selection

attend = ntops.torch.scaled_dot_product_attention
H200 = config_selection.Device(232448, 132)
LARGE = Problem(4096, 64, 4096, 128, 128, torch.float32, True, False, 0, True, tf32x3=True)
SPACE = [chosen for chosen in LARGE.space(H200) if chosen.tf32x3]
IEEE, SMALL = Config(16, 16), Config(16, 64, tf32x3=True)


def forced(chosen):
    return config_selection.forced("scaled_dot_product_attention", chosen)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 144, 256])
@pytest.mark.parametrize("chosen", [*SPACE, Config(16, 64, 3, tf32x3=True)], ids=str)
def test_errors_are_within_the_bound(dim, chosen):
    query, key, value = random(1, 4, 70, dim), random(1, 2, 300, dim, seed=1), random(1, 2, 300, dim, seed=2)
    mask = random(1, 4, 70, 300) > 0
    variant = ntops.kernels.scaled_dot_product_attention.CausalVariant.LOWER_RIGHT

    with forced(chosen):
        for how, arguments in (
            ({}, {}),
            ({"mask": mask}, {"attn_mask": mask}),
            ({"causal": 230}, {"is_causal": True, "causal_variant": variant}),
        ):
            assert_attends(attend(query, key, value, enable_gqa=True, **arguments), query, key, value, **how)


@pytest.mark.parametrize("exponent", [-42, -40, -38, -37, -36, -34, -30, 30, 36])
@pytest.mark.parametrize("operand", ["values", "scores"])
def test_small_and_large_numbers_have_all_their_bits(operand, exponent):
    query, key, value = (random(1, 1, size, 16, seed=seed) for seed, size in enumerate((20, 70, 70)))
    factor = 10.0**exponent

    if operand == "values":
        value = value * factor
    else:
        query, key = query * factor, key * min(1 / factor, 1e36)

    with forced(SMALL):
        assert_attends(attend(query, key, value), query, key, value)


@pytest.mark.parametrize("keys", [4096, 20000])
def test_sums_of_values_of_one_sign_do_not_drift(keys):
    query, key, value = random(1, 1, 16, 16), random(1, 1, keys, 16, seed=1), random(1, 1, keys, 16, seed=2).abs() + 1

    for chosen in (SMALL, Config(64, 64, tf32x3=True)):
        with forced(chosen):
            assert_attends(attend(query, key, value), query, key, value)


SPECIALS = {"signaling": 0x7F800001, "max": 0x7F7FFFFF, "tf32 max": 0x7F7FEFFF, "tiny": 1, "tf32 tiny": 0x1FFF}


def number(special):
    """The float32 of these bits, or of this name."""
    return (
        torch.tensor(SPECIALS.get(special, 0), dtype=torch.int32).view(torch.float32)
        if special in SPECIALS
        else float(special)
    )


@pytest.mark.parametrize("special", [*SPECIALS, "inf", "-inf", "nan", "0"])
@pytest.mark.parametrize("other", ["1.5", "tiny", "tf32 tiny", "inf", "-inf", "0"])
@pytest.mark.parametrize("operand", range(3))
def test_special_values_are_those_of_ieee_products(operand, special, other):
    # Scores of the largest numbers are finite.
    operands = [random(1, 1, 24, 16, seed=seed).clamp(-3, 3) / 4 for seed in range(3)]
    # Some elements are what TF32 holds, so that their second parts are 0.
    operands[(operand + 1) % 3][..., ::2].round_()
    operands[operand][0, 0, 3, 5] = number(special)

    if operand < 2:
        operands[1 - operand][0, 0, 7, 5] = number(other)

    with forced(IEEE):
        theirs = attend(*operands)
    with forced(SMALL):
        ours = attend(*operands)

    # This judges which elements are infinite, NaN or large. Values of both signs cancel, so the rounding of sums of
    # numbers near 1 shows beside any result; the tests above have the bound.
    torch.testing.assert_close(ours, theirs, equal_nan=True, atol=1e-6, rtol=1e-5)


def test_errors_are_far_below_those_of_tf32():
    """TF32 alone is off by up to 2^-11."""
    query, key, value = (random(1, 1, size, 64, seed=seed) for seed, size in enumerate((16, 128, 128)))
    exact = torch.nn.functional.scaled_dot_product_attention(query.double(), key.double(), value.double())
    with forced(SMALL):
        error = (attend(query, key, value) - exact).abs().max()
    assert error < 2e-6


@pytest.mark.parametrize("allowed", [True, False])
def test_products_are_ieee_where_nothing_else_is_allowed(allowed):
    problem = dataclasses.replace(LARGE, tf32x3=allowed)
    assert problem.rule(H200).tf32x3 == allowed
    assert any(chosen.tf32x3 for chosen in problem.space(H200)) == allowed
    assert problem.allows(SMALL) == allowed


@pytest.mark.parametrize("rows", [1, 16, 40, 4096])
@pytest.mark.parametrize("dim", [16, 64, 128, 256])
@pytest.mark.parametrize("mask_bytes", [0, 1, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_each_choice_fits(rows, dim, mask_bytes, causal):
    sizes = {"head_dim": dim, "value_dim": dim, "mask_bytes": mask_bytes, "causal": causal, "rows": rows}

    for groups in (1, 128, 1000):
        problem = dataclasses.replace(LARGE, groups=groups, **sizes)
        chosen = problem.rule(H200)
        assert chosen.tf32x3
        assert problem.allows(chosen)
        assert problem.resources(chosen).shared_memory <= H200.shared_memory
