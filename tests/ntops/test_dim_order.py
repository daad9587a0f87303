"""The host layer's order of dims is TensorIterator's: asked of torch, over drawn layouts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._prims_common import suggest_memory_format

from ntops.host import dim_order


@st.composite
def operands(draw, count=2):
    """Tensors of one broadcast shape: permuted, sliced, expanded, with dims of size 1 and 0."""
    ndim = draw(st.integers(0, 4))
    shape = [draw(st.sampled_from([0, 1, 2, 3])) for _ in range(ndim)]
    tensors = []

    for _ in range(draw(st.integers(1, count))):
        sizes = [draw(st.sampled_from([size, 1])) for size in shape]
        sizes = sizes[draw(st.integers(0, ndim)) if ndim and draw(st.booleans()) else 0 :]
        order = draw(st.permutations(range(len(sizes))))
        steps = [draw(st.sampled_from([1, 1, 2])) for _ in sizes]
        base = torch.zeros([sizes[dim] * steps[dim] for dim in order])
        tensor = base.permute([order.index(dim) for dim in range(len(sizes))])
        tensors.append(tensor[tuple(slice(None, None, step) for step in steps)])

    return tensors


@given(operands(), st.booleans())
def test_result_strides_are_those_of_torch(tensors, with_number):
    if with_number:
        tensors = tensors[:1]

    expected = torch.add(tensors[0], 2.0 if with_number else tensors[-1])
    strides = dim_order.result_strides(expected.shape, [tensors[0], tensors[-1]][: 2 - with_number], with_number)

    assert torch.empty_strided(expected.shape, strides).stride() == expected.stride()


@given(operands())
def test_collapsed_operands_have_the_same_elements_in_the_same_order(tensors):
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))

    if 0 in shape:
        return

    strides = [dim_order.broadcast_strides(tensor, shape) for tensor in tensors]
    collapsed, own = dim_order.collapse(shape, strides)

    for before, after in zip(strides, own, strict=True):
        assert sorted(_addresses(shape, before)) == sorted(_addresses(collapsed, after))

    pairs = set(zip(*(_addresses(shape, stride) for stride in strides), strict=True))
    assert pairs == set(zip(*(_addresses(collapsed, stride) for stride in own), strict=True))
    assert len(collapsed) <= max(len(shape), 1)


def _addresses(shape, strides):
    addresses = [0]

    for size, stride in zip(shape, strides, strict=True):
        addresses = [address + index * stride for address in addresses for index in range(size)]

    return addresses


def test_dense_memory_collapses_to_one_dim():
    channels_last = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last).stride()
    assert dim_order.collapse((2, 3, 4, 5), [channels_last, channels_last]) == ((120,), [(1,), (1,)])
    assert dim_order.collapse((1, 1), [(1, 1)]) == ((1,), [(1,)])
    # A row that is broadcast over the batch keeps the two apart.
    assert dim_order.collapse((2, 3, 4), [(12, 4, 1), (0, 0, 1)]) == ((6, 4), [(4, 1), (0, 1)])


def test_specialization_says_what_an_address_is_made_of():
    aligned = torch.empty(64, 64)
    views = {"output": aligned, "input": aligned.t()}
    assert dim_order.specialize(views).unit_strides == (("output", 1), ("input", 0))
    assert dim_order.specialize(views).unit == 16
    assert dim_order.specialize({"output": aligned, "input": aligned[:, 1:]}).unit == 1
    assert not dim_order.specialize({"output": torch.empty(1).expand(64)}).unit_strides


@pytest.mark.parametrize(
    ("dtype", "columns", "unit"),
    [
        *((torch.bfloat16, columns, unit) for columns, unit in ((48, 16), (1000, 8), (1500, 4), (1502, 1), (777, 1))),
        *((torch.float32, columns, unit) for columns, unit in ((48, 16), (1000, 4), (1500, 4), (1502, 1), (777, 1))),
        *((torch.float64, columns, unit) for columns, unit in ((48, 16), (1502, 2), (777, 1))),
        *((torch.int8, columns, unit) for columns, unit in ((48, 16), (1000, 1), (1500, 1))),
    ],
)
def test_elements_are_loaded_by_8_or_16_bytes_where_all_rows_begin_at_multiples_of_that(dtype, columns, unit):
    rows = torch.empty(8, columns, dtype=dtype)
    assert dim_order.specialize({"output": rows, "input": rows}).unit == unit
    # A row of eight is a part of a longer one.
    parts = torch.empty(8, 2 * columns, dtype=dtype)[:, :columns]
    assert dim_order.specialize({"output": rows, "input": parts}).unit == unit
    # Neither where a tensor begins elsewhere.
    shifted = torch.empty(8 * columns + 1, dtype=dtype)[1:].view(8, columns)
    assert dim_order.specialize({"output": rows, "input": shifted}).unit == 1


def test_offsets_are_wide_only_where_32_bits_are_too_few():
    # Nothing is allocated: meta tensors have strides alone.
    small = torch.empty(2**20, device="meta")
    assert not dim_order.specialize({"output": small}).wide
    assert dim_order.specialize({"output": torch.empty(2**31, device="meta")}).wide
    assert dim_order.specialize({"output": small, "input": small.as_strided((2,), (2**31,))}).wide


@given(st.data(), st.integers(3, 5))
def test_channels_last_is_what_torch_takes_for_it(data, ndim):
    shape = data.draw(st.lists(st.sampled_from((0, 1, 1, 2, 3)), min_size=ndim, max_size=ndim))
    strides = data.draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 6, 12, 18)), min_size=ndim, max_size=ndim))
    tensor = torch.empty(256).as_strided(shape, strides)
    assert (dim_order.channels_last(tensor) or torch.contiguous_format) is suggest_memory_format(tensor)
