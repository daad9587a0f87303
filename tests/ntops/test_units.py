"""Sizes and strides that kernels are told to be multiples of a number are multiples of it: a kernel that is told so
rounds them down, and what is not a multiple would be another number."""

import itertools
import math
import operator

import pytest
import torch
import torch.nn.functional as F

import ntops.torch
from ntops._runtime import INTERPRETED
from ntops.host import product_configs
from ntops.launch import config_selection, kernel_sources, recorder

pytestmark = pytest.mark.usefixtures("on_device")
SHAPES = ((8, 1000), (1000, 8), (3, 1500), (24, 40), (40, 24), (2, 24, 20), (1, 300), (300, 1))


@pytest.fixture
def units(monkeypatch):
    """Interpret what is compiled elsewhere, and return the units of the kernels that are made."""
    made, kernels = [], {}

    def make(premake, arguments, config, specialization, make=kernel_sources.make):
        made.append(specialization.unit)
        return make(premake, arguments, config, specialization)

    monkeypatch.setattr(kernel_sources, "INTERPRETED", False)
    monkeypatch.setattr(kernel_sources, "_kernels", kernels)
    # A recorded call makes no kernel.
    recorder.forget()

    for module in ("cross_entropy", "cumulative", "elementwise", "products", "reductions", "rope", "rows"):
        monkeypatch.setattr(f"ntops.host.{module}.make", make)

    return made


