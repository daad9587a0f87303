"""``_version`` moves where torch's own function moves it, asked of torch in the same test."""

import warnings

import pytest
import torch

import ntops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _matrix(shape=(3, 3), dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device=DEVICE)


def _outs(shape, dtype):
    wide = {torch.bool: torch.uint8, torch.int32: torch.int64}.get(dtype, torch.float64)
    return {
        "right": _matrix(shape, dtype),
        "empty": _matrix((0,), dtype),
        "of another size": _matrix((7,), dtype),
        "wider": _matrix(shape, wide),
        "strided": _matrix((*shape, 2), dtype)[..., 0],
    }


X, I = _matrix, lambda: _matrix(dtype=torch.int32)  # noqa: E741
OUT = {
    **dict.fromkeys(("exp", "rsqrt", "sin", "cos", "sigmoid", "tanh", "abs", "neg"), lambda: (X(),)),
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "mm", "matmul"), lambda: (X(), X())),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), lambda: (X(), X())),
    **dict.fromkeys(("bitwise_and", "bitwise_or"), lambda: (I(), I())),
    "bitwise_not": lambda: (I(),),
    "clamp": lambda: (X(), 0.0, 1.0),
    "bmm": lambda: (X((2, 3, 3)), X((2, 3, 3))),
    "addmm": lambda: (X(), X(), X()),
}
SAME_DTYPE = ("mm", "matmul", "bmm", "addmm", "clamp", "bitwise_not", "abs", "neg")


def _moved(function, *args, **kwargs):
    """Whether the version of each tensor moved; the last is a view of the first, whose counter it shares."""
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    tensors.append(tensors[0].detach())
    before = [one._version for one in tensors]

    with warnings.catch_warnings(action="ignore"):
        function(*args, **kwargs)

    return [one._version > was for one, was in zip(tensors, before, strict=True)]


@pytest.mark.parametrize("kind", _outs((3, 3), torch.float32))
@pytest.mark.parametrize("name", OUT)
def test_out_moves(name, kind):
    if kind == "wider" and name in SAME_DTYPE:
        return  # torch refuses it.

    found = []

    for library in (torch, ntops.torch):
        args = OUT[name]()
        result = getattr(torch, name)(*args)
        out = _outs(tuple(result.shape), result.dtype)[kind]
        found.append(_moved(getattr(library, name), *args, out=out))

    assert found[0] == found[1]
    assert found[0][-2]


@pytest.mark.parametrize("name", OUT)
def test_out_of_no_elements_moves(name):
    found = []

    for library in (torch, ntops.torch):
        args = [one[..., :0, :] if isinstance(one, torch.Tensor) else one for one in OUT[name]()]

        if name in ("mm", "matmul", "bmm", "addmm"):
            args[-1] = X((*args[-1].shape[:-2], 3, 3))

        out = torch.empty_like(getattr(torch, name)(*args))
        found.append(_moved(getattr(library, name), *args, out=out))

    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["add", "mul", "exp", "pow", "mm", "addmm"])
def test_an_operand_for_out_moves(name):
    found = []

    for library in (torch, ntops.torch):
        args = OUT[name]()
        found.append(_moved(getattr(library, name), *args, out=args[0]))

    assert found[0] == found[1]


def test_ones_for_out_move():
    found = [_moved(library.pow, X(), 2, out=X()) for library in (torch, ntops.torch)]
    found += [_moved(library.pow, 1, X(), out=X()) for library in (torch, ntops.torch)]
    assert found[0] == found[1]
    assert found[2] == found[3]


@pytest.mark.parametrize("shape", [(3, 3), (0,), ()])
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("relu", {}),
        ("silu", {}),
        ("dropout", {}),
        ("dropout", {"p": 0.0}),
        ("dropout", {"p": 1.0}),
        ("dropout", {"training": False}),
    ],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_in_place_moves(name, kwargs, inplace, shape):
    libraries = (torch.nn.functional, ntops.torch)
    found = [_moved(getattr(library, name), X(shape), **kwargs, inplace=inplace) for library in libraries]
    assert found[0] == found[1]


@pytest.mark.parametrize("inplace", [False, True])
def test_rotation_in_place_moves(inplace):
    tensors = X((1, 4, 2, 8)), X((4, 4)), X((4, 4))
    assert _moved(ntops.torch.rotary_position_embedding, *tensors, inplace=inplace) == [inplace, False, False, inplace]


def _rows(count):
    return X((2, 2, count, 8))


@pytest.mark.parametrize("slot", [2, torch.tensor([2, 3], device=DEVICE)], ids=["int", "tensor"])
def test_caches_by_position_move(slot):
    caches = {"present_key": _rows(8), "present_value": _rows(8), "present_key_slot": slot}
    moved = _moved(ntops.torch.scaled_dot_product_attention, _rows(2), _rows(2), _rows(2), **caches)
    assert moved[:5] == [False, False, False, True, True]
    assert not any(moved[5:])


def test_caches_that_are_views_move():
    key, value = _rows(8), _rows(8)
    views = {"present_key": _rows(2), "present_value": _rows(2)}
    views |= {"present_key_slot": key[:, :, 6:], "present_value_slot": value[:, :, 6:]}
    moved = _moved(ntops.torch.scaled_dot_product_attention, _rows(2), key, value, **views)
    # Keys and values are what the slots are views of.
    assert moved == [False, True, True, False, False, True, True, False]


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "quantize_fp8", "gelu", "isnan", "isinf"])
def test_inputs_do_not_move(name):
    args = {"softmax": (X(), 1), "layer_norm": (X(), (3,), X((3,)), X((3,))), "rms_norm": (X(), (3,), X((3,)))}
    assert not any(_moved(getattr(ntops.torch, name), *args.get(name, (X(),))))


def test_what_inference_mode_makes_is_written():
    with torch.inference_mode():
        out = X()
        assert ntops.torch.add(X(), 1, out=out) is out
        assert ntops.torch.relu(-out, inplace=True).tolist() == X().mul(0).tolist()

    assert out.is_inference()
    assert out.tolist() == X().mul(2).tolist()


def test_autograd_notices():
    x, saved = X().requires_grad_(), X()
    y = (x * saved).sum()
    ntops.torch.exp(X(), out=saved)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
