"""Linear cross entropy beyond single calls: the sizes of chunks, memory, sums over chunks, and what torch adds."""

import math

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from operator_calls import DEVICE
from torch._dynamo.backends.common import aot_autograd

import ntops
from ntops.autograd import linear_losses
from ntops.host import cross_entropy, mm_hopper
from ntops.host import linear_cross_entropy as host
from ntops.host.product_configs import Options
from ntops.host.products import multiply
from ntops.host.promotion import TRITON_DTYPES
from ntops.kernels import addmm, mm
from ntops.kernels.linear_cross_entropy import premake
from ntops.launch import recorder
from ntops.launch.kernel_sources import Config, Specialization, make

linear_cross_entropy = ntops.torch.linear_cross_entropy


def _random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def _labels(*shape, classes):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def _composed(input, linear_weight, target, *, linear_bias=None, **kwargs):
    bias = None if linear_bias is None else linear_bias.flatten()
    logits = F.linear(input, linear_weight.flatten(0, -2), bias)
    return F.cross_entropy(logits.view(*input.shape[:-1], *linear_weight.shape[:-1]), target, **kwargs)


def _with_gradients(function, *operands, dtype=None, **kwargs):
    """The loss, and the gradients of the operands that are floating-point, the bias among them."""

    def leaf(one):
        return one.detach().to(dtype or one.dtype).requires_grad_() if one.is_floating_point() else one

    leaves = [leaf(one) for one in operands]
    named = {name: leaf(one) if name == "linear_bias" else one for name, one in kwargs.items()}
    loss = function(*leaves, **named)
    wanted = [one for one in (*leaves, *named.values()) if isinstance(one, torch.Tensor) and one.requires_grad]
    slope = _random(*loss.shape, seed=9).to(loss.dtype) if loss.ndim else torch.ones_like(loss)
    return loss, *torch.autograd.grad(loss, wanted, slope)


@pytest.mark.parametrize(
    ("count", "each", "size"),
    [
        (8192, 128256, 512),  # rows of Llama 3
        (128256, 8192, 8064),  # its classes: a sixteenth, in whole tiles
        (2**20, 128256, 640),
        (2048, 128256, 256),
        (300, 7, 256),
        (4096, 0, 256),
    ],
)
def test_a_chunk_is_a_sixteenth_of_all(count, each, size):
    assert host.chunk(count, each) == size
    assert size * each <= max(host._LOGITS * 1.25, 256 * each)


@pytest.mark.parametrize("probabilities", [False, True])
def test_no_tensor_has_all_logits(probabilities, monkeypatch):
    sizes, empty = [], host.recorder.empty

    def noted(shape, *rest):
        sizes.append(math.prod(shape))
        return empty(shape, *rest)

    monkeypatch.setattr(host.recorder, "empty", noted)
    x, weight, bias = _random(600, 4), _random(530, 4, seed=1), _random(530, seed=2)
    target = _random(600, 530, seed=3).softmax(1) if probabilities else _labels(600, classes=530)
    found = _with_gradients(linear_cross_entropy, x, weight, target, linear_bias=bias)
    # The gradient of probabilities is as large as they are.
    assert [size for size in sizes if size > 256 * 600] == [600 * 530] * probabilities

    for one, other in zip(found, _with_gradients(_composed, x, weight, target, linear_bias=bias), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("rows", "classes", "is_recorded"), [(600, 530, False), (200, 200, True)])
def test_a_recording_holds_no_chunks(rows, classes, is_recorded, monkeypatch):
    x, weight, target = _random(rows, 4), _random(classes, 4, seed=1), _labels(rows, classes=classes)
    given = None, None, -100, 0.0
    # Looking at the classes, on the CPU, is no part of a recording either.
    monkeypatch.setattr(cross_entropy, "check_classes", lambda *args: None)
    saved = []

    for function in (host.linear_class_loss, host.linear_class_gradients):
        monkeypatch.setattr(recorder._local, "recording", recording := recorder._Recording())

        if saved:
            function(saved[0], x, weight, target, *given[:2], *saved[1:], *given[2:], True, True, False, False)
        else:
            saved = function(x, weight, target, *given[:2], "mean", *given[2:])

        held = sum(one.numel() for one in recording.allocations)
        assert held > rows * classes if is_recorded else held < 20 * (rows + classes)
        assert ((None, (1, 1, 1), ()) not in recording.launches) is is_recorded


