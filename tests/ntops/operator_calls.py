"""A call of every operator with every argument that can be a tensor, for tests of all of them."""

import inspect

import torch

import ntops.torch
from ntops.host import families

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(*shape, dtype=torch.float32):
    return torch.ones(*shape, device=DEVICE).to(dtype)


def calls():
    """A call of every operator with every argument that can be a tensor; ``out`` and what else is needed."""
    x, m, i, f8 = tensor(4, 4), tensor(4, 4), tensor(4, 4, dtype=torch.int32), tensor(4, 4, dtype=torch.float8_e4m3fn)
    scale = tensor(())
    heads, cache, mask = tensor(1, 2, 4, 16), tensor(1, 2, 8, 16), tensor(4, 4)
    slots = tensor(1, dtype=torch.int64) - 1
    ops = {}

    for name in families.members("floating", "exact"):
        ops[name] = [((x,), {"out": tensor(4, 4)})]

    for name in ("relu", "dropout", *families.members("activation", "question")):
        takes_inplace = "inplace" in inspect.signature(getattr(ntops.torch, name)).parameters
        ops[name] = [((x,), {}), *([((x,), {"inplace": True})] if takes_inplace else [])]

    for name in ("add", "sub"):
        ops[name] = [((x, m), {"alpha": scale, "out": tensor(4, 4)})]

    for name in ("mul", "div", "pow"):
        ops[name] = [((x, m), {"out": tensor(4, 4)})]

    for name in families.members("comparison"):
        ops[name] = [((x, m), {"out": tensor(4, 4, dtype=torch.bool)})]

    for name in families.members("bitwise"):
        ops[name] = [((i, i.clone()), {"out": i.clone()})]

    ops["bitwise_not"] = [((i,), {"out": i.clone()})]
    ops["pow"].append(((1, x), {"out": tensor(4, 4)}))
    ops["clamp"] = [((x, m, m.clone()), {"out": tensor(4, 4)}), ((x, scale, 2.0), {})]
    ops["softmax"] = [((x, 1), {})]
    ops["log_softmax"] = [((x, 1), {})]

    labels, weights = tensor(4, dtype=torch.int64), tensor(4)
    ops["cross_entropy"] = [
        ((x, labels, weights), {"label_smoothing": 0.125}),
        ((x, m / 4), {"reduction": "none"}),
    ]

    ops["linear_cross_entropy"] = [
        ((x, m, labels), {"linear_bias": tensor(4), "weight": weights.clone(), "label_smoothing": 0.125}),
        ((x, m, tensor(4, 4) / 4), {"reduction": "none"}),
    ]

    for name in ("amax", "amin", "mean", "sum"):
        ops[name] = [((x, 1), {"out": tensor(4)}), ((x, None), {"keepdim": True})]

    ops["cumsum"] = [((x, 1), {"out": tensor(4, 4)}), ((x, 0), {"dtype": torch.float32})]
    ops["logsumexp"] = [((x, 1), {"out": tensor(4)}), ((x, (0, 1)), {"keepdim": True})]
    ops["argmax"] = [((x, 1), {"out": tensor(4, dtype=torch.int64)}), ((x,), {"keepdim": True})]
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


CALLS = calls()
PLACES = [
    (name, number, place)
    for name, calls in CALLS.items()
    for number, (args, kwargs) in enumerate(calls)
    for place in (*range(len(args)), *kwargs)
    if isinstance((kwargs if isinstance(place, str) else args)[place], torch.Tensor)
]


def fresh(name, number=0):
    """The call, with tensors of its own."""
    args, kwargs = CALLS[name][number]
    args = [one.clone() if isinstance(one, torch.Tensor) else one for one in args]
    return args, {key: one.clone() if isinstance(one, torch.Tensor) else one for key, one in kwargs.items()}


def with_tensors(call, convert):
    """The call with each tensor converted."""
    args, kwargs = call
    args = [convert(one) if isinstance(one, torch.Tensor) else one for one in args]
    return args, {key: convert(one) if isinstance(one, torch.Tensor) else one for key, one in kwargs.items()}


def results(result):
    """The results, where there are several."""
    return result if isinstance(result, tuple) else (result,)
