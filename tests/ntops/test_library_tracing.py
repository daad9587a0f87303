"""``torch.ops.ntops`` under torch.compile and torch.export: one operator each, for all sizes."""

import pytest
import torch
from functorch.compile import make_boxed_func
from library_calls import NUMBERS, call_with_numbers, normal
from operator_calls import results, with_tensors
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

import ntops
from ntops.kernels.scaled_dot_product_attention import CausalVariant


def test_all_operators_are_one_graph():
    """With what they write."""
    named = [one for one in NUMBERS if one[0] != "dropout"]
    functions = [getattr(ntops.torch, name) for name, _ in named]
    expected_calls, calls = ([call_with_numbers(*one) for one in named] for _ in range(2))

    def everything(calls):
        return [function(*args, **kwargs) for function, (args, kwargs) in zip(functions, calls, strict=True)]

    torch._dynamo.reset()
    found = torch.compile(everything, fullgraph=True, backend="aot_eager")(calls)

    for one, other in zip(found, everything(expected_calls), strict=True):
        for mine, theirs in zip(results(one), results(other), strict=True):
            assert torch.equal(mine.float(), theirs.float())
            assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())

    for (args, kwargs), (others, other_kwargs) in zip(calls, expected_calls, strict=True):
        for mine, theirs in zip((*args, *kwargs.values()), (*others, *other_kwargs.values()), strict=True):
            assert not isinstance(mine, torch.Tensor) or torch.equal(mine.float(), theirs.float())


def _attention(dim=16):
    """Operands of attention, a gradient of its output, and what its forward pass returns for its backward pass."""
    operands = [normal(1, heads, 9, dim).requires_grad_() for heads in (4, 2, 2)] + [normal(9, 9).requires_grad_()]
    with torch.no_grad():
        kept = torch.ops.ntops.scaled_dot_product_attention.statistics(*operands, enable_gqa=True)
    return operands, normal(1, 4, 9, dim), kept


@pytest.mark.parametrize("needed", [(True,) * 4, (True, False, False, False), (False, True, False, False)])
def test_opcheck_of_the_backward_pass_of_attention(needed):
    operands, gradient, (output, statistics) = _attention()
    query, key, value, mask = (one.detach() for one in operands)
    numbers = False, False, 0.25, needed
    arguments = gradient, output, query, key, value, statistics, mask, *numbers
    torch.library.opcheck(torch.ops.ntops.scaled_dot_product_attention.gradients, arguments)


def test_the_backward_pass_of_attention_is_traced_as_one_operator():
    """Composed of torch's functions, it would keep the matrix of scores."""
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def attend(*operands):
        return ntops.torch.scaled_dot_product_attention(*operands, enable_gqa=True)

    operands, gradient, _ = _attention()
    wanted = torch.autograd.grad(attend(*operands), operands, gradient)
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    found = torch.autograd.grad(compiled(*operands), operands, gradient)
    assert all(map(torch.equal, found, wanted))
    forward, backward = [{str(node.target) for node in graph.graph.nodes} for graph in graphs]
    assert "ntops.scaled_dot_product_attention.statistics" in forward
    assert "ntops.scaled_dot_product_attention.gradients" in backward
    assert not any("mm" in name or "softmax" in name for name in forward | backward)


def test_gradients_of_attention_in_batches_are_those_of_each():
    operands, gradient, _ = _attention()
    result = ntops.torch.scaled_dot_product_attention(*operands, enable_gqa=True)
    given = torch.stack([gradient, 2 * gradient])
    batched = torch.autograd.grad(result, operands, given, is_grads_batched=True, retain_graph=True)

    for place, one in enumerate(given):
        alone = torch.autograd.grad(result, operands, one, retain_graph=True)
        assert all(torch.equal(found[place], wanted) for found, wanted in zip(batched, alone, strict=True))


