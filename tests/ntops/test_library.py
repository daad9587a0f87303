"""``torch.ops.ntops``: every operator is what torch's own system takes for an operator."""

import contextlib
import warnings

import pytest
import torch
from functorch.compile import make_boxed_func
from operator_calls import CALLS, PLACES, fresh, results, tensor, with_tensors
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import ntops
from ntops.kernels.scaled_dot_product_attention import CausalVariant
from ntops.library import registration, schemas

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUMBERS = [(name, number) for name, calls in CALLS.items() for number in range(len(calls))]
SCALES = {"quantize_fp8", "dequantize_fp8", "fp8_gemm"}
"""Operators with 0-d tensors that are not read as numbers."""


def _call(name, number, without_out=False):
    """A call whose numbers are numbers, and whose views are of one cache."""
    args, kwargs = fresh(name, number)

    if name not in SCALES:
        args = [float(one) if isinstance(one, torch.Tensor) and not one.ndim else one for one in args]
        kwargs = {k: float(v) if isinstance(v, torch.Tensor) and not v.ndim else v for k, v in kwargs.items()}

    if (name, number) == ("scaled_dot_product_attention", 2):
        keys, values = tensor(2, 1, 2, 8, 16)
        args[1:] = [keys, values]
        kwargs["present_key"] *= 3
        kwargs["present_value"] *= 5
        kwargs |= {"present_key_slot": keys[:, :, :4], "present_value_slot": values[:, :, 4:]}

    if without_out:
        kwargs.pop("out", None)

    return args, kwargs


def test_every_operator_is_declared():
    assert {overload.operator for overload in schemas.overloads()} == {*CALLS}


def test_declarations_are_the_schemas():
    for overload in schemas.overloads():
        schema = registration.OVERLOADS[overload.name]._schema
        assert [a.name for a in schema.arguments if not a.kwarg_only] == [name for name, _ in overload.arguments]
        assert schema.is_mutable == (overload.writes is not None or "!" in overload.schema)


