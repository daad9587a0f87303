"""The gradients of attention, against torch's autograd of its formula in float64."""

import math

import pytest
import torch
from differentiable import DEVICE, gradients, tensor
from hopper import hopper

import ntops
from ntops.autograd.attention import _attend
from ntops.host import attention_configs, attention_gradients_hopper
from ntops.host.attention import attention_with_statistics
from ntops.launch import config_selection

ATTEND = ntops.torch.scaled_dot_product_attention


def _double(one):
    return (
        one.detach().cpu().double()
        if one is not None and one.is_floating_point()
        else one
        if one is None
        else one.cpu()
    )


def _definition(query, key, value, mask, given, lower_right, scale):
    """The gradients in float64, and of each the sum of its terms' sizes."""
    query, key, value, mask, given = map(_double, (query, key, value, mask, given))
    leaves = [one.requires_grad_() for one in (query, key, value)]
    leaves += [mask.requires_grad_()] if mask is not None and mask.is_floating_point() else []
    wanted = torch.autograd.grad(_attend(query, key, value, mask, lower_right, scale), leaves, given)

    with torch.no_grad():
        group = query.shape[-3] // key.shape[-3]
        keys, values = (one.repeat_interleave(group, -3) for one in (key, value))
        identity = torch.eye(keys.shape[-2], dtype=torch.float64)
        identity = identity.expand(*key.shape[:-1], keys.shape[-2])
        weights = _attend(query, key, identity, mask, lower_right, scale)
        along = given.abs() @ values.mT.abs()
        changes = weights * (along + (weights * along).sum(-1, keepdim=True))
        size = abs(scale)
        to_key = (changes.mT @ query.abs() * size).unflatten(-3, (-1, group)).sum(-3)
        to_value = (weights.mT @ given.abs()).unflatten(-3, (-1, group)).sum(-3)
        sizes = [changes @ keys.abs() * size, to_key, to_value]
        sizes += [changes.sum_to_size(mask.shape)] if len(leaves) > 3 else []
        largest = (query.abs() @ keys.mT.abs() * size).max() if weights.numel() else 0

    return wanted, sizes, largest


def _check(query, key, value, mask=None, lower_right=None, scale=None, given=None):
    """A weight is off by what its score is, by roundings of float32; and by one of its dtype, as the output, the
    changes of scores and the result are. float16 rounds the smallest weights and changes to multiples of 2^-24."""
    dtype = query.dtype
    shape = (*query.shape[:-1], value.shape[-1])
    given = tensor(*shape, dtype=dtype, seed=9, requires_grad=False) if given is None else given
    variant = {None: None, True: "LOWER_RIGHT", False: "UPPER_LEFT"}[lower_right]
    args = (query, key, value, mask, 0.0, lower_right is not None, scale, query.shape[-3] != key.shape[-3])
    from ntops.kernels.scaled_dot_product_attention import CausalVariant

    found = gradients(ATTEND, (*args, variant and CausalVariant[variant]), given)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wanted, sizes, largest = _definition(query, key, value, mask, given, lower_right, scale)
    unit = 2.0**-53 if dtype is torch.float64 else 2.0**-24
    half = torch.finfo(dtype).eps / 2 if dtype.itemsize == 2 else 0
    tensors = (query, key, value, mask)
    least = 2.0**-25 if dtype is torch.float16 else 0
    scaled = abs(scale) * least
    group = query.shape[-3] // key.shape[-3]
    # The sums of what the roundings of weights and of changes are multiplied by.
    sums = [_double(one).abs().sum(-2, keepdim=True) for one in (key, query, given)]
    sums = [
        sums[0].repeat_interleave(group, -3) * scaled,
        *(one.unflatten(-3, (-1, group)).sum(-3) for one in sums[1:]),
    ]
    roundings = [sums[0], sums[1] * scaled, sums[2] * least, torch.zeros(())]

    for one, want, size, rounding, of in zip(found, wanted, sizes, roundings, tensors, strict=False):
        assert (one.shape, one.dtype) == (of.shape, of.dtype)
        bound = (unit * (32 + 4 * largest) + 4 * half) * size + torch.finfo(of.dtype).eps / 2 * want.abs() + rounding
        assert ((one.cpu().double() - want).abs() <= bound).all()

    return found


