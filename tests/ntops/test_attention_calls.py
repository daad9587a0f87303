"""Attention: calls that are refused, memory, kernels and captured graphs."""

import itertools

import pytest
import torch
from attention_definition import DEVICE, assert_attends, random

import ntops
from ntops.host import attention_configs
from ntops.kernels import attention as kernels
from ntops.kernels.kv_cache import write_rows
from ntops.kernels.scaled_dot_product_attention import CausalVariant

attend = ntops.torch.scaled_dot_product_attention
gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


Q, K = (2, 4, 3, 8), (2, 4, 5, 8)
REFUSED = [
    ((1, K, K), {}, TypeError, "'query' must be a Tensor, not int"),
    ((Q, K, None), {}, TypeError, "'value' must be a Tensor, not NoneType"),
    ((Q, (2, 4, 5, 7), K), {}, RuntimeError, "'key' has a head dim of 7, but that of 'query' is 8"),
    ((Q, K, (2, 4, 6, 8)), {}, RuntimeError, "'key' has 5 rows, but 'value' has 6"),
    ((Q, (3, 4, 5, 8), (3, 4, 5, 8)), {}, RuntimeError, "one batch size, not 2, 3 and 3"),
    ((Q, (1, 4, 5, 8), (1, 4, 5, 8)), {}, NotImplementedError, "one batch size, not 2, 1 and 1; expand"),
    ((Q, (2, 2, 5, 8), (2, 2, 5, 8)), {}, RuntimeError, "one head size, not 4, 2 and 2; enable_gqa=True"),
    ((Q, (2, 1, 5, 8), (2, 1, 5, 8)), {}, NotImplementedError, "one head size, not 4, 1 and 1; expand"),
    ((Q, (2, 3, 5, 8), (2, 3, 5, 8)), {"enable_gqa": True}, RuntimeError, "4 heads, of which the 3 .* no divisor"),
    ((Q, (2, 8, 5, 8), (2, 8, 5, 8)), {"enable_gqa": True}, RuntimeError, "no divisor"),
    ((Q, (2, 2, 5, 8), (2, 1, 5, 8)), {"enable_gqa": True}, NotImplementedError, "one head size"),
    ((Q, K, K), {"enable_gqa": 1}, TypeError, "'enable_gqa' must be a bool"),
    (((8,), (8,), (8,)), {}, RuntimeError, "must have 3 or 4 dims, not 1"),
    (((3, 8), (5, 8), (5, 8)), {}, NotImplementedError, "has 2 dims"),
    (((1, *Q), (1, *K), (1, *K)), {}, NotImplementedError, "has 5 dims"),
    (((4, 3, 8), K, K), {}, NotImplementedError, "'key' has 4 dims, but 'query' has 3"),
    (((2, 4, 3, 257), (2, 4, 5, 257), K), {}, NotImplementedError, "head dim of 257; those from 1 to 256"),
    ((Q, K, (2, 4, 5, 300)), {}, NotImplementedError, "'value' has a head dim of 300"),
    (((2, 4, 3, 0), (2, 4, 5, 0), K), {}, NotImplementedError, "head dim of 0"),
    ((Q, K, K), {"attn_mask": (3, 6)}, RuntimeError, r"'attn_mask' \(3, 6\) does not broadcast to \(2, 4, 3, 5\)"),
    ((Q, K, K), {"attn_mask": (1, 1, 1, 3, 5)}, RuntimeError, "does not broadcast"),
    (((1, 4, 3, 8), (1, 4, 5, 8), (1, 4, 5, 8)), {"attn_mask": (2, 1, 3, 5)}, RuntimeError, "not broadcast"),
    ((Q, K, K), {"attn_mask": 1.0}, TypeError, "'attn_mask' must be a Tensor, not float"),
    ((Q, K, K), {"attn_mask": (3, 5), "is_causal": True}, RuntimeError, "cannot both be given"),
    ((Q, K, K), {"is_causal": 1}, TypeError, "'is_causal' must be a bool, not int"),
    ((Q, K, K), {"is_causal": True, "causal_variant": "LOWER_RIGHT"}, TypeError, "'causal_variant' must be"),
    ((Q, K, K), {"scale": "1"}, TypeError, "'scale' must be a float, not str"),
    ((Q, K, K), {"scale": 1j}, TypeError, "'scale' must be a float, not complex"),
    ((Q, K, K), {"dropout_p": 0.1}, NotImplementedError, "'dropout_p' is 0.1; dropout of attention is left out"),
    ((Q, K, K), {"dropout_p": 2}, RuntimeError, "'dropout_p' is 2.0; it must be from 0 to 1"),
    ((Q, K, K), {"present_key": K}, RuntimeError, "'present_value' is missing"),
    ((Q, K, K), {"present_value_slot": 3}, RuntimeError, "'present_key' is missing"),
]


