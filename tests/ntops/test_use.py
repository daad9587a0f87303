"""``ntops.torch.use``: torch's calls of a block are ours."""

import threading

import pytest
import torch
from operator_calls import DEVICE, tensor
from plain_model import Model
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_calls import FORMS, B, J, W, X, Y, floats

import ntops
from ntops.aten import calls

use = ntops.torch.use


@pytest.mark.parametrize("name", FORMS)
def test_functions_methods_and_operators_are_ours(name):
    for form in FORMS[name]:
        with use((name,), fallback=False):
            found = form()

        assert use.log().replaced == {name: 1}
        assert not use.log().left
        expected = form()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        # Of attention torch's kernels have orders of dims of their own.
        assert found.stride() == expected.stride() or name == "scaled_dot_product_attention"


def test_every_operator_that_torch_has_is_there():
    lacking = {"dequantize_fp8", "fp8_gemm", "fused_gated_mlp", "fused_rmsnorm_rope", "quantize_fp8"}
    lacking |= {"rotary_position_embedding"} | ({"linear_cross_entropy"} - {*dir(F)})
    assert {*calls.table()} == {*ntops.torch.OPERATORS} - lacking | {"linear", "embedding"}
    assert {*FORMS} == {*calls.table()} - {"embedding"}


def _same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_model_of_plain_torch():
    model, tokens = Model().to(DEVICE), torch.arange(24, device=DEVICE).view(2, 12) % 7
    expected = model(tokens)

    with use():
        found = model(tokens)

    _same(found, expected)
    log = use.log()
    # Two layers of seven products each, and the last.
    assert log.replaced["linear"] == 15
    assert log.replaced["scaled_dot_product_attention"] == log.replaced["silu"] == 2
    assert log.replaced["rms_norm"] == 5
    assert log.left == {("embedding", "there is no kernel of embeddings"): 1}
    assert "15  linear" in str(log)
    assert "1  embedding, left to torch: there is no kernel of embeddings" in str(log)


def test_a_model_is_trained():
    tokens = torch.arange(24, device=DEVICE).view(2, 12) % 7
    losses = []

    for ours in (False, True):
        model = Model().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        for _ in range(2):
            with use(ops=None if ours else ()):
                loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                loss.backward()

            optimizer.step()
            optimizer.zero_grad()

        losses.append([loss, *model.parameters()])

    for one, other in zip(*losses, strict=True):
        _same(one, other)


@pytest.mark.parametrize("backward", [torch.Tensor.backward, torch.autograd.backward])
def test_calls_of_a_backward_are_ours(backward):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.mul(gradient, 2)

    x = X.clone().requires_grad_()

    with use():
        loss = Double.apply(x).sum()
        assert use.log().replaced["mul"] == 1
        backward(loss)

    assert use.log().replaced["mul"] == 2
    assert torch.equal(x.grad, torch.full_like(x, 2))


def test_what_a_checkpoint_left_out_is_computed_as_it_was():
    x = X.clone().requires_grad_()

    with use():
        y = checkpoint(lambda x: F.silu(F.rms_norm(x, (5,)) * 2), x, use_reentrant=False)
        y.sum().backward()

    assert use.log().replaced == {"rms_norm": 2, "mul": 2, "silu": 1, "sum": 1}
    expected = X.clone().requires_grad_()
    F.silu(F.rms_norm(expected, (5,)) * 2).sum().backward()
    _same(x.grad, expected.grad)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: x.mul_(y),
        lambda x, y: F.silu(x, inplace=True).add_(y),
        lambda x, y: x.clamp_(-0.5).pow_(2),
        lambda x, y: x.addmm_(y, y),
    ],
)
def test_what_is_written_is_differentiated(write):
    gradients = []

    for names in ((), None):
        x, y = floats(5, 5).requires_grad_(), floats(5, 5).mul(2).requires_grad_()

        with use(names):
            written = x * 1
            result = write(written, y)

        assert result is written
        gradients.append(torch.autograd.grad(result.sin().sum(), (x, y), allow_unused=True))

    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)

        if one is not None:
            _same(one, other)


def test_errors_are_torchs():
    x, leaf = tensor(3), tensor(3).requires_grad_()

    for write in (
        lambda: x.add_(tensor(2, 3)),
        lambda: x.add_(tensor(4)),
        lambda: x.int().add_(1.5),
        lambda: leaf.add_(1),
        lambda: x.expand(2, 3).mul_(2),
        lambda: x.add_(leaf.expand(2, 3)),
        lambda: x.int().mul_(leaf),
        lambda: torch.exp(x, out=tensor(3, dtype=torch.int32)),
        lambda: x @ tensor(4),
    ):
        with pytest.raises(RuntimeError), use(fallback=False):
            write()

        with pytest.raises(RuntimeError):
            write()

    assert torch.equal(x, tensor(3))