def _operands(queries, keys, dim, value_dim, *, heads=2, group=1, dtype=torch.float32):
    return (
        tensor(2, heads * group, queries, dim, dtype=dtype),
        tensor(2, heads, keys, dim, dtype=dtype, seed=1),
        tensor(2, heads, keys, value_dim, dtype=dtype, seed=2),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("lower_right", [None, False, True])
@pytest.mark.parametrize(("queries", "keys", "group"), [(37, 53, 2), (130, 70, 1), (1, 33, 4)])
def test_gradients(queries, keys, group, lower_right, dtype):
    _check(*_operands(queries, keys, 24, 40, group=group, dtype=dtype), lower_right=lower_right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("dim", "value_dim"), [(1, 1), (16, 16), (80, 64), (128, 128), (256, 200), (64, 256)])
def test_head_dims(dim, value_dim, dtype):
    _check(*_operands(20, 35, dim, value_dim, heads=1, dtype=dtype), lower_right=True)


@pytest.mark.parametrize("shape", [(2, 4, 20, 35), (20, 35), (2, 1, 1, 35), (4, 20, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_of_numbers_has_a_gradient(shape, dtype):
    _check(*_operands(20, 35, 24, 16, group=2, dtype=dtype), tensor(*shape, dtype=dtype, seed=4))


def test_a_mask_of_numbers_that_rules_out_keys():
    mask = tensor(20, 35, seed=4, requires_grad=False)
    mask[:, 20:] = -math.inf
    mask[3] = -math.inf
    mask[5] = torch.finfo(torch.float32).min
    found = _check(*_operands(20, 35, 24, 16), mask.requires_grad_())
    assert not found[0][:, :, 3].any()
    assert not found[3][3].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_of_bools_with_queries_that_see_nothing(dtype):
    mask = tensor(2, 1, 20, 35, seed=4, requires_grad=False) > 0
    mask[:, :, 7] = False
    found = _check(*_operands(20, 35, 24, 16, group=2, dtype=dtype), mask)
    assert not found[0][:, :, 7].any()


def test_queries_that_see_nothing_by_the_diagonal():
    found = _check(*_operands(40, 20, 24, 16), lower_right=True)
    assert not found[0][:, :, :20].any()


@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
def test_scales(scale):
    _check(*_operands(20, 35, 8, 16), scale=scale)


def test_three_dims_other_strides_and_a_gradient_that_is_expanded():
    query, key, value = (one.detach().transpose(1, 2).contiguous() for one in _operands(20, 35, 24, 16))
    operands = [one.transpose(1, 2).requires_grad_() for one in (query, key, value)]
    _check(*operands, given=torch.ones((), device=DEVICE).expand(2, 2, 20, 16))
    _check(*(one.detach()[0].requires_grad_() for one in operands))
    _check(*(one.detach().mT.contiguous().mT.requires_grad_() for one in operands))


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0)])
def test_nothing_to_attend(queries, keys):
    operands = _operands(queries, keys, 8, 4)
    found = gradients(ATTEND, operands, torch.ones(2, 2, queries, 4, device=DEVICE))
    assert [one.shape for one in found] == [one.shape for one in operands]
    assert not any(one.any() for one in found)


@pytest.mark.parametrize("place", range(3))
def test_each_gradient_alone(place):
    operands = _operands(20, 35, 24, 16)
    given = tensor(2, 2, 20, 16, seed=9, requires_grad=False)
    whole = gradients(ATTEND, operands, given)
    alone = [one if number == place else one.detach() for number, one in enumerate(operands)]
    (found,) = gradients(ATTEND, alone, given)
    assert torch.equal(found, whole[place])


def test_one_tensor_for_all_three():
    x = tensor(1, 2, 9, 8, dtype=torch.float64)
    given = tensor(1, 2, 9, 8, dtype=torch.float64, seed=9, requires_grad=False)
    (found,) = torch.autograd.grad(ATTEND(x, x, x), x, given)
    (again,) = torch.autograd.grad(ATTEND(x, x, x), x, given, create_graph=True)
    torch.testing.assert_close(found, again)


@pytest.mark.slow
def test_derivatives_of_the_first_and_the_second_order_in_float64():
    query, key, value = (one.detach()[:1].requires_grad_() for one in _operands(3, 4, 2, 3, dtype=torch.float64))
    mask = tensor(3, 4, dtype=torch.float64, seed=5)
    assert torch.autograd.gradcheck(ATTEND, (query, key, value, mask))
    assert torch.autograd.gradgradcheck(ATTEND, (query, key, value, mask))


# --- what the forward pass keeps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_statistics_of_rows(dtype, kind, splits):
    query, key, value = (one.detach() for one in _operands(40, 70, 24, 16, group=2, dtype=dtype))
    mask = None if kind in ("none", "causal") else tensor(2, 4, 40, 70, dtype=dtype, seed=4, requires_grad=False)
    mask = mask > 0 if kind == "bool" else mask
    scores = query.double() @ key.repeat_interleave(2, 1).double().mT * 0.3

    if kind == "causal":
        scores = scores.masked_fill(~torch.ones(40, 70, dtype=torch.bool, device=DEVICE).tril(), -math.inf)
    elif kind == "bool":
        mask[:, :, 5] = False
        scores = scores.masked_fill(~mask, -math.inf)
    elif kind == "float":
        scores = scores + mask.double()

    with config_selection.forced("scaled_dot_product_attention", attention_configs.Config(16, 16, splits, 4, 1)):
        output, (maxima, sums) = attention_with_statistics(query, key, value, mask, 0.0, kind == "causal", 0.3, True)
        assert torch.equal(output, ATTEND(query, key, value, mask, 0.0, kind == "causal", 0.3, True))

    unit = 1.0 if kind == "float" else math.log2(math.e)
    empty = scores.isneginf().all(-1)
    assert bool(empty.any()) is (kind == "bool")
    assert (maxima[empty] == -math.inf).all()
    assert (sums[empty] == 0).all()
    found = maxima.double() / unit + sums.double().log()
    # The roundings of a score, which is a sum of 24 products, and of a sum of weights.
    sizes = query.double().abs() @ key.repeat_interleave(2, 1).double().abs().mT * 0.3
    bound = 4 * torch.finfo(maxima.dtype).eps * (sizes.amax(-1) + 1)
    assert ((found - scores.logsumexp(-1)).abs() <= bound)[~empty].all()


# --- the form for Hopper -------------------------------------------------------------------------------------------


def test_programs_that_share_heads():
    assert attention_gradients_hopper.together(32, 16, 132) == 32
    assert attention_gradients_hopper.together(16, 128, 132) == 1


@pytest.mark.parametrize(
    ("make", "is_copied"),
    [
        (lambda x: x, False),
        (lambda x: x.transpose(1, 2), False),
        (lambda x: x[:, :, ::2], False),
        (lambda x: x[:, :, :1].expand(2, 4, 8, 64), True),
        (lambda x: x[..., 1:9], True),
        (lambda x: x[..., ::2], True),
        (lambda x: torch.ones(2, 4, 8, 12, dtype=torch.bfloat16)[..., :8], True),
    ],
)
def test_what_tensor_descriptors_describe(make, is_copied):
    given = make(torch.ones(2, 4, 8, 64, dtype=torch.bfloat16))
    found = attention_gradients_hopper.describable(given)
    assert (found is not given) is is_copied
    assert torch.equal(found, given)
    assert found.is_contiguous() or not is_copied


@pytest.mark.parametrize(
    ("make", "is_shared"),
    [
        (lambda x: x, False),
        (lambda x: x[:, :1, :1], True),
        (lambda x: x[:, :1, :1].expand(2, 4, 8, 9), True),
        (lambda x: x[:, :, :1], False),
        (lambda x: x[:, :1], False),
        (lambda x: x[0, 0], False),
        (lambda x: x[0, 0, :1], True),
        (lambda x: x[0, 0, 0], True),
    ],
)
def test_masks_that_heads_and_queries_share(make, is_shared):
    assert attention_gradients_hopper.is_of_keys(make(torch.ones(2, 4, 8, 9, dtype=torch.bool))) is is_shared


def _check_on_hopper(queries, keys, dim, scale=None, dtype=torch.bfloat16, lower_right=None, mask=None, **sizes):
    operands = _operands(queries, keys, dim, dim, dtype=dtype, **sizes)
    assert attention_gradients_hopper.takes(*operands, mask)
    return _check(*operands, mask, scale=scale, lower_right=lower_right)


@hopper
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("shape", [(2, 1, 1, 200), (1, 1, 200), (200,)])
def test_masks_of_keys_on_hopper(shape, dim):
    mask = tensor(*shape, seed=4, requires_grad=False) > 0

    if len(shape) == 4:
        mask[1] = False

    found = _check_on_hopper(130, 200, dim, group=2, mask=mask)
    assert len(shape) < 4 or not any(one[1].any() for one in found)


@hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [40, 64, 96, 128])
@pytest.mark.parametrize("lower_right", [None, False, True])
@pytest.mark.parametrize(("queries", "keys", "group"), [(64, 64, 1), (200, 333, 1), (333, 200, 3), (513, 513, 2)])
def test_on_hopper(queries, keys, group, lower_right, dim, dtype):
    _check_on_hopper(queries, keys, dim, group=group, dtype=dtype, lower_right=lower_right)


@hopper
@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
def test_scales_on_hopper(scale):
    _check_on_hopper(100, 130, 64, scale)


@hopper
@pytest.mark.parametrize("place", range(3))
def test_each_gradient_alone_on_hopper(place):
    operands = _operands(130, 200, 64, 64, group=2, dtype=torch.bfloat16)
    given = tensor(2, 4, 130, 64, dtype=torch.bfloat16, seed=9, requires_grad=False)
    whole = gradients(ATTEND, (*operands, None, 0.0, True, None, True), given)
    operands = [one.detach().requires_grad_(number == place) for number, one in enumerate(operands)]
    (alone,) = gradients(ATTEND, (*operands, None, 0.0, True, None, True), given)
    assert torch.equal(alone, whole[place])


@hopper
def test_many_heads_and_programs_on_hopper():
    _check_on_hopper(300, 260, 64, heads=200, group=2, lower_right=True)
