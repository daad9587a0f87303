"""Float32 attention whose products are three in TF32: errors as of IEEE products, and the same infinities and NaN."""

import pytest
import torch
from attention_definition import assert_attends, random

import ntops
from ntops.host.attention_configs import Config, Problem
from ntops.launch import config_selection

attend = ntops.torch.scaled_dot_product_attention
H200 = config_selection.Device(232448, 132)
SPACE = Problem(4096, 64, 4096, 128, 128, torch.float32, True, False, 0, True, halves=True).space(H200)
HALVES = [chosen for chosen in SPACE if chosen.halves]
IEEE, SMALL = Config(16, 16), Config(16, 64, halves=True)


def forced(chosen):
    return config_selection.forced("scaled_dot_product_attention", chosen)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 144, 256])
@pytest.mark.parametrize("chosen", [*HALVES, Config(16, 64, 3, halves=True)], ids=str)
def test_errors_are_those_of_ieee_products(dim, chosen):
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


@pytest.mark.parametrize("special", ["inf", "-inf", "nan", "signaling", "max", "tf32 max", "tiny", "0"])
@pytest.mark.parametrize("operand", range(3))
def test_special_values_are_those_of_ieee_products(operand, special):
    # Scores of the largest numbers are finite.
    operands = [random(1, 1, 24, 16, seed=seed).clamp(-3, 3) / 4 for seed in range(3)]
    bits = {"signaling": 0x7F800001, "max": 0x7F7FFFFF, "tf32 max": 0x7F7FEFFF, "tiny": 1}
    number = torch.tensor([bits[special]], dtype=torch.int32).view(torch.float32) if special in bits else float(special)
    # Some elements are what TF32 holds, so that their second halves are 0.
    operands[(operand + 1) % 3][..., ::2].round_()

    for place in ((0, 0, 3, 5), (0, 0, 20, 2)):
        operands[operand][place] = number
        with forced(IEEE):
            theirs = attend(*operands)
        with forced(SMALL):
            ours = attend(*operands)
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("hopper", [True, False])
def test_products_are_ieee_where_they_cannot_be_in_halves(allowed, hopper):
    problem = Problem(4096, 64, 4096, 64, 64, torch.float32, True, False, 0, True, halves=allowed)
    device = config_selection.Device(232448, 132, hopper)
    assert problem.rule(device).halves == (allowed and hopper)
    assert any(chosen.halves for chosen in problem.space(device)) == (allowed and hopper)


@pytest.mark.parametrize("rows", [1, 16, 40, 4096])
@pytest.mark.parametrize("dim", [16, 64, 128, 256])
@pytest.mark.parametrize("mask_bytes", [0, 1, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_each_choice_of_halves_fits(rows, dim, mask_bytes, causal):
    for groups in (1, 128, 1000):
        problem = Problem(rows, groups, 4096, dim, dim, torch.float32, True, causal, mask_bytes, True, halves=True)
        chosen = problem.rule(H200)
        assert chosen.halves
        assert problem.allows(chosen)
        assert problem.resources(chosen).shared_memory <= H200.shared_memory


def test_errors_are_far_below_those_of_tf32():
    """TF32 alone is off by up to 2^-11."""
    query, key, value = (random(1, 1, size, 64, seed=seed) for seed, size in enumerate((16, 128, 128)))
    exact = torch.nn.functional.scaled_dot_product_attention(query.double(), key.double(), value.double())
    with forced(SMALL):
        error = (attend(query, key, value) - exact).abs().max()
    assert error < 2e-6
