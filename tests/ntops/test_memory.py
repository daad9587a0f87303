"""Nothing is launched on a tensor without memory of its own, whichever argument of whichever operator it is."""

import inspect
import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import ntops
from ntops._runtime import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(*shape, dtype=torch.float32):
    return torch.ones(*shape, device=DEVICE).to(dtype)


def _calls():
    """A call of every operator with every argument that can be a tensor; ``out`` and what else is needed."""
    x, m, i, f8 = tensor(4, 4), tensor(4, 4), tensor(4, 4, dtype=torch.int32), tensor(4, 4, dtype=torch.float8_e4m3fn)
    scale = tensor(())
    heads, cache, mask = tensor(1, 2, 4, 16), tensor(1, 2, 8, 16), tensor(4, 4)
    slots = tensor(1, dtype=torch.int64) - 1
    ops = {}

    for name in ("exp", "rsqrt", "sin", "cos", "sigmoid", "tanh", "abs", "neg"):
        ops[name] = [((x,), {"out": tensor(4, 4)})]

    for name in ("relu", "silu", "dropout"):
        ops[name] = [((x,), {}), ((x,), {"inplace": True})]

    for name in ("gelu", "isnan", "isinf"):
        ops[name] = [((x,), {})]

    for name in ("add", "sub"):
        ops[name] = [((x, m), {"alpha": scale, "out": tensor(4, 4)})]

    for name in ("mul", "div", "pow"):
        ops[name] = [((x, m), {"out": tensor(4, 4)})]

    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        ops[name] = [((x, m), {"out": tensor(4, 4, dtype=torch.bool)})]

    for name in ("bitwise_and", "bitwise_or"):
        ops[name] = [((i, i.clone()), {"out": i.clone()})]

    ops["bitwise_not"] = [((i,), {"out": i.clone()})]
    ops["pow"].append(((1, x), {"out": tensor(4, 4)}))
    ops["clamp"] = [((x, m, m.clone()), {"out": tensor(4, 4)}), ((x, scale, 2.0), {})]
    ops["softmax"] = [((x, 1), {})]
    ops["mm"] = [((x, m), {"out": tensor(4, 4)})]
    ops["bmm"] = [((x[None], m[None]), {"out": tensor(1, 4, 4)})]
    ops["matmul"] = [((x, m), {"out": tensor(4, 4)})]
    ops["addmm"] = [((tensor(4), x, m), {"beta": scale, "alpha": scale.clone(), "out": tensor(4, 4)})]
    ops["layer_norm"] = [((x, (4,), tensor(4), tensor(4), scale), {})]
    ops["rms_norm"] = [((x, (4,), tensor(4), scale), {})]
    ops["rotary_position_embedding"] = [
        ((tensor(1, 4, 2, 8), tensor(4, 4), tensor(4, 4)), {"inplace": inplace}) for inplace in (False, True)
    ]
    ops["fused_rmsnorm_rope"] = [((tensor(1, 4, 16), tensor(16), tensor(4, 8), tensor(4, 8), scale), {})]
    ops["fused_gated_mlp"] = [((x, m, m.clone()), {})]
    ops["quantize_fp8"] = [((x,), {}), ((x, scale), {})]
    ops["dequantize_fp8"] = [((f8, scale), {})]
    ops["fp8_gemm"] = [((f8, f8.clone(), scale, scale.clone()), {})]
    ops["scaled_dot_product_attention"] = [
        ((heads, heads.clone(), heads.clone(), mask), {"scale": scale}),
        (
            (heads, heads.clone(), heads.clone()),
            {"present_key": cache, "present_value": cache.clone(), "present_key_slot": slots}
            | {"present_value_slot": slots.clone()},
        ),
        (
            (heads, cache, cache.clone()),
            {"present_key": heads.clone(), "present_value": heads.clone()}
            | {"present_key_slot": cache[:, :, :4], "present_value_slot": cache[:, :, 4:]},
        ),
    ]
    return ops


CALLS = _calls()
PLACES = [
    (name, number, place)
    for name, calls in CALLS.items()
    for number, (args, kwargs) in enumerate(calls)
    for place in (*range(len(args)), *kwargs)
    if isinstance((kwargs if isinstance(place, str) else args)[place], torch.Tensor)
]


class _Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was dispatched")


def _freed(value):
    value = value.clone()
    value.untyped_storage().resize_(0)
    return value


def _fake(value):
    with FakeTensorMode() as mode:
        return mode.from_tensor(value)


def _dual(value):
    return forward_ad.make_dual(value, torch.ones_like(value)) if value.is_floating_point() else None


def _tracked(transform):
    """A tensor as a transform of torch.func gives it, in which the call is made."""

    def within(call, value):
        def inner(wrapped):
            call(wrapped)
            return wrapped.float().sum()

        with warnings.catch_warnings(action="ignore"):
            transform(inner, value)

    return within


def _plain(make):
    return lambda call, value: call(make(value))


def _within_dual_level(call, value):
    with forward_ad.dual_level():
        call(_dual(value))


