"""Modules over the fused operators: parameters, conversions, what they say of themselves, and being swapped in."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import ntops.torch
from ntops.torch import FusedGatedMLP, FusedRMSNormRoPE, replace, restore

pytestmark = pytest.mark.usefixtures("on_device")


class GatedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(12, 20, bias=False)
        self.up = nn.Linear(12, 20, bias=False)

    def forward(self, x):
        return functional.silu(self.gate(x)) * self.up(x)


def fused(own: GatedMLP) -> FusedGatedMLP:
    return FusedGatedMLP.from_linear(own.gate, own.up)


MADE = {
    "mlp": (
        lambda **options: FusedGatedMLP(12, 20, "gelu", **options),
        {"gate_weight": (20, 12), "up_weight": (20, 12)},
    ),
    "norm": (lambda **options: FusedRMSNormRoPE(12, 4, **options), {"weight": (12,)}),
}


@pytest.mark.parametrize("name", MADE)
def test_parameters_have_the_dtype_and_device_asked_for(name):
    make, shapes = MADE[name]
    module = make(dtype=torch.bfloat16, device="meta")
    assert {key: tuple(weight.shape) for key, weight in module.state_dict().items()} == shapes
    assert {(weight.dtype, weight.device.type) for weight in module.parameters()} == {(torch.bfloat16, "meta")}
    own, other = make(), make()
    other.load_state_dict(own.state_dict())
    assert all(torch.equal(weight, other.state_dict()[key]) for key, weight in own.state_dict().items())


def test_new_weights_are_drawn_as_torch_draws_them():
    torch.manual_seed(3)
    gate, up = (nn.Linear(12, 20, bias=False) for _ in range(2))
    torch.manual_seed(3)
    module = FusedGatedMLP(12, 20)
    assert torch.equal(module.gate_weight, gate.weight)
    assert torch.equal(module.up_weight, up.weight)
    norm = FusedRMSNormRoPE(12, 4)
    nn.init.zeros_(norm.weight)
    norm.reset_parameters()
    assert torch.equal(norm.weight, torch.ones(12))


def test_what_modules_say_of_themselves():
    assert repr(FusedGatedMLP(12, 20, "gelu_tanh")) == "FusedGatedMLP(12, 20, activation='gelu_tanh')"
    assert repr(FusedRMSNormRoPE(12, 4, 1e-5, True)) == "FusedRMSNormRoPE(12, 4, eps=1e-05, interleaved=True)"


@torch.no_grad()
def test_modules_compute_what_the_functions_do():
    x, weight, (cos, sin) = torch.randn(2, 3, 12), torch.rand(12), torch.rand(2, 5, 2)
    norm = FusedRMSNormRoPE(12, 4, 1e-3, True)
    norm.weight.copy_(weight)
    wanted = ntops.torch.fused_rmsnorm_rope(x, weight, cos, sin, 1e-3, interleaved=True, head_dim=4)
    assert torch.equal(norm(x, cos, sin), wanted)
    mlp = FusedGatedMLP(12, 20, "gelu")
    assert torch.equal(mlp(x), ntops.torch.fused_gated_mlp(x, mlp.gate_weight, mlp.up_weight, "gelu"))


def test_a_module_has_gradients():
    x, mlp = torch.randn(3, 12), FusedGatedMLP(12, 20)
    mlp(x).sum().backward()
    gate, up = (weight.detach().requires_grad_() for weight in (mlp.gate_weight, mlp.up_weight))
    (nn.functional.silu(x @ gate.T) * (x @ up.T)).sum().backward()
    torch.testing.assert_close(mlp.gate_weight.grad, gate.grad)
    torch.testing.assert_close(mlp.up_weight.grad, up.grad)


def test_conversions_take_the_very_parameters():
    own = GatedMLP().eval()
    module = fused(own)
    assert module.gate_weight is own.gate.weight
    assert module.up_weight is own.up.weight
    assert not module.training
    norm = nn.RMSNorm(12, eps=0.25)
    module = FusedRMSNormRoPE.from_rms_norm(norm, 6)
    assert module.weight is norm.weight
    assert (module.hidden_dim, module.head_dim, module.eps) == (12, 6, 0.25)
    assert FusedRMSNormRoPE.from_rms_norm(nn.RMSNorm(4, dtype=torch.bfloat16), 2).eps == torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FusedGatedMLP(12, 20, "relu"), ValueError, "'activation' is 'relu'; valid are silu, gelu, gelu_tanh"),
        (lambda: FusedGatedMLP.from_linear(nn.Linear(2, 3, False), 2), TypeError, "'up' must be a torch.nn.Linear"),
        (lambda: FusedGatedMLP.from_linear(nn.Linear(2, 3), nn.Linear(2, 3)), ValueError, "'gate' has a bias"),
        (
            lambda: FusedGatedMLP.from_linear(nn.Linear(2, 3, False), nn.Linear(2, 4, False)),
            ValueError,
            r"'gate' \(3, 2\) and 'up' \(4, 2\)",
        ),
        (lambda: FusedRMSNormRoPE(12, 5), ValueError, "'head_dim' is 5, .* divide 'hidden_dim' 12"),
        (lambda: FusedRMSNormRoPE.from_rms_norm(nn.LayerNorm(4), 2), TypeError, "'norm' must be a torch.nn.RMSNorm"),
        (lambda: FusedRMSNormRoPE.from_rms_norm(nn.RMSNorm((2, 4)), 2), ValueError, "'norm' must normalize one dim"),
        (
            lambda: FusedRMSNormRoPE.from_rms_norm(nn.RMSNorm(4, elementwise_affine=False), 2),
            ValueError,
            "have a weight",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


# --- in a model ----------------------------------------------------------------------------------------------------


def model() -> nn.Sequential:
    shared = GatedMLP()
    return nn.Sequential(
        nn.ModuleList([shared, nn.Linear(3, 3)]), nn.ModuleDict({"again": shared, "other": GatedMLP()})
    )


def test_there_and_back():
    own = model()
    before, modules = copy.deepcopy(own.state_dict()), list(own.modules())
    assert replace(own, {GatedMLP: fused}) is own
    assert [type(own[1][name]) for name in ("again", "other")] == [FusedGatedMLP] * 2
    assert own[0][0] is own[1]["again"], "a module in two places is replaced once"
    assert own[1]["again"] is not own[1]["other"]
    assert not any(isinstance(module, GatedMLP) for module in own.modules()), "the original is no part of the model"
    assert restore(own) is own
    assert all(now is then for now, then in zip(own.modules(), modules, strict=True))
    after = own.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())


def test_what_is_loaded_moved_or_switched_in_between_reaches_the_original():
    own = model()
    replace(own, {GatedMLP: fused}).eval()
    with torch.no_grad():
        own.load_state_dict({name: torch.ones_like(weight) for name, weight in own.state_dict().items()})
    own.to(torch.bfloat16)
    restore(own)
    assert all(weight.dtype == torch.bfloat16 and (weight == 1).all() for weight in own.parameters())
    assert not any(module.training for module in own.modules())


def test_a_copy_of_a_model_goes_back_by_itself():
    own = replace(model(), {GatedMLP: fused})
    again = restore(copy.deepcopy(own))
    assert isinstance(own[1]["other"], FusedGatedMLP)
    assert isinstance(again[1]["other"], GatedMLP)
    assert not {id(weight) for weight in own.parameters()} & {id(weight) for weight in again.parameters()}


def test_a_model_can_itself_be_replaced_and_replacements_replaced_in_turn():
    own = GatedMLP()
    gate = own.gate
    replace(own, {nn.Linear: lambda linear: nn.Identity()})
    assert isinstance(own.gate, nn.Identity)
    whole = replace(replace(own, {GatedMLP: lambda mlp: nn.ReLU()}), {nn.ReLU: lambda relu: nn.SiLU()})
    assert isinstance(whole, nn.SiLU)
    assert restore(whole) is own
    assert own.gate is gate


def test_subclasses_are_left_alone():
    class Another(GatedMLP):
        pass

    assert isinstance(replace(nn.Sequential(Another()), {GatedMLP: fused})[0], Another)
