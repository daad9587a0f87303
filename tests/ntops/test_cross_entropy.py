"""Cross entropy beyond single calls: class indices that there are not, deprecated arguments, what is kept, and sums."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from operator_calls import DEVICE

import ntops
from ntops.host import cross_entropy as host

cross_entropy = ntops.torch.cross_entropy


def _random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def _labels(*shape, classes):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)


@pytest.mark.parametrize("label", [5, -1, 2**40])
@pytest.mark.parametrize("classes", [5, 2000])
def test_a_class_that_there_is_not(label, classes, monkeypatch):
    x, target = _random(3, classes), torch.tensor([0, label if label != 5 else classes, 4], device=DEVICE)

    if DEVICE == "cuda":
        assert cross_entropy(x, target, reduction="none").isnan().tolist() == [False, True, False]
        monkeypatch.setenv("NTOPS_CHECK", "1")

    with pytest.raises(IndexError, match=r"'target' has class"):
        cross_entropy(x, target)

    assert not cross_entropy(x, target, ignore_index=int(target[1])).isnan()


@pytest.mark.parametrize("classes", [255, 256, 257, 2000])
def test_bytes_may_be_classes_of_any_number(classes, monkeypatch):
    monkeypatch.setenv("NTOPS_CHECK", "1")
    x, target = _random(3, classes), torch.tensor([0, 156, 254], dtype=torch.uint8, device=DEVICE)
    assert torch.equal(cross_entropy(x, target), cross_entropy(x, target.long()))


@pytest.mark.parametrize(("classes", "options"), [(5, {}), (5, {"label_smoothing": 0.1}), (2000, {})])
def test_kernels_give_nan_for_a_class_that_there_is_not(classes, options, monkeypatch):
    # As on a GPU, where nobody looks.
    monkeypatch.setattr(host, "check_classes", lambda *args: None)
    x, target = _random(3, classes).requires_grad_(), torch.tensor([1, classes, -1], device=DEVICE)
    losses = cross_entropy(x, target, reduction="none", **options)
    assert losses.isnan().tolist() == [False, True, True]
    losses.sum().backward()
    assert x.grad.isnan().all(1).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("average", "reduce"), [pair for pair in itertools.product((None, True, False), repeat=2) if pair != (None, None)]
)
def test_deprecated_arguments(average, reduce):
    x, target = _random(3, 5), _labels(3, classes=5)

    for _ in range(2):
        # In a call that is like another one, too.
        with pytest.warns(UserWarning, match="reduction="):
            found = cross_entropy(x, target, size_average=average, reduce=reduce)

    with pytest.warns(UserWarning, match="deprecated"):
        expected = F.cross_entropy(x, target, size_average=average, reduce=reduce)

    torch.testing.assert_close(found, expected)


def test_reductions_by_name():
    x, target = _random(3, 5), _labels(3, classes=5)

    with pytest.warns(UserWarning, match="elementwise_mean"):
        assert torch.equal(cross_entropy(x, target, reduction="elementwise_mean"), cross_entropy(x, target))

    with pytest.raises(ValueError, match="'reduction' is 'average'; valid are none, mean, sum"):
        cross_entropy(x, target, reduction="average")


def test_rows_without_a_part_in_the_mean():
    x, target = _random(4, 5), torch.full((4,), -100, device=DEVICE)
    assert math.isnan(cross_entropy(x, target))
    assert math.isnan(cross_entropy(x[:0], target[:0]))
    assert cross_entropy(x, target, reduction="sum") == cross_entropy(x[:0], target[:0], reduction="sum") == 0
    target[2] = 1
    torch.testing.assert_close(cross_entropy(x, target), F.cross_entropy(x[2:3], target[2:3]))
    x.requires_grad_()
    cross_entropy(x, target, label_smoothing=0.2).backward()
    assert (x.grad != 0).any(1).tolist() == [False, False, True, False]


@pytest.mark.parametrize("rows", [host._LOSSES * host._STEPS, host._LOSSES * host._STEPS + 1, 40000])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_many_rows_repeat(rows, weighted):
    x, target = _random(rows, 3), _labels(rows, classes=3)
    weight = torch.tensor([0.5, 1, 3], device=DEVICE) if weighted else None
    found = cross_entropy(x, target, weight)
    expected = F.cross_entropy(x.double(), target, None if weight is None else weight.double())
    torch.testing.assert_close(found, expected.float())
    assert torch.equal(found, cross_entropy(x, target, weight))


@pytest.mark.parametrize("offset", [0.0, 4096.0, -1e6])
def test_logits_far_from_zero(offset):
    # 1/16 is a step of float32 at a million.
    x = (_random(2, 5000) * 16).round() / 16 + offset
    target = _labels(2, classes=5000)
    x.requires_grad_()
    exact = x.detach().double().requires_grad_()

    for options in ({}, {"label_smoothing": 0.1}):
        found, expected = (cross_entropy(x, target, **options), F.cross_entropy(exact, target, **options))
        torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-6)
        pairs = zip(*(torch.autograd.grad(one, of) for one, of in ((found, x), (expected, exact))), strict=True)

        for one, other in pairs:
            torch.testing.assert_close(one, other.float(), rtol=2e-5, atol=1e-9)


def test_pixels_of_any_order_of_dims():
    x, target = _random(2, 7, 5, 6), _labels(2, 5, 6, classes=7)
    expected = F.cross_entropy(x, target, reduction="none")
    views = (
        x,
        x.contiguous(memory_format=torch.channels_last),
        x.mT.contiguous().mT,
        x.movedim(1, 0).clone().movedim(0, 1),
    )

    for view in views:
        torch.testing.assert_close(cross_entropy(view, target.mT.contiguous().mT, reduction="none"), expected)
        leaf, other = view.clone().requires_grad_(), x.clone().requires_grad_()
        cross_entropy(leaf, target).backward()
        F.cross_entropy(other, target).backward()
        torch.testing.assert_close(leaf.grad, other.grad)


def test_what_is_kept_for_the_gradient_is_two_numbers_a_row():
    kept = []
    x, target = _random(64, 3000).requires_grad_(), _labels(64, classes=3000)

    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        cross_entropy(x, target)

    assert {one.data_ptr() for one in kept} >= {x.data_ptr(), target.data_ptr()}
    assert sum(one.numel() for one in kept if one.data_ptr() not in (x.data_ptr(), target.data_ptr())) == 2 * 64 + 1


def test_weights_of_class_indices_have_no_gradient():
    x, target, weight = _random(3, 5), _labels(3, classes=5), torch.ones(5, device=DEVICE, requires_grad=True)

    with pytest.raises(RuntimeError, match="'weight' requires grad"):
        cross_entropy(x, target, weight)

    cross_entropy(x, x.softmax(1), weight).backward()
    found, weight.grad = weight.grad, None
    F.cross_entropy(x, x.softmax(1), weight).backward()
    torch.testing.assert_close(found, weight.grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_second_derivatives(smoothing):
    x = _random(3, 4).double().requires_grad_()
    target = torch.tensor([0, -100, 3], device=DEVICE)
    assert torch.autograd.gradgradcheck(lambda x: cross_entropy(x * x, target, label_smoothing=smoothing), (x,))
    y = _random(3, 4, seed=2).double().softmax(1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, y: cross_entropy(x, y, label_smoothing=smoothing), (x, y))


def test_probabilities_that_are_infinite():
    x = _random(3, 2)
    y = torch.tensor([[math.inf, 0.5], [3e38, 3e38], [0.1, 0.2]], device=DEVICE)
    torch.testing.assert_close(cross_entropy(x, y, reduction="none"), F.cross_entropy(x, y, reduction="none"))


def test_gradients_of_small_indices_are_compiled():
    x, target = _random(3, 4).requires_grad_(), torch.tensor([0, 3, 1], dtype=torch.uint8, device=DEVICE)
    compiled = torch.compile(cross_entropy, backend="aot_eager", fullgraph=True)
    found, expected = (torch.autograd.grad(one(x, target), x)[0] for one in (compiled, cross_entropy))
    torch.testing.assert_close(found, expected)