KINDS = {
    "fake": _plain(_fake),
    "functional": _plain(torch._to_functional_tensor),
    "functional of meta": _plain(lambda value: torch._to_functional_tensor(value.to("meta"))),
    "zero": _plain(lambda value: torch._efficientzerotensor(value.shape, dtype=value.dtype, device=value.device)),
    "wrapper": _plain(_Wrapper),
    "freed": _plain(_freed),
    "batched": _tracked(lambda inner, value: torch.func.vmap(inner)(value.expand(3, *value.shape))),
    "functionalized": _tracked(lambda inner, value: torch.func.functionalize(inner)(value)),
}
FLOATING = {
    "dual": _within_dual_level,
    "tracked": _tracked(lambda inner, value: torch.func.grad(inner)(value)),
    "tracked forward": _tracked(lambda inner, value: torch.func.jvp(inner, (value,), (value,))),
    "negated": _plain(torch._neg_view),
}


def test_every_operator_is_called():
    assert {*CALLS} == {
        name for name, function in inspect.getmembers(ntops.torch, inspect.isfunction) if _is_operator(name, function)
    }


def _is_operator(name, function):
    return getattr(inspect.unwrap(function), "__module__", "") == f"ntops.torch.{name}"


def _fresh(name, number):
    """The call, with tensors of its own."""
    args, kwargs = CALLS[name][number]
    args = [one.clone() if isinstance(one, torch.Tensor) else one for one in args]
    return args, {key: one.clone() if isinstance(one, torch.Tensor) else one for key, one in kwargs.items()}


def _repeat(name, number):
    """Make a call until a recording of it is repeated, where calls are recorded."""
    for _ in range(3 if not INTERPRETED else 0):
        args, kwargs = _fresh(name, number)
        getattr(ntops.torch, name)(*args, **kwargs)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [*KINDS, *FLOATING])
def test_a_tensor_without_memory_of_its_own_is_refused(kind, name):
    places = [(number, place) for other, number, place in PLACES if other == name]
    refused = []

    for number, place in places:
        args, kwargs = _fresh(name, number)
        value = kwargs[place] if isinstance(place, str) else args[place]

        if kind in FLOATING and (not value.is_floating_point() or value.itemsize == 1):
            # Of these there are no tangents, and torch negates none lazily.
            refused.append("argument '")
            continue

        def call(wrapped, args=args, kwargs=kwargs, place=place):
            changed = [wrapped if place == other else one for other, one in enumerate(args)]
            named = {other: wrapped if place == other else one for other, one in kwargs.items()}

            try:
                getattr(ntops.torch, name)(*changed, **named)
            except NotImplementedError as error:
                refused.append(str(error))
            else:
                refused.append(f"place {place} was taken")

        _repeat(name, number)
        {**KINDS, **FLOATING}[kind](call, value)

    assert len(refused) == len(places)
    assert all("argument '" in message for message in refused), refused


def _under_fake(call):
    with FakeTensorMode(allow_non_fake_inputs=True):
        call()


def _under_proxy(call):
    make_fx(lambda x: call() or x)(tensor(2))


def _under_transform(transform):
    def within(call):
        def inner(x):
            call()
            return x.sum()

        transform(inner)(tensor(2))

    return within


MODES = {
    "fake": _under_fake,
    "proxy": _under_proxy,
    "grad": _under_transform(torch.func.grad),
    "functionalize": _under_transform(torch.func.functionalize),
    "jvp": lambda call: torch.func.jvp(lambda x: call() or x, (tensor(2),), (tensor(2),)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "number"), sorted({(name, number) for name, number, _ in PLACES}))
def test_a_mode_that_makes_tensors_without_memory_is_refused(mode, name, number):
    """And nothing is written before."""
    _repeat(name, number)
    args, kwargs = _fresh(name, number)
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    before = [one.clone() for one in tensors]

    def call():
        with pytest.raises(NotImplementedError, match="mode"):
            getattr(ntops.torch, name)(*args, **kwargs)

    MODES[mode](call)
    assert all(torch.equal(one.float(), was.float()) for one, was in zip(tensors, before, strict=True))


def test_tensors_that_are_not_batched_are_taken_within_vmap():
    x = tensor(3)
    found = torch.func.vmap(lambda batched: batched * ntops.torch.add(x, x))(tensor(2, 3))
    assert found.tolist() == [[2] * 3] * 2


def test_a_launch_on_what_a_mode_allocated_is_refused():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result.to("meta") if "empty" in str(function) else result

    with Mode(), pytest.raises(NotImplementedError, match="mode"):
        ntops.torch.add(tensor(3), tensor(3))


@pytest.mark.parametrize(("name", "number"), sorted({(name, number) for name, number, _ in PLACES}))
def test_tensors_on_meta_are_refused(name, number):
    args, kwargs = _fresh(name, number)
    args = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in args]
    kwargs = {key: one.to("meta") if isinstance(one, torch.Tensor) else one for key, one in kwargs.items()}

    if (name, number) == ("pow", 1):
        return  # torch itself fills ``out`` with ones.

    # A number that is read from one torch refuses itself.
    with pytest.raises(RuntimeError, match="on meta"):
        getattr(ntops.torch, name)(*args, **kwargs)


def test_forward_mode_is_over_with_its_level():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor(3), tensor(3))
        assert ntops.torch.add(tensor(3), 1).tolist() == [2] * 3

    assert ntops.torch.add(dual, 1).tolist() == [2] * 3