def test_what_is_written_changes_its_version_once():
    x = X.clone()
    version = x._version

    with use():
        x += 1
        x.relu_()

    assert x._version == version + 2


def test_what_is_left_out_is_torchs():
    with use():
        assert X.to(torch.complex64).add(1j).dtype is torch.complex64
        assert (X == None) is False  # noqa: E711
        torch.testing.assert_close(torch.softmax(X, 1, out=tensor(4, 5)), X.softmax(1))

    reasons = dict([*use.log().left])
    assert "'out'" in reasons["softmax"]
    assert "complex" in reasons["add"]
    assert "NoneType" in reasons["eq"]

    with pytest.raises(NotImplementedError, match="complex"), use(fallback=False):
        X + 1j

    with pytest.raises(NotImplementedError, match="embeddings"), use(fallback=False):
        F.embedding(J, X)


def test_names_are_checked():
    with pytest.raises(ValueError, match=r"'rmsnorm'.*near: rms_norm"):
        use(ops=["add", "rmsnorm"])

    with pytest.raises(ValueError, match="among them"):
        use(ops=("quantize_fp8",))

    with use(ops="add"):
        X * X + X

    assert use.log().replaced == {"add": 1}


def test_blocks_are_nested():
    with use(ops="add"):
        outer = use.log()

        with use(ops="mul"):
            X * X + X
            assert use.log().replaced == {"mul": 1}

        assert use.log() is outer
        X * X + X

    assert outer.replaced == {"add": 2}
    assert use.log() is outer

    with use():
        # An operator of ours by name is what it is.
        assert torch.equal(ntops.torch.add(X, X), X + X)


def test_an_error_leaves_no_block_behind():
    before = torch._C._len_torch_function_stack()

    for _ in range(2):
        with pytest.raises(KeyError), use(), use("add"):
            raise KeyError

    assert torch._C._len_torch_function_stack() == before

    with use():
        log = use.log()

    X + X
    assert use.log() is log
    assert not log.replaced


def test_a_block_is_of_one_thread():
    logs = {}

    def work():
        X + X
        logs["other"] = str(use.log())

    with use():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not use.log().replaced

    assert logs == {"other": "no calls"}


def test_autocast_casts():
    with use(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert F.linear(X, W, B).dtype is (X @ W.mT).dtype is torch.bfloat16

    assert use.log().replaced == {"linear": 1, "matmul": 1}


def test_a_subclass_hears_of_torchs_function():
    heard = []

    class Listener(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            heard.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Silent(torch.Tensor):
        pass

    with use():
        torch.add(X.as_subclass(Listener), 1)
        assert heard == [torch.add]
        assert type(X.as_subclass(Silent) + 1) is Silent

    assert use.log().replaced == {"add": 1}
    (reason,) = use.log().left
    assert "Listener" in reason[1]


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize(
    "transform",
    [
        lambda function, x: torch.func.grad(lambda x: function(x).sum())(x),
        lambda function, x: torch.func.jvp(function, (x,), (x,))[1],
    ],
    ids=["grad", "jvp"],
)
def test_transforms_that_differentiate_are_torchs(transform):
    def function(x):
        return F.silu(x * 2)

    with use():
        found = transform(function, X)

    _same(found, transform(function, X))
    assert not use.log().replaced
    assert {name for name, reason in use.log().left} - {"sum"} == {"mul", "silu"}


def test_a_module_that_torch_composes_is_torchs():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, device=DEVICE)
    x = floats(2, 3, 16)

    with use():
        found = layer(x)

    _same(found, layer(x))


def test_tensors_elsewhere_are_torchs():
    with use():
        assert torch.ones(2, device="meta").add(1).is_meta

    assert use.log().left == {("add", f"no argument is on {DEVICE}, where kernels run"): 1}


@pytest.mark.slow
def test_compiled_code_has_the_operators():
    graphs = []

    def backend(module, inputs):
        graphs.append([str(node.target) for node in module.graph.nodes if "ntops" in str(node.target)])
        return module

    def function(x, y):
        x = x.clone()
        x += y
        x.relu_()
        return (2 ** F.linear(x, W, B).sigmoid() @ W).softmax(1)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)

    with use():
        found = compiled(X, Y)

    names = ["add.out", "relu_.default", "addmm.default", "sigmoid.default", "pow.Scalar_Tensor", "matmul.default"]
    assert graphs == [[f"ntops.{name}" for name in (*names, "softmax.default")]]
    _same(found, function(X, Y))
    model, tokens = Model().to(DEVICE), torch.arange(24, device=DEVICE).view(2, 12) % 7

    with use():
        _same(torch.compile(model, fullgraph=True, backend="aot_eager")(tokens), model(tokens))

    # Outside of it they are torch's.
    _same(compiled(X, Y), found)
    assert graphs[1:] == [[]]