@pytest.mark.parametrize(("shapes", "keywords", "error", "message"), REFUSED)
def test_refused(shapes, keywords, error, message):
    tensors = [zeros(*shape) if isinstance(shape, tuple) else shape for shape in shapes]
    keywords = {name: zeros(*value) if isinstance(value, tuple) else value for name, value in keywords.items()}

    with pytest.raises(error, match=message):
        attend(*tensors, **keywords)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_integers_are_refused(dtype):
    with pytest.raises(RuntimeError, match="of floating-point only"):
        attend(*(zeros(*Q, dtype=dtype),) * 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_masks_of_other_dtypes_are_refused(dtype):
    with pytest.raises(RuntimeError, match=f"'attn_mask' has dtype {dtype}; it must be bool, float32"):
        attend(*(zeros(*Q),) * 3, attn_mask=zeros(3, 3, dtype=dtype))


def test_other_dtypes_are_refused():
    with pytest.raises(RuntimeError, match=r"one dtype, not torch.float32, torch.float16 and torch.float32"):
        attend(zeros(*Q), zeros(*K).half(), zeros(*K))

    with pytest.raises(NotImplementedError, match=r"dtype torch.complex64"):
        attend(*(zeros(*Q, dtype=torch.complex64),) * 3)


def test_what_is_chosen():
    """Configurations depend on sizes through powers of two and thresholds only, and fit into shared memory."""
    halves = [(dtype, False) for dtype in (torch.float16, torch.bfloat16, torch.float32)]
    kinds = [*halves, (torch.float32, True), (torch.float64, True)]
    chosen = set()

    for shared_memory, dim, (dtype, ieee), rows, causal, mask_bytes, aligned in itertools.product(
        (65536, 166912, 232448),
        (1, 16, 33, 64, 100, 128, 256),
        kinds,
        (1, 4, 40, 100, 4096),
        (False, True),
        (0, 1, 4),
        (False, True),
    ):
        config = attention_configs.config(
            rows, 64, 10**5, dim, dim, dtype, ieee, causal, mask_bytes, aligned, shared_memory, multiprocessors=132
        )
        block_e, block_ev = attention_configs.block_dims(dim, dim, dtype, ieee, aligned)
        stage = dtype.itemsize * config.block_n * (block_e + block_ev) + mask_bytes * config.block_m * config.block_n
        assert dtype.itemsize * config.block_m * block_e + config.num_stages * stage <= shared_memory
        chosen.add((config.block_m, config.block_n))

    assert chosen <= set(itertools.product((16, 32, 64, 128), (16, 32, 64, 128)))


def test_keys_are_split_where_there_are_few_queries():
    def splits(rows, groups, keys):
        return attention_configs.config(
            rows, groups, keys, 128, 128, torch.float16, False, False, 0, True, 232448, 132
        ).splits

    assert splits(4, 8, 65536) == 16
    assert splits(4, 8, 4096) == 16
    assert splits(4, 8, 2048) == 16
    assert splits(4, 8, 1000) == 7
    assert splits(4, 8, 699) == 1
    assert splits(32, 8, 2047) == 1
    assert splits(4, 132, 65536) == 1
    assert splits(4096, 32, 4096) == 1
    assert splits(4096, 1, 65536) == 4


def compiled():
    functions = (kernels.attend, kernels.combine, write_rows)
    return sum(len(cache[0]) for function in functions for cache in function.device_caches.values())


@gpu
def test_shapes_need_a_handful_of_kernels():
    before = compiled()

    for size in range(65, 165):
        query = random(1 + size % 3, 4, size, 64, dtype=torch.float16)
        key = random(1 + size % 3, 2, 2 * size, 64, dtype=torch.float16)
        attend(query, key, key, enable_gqa=True)
        attend(query, key, key, is_causal=True, enable_gqa=True)

    # Full and causal, in one part and in several, and what puts the parts together.
    assert compiled() - before <= 6


@gpu
def test_memory_of_a_large_call_is_that_of_its_output():
    size = 32768
    query, key = random(1, 2, size, 64, dtype=torch.bfloat16), random(1, 2, size, 64, dtype=torch.bfloat16, seed=1)
    row = random(size, dtype=torch.bfloat16)

    for mask in (row, row > 0, row.expand(1, 2, size, size), row[:, None].expand(size, size)):
        attend(query[:, :, :64], key, key, mask[..., :64, :] if mask.ndim > 1 else mask)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = attend(query, key, key, mask)
        torch.cuda.synchronize()
        allocated = torch.cuda.max_memory_allocated() - before
        assert allocated <= result.nbytes + 2**20, allocated
        rows = slice(size - 32, None)
        part = mask.expand(1, 2, size, size)[:, :, rows]
        assert_attends(result[:, :, rows], query[:, :, rows], key, key, mask=part)


@gpu
def test_calls_are_captured_in_a_graph():
    query, key, value = (random(2, 4, 1, 64, seed=i) for i in range(3))
    cached = [zeros(2, 4, 600, 64) for _ in range(2)]
    slots = torch.tensor([3, 400], device=DEVICE)
    positions = {"present_key": cached[0], "present_value": cached[1], "present_key_slot": slots}

    def call():
        return attend(query, key, value, is_causal=True, **positions)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph):
        captured = call()

    for step in range(3):
        slots += 1
        query.copy_(random(2, 4, 1, 64, seed=10 + step))
        graph.replay()
        assert torch.equal(captured, call())

        for i, position in enumerate(slots.tolist()):
            keys, values = (cache[i : i + 1, :, : position + 1] for cache in cached)
            assert_attends(captured[i : i + 1], query[i : i + 1], keys, values)


