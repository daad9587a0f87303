"""Nothing is launched on a tensor without memory of its own, whichever argument of whichever operator it is: torch's
dispatcher answers such calls, or they are refused."""

import inspect
import warnings

import pytest
import torch
from operator_calls import CALLS, PLACES, fresh, results, tensor, with_tensors
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import ntops
from ntops._runtime import INTERPRETED
from ntops.launch import recorder
from ntops.library.registration import FORMULAS

NUMBERS = [(name, number) for name, calls in CALLS.items() for number in range(len(calls))]
READ = {
    ("add", 0),
    ("sub", 0),
    ("clamp", 1),
    ("addmm", 0),
    ("layer_norm", 0),
    ("rms_norm", 0),
    ("fused_rmsnorm_rope", 0),
}
READ |= {("scaled_dot_product_attention", 0)}
"""Calls with a number in a tensor, which has to be read."""


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """Launches, each of tensors with memory."""
    launched, launch = [], recorder.launch

    def noted(kernel, grid, options, *args):
        launch(kernel, grid, options, *args)
        launched.append(kernel)
        bases = (getattr(one, "base", one) for one in args)
        assert all(recorder._is_there(base) for base in bases if isinstance(base, torch.Tensor))

    monkeypatch.setattr(recorder, "launch", noted)
    return launched


def test_every_operator_is_called():
    assert {*CALLS} == {
        name for name, function in inspect.getmembers(ntops.torch, inspect.isfunction) if _is_operator(name, function)
    }


def _is_operator(name, function):
    return getattr(inspect.unwrap(function), "__module__", "") == f"ntops.torch.{name}"


def _repeat(name, number):
    """Make a call until a recording of it is repeated, where calls are recorded."""
    for _ in range(3 if not INTERPRETED else 0):
        args, kwargs = fresh(name, number)
        getattr(ntops.torch, name)(*args, **kwargs)


def _with(name, number, place, value):
    """The call with another value in a place, of a seed of its own."""
    args, kwargs = fresh(name, number)
    args = [value if place == other else one for other, one in enumerate(args)]
    kwargs = {other: value if place == other else one for other, one in kwargs.items()}
    torch.manual_seed(0)
    return getattr(ntops.torch, name)(*args, **kwargs)


def _value(name, number, place):
    args, kwargs = fresh(name, number)
    return kwargs[place] if isinstance(place, str) else args[place]


def _is_written(name, number, place):
    views = name == "scaled_dot_product_attention" and ((1, "present"), (2, "slot"))
    return (
        place == "out"
        or (place == 0 and CALLS[name][number][1].get("inplace"))
        or (views and any(number == n and part in str(place) and not (n == 1 and "slot" in place) for n, part in views))
    )


# What has no memory and is nothing that torch answers.


def _freed(value):
    value = value.clone()
    value.untyped_storage().resize_(0)
    return value


def _plain(make):
    return lambda call, value: call(make(value))


def _within_dual_level(call, value):
    with forward_ad.dual_level():
        call(forward_ad.make_dual(value, torch.ones_like(value)))


def _tracked(transform):
    """A tensor as a transform of torch.func gives it, in which the call is made."""

    def within(call, value):
        def inner(wrapped):
            call(wrapped)
            return wrapped.float().sum()

        with warnings.catch_warnings(action="ignore"):
            transform(inner, value)

    return within


