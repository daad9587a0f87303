"""What torch refuses is refused with torch's exception class and a message that names the argument."""

import enum

import numpy as np
import pytest
import torch

import ntops
from ntops.host.arguments import common_device
from ntops.launch import kernel_sources
from ntops.library.registration import FORMULAS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device=DEVICE)


INTEGERS = tensor(3, dtype=torch.int32)
BOOLS = tensor(3, dtype=torch.bool)
FLOATS = tensor(3)
BASE = tensor(6)

REFUSED = [
    ("add", (FLOATS, "a"), {}, TypeError, "other"),
    ("add", (FLOATS, None), {}, TypeError, "other"),
    ("add", (FLOATS, 2**70), {}, OverflowError, "other"),
    ("add", (FLOATS, FLOATS), {"alpha": None}, TypeError, "alpha"),
    ("add", (FLOATS, FLOATS), {"alpha": FLOATS}, TypeError, "alpha"),
    ("add", (FLOATS, FLOATS), {"alpha": True}, RuntimeError, "alpha"),
    ("add", (FLOATS, FLOATS), {"alpha": 1j}, RuntimeError, "alpha"),
    ("add", (INTEGERS, INTEGERS), {"alpha": 1.5}, RuntimeError, "alpha"),
    ("add", (BOOLS, BOOLS), {"alpha": 1.0}, RuntimeError, "alpha"),
    ("add", (tensor(2, 3), tensor(3, 2)), {}, RuntimeError, "other"),
    ("add", (FLOATS, FLOATS), {"out": INTEGERS}, RuntimeError, "out"),
    ("add", (FLOATS, FLOATS), {"out": tensor(1).expand(3)}, RuntimeError, "out"),
    ("add", (BASE[:3], BASE[:3]), {"out": BASE[1:4]}, RuntimeError, "out"),
    ("div", (FLOATS, FLOATS), {"rounding_mode": "round"}, RuntimeError, "rounding_mode"),
    ("div", (FLOATS, FLOATS), {"rounding_mode": 1}, TypeError, "rounding_mode"),
    ("div", (BOOLS, BOOLS), {"rounding_mode": "floor"}, NotImplementedError, "input"),
    ("div", (INTEGERS, INTEGERS), {"out": INTEGERS.clone()}, RuntimeError, "out"),
    ("eq", (2, FLOATS), {}, TypeError, "input"),
    ("eq", (FLOATS, "a"), {}, TypeError, "other"),
    ("relu", (BOOLS,), {}, RuntimeError, "input"),
    ("relu", (2,), {}, TypeError, "input"),
    ("relu", (tensor(1).expand(3), True), {}, RuntimeError, "input"),
    ("softmax", (INTEGERS, 0), {}, NotImplementedError, "softmax"),
    ("softmax", (FLOATS, 0), {"dtype": torch.int32}, NotImplementedError, "softmax"),
    ("softmax", (FLOATS, 1), {}, IndexError, "dim"),
    ("softmax", (FLOATS, -2), {}, IndexError, "dim"),
    ("softmax", (FLOATS, 1.0), {}, TypeError, "dim"),
    ("softmax", (FLOATS, 0), {"dtype": "float16"}, TypeError, "dtype"),
    ("mm", (FLOATS, FLOATS), {}, RuntimeError, "input"),
    ("mm", (tensor(2, 3), FLOATS), {}, RuntimeError, "mat2"),
    ("mm", (tensor(2, 3), tensor(2, 3)), {}, RuntimeError, "mat2"),
    ("mm", (tensor(2, 3), tensor(3, 2, dtype=torch.float16)), {}, RuntimeError, "mat2"),
    ("mm", (tensor(2, 3), 2), {}, TypeError, "mat2"),
    ("mm", (tensor(2, 3), tensor(3, 2)), {"out": tensor(2, 2, dtype=torch.float64)}, RuntimeError, "out"),
    ("mm", (tensor(2, 3), tensor(3, 2)), {"out": tensor(1).expand(2, 2)}, RuntimeError, "out"),
]


@pytest.mark.parametrize(("op", "args", "kwargs", "error", "named"), REFUSED)
def test_a_call_that_torch_refuses_is_refused_likewise(op, args, kwargs, error, named):
    reference = getattr(torch.nn.functional, op) if op in ("relu", "softmax") else getattr(torch, op)

    with pytest.raises(error) as theirs:
        reference(*args, **kwargs)

    with pytest.raises(error, match=named) as ours:
        getattr(ntops.torch, op)(*args, **kwargs)

    assert ours.type is theirs.type


