"""Every operator under every setting, compiled: warps, stages, and each configuration that may be measured."""

import contextlib
import dataclasses
import functools

import msgspec
import pytest
import torch

import ntops.torch
from conformance.cases import Case
from conformance.implementations import load
from conformance.runner import judge_prepared, prepare
from conformance.spec import registry
from ntops.launch import autotuning
from strategies.specs import Layout, TensorSpec

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SETTINGS = [
    *(("num_warps", value) for value in (1, 2, 4, 8, 16)),
    *(("num_stages", value) for value in (1, 2, 3, 4, 5)),
    *(("max_num_configs", value) for value in (1, 2, 3, 16)),
]
CHECKS = ["values", "metadata", "inputs_unchanged", "written", "guard_bands"]


def tensor(*shape, dtype="float32", seed=0, **more):
    return TensorSpec(shape, dtype, seed=seed, **more)


HALF = "bfloat16"
ROWS = tensor(37, 515), tensor(37, 515, dtype=HALF), tensor(37, 515, layout=Layout(order=(1, 0)))
INTEGERS = tensor(37, 515, dtype="int32", values="uniform"), tensor(515, dtype="int32", values="uniform", seed=1)
POSITIVE = {"values": "positive"}
LONG = tensor(3, 20000, dtype=HALF), (20000,)
LONG_PARAMETERS = tensor(20000, dtype=HALF, seed=1), tensor(20000, dtype=HALF, seed=2)
LABELS, FEW_LABELS = "listed:0,514,3,-100,127,128,256", "listed:0,42,3,-100,17"
TABLES = tuple(tensor(37, 24, values="uniform", seed=seed) for seed in (1, 2))
ANGLES = tuple(tensor(37, 32, dtype=HALF, values="uniform", seed=seed) for seed in (1, 2))


def product(*sizes, dtype="float32", first=()):
    *batch, m, k, n = sizes
    return *first, tensor(*batch, m, k, dtype=dtype), tensor(*batch, k, n, dtype=dtype, seed=1)


def gated(m, k, n, dtype):
    return tensor(m, k, dtype=dtype), *(tensor(n, k, dtype=dtype, seed=seed) for seed in (1, 2))


def heads(queries, keys, dim, dtype):
    return tensor(2, 4, queries, dim, dtype=dtype), *(
        tensor(2, 4, keys, dim, dtype=dtype, seed=seed) for seed in (1, 2)
    )


def normed(count):
    return tensor(2, 37, count * 64, dtype=HALF), tensor(count * 64, dtype=HALF, seed=3), *ANGLES


CALLS = {
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"),
        ((ROWS[0], tensor(515, seed=1)), (ROWS[2], tensor(37, 515, seed=1))),
    ),
    **dict.fromkeys(("bitwise_and", "bitwise_or"), (INTEGERS,)),
    "bitwise_not": [INTEGERS[:1]],
    "pow": [(tensor(37, 515, **POSITIVE), tensor(515, seed=1))],
    "clamp": [(one, -0.5, 0.75) for one in ROWS],
    "dropout": [(one, 0.5) for one in ROWS],
    **dict.fromkeys(("softmax", "log_softmax"), (*((one, dim) for one in ROWS for dim in (0, 1)), (LONG[0], 1))),
    "cumsum": [*((one, dim) for one in ROWS for dim in (0, 1)), (LONG[0], 1)],
    "linear_cross_entropy": [
        (tensor(m, k, dtype=dtype), tensor(n, k, dtype=dtype, seed=1), tensor(m, dtype="int64", values=FEW_LABELS))
        for m, k, n, dtype in ((37, 515, 43, "float32"), (700, 512, 264, HALF), (37, 515, 43, "float16"))
    ],
    "cross_entropy": [(one, tensor(one.shape[0], dtype="int64", values=LABELS)) for one in (*ROWS, LONG[0])],
    "rms_norm": [(ROWS[0], (515,), tensor(515, seed=1)), (ROWS[1], (515,)), (*LONG, LONG_PARAMETERS[0])],
    "layer_norm": [
        (ROWS[0], (515,), tensor(515, seed=1), tensor(515, seed=2)),
        (ROWS[1], (515,)),
        (*LONG, *LONG_PARAMETERS),
    ],
    **dict.fromkeys(
        ("mm", "matmul"),
        tuple(
            product(*sizes, dtype=dtype)
            for sizes in ((37, 515, 43), (300, 512, 256), (16, 2048, 264))
            for dtype in ("float32", HALF)
        ),
    ),
    "bmm": [product(3, 37, 515, 43, dtype="float16"), product(3, 37, 515, 43)],
    "addmm": [
        product(37, 515, 43, dtype=dtype, first=(tensor(43, dtype=dtype, seed=2),))
        for dtype in ("float32", "float16", "float64")
    ],
    "scaled_dot_product_attention": [
        *(heads(37, 515, 64, "float32"), heads(37, 515, 64, HALF), heads(3, 37, 20, "float64")),
        *(heads(1, 1500, 128, HALF), heads(300, 300, 128, "float16")),
        *(heads(37, 70, 80, "float32"), heads(20, 515, 256, "float16")),
    ],
    "rotary_position_embedding": [(tensor(2, 37, 5, 48), *TABLES, interleaved) for interleaved in (True, False)],
    "fused_rmsnorm_rope": [normed(count) for count in (5, 32, 128)],
    "fused_gated_mlp": [gated(37, 515, 43, HALF), gated(300, 512, 264, HALF), gated(37, 515, 43, "float32")],
    "dequantize_fp8": [(tensor(37, 515, dtype="float8_e4m3fn"), tensor(37, 1, **POSITIVE))],
    "fp8_gemm": [
        (tensor(m, k, dtype="float8_e4m3fn"), tensor(k, n, dtype="float8_e5m2", seed=1))
        for m, k, n in ((37, 515, 43), (300, 512, 256))
    ],
}
"""Calls of odd sizes, in several tiles, of rows that lie apart or are walked; of other operators those of ``ROWS``."""
KEYWORDS = {"fused_rmsnorm_rope": {"head_dim": 64}}
MEASURED = (
    *("softmax", "rms_norm", "layer_norm", "rotary_position_embedding", "scaled_dot_product_attention"),
    *("mm", "bmm", "addmm", "fused_gated_mlp", "fp8_gemm", "add"),
)