CALLS = {
    "add": lambda ops, x: ops.add(x, x[..., :1, :]),
    "sum": lambda ops, x: ops.sum(x, -1),
    "sum of columns": lambda ops, x: ops.sum(x, 0),
    "argmax": lambda ops, x: ops.argmax(x, -1),
    "amax": lambda ops, x: ops.amax(x, 0),
    "cumsum": lambda ops, x: ops.cumsum(x, -1),
    "cumsum of columns": lambda ops, x: ops.cumsum(x, 0),
    "softmax": lambda ops, x: ops.softmax(x, -1),
    "turned": lambda ops, x: ops.exp(x.mT),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_rows_of_vectors_is_right(name, shape, dtype, units):
    x = torch.randint(-3, 4, shape).to(dtype)
    theirs = CALLS[name](F if name == "softmax" else torch, x)
    torch.testing.assert_close(CALLS[name](ntops.torch, x), theirs)
    assert units


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beyond", [1, 1023, 2047])
@pytest.mark.parametrize("name", ["add", "clamp", "eq", "mul", "neg"])
def test_sizes_that_are_no_multiples_are_computed_in_whole_tiles_and_a_last_one(name, beyond, dtype, units):
    others = {"clamp": (-1.5, 1.5), "mul": (2.5,), "neg": ()}
    x, y = (torch.randint(-3, 4, (16 * 2048 + beyond,)).to(dtype) for _ in range(2))
    operands = (x, *others.get(name, (y,)))
    torch.testing.assert_close(getattr(ntops.torch, name)(*operands), getattr(torch, name)(*operands))
    assert units == [16]
    torch.testing.assert_close(ntops.torch.neg(x[1:]), -x[1:])
    assert units == [16, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("pitch", [1, 2, 10, 19])
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_rows_that_overlap_is_right(name, rows, pitch, dtype, units):
    if name == "softmax" and dtype == torch.int64:
        dtype = torch.float32

    x = torch.randint(-3, 4, (400,)).to(dtype).as_strided((rows, 20), (pitch, 1))
    theirs = CALLS[name](F if name == "softmax" else torch, x)
    torch.testing.assert_close(CALLS[name](ntops.torch, x), theirs)


@pytest.mark.parametrize("pitch", [1, 2, 10, 19])
def test_a_product_of_rows_that_overlap_is_right(pitch, units):
    x = torch.randint(-3, 4, (400,)).float().as_strided((20, 20), (pitch, 1))

    with config_selection.forced("mm", product_configs.Options(32, 32, 32, 4, 2)):
        torch.testing.assert_close(ntops.torch.mm(x, x.mT), x @ x.mT)


@pytest.mark.skipif(not INTERPRETED, reason="launches are checked under the interpreter alone")
def test_a_kernel_is_not_told_of_multiples_that_its_tensors_do_not_have(monkeypatch):
    names = "output", "input", "other"
    wrong = kernel_sources.Specialization(tuple((name, 1) for name in names), 4, names)
    monkeypatch.setattr("ntops.host.dim_order.specialize", lambda views: wrong)

    with pytest.raises(
        RuntimeError, match=r"assumes multiples of 4, and a size or stride of tensor .* of shape \(3, 18\)"
    ):
        ntops.torch.add(torch.ones(3, 18), torch.ones(18))


@pytest.mark.parametrize(("rows", "terms", "columns"), [(24, 40, 8), (8, 1000, 24), (3, 20, 12), (1, 8, 300)])
def test_a_product_of_rows_of_vectors_is_right(rows, terms, columns, units):
    first, second = (torch.randint(-3, 4, shape).float() for shape in ((2, rows, terms), (2, terms, columns)))
    tiles = product_configs.Options(32, 32, 32, 4, 2)

    with config_selection.forced("bmm", tiles), config_selection.forced("mm", tiles):
        torch.testing.assert_close(ntops.torch.bmm(first, second), first @ second)
        torch.testing.assert_close(ntops.torch.mm(first[0], second[1]), first[0] @ second[1])

    assert set(units) <= {2, 4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [48, 40])
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
def test_any_number_of_rows_is_multiplied_in_vectors(rows, columns, dtype, units):
    """With K innermost in one factor alone, a dim of one number is rows of one and terms of the other."""
    first = torch.randint(-3, 4, (rows, 80)).to(dtype)
    second, weight = (torch.randint(-3, 4, shape).to(dtype) for shape in ((rows, columns), (columns, 80)))
    tiles = product_configs.Options(16, 32, 32, 4, 2)

    with config_selection.forced("mm", tiles):
        for left, right in ((first, weight.mT), (weight, first.mT), (first.mT, second)):
            torch.testing.assert_close(ntops.torch.mm(left, right), left @ right)

    unit = 16 if columns % 16 == 0 else 16 // dtype.itemsize
    # The rows of the second product's result are as short as there are rows.
    assert units[::2] == [unit, unit]


@pytest.mark.parametrize("shape", [(8, 40), (2, 3, 40), (2, 40, 24), (12, 5)], ids=str)
def test_losses_of_rows_of_vectors_are_right(shape, units):
    logits = torch.randint(-3, 4, shape).float()
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    torch.testing.assert_close(
        ntops.torch.cross_entropy(logits, target, reduction="none"), F.cross_entropy(logits, target, reduction="none")
    )


def laid_out(layout, *shape, dtype):
    """Ones whose rows lie in another way than those of a contiguous tensor."""
    offset, pitch = layout
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    memory = torch.ones(offset + rows * (columns + pitch), dtype=dtype)
    steps = (*reversed(list(itertools.accumulate(reversed(shape[1:-1]), operator.mul, initial=columns + pitch))), 1)
    return memory.as_strided(shape, steps if len(shape) > 1 else (1,), offset)


NORMS = {
    "layer_norm": lambda made, n: ntops.torch.layer_norm(made(0, 3, n), (n,), made(1, n), made(2, n)),
    "rms_norm": lambda made, n: ntops.torch.rms_norm(made(0, 3, n), (n,), made(1, n)),
    "fused_rmsnorm_rope": lambda made, n: ntops.torch.fused_rmsnorm_rope(
        made(0, 1, 2, n), made(1, n), made(2, 2, n // 2), made(3, 2, n // 2)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [4, 8, 12, 16, 40])
@pytest.mark.parametrize("name", NORMS)
def test_rows_of_any_layout_are_summed_as_contiguous_ones(name, columns, dtype, units):
    """Compiled, the order of a sum depends on the unit, and the layout of an operand must not change it."""
    for which, layout in itertools.product(range(4), [(0, 0), (1, 0), (0, 1), (0, 2), (0, 4), (8, 8)]):

        def made(number, *shape, which=which, layout=layout):
            return laid_out(layout if number == which else (0, 0), *shape, dtype=dtype)

        NORMS[name](made, columns)

    assert len(set(units)) == 1