@pytest.mark.parametrize(
    ("first", "second", "others"),
    [((6, 5), (5,), ((5, 5), (5,))), ((7, 1), (7,), ((3, 1), (9,))), ((5,), (6, 5), ((5,), (5, 5)))],
)
def test_a_program_does_not_depend_on_whether_other_dims_are_as_long(first, second, others):
    class Sum(torch.nn.Module):
        def forward(self, a, b):
            return ntops.torch.add(a, b)

    sizes = tuple(
        {dim: torch.export.Dim.AUTO for dim, size in enumerate(shape) if size > 1} for shape in (first, second)
    )
    program = torch.export.export(Sum(), (normal(*first), normal(*second)), dynamic_shapes=sizes).module()
    a, b = (normal(*shape) for shape in others)
    assert torch.equal(program(a, b), a + b)


N = ntops.torch
DYNAMIC = {
    "add": (lambda a, b: N.add(a, b, alpha=2), lambda n: (normal(n, n + 3), normal(n + 3))),
    "add transposed": (lambda a, b: N.add(a.mT, b.mT), lambda n: (normal(n, n + 3), normal(n, n + 3))),
    "out": (lambda a, o: N.exp(a, out=o), lambda n: (normal(n, n + 3), normal(n, n + 3))),
    "softmax": (lambda a: N.softmax(a, -1), lambda n: (normal(n, n + 3),)),
    "matmul": (lambda a, b: N.matmul(a, b), lambda n: (normal(n, 1, n + 2, n + 3), normal(n + 5, n + 3, n + 1))),
    "rms_norm": (lambda a, w: N.rms_norm(a, w.shape, w), lambda n: (normal(n, n + 3), normal(n + 3))),
    "attention": (
        lambda q, k, m: N.scaled_dot_product_attention(q, k, k, m, enable_gqa=True),
        lambda n: (normal(2, 4, n, 16), normal(2, 2, n + 1, 16), normal(n, n + 1)),
    ),
    "rotary": (
        lambda x, s: N.rotary_position_embedding(x, s, s, inplace=True),
        lambda n: (normal(2, n, 3, 8), normal(32, 4)),
    ),
    "quantize": (lambda x: N.quantize_fp8(x, granularity="block"), lambda n: (normal(n, 200),)),
    # As tokens come, the position moves.
    "cache": (
        lambda q, c, d, slot: N.scaled_dot_product_attention(
            q, q, q, present_key=c, present_value=d, present_key_slot=slot
        ),
        lambda n: (normal(2, 4, 1, 16), normal(2, 4, 64, 16), normal(2, 4, 64, 16), n),
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_other_sizes_compile_nothing_anew(name):
    function, make = DYNAMIC[name]
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=counter, dynamic=True)

    for size in (5, 7, 11):
        args = make(size)
        expected_args, _ = with_tensors((args, {}), torch.clone)
        expected = function(*expected_args)

        for one, other in zip(results(compiled(*args)), results(expected), strict=True):
            assert torch.equal(one.float(), other.float())

        for one, other in zip(args, expected_args, strict=True):
            assert not isinstance(one, torch.Tensor) or torch.equal(one, other)

    assert counter.frame_count == 1


def test_arguments_that_torch_cannot_hold_are_traced():
    query = normal(1, 2, 4, 16)

    def function(query):
        return ntops.torch.scaled_dot_product_attention(
            query, query, query, is_causal=True, causal_variant=CausalVariant.LOWER_RIGHT
        ), ntops.torch.softmax(query, -1, dtype=torch.float64)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")

    for one, other in zip(compiled(query), function(query), strict=True):
        assert torch.equal(one, other)


def test_an_exported_program_has_the_operators():
    class Model(torch.nn.Module):
        def forward(self, x, weight):
            h = ntops.torch.rms_norm(x, (16,), weight)
            h = ntops.torch.fused_gated_mlp(h, x, x)
            return ntops.torch.softmax(ntops.torch.add(h, 1, alpha=2), -1)

    args = normal(8, 16), normal(16)
    rows = torch.export.Dim("rows", min=2, max=64)

    for strict in (False, True):
        program = torch.export.export(Model(), args, dynamic_shapes=({0: rows}, None), strict=strict)
        names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        assert [name.split(".")[1] for name in names if name.startswith("ntops")] == [
            "rms_norm",
            "fused_gated_mlp",
            "add",
            "softmax",
        ]

        for size in (8, 5):
            x = normal(size, 16)
            assert torch.equal(program.module()(x, args[1]), Model()(x, args[1]))