@pytest.mark.parametrize("shape", [(40, 50), (40, 50, 3), (40, 25, 2, 2)])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("options", [{}, {"reduction": "none", "label_smoothing": 0.2}, {"reduction": "sum"}])
def test_chunks_of_any_size(shape, probabilities, options, monkeypatch):
    monkeypatch.setattr(host, "_LEAST", 16)
    monkeypatch.setattr(host, "_MULTIPLE", 8)
    rows, classes, *others = shape
    x, weight, bias = _random(rows, 9), _random(*shape[1:], 9, seed=1), _random(*shape[1:], seed=2)
    target = _random(*shape, seed=3).softmax(1) if probabilities else _labels(rows, *others, classes=classes)
    given = options | {"linear_bias": bias, "weight": _random(classes, seed=4).abs()}

    if not probabilities:
        target.view(-1)[::7] = -100

    found = _with_gradients(linear_cross_entropy, x, weight, target, **given)
    given["weight"] = given["weight"].double()
    expected = _with_gradients(_composed, x, weight, target, dtype=torch.float64, **given)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=2e-5, atol=2e-6)

    given["weight"] = given["weight"].float()
    again = _with_gradients(linear_cross_entropy, x, weight, target, **given)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def test_the_gradient_of_half_inputs_is_rounded_once(monkeypatch):
    monkeypatch.setattr(host, "_LEAST", 16)
    monkeypatch.setattr(host, "_MULTIPLE", 8)
    x, weight = _random(8, 5, dtype=torch.bfloat16), _random(400, 5, seed=1, dtype=torch.bfloat16)
    target = _labels(8, classes=400)
    _, of_input, _ = _with_gradients(linear_cross_entropy, x, weight, target)
    # The gradient of the logits, which is rounded as torch's is, in one product with the weight.
    logits = F.linear(x, weight).double().requires_grad_()
    F.cross_entropy(logits, target).backward()
    expected = logits.grad.bfloat16().double() @ weight.double()
    assert ((of_input.double() - expected).abs() <= 2**-8 * expected.abs() + 2**-16).all()