class _Noted(TorchDispatchMode):
    """Notes the calls of ``torch.ops.ntops``, with copies of their tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "ntops":
            self.calls.append((function, *with_tensors((args, kwargs or {}), torch.clone)))

        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "number"), NUMBERS)
@pytest.mark.filterwarnings("ignore")
def test_opcheck(name, number):
    for without_out in (False, True)[: 1 + ("out" in CALLS[name][number][1])]:
        args, kwargs = _call(name, number, without_out)

        with _Noted() as noted:
            getattr(ntops.torch, name)(*args, **kwargs)

        assert noted.calls

        for op, args, kwargs in noted.calls:
            utils = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
            # torch compares no tensors of 8-bit floating point.
            utils += ["test_schema"] if all(one.itemsize > 1 for one in args if isinstance(one, torch.Tensor)) else []
            torch.library.opcheck(op, tuple(args), kwargs, test_utils=utils)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "place", "number"), [("pow", 1, 2), ("pow", 1, 0.5), ("pow", 0, 0.5), ("div", 0, 1)])
def test_opcheck_of_numbers_beside_what_requires_a_gradient(name, place, number, dtype):
    operands = [torch.full((3,), 1.5, dtype=dtype, device=DEVICE, requires_grad=True)]
    operands.insert(place, number)

    with _Noted() as noted:
        getattr(ntops.torch, name)(*operands)

    (op, _, kwargs), *_ = noted.calls
    torch.library.opcheck(op, tuple(operands), kwargs, test_utils=["test_schema", "test_autograd_registration"])


@pytest.mark.parametrize("name", ["eq", "argmax"])
def test_what_has_no_gradient_is_written_beside_what_requires_one(name):
    """The version of what is written moves once."""
    x = torch.arange(6.0, device=DEVICE).requires_grad_()
    arguments, dtype = ((x, 2.0), torch.bool) if name == "eq" else ((x, 0), torch.int64)
    out = torch.zeros((6,) if name == "eq" else (), dtype=dtype, device=DEVICE)

    assert getattr(ntops.torch, name)(*arguments, out=out) is out
    assert not out.requires_grad
    assert out._version == 1
    assert torch.equal(out, getattr(torch, name)(*arguments))


def test_all_operators_are_one_graph():
    """With what they write."""
    named = [one for one in NUMBERS if one[0] != "dropout"]
    functions = [getattr(ntops.torch, name) for name, _ in named]
    expected_calls, calls = ([_call(*one) for one in named] for _ in range(2))

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
    operands = [_random(1, heads, 9, dim).requires_grad_() for heads in (4, 2, 2)] + [_random(9, 9).requires_grad_()]
    with torch.no_grad():
        kept = torch.ops.ntops.scaled_dot_product_attention.statistics(*operands, enable_gqa=True)
    return operands, _random(1, 4, 9, dim), kept


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


def _random(*shape):
    return torch.randn(*shape, device=tensor(1).device)


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
    program = torch.export.export(Sum(), (_random(*first), _random(*second)), dynamic_shapes=sizes).module()
    a, b = (_random(*shape) for shape in others)
    assert torch.equal(program(a, b), a + b)


N = ntops.torch
DYNAMIC = {
    "add": (lambda a, b: N.add(a, b, alpha=2), lambda n: (_random(n, n + 3), _random(n + 3))),
    "add transposed": (lambda a, b: N.add(a.mT, b.mT), lambda n: (_random(n, n + 3), _random(n, n + 3))),
    "out": (lambda a, o: N.exp(a, out=o), lambda n: (_random(n, n + 3), _random(n, n + 3))),
    "softmax": (lambda a: N.softmax(a, -1), lambda n: (_random(n, n + 3),)),
    "matmul": (lambda a, b: N.matmul(a, b), lambda n: (_random(n, 1, n + 2, n + 3), _random(n + 5, n + 3, n + 1))),
    "rms_norm": (lambda a, w: N.rms_norm(a, w.shape, w), lambda n: (_random(n, n + 3), _random(n + 3))),
    "attention": (
        lambda q, k, m: N.scaled_dot_product_attention(q, k, k, m, enable_gqa=True),
        lambda n: (_random(2, 4, n, 16), _random(2, 2, n + 1, 16), _random(n, n + 1)),
    ),
    "rotary": (
        lambda x, s: N.rotary_position_embedding(x, s, s, inplace=True),
        lambda n: (_random(2, n, 3, 8), _random(32, 4)),
    ),
    "quantize": (lambda x: N.quantize_fp8(x, granularity="block"), lambda n: (_random(n, 200),)),
    # As tokens come, the position moves.
    "cache": (
        lambda q, c, d, slot: N.scaled_dot_product_attention(
            q, q, q, present_key=c, present_value=d, present_key_slot=slot
        ),
        lambda n: (_random(2, 4, 1, 16), _random(2, 4, 64, 16), _random(2, 4, 64, 16), n),
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
    query = _random(1, 2, 4, 16)

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

    args = _random(8, 16), _random(16)
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
            x = _random(size, 16)
            assert torch.equal(program.module()(x, args[1]), Model()(x, args[1]))


READ = [one for one in PLACES if one[2] != "out" and not (one[2] == 0 and CALLS[one[0]][one[1]][1].get("inplace"))]


@pytest.mark.parametrize(
    ("name", "number", "place"),
    [
        one
        for one in READ
        if one[0] != "dropout" and one[:2] not in {("scaled_dot_product_attention", k) for k in (1, 2)}
    ],
)
def test_vmap_is_a_loop(name, number, place):
    args, kwargs = fresh(name, number)
    kwargs.pop("out", None)

    if kwargs.get("inplace"):
        return  # What is written once cannot take a batch.

    value = kwargs[place] if isinstance(place, str) else args[place]

    if not value.ndim and name not in SCALES:
        return  # A number has to be read, which no batch has.

    def call(value):
        changed = [value if place == other else one for other, one in enumerate(args)]
        return getattr(ntops.torch, name)(*changed, **{k: value if place == k else v for k, v in kwargs.items()})

    values = torch.stack([value, value if value.itemsize == 1 else value * 2])

    with warnings.catch_warnings(action="error"):
        for dim in (0, value.ndim):
            found = torch.func.vmap(call, in_dims=dim)(values.movedim(0, dim))

            for one, *others in zip(results(found), *(results(call(part)) for part in values), strict=True):
                torch.testing.assert_close(one.float(), torch.stack(others).float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (ntops.torch.add, ((4, 3), (2, 3))),
        (ntops.torch.mul, ((4,), (4, 2, 3))),
        (ntops.torch.mm, ((4, 2, 3), (4, 3, 2))),
        (ntops.torch.bmm, ((4, 2, 2, 3), (2, 3, 2))),
        (lambda a, b: ntops.torch.softmax(a, 0), ((4, 3), (4, 3))),
    ],
    ids=["add", "mul", "mm", "bmm", "softmax"],
)
def test_a_batch_of_operands_is_one_call(function, shapes):
    first, second = (_random(*shape) for shape in shapes)
    in_dims = (0, 0 if shapes[1][0] == 4 else None)
    found = torch.func.vmap(function, in_dims=in_dims)(first, second)
    expected = torch.stack([function(first[k], second if in_dims[1] is None else second[k]) for k in range(4)])
    torch.testing.assert_close(found, expected)


def test_a_batch_of_numbers_promotes_as_numbers():
    halves, numbers = _random(4, 3).half(), _random(4)
    assert torch.func.vmap(ntops.torch.add)(halves, numbers).dtype is torch.float16


@pytest.mark.parametrize("function", [ntops.torch.add, ntops.torch.mul, ntops.torch.clamp])
def test_a_batch_of_numbers_beside_a_number_promotes_as_in_a_loop(function):
    number, halves = _random(1)[0], _random(4).bfloat16()
    found = torch.func.vmap(function, in_dims=(None, 0))(number, halves)
    assert torch.equal(found, torch.stack([function(number, half) for half in halves]))


def test_what_is_no_matrix_is_no_matrix_in_a_batch():
    with pytest.raises(RuntimeError, match="must have 2 dims"):
        torch.func.vmap(ntops.torch.mm)(_random(2, 2, 3, 3), _random(2, 3, 3))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout_draws_for_a_batch_as_torch_does(randomness):
    ones = tensor(2, 4096)
    found = torch.func.vmap(lambda x: ntops.torch.dropout(x, 0.5), randomness=randomness)(ones)
    assert torch.equal(found[0], found[1]) == (randomness == "same")
    assert 0.4 < (found == 0).float().mean() < 0.6

    with pytest.raises(RuntimeError, match="random"):
        torch.func.vmap(lambda x: ntops.torch.dropout(x, 0.5))(ones)


def test_a_seed_means_one_mask_on_every_way():
    masks, ones = [], torch.ones(64, device=tensor(1).device)

    # The numbers of the generator differ in their highest bit.
    for seed in range(8):
        for mode in (contextlib.nullcontext(), contextlib.nullcontext(), _Noted()):
            torch.manual_seed(seed)

            with mode:
                masks.append(ntops.torch.dropout(ones).tolist())

        assert masks[-3] == masks[-2] == masks[-1]


class _Subclass(torch.Tensor):
    pass


def test_a_subclass_stays_one():
    x = tensor(3).as_subclass(_Subclass)
    assert type(ntops.torch.add(x, 1)) is type(torch.add(x, 1)) is _Subclass
    assert type(ntops.torch.add(tensor(3), x)) is _Subclass


def test_a_function_mode_sees_the_operator():
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = tensor(3)

    for _ in range(3):
        ntops.torch.add(x, x)

    with Mode():
        ntops.torch.add(x, x)

    assert seen == ["ntops.add.default"]


def test_a_refused_call_writes_no_views():
    query, cache = torch.ones(1, 1, 2, 8), torch.ones(1, 1, 5, 8)
    rows, slot = torch.zeros(1, 1, 2, 8), cache[:, :, 3:]

    with _Noted(), pytest.raises(NotImplementedError, match="dropout"):
        ntops.torch.scaled_dot_product_attention(
            query,
            cache,
            cache,
            dropout_p=0.5,
            present_key=rows,
            present_value=rows,
            present_key_slot=slot,
            present_value_slot=slot,
        )

    assert torch.equal(cache, torch.ones_like(cache))


def test_versions_of_what_is_written_move():
    x, out = tensor(3), tensor(3)
    torch.ops.ntops.relu_(x)
    torch.ops.ntops.exp.out(x, out=out)
    assert x._version == 1
    assert out._version == 1


def test_tensors_of_inference_mode_are_written():
    with torch.inference_mode():
        x, out = tensor(3), tensor(3)
        torch.ops.ntops.relu_(x)
        torch.ops.ntops.exp.out(x, out=out)
        ntops.torch.exp(x, out=out)

        with _Noted() as noted:
            ntops.torch.exp(x, out=out)

    assert noted.calls
    assert torch.equal(out, torch.exp(x))


def test_out_is_not_differentiated():
    x = tensor(3).requires_grad_()

    with pytest.raises(RuntimeError, match=r"'input' requires grad.*'out'"):
        ntops.torch.exp(x, out=tensor(3))

    with torch.no_grad():
        assert not ntops.torch.exp(x, out=tensor(3)).requires_grad


def test_operators_of_the_namespace_are_those():
    defined = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("ntops::")}
    assert {name.removeprefix("ntops::") for name in defined} == {*registration.OVERLOADS}
