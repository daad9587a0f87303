"""Specs become tensors that lie exactly as their layouts say, with the same elements however they lie."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from strategies import dtypes, layouts, shapes, values
from strategies.specs import Layout, Special, TensorSpec
from strategies.tensors import digest, materialize, planted, tensors

SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SPECS = tensors(shapes.shapes(max_rank=5), dtypes.NAMES)
MANY = settings(max_examples=200, database=None, derandomize=True)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    # First the bits: of bools torch copies truth values.
    return tensor.view(SIGNED[tensor.element_size()]).contiguous()


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (size,), (1,))


def built_with_torch(spec: TensorSpec) -> torch.Tensor:
    """A tensor with the spec's layout made by torch's own permute, slicing, narrow and expand."""
    rank, layout = len(spec.shape), spec.layout
    order = layout.order or tuple(range(rank))
    base = torch.empty([layouts.base_shape(layout, spec.shape)[dim] for dim in order])
    view = base.permute([order.index(dim) for dim in range(rank)])
    for dim, size in enumerate(spec.shape):
        if dim in layout.expanded:
            continue
        step = layout.steps[dim] if layout.steps else 1
        view = view[(slice(None),) * dim + (slice(0, size * step, step),)]
    return view.expand(spec.shape)


@MANY
@given(SPECS)
def test_every_spec_lies_as_its_layout_says(spec):
    tensor = materialize(spec)
    assert (tensor.shape, tensor.dtype) == (spec.shape, dtypes.to_torch(spec.dtype))
    assert tensor.stride() == layouts.strides(spec.layout, spec.shape)
    assert tensor.storage_offset() == spec.layout.offset
    size = layouts.storage_size(spec.layout, spec.shape)
    assert tensor.untyped_storage().nbytes() == size * tensor.element_size()
    expected = built_with_torch(spec).stride()
    for dim, extent in enumerate(spec.shape):
        if extent > 1 and tensor.numel():
            assert tensor.stride(dim) == expected[dim]
    kind = layouts.layout_class(spec.layout, spec.shape)
    if kind == "contiguous":
        assert tensor.is_contiguous()
    elif kind not in ("offset", "mixed"):
        assert not tensor.is_contiguous()


@MANY
@given(tensors(shapes.shapes(budget=500), dtypes.NAMES))
def test_elements_are_the_same_however_they_lie(spec):
    stored = tuple(1 if dim in spec.layout.expanded else size for dim, size in enumerate(spec.shape))
    plain = materialize(TensorSpec(stored, spec.dtype, spec.values, spec.seed), operand=2)
    expected = as_bits(plain.expand(spec.shape)).clone()
    for special in spec.specials:
        for index in range(special.index, min(special.index + special.run, expected.numel())):
            place = [int(where) for where in np.unravel_index(index, spec.shape)]
            # What is planted in an expanded dim shows at every place of it.
            at = tuple(slice(None) if dim in spec.layout.expanded else where for dim, where in enumerate(place))
            bits = values.special_bits(special.value, spec.dtype)
            expected[at] = bits - (bits >> 8 * plain.itemsize - 1 << 8 * plain.itemsize)  # as a signed integer
    assert torch.equal(as_bits(materialize(spec, operand=2)), expected)


@MANY
@given(SPECS)
def test_storage_outside_the_view_shows(spec):
    tensor = materialize(spec)
    storage = whole_storage(tensor)
    inside = torch.zeros(storage.numel(), dtype=torch.bool)
    inside.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    outside = storage[~inside]
    if spec.dtype == "bool":
        assert outside.all()
    elif tensor.dtype.is_floating_point:
        assert outside.double().isnan().all()
    else:
        assert (outside.view(torch.uint8) == 0xA5).all()


@MANY
@given(SPECS)
def test_the_same_spec_gives_the_same_bits(spec):
    first, second = materialize(spec), materialize(spec)
    assert torch.equal(as_bits(first), as_bits(second))
    assert torch.equal(as_bits(whole_storage(first)), as_bits(whole_storage(second)))
    assert first.data_ptr() != second.data_ptr() or not first.numel()


@pytest.mark.parametrize("layout", [Layout(), Layout(order=(1, 0), steps=(2, 1), offset=3), Layout(padding=(0, 2))])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_specials_are_planted_where_they_say(name, layout):
    shape, specials = (3, 5), (Special(0, "nan"), Special(-1, "-0"), Special(16, "max"), Special(6, "tiny", run=3))
    tensor = materialize(TensorSpec(shape, name, "constant", layout=layout, specials=specials))
    bits = as_bits(tensor).view(-1).tolist()
    expected = dict.fromkeys((6, 7, 8), "tiny") | {0: "nan", 14: "-0", 1: "max"}
    form = dtypes.format_of(name)
    for index, found in enumerate(bits):
        if index in expected:
            assert found % 2**form.bits == values.special_bits(expected[index], name)
        else:
            assert found == bits[2]


def test_specials_in_expanded_dims_show_at_every_place():
    layout, special = Layout(expanded=(0,)), Special(7, "inf")
    tensor = materialize(TensorSpec((3, 5), "float32", layout=layout, specials=(special,)))
    assert tensor.isinf().nonzero().tolist() == [[0, 2], [1, 2], [2, 2]]


def test_a_run_ends_with_the_tensor():
    for special in (Special(2, "nan", run=5), Special(-2, "nan", run=2), Special(10**30 + 2, "nan", run=10**30)):
        spec = TensorSpec((4,), "float32", "zeros", specials=(special,))
        assert materialize(spec).isnan().tolist() == [False, False, True, True]
    assert materialize(TensorSpec((0, 4), "float32", specials=(Special(0, "nan"),))).numel() == 0


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_tensors_are_like_fresh_ones(name):
    tensor = materialize(TensorSpec((0,), name))
    assert tensor._base is None
    assert not tensor.requires_grad
    assert tensor.resize_(3, 4).shape == (3, 4), "out= of an empty tensor resizes it"


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_digest_is_of_the_logical_elements(name):
    shape = (3, 4, 5)
    plain = materialize(TensorSpec(shape, name))
    other = materialize(TensorSpec(shape, name, layout=Layout(order=(2, 0, 1), steps=(1, 2, 3), offset=7)))
    assert digest(plain) == digest(other) == digest(plain.clone())
    content = bytes(as_bits(plain).view(torch.uint8).flatten().tolist())
    assert digest(plain) == hashlib.sha256(f"{name}[3, 4, 5]".encode() + content).hexdigest()[:16]


def test_digest_sees_every_difference():
    zeros = torch.zeros(2, 3)
    changed = zeros.clone()
    changed[1, 2] = -0.0
    different = [zeros, changed, zeros.view(3, 2), zeros.view(6), zeros.int(), zeros.double(), torch.zeros(2, 0)]
    assert len({digest(tensor) for tensor in different}) == len(different)
    with pytest.raises(ValueError, match="unknown dtype 'complex64'"):
        digest(torch.zeros(2, dtype=torch.complex64))


def test_each_special_is_planted_at_first_last_and_edges(examples):
    shape = (40, 33)
    found = [special for specials in examples(planted(shape, "float32"), 600) for special in specials]
    assert {special.value for special in found} == {*values.SPECIALS, values.SIGNED_NAN, values.FULL_NAN}
    indices = {special.index for special in found}
    assert {0, math.prod(shape) - 1, 32, 33} <= indices, "first, last, end of a row, start of a row"
    assert indices & {16, 64, 128, 256, 1024}
    assert indices & {15, 31, 63, 127, 255, 1023}
    assert {1, 16, 33, 64} <= {special.run for special in found}
    assert all(0 <= index < math.prod(shape) for index in indices)


def test_specials_are_as_asked(examples):
    assert set(examples(planted((3,), "float32", ()), 20)) == {()}
    assert set(examples(planted((0, 3), "float32"), 20)) == {()}
    assert set(examples(planted((3,), "int8", ("nan",)), 20)) == {()}
    only = examples(planted((300,), "float32", ("nan", "-0")), 200)
    assert {special.value for specials in only for special in specials} == {
        "nan",
        values.SIGNED_NAN,
        values.FULL_NAN,
        "-0",
    }
    signed = examples(planted((300,), "float32", (values.SIGNED_NAN,)), 100)
    assert {special.value for specials in signed for special in specials} == {"nan", values.SIGNED_NAN, values.FULL_NAN}
    drawn = examples(tensors((300,)), 200)
    assert 0.2 < sum(not spec.specials for spec in drawn) / len(drawn) < 0.9
    with pytest.raises(ValueError, match="unknown special value 'huge'"):
        examples(planted((3,), "float32", ("huge",)), 1)


def test_arguments_of_tensors(examples):
    for spec in examples(tensors((4, 5), "int16", values="uniform", layouts="permuted", specials=()), 30):
        assert (spec.shape, spec.dtype, spec.values, spec.specials) == ((4, 5), "int16", "uniform", ())
        assert layouts.layout_class(spec.layout, spec.shape) == "permuted"
    drawn = examples(tensors((2,), dtypes.dtypes(["int8", "bool"])), 100)
    assert {spec.dtype for spec in drawn} == {"int8", "bool"}
    drawn = examples(tensors((2,)), 200)
    assert {spec.dtype for spec in drawn} == set(dtypes.FLOATING)
    assert len({spec.seed for spec in drawn}) > 10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@settings(max_examples=100, database=None, derandomize=True)
@given(SPECS)
def test_a_gpu_gets_the_same_tensor(spec):
    here, there = materialize(spec), materialize(spec, device="cuda")
    assert there.is_cuda
    assert (there.stride(), there.storage_offset()) == (here.stride(), here.storage_offset())
    assert there.untyped_storage().nbytes() == here.untyped_storage().nbytes()
    assert torch.equal(as_bits(there).cpu(), as_bits(here))
    assert digest(there) == digest(here)
