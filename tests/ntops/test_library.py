"""``torch.ops.ntops``: every operator is what torch's own system takes for an operator."""

import contextlib

import pytest
import torch
from library_calls import NUMBERS, Noted, call_with_numbers
from operator_calls import CALLS, tensor
from torch.overrides import TorchFunctionMode

import ntops
from ntops.library import registration, schemas

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_every_operator_is_declared():
    assert {overload.operator for overload in schemas.overloads()} == {*CALLS}


def test_declarations_are_the_schemas():
    for overload in schemas.overloads():
        schema = registration.OVERLOADS[overload.name]._schema
        assert [a.name for a in schema.arguments if not a.kwarg_only] == [name for name, _ in overload.arguments]
        assert schema.is_mutable == (overload.writes is not None or "!" in overload.schema)


@pytest.mark.parametrize(("name", "number"), NUMBERS)
@pytest.mark.filterwarnings("ignore")
def test_opcheck(name, number):
    for without_out in (False, True)[: 1 + ("out" in CALLS[name][number][1])]:
        args, kwargs = call_with_numbers(name, number, without_out)

        with Noted() as noted:
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

    with Noted() as noted:
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


def test_a_seed_means_one_mask_on_every_way():
    masks, ones = [], torch.ones(64, device=tensor(1).device)

    # The numbers of the generator differ in their highest bit.
    for seed in range(8):
        for mode in (contextlib.nullcontext(), contextlib.nullcontext(), Noted()):
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

    with Noted(), pytest.raises(NotImplementedError, match="dropout"):
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

        with Noted() as noted:
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