@gpu
def test_work_is_in_the_order_of_the_stream():
    """The cache is read after it was written, and after what the stream did before."""
    cached = [zeros(1, 2, 4096, 64) for _ in range(2)]
    query = random(1, 2, 4, 64)
    positions = {"present_key": cached[0], "present_value": cached[1]}
    attend(query, query, query, present_key_slot=0, **positions)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        new = query * 2
        result = attend(query, new, new, present_key_slot=0, is_causal=True, **positions)

    stream.synchronize()
    assert_attends(result, query, new, new, causal=0)


@gpu
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_float32_follows_the_precision_of_matrix_products(precision):
    query, key, value = random(1, 2, 200, 128), random(1, 2, 300, 128, seed=1), random(1, 2, 300, 128, seed=2)
    before = torch.get_float32_matmul_precision()

    try:
        torch.set_float32_matmul_precision(precision)
        result = attend(query, key, value)
    finally:
        torch.set_float32_matmul_precision(before)

    from attention_definition import definition

    error = (result - definition(query, key, value)).abs().max()
    assert error < 2e-6 if precision == "highest" else 1e-5 < error < 2e-3


@gpu
def test_offsets_past_32_bits():
    """Rows of a cache that are 2^25 elements apart, in blocks whose ends are 2^31 apart."""
    base = torch.empty(130 * 2**25, dtype=torch.bfloat16, device=DEVICE)
    cache = base.as_strided((1, 1, 130, 16), (16, 16, 2**25, 1))
    cache.copy_(random(1, 1, 130, 16, dtype=torch.bfloat16))
    query = random(1, 1, 70, 16, dtype=torch.bfloat16, seed=1)
    near = cache.contiguous()
    assert torch.equal(attend(query, cache, cache), attend(query, near, near))
    far_queries = base.as_strided((1, 1, 70, 16), (16, 16, 2**25, 1), 64)
    far_queries.copy_(query)
    assert torch.equal(attend(far_queries, near, near), attend(query, near, near))
    # The dims of a head that far apart, in the layout that the transpose of a matrix of them has.
    across = base.as_strided((1, 1, 70, 16), (70, 70, 1, 2**28))
    across.copy_(query)
    # They are read in other blocks.
    assert_attends(attend(across, across, across), across, across, across)
    cache.copy_(near)
    slots = torch.tensor([100], dtype=torch.int32, device=DEVICE)
    new = random(1, 1, 30, 16, dtype=torch.bfloat16, seed=3)
    attend(new, new, new, present_key=cache, present_value=cache, present_key_slot=slots)
    assert torch.equal(cache[:, :, 100:], new)


def test_variants_are_importable():
    assert [member.name for member in CausalVariant] == ["UPPER_LEFT", "LOWER_RIGHT"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bool_mask_whose_rows_are_aligned(dtype):
    """A copy of it has other strides."""
    query, key, value = (random(1, 1, 2, 1, dtype=dtype, seed=seed) for seed in range(3))
    mask = zeros(1, 1, 2, 32, dtype=torch.bool)[..., :2]
    mask[..., 0, 0] = True
    assert attend(query, key, value, attn_mask=mask).flatten().tolist() == [value[0, 0, 0, 0].item(), 0]