def test_products_wider_than_their_factors():
    left, right = _random(20, 33, dtype=torch.bfloat16), _random(33, 40, seed=1, dtype=torch.bfloat16)
    result = torch.empty(20, 40, device=DEVICE)
    multiply(mm.premake, result, left, right)
    exact = left.double() @ right.double()
    torch.testing.assert_close(result, exact.float(), rtol=1e-5, atol=1e-5)
    multiply(addmm.premake, result, left, right, result, (1.0, 1.0))
    torch.testing.assert_close(result, 2 * exact.float(), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("tile", mm_hopper.known(torch.bfloat16))
def test_a_wide_result_leaves_room_for_stages(tile):
    options = Options(*tile)
    assert mm_hopper.shared_memory(options, torch.bfloat16, torch.float32) <= 232448


def test_a_class_that_there_is_not(monkeypatch):
    x, weight, target = _random(3, 4), _random(5, 4, seed=1), torch.tensor([0, 5, 4], device=DEVICE)

    if DEVICE == "cuda":
        monkeypatch.setenv("NTOPS_CHECK", "1")

    with pytest.raises(IndexError, match=r"'target' has class 5"):
        linear_cross_entropy(x, weight, target)

    assert not linear_cross_entropy(x, weight, target, ignore_index=5).isnan()


def test_classes_that_a_bias_rules_out():
    x, weight, target = _random(300, 4), _random(300, 4, seed=1), _labels(300, classes=10)
    bias = torch.where(torch.arange(300, device=DEVICE) < 10, 0.0, -math.inf)
    found = _with_gradients(linear_cross_entropy, x, weight, target, linear_bias=bias)
    expected = _with_gradients(_composed, x, weight[:10], target)

    for one, other in zip(found, expected, strict=False):
        torch.testing.assert_close(one[: len(other)] if one.ndim else one, other, rtol=1e-4, atol=1e-6)

    assert (found[2][10:] == 0).all()


def test_what_is_kept_for_the_gradient_is_two_numbers_a_row():
    kept = []
    x, weight, target = _random(64, 5).requires_grad_(), _random(300, 5, seed=1), _labels(64, classes=300)

    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        linear_cross_entropy(x, weight, target)

    given = {one.data_ptr() for one in (x, weight, target)}
    assert sum(one.numel() for one in kept if one.data_ptr() not in given) == 2 * 64 + 1


@pytest.mark.slow
def test_second_derivatives():
    x, weight = _random(3, 4).double().requires_grad_(), _random(5, 4, seed=1).double().requires_grad_()
    bias, target = _random(5, seed=2).double().requires_grad_(), torch.tensor([0, -100, 3], device=DEVICE)

    def loss(x, weight, bias):
        return linear_cross_entropy(x, weight, target, linear_bias=bias, label_smoothing=0.1)

    assert torch.autograd.gradcheck(loss, (x, weight, bias))
    assert torch.autograd.gradgradcheck(loss, (x, weight, bias))


def test_weights_of_class_indices_have_no_gradient():
    x, weight, target = _random(3, 4), _random(5, 4, seed=1), _labels(3, classes=5)
    of_classes = torch.ones(5, device=DEVICE, requires_grad=True)

    with pytest.raises(RuntimeError, match="'weight' requires grad"):
        linear_cross_entropy(x, weight, target, weight=of_classes)

    probabilities = _random(3, 5, seed=2).softmax(1)
    found, expected = (
        torch.autograd.grad(one(x, weight, probabilities, weight=of_classes), of_classes)[0]
        for one in (linear_cross_entropy, _composed)
    )
    torch.testing.assert_close(found, expected)


def _traced(graphs):
    """A backend of torch.compile that notes the elements of the largest tensor of each graph."""

    def note(graph, inputs):
        results = [node.meta["val"] for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append(max(one.numel() for one in results if isinstance(one, torch.Tensor)))
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=note, bw_compiler=note)


@pytest.mark.parametrize("shape", [(600, 530), (300, 270, 2)])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("options", [{}, {"reduction": "none", "label_smoothing": 0.2}, {"reduction": "sum"}])
def test_compiled_no_tensor_has_all_logits_either(shape, probabilities, options):
    x, weight, bias = _random(shape[0], 4), _random(*shape[1:], 4, seed=1), _random(*shape[1:], seed=2)
    target = _labels(shape[0], *shape[2:], classes=shape[1])
    given = options | {"linear_bias": bias, "weight": _random(shape[1], seed=4).abs()}

    if probabilities:
        target = _random(*shape, seed=3).softmax(1)
    else:
        target.view(-1)[::7] = -100

    graphs = []
    # Each case is a graph of the same function.
    torch.compiler.reset()
    compiled = torch.compile(linear_cross_entropy, backend=_traced(graphs), fullgraph=True)
    found = _with_gradients(compiled, x, weight, target, **given)
    expected = _with_gradients(linear_cross_entropy, x, weight, target, **given)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)

    forward, backward = graphs
    assert forward < 10 * max(shape)
    # The gradient of probabilities is as large as they are.
    assert (backward < math.prod(shape)) is not probabilities


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_autocast_casts_the_product_and_not_the_loss(lower):
    x, weight, bias, target = _random(6, 8), _random(7, 8, seed=1), _random(7, seed=2), _labels(6, classes=7)
    given = {"linear_bias": bias, "weight": _random(7, seed=3).abs()}

    for targets in (target, _random(6, 7, seed=4).softmax(1)):
        with torch.autocast(DEVICE, dtype=lower):
            found, of_input, *_ = _with_gradients(linear_cross_entropy, x, weight, targets, **given)
            expected, of_input_expected, *_ = _with_gradients(_composed, x, weight, targets, **given)
            # An operand that is cast already changes nothing.
            assert torch.equal(found, linear_cross_entropy(x.to(lower), weight, targets, **given))

        assert found.dtype is expected.dtype is torch.float32
        torch.testing.assert_close(found, expected, rtol=4e-3, atol=1e-3)
        torch.testing.assert_close(of_input, of_input_expected, rtol=2e-2, atol=2e-3)
        with torch.autocast(DEVICE, dtype=lower):
            assert linear_cross_entropy(x.double(), weight.double(), target).dtype is torch.float64


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="torch 2.13 brings these options")
def test_torchs_options_change_nothing():
    x, weight, target = _random(6, 8), _random(7, 8, seed=1), _labels(6, classes=7)
    options = torch.nn.LinearCrossEntropyOptions()
    assert torch.equal(
        linear_cross_entropy(x, weight, target, options=options), linear_cross_entropy(x, weight, target)
    )