@pytest.mark.parametrize(
    "value",
    [
        tensor(3, dtype=torch.complex64),
        torch.ones(3, 3).to_sparse().to(DEVICE),
        torch.nn.Parameter(tensor(3)),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged).to(DEVICE),
        tensor(3).to(torch.float8_e4m3fn),
    ],
    ids=["complex", "sparse", "requires_grad", "nested", "float8"],
)
@pytest.mark.parametrize("op", ["add", "div", "eq", "relu", "softmax", "mm"])
def test_what_is_left_out_says_so(op, value):
    args = {"relu": (value,), "softmax": (value, 0)}.get(op, (value, value))

    if value.requires_grad and (op in FORMULAS or op == "eq"):
        return  # There is a gradient, or torch asks for none.

    with pytest.raises(NotImplementedError, match="argument 'input'"):
        getattr(ntops.torch, op)(*args)


def test_what_has_no_gradient_takes_what_requires_grad():
    found = ntops.torch.eq(torch.nn.Parameter(FLOATS), 1)
    assert found.all()
    assert not found.requires_grad


def test_a_parameter_works_where_no_gradient_is_asked_for():
    with torch.no_grad():
        assert ntops.torch.add(torch.nn.Parameter(FLOATS), 1).tolist() == [2, 2, 2]


def test_numbers_alone_do_not_say_where_to_compute():
    with pytest.raises(NotImplementedError, match="'input' and 'other' are numbers"):
        ntops.torch.add(1, 2)


def test_tensors_on_different_devices_are_refused():
    with pytest.raises(RuntimeError, match="argument 'other' is on meta"):
        ntops.torch.add(FLOATS, torch.ones(3, device="meta"))


def test_a_device_without_kernels_is_refused():
    elsewhere = torch.ones(3, device="meta" if DEVICE == "cpu" else "cpu")

    with pytest.raises(RuntimeError, match=r"argument 'input' is on (meta|cpu), but ntops takes"):
        common_device({"input": elsewhere})


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float16])
def test_numbers_of_numpy_do_not_wrap(kind):
    x = tensor(3)
    assert torch.equal(ntops.torch.sub(x, x, alpha=kind(3)), tensor(3) * -2)


def test_calls_of_numbers_of_numpy_have_gradients():
    x = torch.tensor([[1.0, -2.0], [0.25, 0.5]], device=DEVICE, requires_grad=True)
    one = torch.tensor(1.0)
    calls = {
        "add": lambda module: module.add(x, np.float32(2), alpha=np.uint32(3)),
        "clamp": lambda module: module.clamp(x, np.float32(-1), np.int64(0)),
        "clamp of a tensor": lambda module: module.clamp(x, np.float64(-1), one.to(DEVICE)),
        "softmax": lambda module: module.softmax(x, torch.tensor(-1)),
        "sum": lambda module: module.sum(x, (np.int64(0),)),
        "mean": lambda module: module.mean(x, torch.tensor(1)),
    }
    for name, call in calls.items():
        (found,), (expected,) = (torch.autograd.grad(call(module).square().sum(), x) for module in (ntops.torch, torch))
        torch.testing.assert_close(found, expected, msg=name)
    shape = (np.int64(2),)
    (found,) = torch.autograd.grad(ntops.torch.layer_norm(x, shape, eps=np.float32(0.5)).square().sum(), x)
    normed = torch.nn.functional.layer_norm(x, (2,), eps=0.5)
    torch.testing.assert_close(found, *torch.autograd.grad(normed.square().sum(), x))


def test_bools_of_numpy_are_numbers():
    x = torch.tensor([1.0, -2.0], device=DEVICE)
    assert torch.equal(ntops.torch.add(x, np.True_), x + 1)
    assert torch.equal(ntops.torch.clamp(x, np.False_), x.clamp(0))


def test_an_activation_may_be_a_member_of_an_enum_of_strings(monkeypatch):
    """torch takes such words, too; a kernel is made of the first that is met."""

    class Activation(enum.StrEnum):
        GELU = "gelu"

    monkeypatch.setattr(kernel_sources, "_kernels", {})
    kernel_sources._generated.cache_clear()
    x, gate, up = (torch.randn(rows, 12, device=DEVICE) for rows in (3, 20, 20))
    found = ntops.torch.fused_gated_mlp(x, gate, up, Activation.GELU)
    assert torch.equal(found, ntops.torch.fused_gated_mlp(x, gate, up, "gelu"))