REFUSED = {
    "freed": _plain(_freed),
    "dual": _within_dual_level,
    "tracked forward": _tracked(lambda inner, value: torch.func.jvp(inner, (value,), (value,))),
}
_WITHOUT_GRADIENT = {
    *("argmax", "bitwise_and", "bitwise_not", "bitwise_or", "eq", "ge", "gt", "isinf", "isnan", "le", "lt", "ne"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_tensor_without_memory_or_with_a_tangent_is_refused(kind, name, launches):
    for _, number, place in (one for one in PLACES if one[0] == name):
        value = _value(name, number, place)

        if kind != "freed" and (not value.is_floating_point() or value.itemsize == 1):
            continue  # Of these there are no tangents.

        _repeat(name, number)
        launches.clear()

        def call(wrapped, number=number, place=place):
            with pytest.raises(NotImplementedError, match="argument '"):
                _with(name, number, place, wrapped)

        REFUSED[kind](call, value)
        assert not launches


@pytest.mark.parametrize(
    ("name", "number"), [n for n in NUMBERS if n[0] not in _WITHOUT_GRADIENT and n[0] not in FORMULAS]
)
def test_what_a_transform_differentiates_is_refused_where_there_is_no_gradient(name, number):
    value = _value(name, number, 0)

    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.itemsize > 1:

        def call(wrapped):
            with pytest.raises((NotImplementedError, RuntimeError), match=r"arguments? '|captured Tensor"):
                _with(name, number, 0, wrapped)

        _tracked(lambda inner, value: torch.func.grad(inner)(value))(call, value)


# What torch answers.


@pytest.mark.parametrize(("name", "number"), [one for one in NUMBERS if one not in READ])
@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_without_memory_a_result_has_the_geometry_that_it_has_with_it(kind, name, number, launches):
    args, kwargs = fresh(name, number)
    expected = getattr(ntops.torch, name)(*args, **kwargs)
    launches.clear()
    mode = FakeTensorMode()
    convert = mode.from_tensor if kind == "fake" else lambda value: value.to("meta")
    args, kwargs = with_tensors(fresh(name, number), convert)
    result = getattr(ntops.torch, name)(*args, **kwargs)
    assert not launches
    device = expected.device.type if isinstance(expected, torch.Tensor) else expected[0].device.type

    for one, other in zip(results(result), results(expected), strict=True):
        assert isinstance(one, FakeTensor if kind == "fake" else torch.Tensor)
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert one.device.type == (device if kind == "fake" else "meta")


@pytest.mark.parametrize(("name", "number", "place"), PLACES)
@pytest.mark.parametrize("kind", ["negated", "zero"])
def test_what_torch_computes_later_is_computed(kind, name, number, place):
    value = _value(name, number, place)

    if name == "dropout":
        return  # The number that its mask comes from is drawn in another way.

    if kind == "negated":
        if not value.is_floating_point() or value.itemsize == 1:
            return

        plain, lazy = -value, torch._neg_view(value.clone())
    else:
        plain, lazy = (
            torch.zeros_like(value),
            torch._efficientzerotensor(value.shape, dtype=value.dtype, device=value.device),
        )

    if _is_written(name, number, place) and (kind == "zero" or (name, number) == ("scaled_dot_product_attention", 1)):
        with pytest.raises(RuntimeError, match=r"immutable|caches of positions leave out"):
            _with(name, number, place, lazy)

        return

    expected = _with(name, number, place, plain)

    for one, other in zip(results(_with(name, number, place, lazy)), results(expected), strict=True):
        torch.testing.assert_close(one.float(), other.float(), equal_nan=True)


@pytest.mark.parametrize(("name", "number"), [one for one in NUMBERS if one != ("scaled_dot_product_attention", 1)])
def test_functional_tensors_give_functional_ones(name, number):
    args, kwargs = fresh(name, number)
    torch.manual_seed(0)
    expected = getattr(ntops.torch, name)(*args, **kwargs)
    args, kwargs = with_tensors(fresh(name, number), torch._to_functional_tensor)
    torch.manual_seed(0)
    result = getattr(ntops.torch, name)(*args, **kwargs)

    for one, other in zip(results(result), results(expected), strict=True):
        torch._sync(one)
        found = torch._from_functional_tensor(one)
        assert name == "dropout" or torch.equal(found.float(), other.float())
        assert found.shape == other.shape


class _Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was dispatched")


@pytest.mark.parametrize(("name", "number", "place"), PLACES)
def test_a_subclass_is_asked(name, number, place, launches):
    _repeat(name, number)
    launches.clear()

    with pytest.raises(AssertionError, match=rf"(ntops\.{name}|aten)\S* was dispatched"):
        _with(name, number, place, _Wrapper(_value(name, number, place)))

    assert not launches


# Modes under which new tensors have no memory.


@pytest.mark.parametrize(("name", "number"), [one for one in NUMBERS if one not in READ])
def test_under_fake_tensors_nothing_is_launched_or_written(name, number, launches):
    _repeat(name, number)
    args, kwargs = fresh(name, number)
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    before = [one.clone() for one in tensors]
    launches.clear()

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        # torch computes mul and div of tensors none of which is fake.
        args = [mode.from_tensor(args[0]) if name in ("mul", "div") else args[0], *args[1:]]
        result = getattr(ntops.torch, name)(*args, **kwargs)

    assert not launches
    assert all(isinstance(one, FakeTensor) or any(one is given for given in tensors) for one in results(result))
    assert all(torch.equal(one.float(), was.float()) for one, was in zip(tensors, before, strict=True))


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_forward_mode_transforms_are_refused(name, number, launches):
    """And nothing is written before."""
    _repeat(name, number)
    args, kwargs = fresh(name, number)
    launches.clear()

    def call():
        with pytest.raises(NotImplementedError, match="mode"):
            getattr(ntops.torch, name)(*args, **kwargs)

    torch.func.jvp(lambda x: call() or x, (tensor(2),), (tensor(2),))
    assert not launches


@pytest.mark.parametrize("name", ["add", "mm", "softmax"])
def test_a_trace_has_the_operator(name):
    args, _ = fresh(name)
    graph = make_fx(lambda *args: getattr(ntops.torch, name)(*args))(*args)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        getattr(torch.ops.ntops, name).default
    ]


def test_tensors_that_are_not_batched_are_taken_within_vmap():
    x = tensor(3)
    found = torch.func.vmap(lambda batched: batched * ntops.torch.add(x, x))(tensor(2, 3))
    assert found.tolist() == [[2] * 3] * 2


def test_a_mode_sees_the_operator_by_its_name():
    found = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found.append(str(function))
            return function(*args, **(kwargs or {}))

    x = tensor(3)

    for _ in range(3):
        ntops.torch.add(x, x)

    with Mode():
        result = ntops.torch.add(x, x)

    assert found == ["ntops.add.default"]
    assert result.tolist() == [2] * 3


def test_a_launch_on_what_a_mode_allocated_is_refused():
    from ntops.launch import boundary

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result.to("meta") if "empty" in str(function) else result

    with Mode(), boundary.inside(), pytest.raises(NotImplementedError, match="mode"):
        ntops.torch.add(tensor(3), tensor(3))


def test_numbers_of_tensors_on_meta_cannot_be_read():
    with pytest.raises(RuntimeError, match="meta"):
        ntops.torch.add(tensor(3).to("meta"), 1, alpha=tensor(()).to("meta"))


def test_forward_mode_is_over_with_its_level():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor(3), tensor(3))
        assert ntops.torch.add(tensor(3), 1).tolist() == [2] * 3

    assert ntops.torch.add(dual, 1).tolist() == [2] * 3