@pytest.mark.parametrize("options", [{}, 1, "chunks"])
def test_what_are_no_options(options):
    with pytest.raises(TypeError, match="'options'"):
        linear_cross_entropy(_random(6, 8), _random(7, 8), _labels(6, classes=7), options=options)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 4), (5, 4)), "'input' must have 1 or 2 dims, not 3"),
        (((3, 4), (4,)), "'linear_weight' must have 2 dims or more, not 1"),
        (((3, 4), (5, 6)), r"'input' \(3, 4\) and 'linear_weight' \(5, 6\)"),
        (((3, 4), (5, 4), (4,)), r"'linear_bias' must have the shape .*\(5,\), not \(4,\)"),
        (((4,), (5, 2, 4)), "'input' must have 2 dims, not 1"),
    ],
)
def test_shapes_that_make_no_logits(shapes, message):
    input, weight, *bias = (_random(*shape) for shape in shapes)

    with pytest.raises(RuntimeError, match=message):
        linear_cross_entropy(input, weight, _labels(3, classes=5), linear_bias=bias[0] if bias else None)


def test_probabilities_have_no_ignored_index():
    x, weight = _random(3, 4), _random(5, 4, seed=1)

    with pytest.raises(RuntimeError, match="'ignore_index' is -100, but 'target' has probabilities"):
        linear_cross_entropy(x, weight, _random(3, 5).softmax(1), ignore_index=-100)


@pytest.mark.parametrize(("rows", "classes", "terms"), [(37, 100, 50), (16, 32, 16), (1, 5, 3), (40, 70, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_for_builds_ahead_of_time(rows, classes, terms, dtype):
    x, weight = _random(rows, terms, dtype=dtype), _random(classes, terms, seed=1, dtype=dtype)
    target = _labels(rows, classes=classes)
    target[rows // 2] = -100
    losses, maximum, logarithm, counted = found = [torch.empty(rows, device=DEVICE) for _ in range(4)]
    config = Config((("block_size_m", 16), ("block_size_n", 32), ("block_size_k", 16)))
    kernel = make(premake, {}, config, Specialization())
    kernel(*found, x, weight, target, classes, -100, TRITON_DTYPES[torch.float32], "ieee")
    logits = x.double() @ weight.double().mT
    expected = F.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(losses, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(maximum + logarithm, logits.logsumexp(1).float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(counted, (target != -100).float())


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_no_rows_have_gradients(probabilities, traced, monkeypatch):
    """Those of kernels, and those of torch's functions, as they are traced."""
    if traced:
        monkeypatch.setattr(linear_losses, "is_composed", lambda *_: True)
    input, weight = torch.zeros(0, 3, device=DEVICE), torch.rand(4, 3, device=DEVICE)
    target = torch.zeros((0, 4) if probabilities else 0, device=DEVICE)
    target = target if probabilities else target.long()
    operands = [one.requires_grad_() for one in (input, weight)]
    loss = linear_cross_entropy(*operands, target, reduction="sum")
    found = torch.autograd.grad(loss, operands)
    assert [one.shape for one in found] == [(0, 3), (4, 3)]
    assert not found[1].any()