@contextlib.contextmanager
def setting(name, value):
    set_default = getattr(ntops.torch, f"set_default_{name}")
    set_default(value)

    try:
        yield
    finally:
        set_default(None)


def calls(op):
    return CALLS.get(op) or [(one,) for one in ROWS]


@functools.cache
def prepared(op, args, precision, device="cuda:0"):
    """A call with torch's answer and the oracle's, which are the same under every setting; judged as a whole, since the
    oracle's answer is that of the whole call."""
    made = prepare(Case(op=op, args=args, kwargs=KEYWORDS.get(op, {})), device)
    expected = made.spec.expected(made.call)
    whole = dataclasses.replace(made.spec, expected=lambda call: expected, parts=lambda call: None)
    return msgspec.structs.replace(made, spec=whole)


def judged(op):
    """Each call of an operator is right, whatever is set."""
    for args in calls(op):
        verdict = judge_prepared(prepared(op, args, torch.get_float32_matmul_precision()), load("ntops.torch"), CHECKS)
        assert verdict.status == "passed", f"{args}: {verdict.failure or verdict.status}"


@pytest.mark.parametrize("op", registry())
def test_every_operator_has_calls_that_torch_answers(op):
    """Without a GPU, too: an operator that is new has to be in the table."""
    for args in calls(op):
        assert prepared(op, args, "", "cpu").spec.expected(prepared(op, args, "", "cpu").call) is not None


@on_gpu
@pytest.mark.parametrize(("name", "value"), SETTINGS, ids=[f"{name}={value}" for name, value in SETTINGS])
@pytest.mark.parametrize("op", registry())
def test_every_operator_is_right_under_every_setting(op, name, value):
    with setting(name, value):
        judged(op)


@on_gpu
@pytest.mark.parametrize("number", range(1, 16))
@pytest.mark.parametrize("op", MEASURED)
def test_whatever_is_the_fastest_is_right(op, number):
    """Each candidate, not the one that happens to be fast here."""
    with setting("max_num_configs", 16), autotuning.assumed(number):
        judged(op)


@on_gpu
@pytest.mark.parametrize(
    ("name", "value"), [("num_warps", 1), ("num_warps", 16), ("num_stages", 5), ("max_num_configs", 3)]
)
def test_tf32_products_are_right(name, value, tf32):
    with setting(name, value):
        for op in ("mm", "bmm", "fused_gated_mlp", "scaled_dot_product_attention"):
            judged(op)


@on_gpu
def test_what_is_measured_takes_no_random_numbers_and_writes_in_place_once():
    x = torch.randn(1000, 999, device="cuda")[:, 3:]

    def called():
        torch.manual_seed(3)
        dropped = ntops.torch.dropout(x, 0.3)
        relu = ntops.torch.relu(x.clone(), inplace=True)
        product = torch.ones(512, 512, device="cuda")
        ntops.torch.addmm(product, product.clone(), product.clone(), out=product)
        return dropped, relu, product, torch.rand(3, device="cuda")

    expected = called()

    with setting("max_num_configs", 16):
        for found in (called(), called(), called()):
            for one, other in zip(expected, found, strict=True):
                torch.testing.assert_close(one, other)


@on_gpu
def test_while_a_graph_is_captured_nothing_is_measured():
    x = torch.randn(37, 515, device="cuda")
    ntops.torch.softmax(x, -1)

    with setting("max_num_configs", 3):
        graph = torch.cuda.CUDAGraph()

        with torch.cuda.graph(graph):
            captured = ntops.torch.softmax(x, -1)

        x.normal_()
        graph.replay()
        torch.testing.assert_close(captured, torch.softmax(x, -1))
        torch.testing.assert_close(ntops.torch.softmax(x, -1), torch.softmax(x, -1))


@on_gpu
def test_caches_are_written_under_every_setting():
    rows = torch.randn(3, 2, 4, 5, 64, device="cuda", dtype=torch.bfloat16)

    for name, value in SETTINGS:
        caches = torch.randn(2, 2, 4, 900, 64, device="cuda", dtype=torch.bfloat16)
        wanted = caches.clone()
        wanted[:, :, :, 700:705] = rows[1:]
        expected = torch.nn.functional.scaled_dot_product_attention(rows[0], *wanted[..., :705, :])

        with setting(name, value):
            found = ntops.torch.scaled_dot_product_attention(
                *rows, present_key=caches[0], present_value=caches[1], present_key_slot=700
            )

        assert torch.equal(caches, wanted)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
