"""A handful of kernels serves every shape, and defaults take effect on what is cached."""

import ast
import pathlib

import pytest
import torch

import ntops
from ntops.host.elementwise import FLAT
from ntops.kernels.element_wise import Tile
from ntops.launch import kernel_sources, recorder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def fresh_cache(monkeypatch):
    kernels = {}
    monkeypatch.setattr(kernel_sources, "_kernels", kernels)
    # What earlier tests called would not ask for a kernel.
    recorder.forget()
    return kernels


def _compiled(kernels):
    """How many kernels there are: on a GPU each may have been compiled for several kinds of arguments."""
    launches = list(kernels.values())

    if DEVICE == "cpu":
        return len(launches)

    functions = [
        value for launch in launches for value in vars(_module(launch)).values() if hasattr(value, "device_caches")
    ]
    return sum(len(cache[0]) for function in functions for cache in function.device_caches.values())


def _module(launch):
    import sys

    return sys.modules[launch.__globals__["__name__"]]


def test_a_thousand_shapes_of_add_need_a_handful_of_kernels(fresh_cache):
    for size in range(1000):
        rows, columns = 1 + size % 29, 1 + size // 29
        tensor = torch.ones(rows, columns, device=DEVICE)
        ntops.torch.add(tensor, 1 + size, alpha=1 + size % 7)
        assert len(fresh_cache) <= 4

    assert _compiled(fresh_cache) <= 4


def test_strided_and_broadcast_shapes_of_add_need_a_kernel_a_rank(fresh_cache):
    for size in range(2, 102):
        tensor = torch.ones(size, size + 1, device=DEVICE)
        ntops.torch.add(tensor, torch.ones(size + 1, device=DEVICE))
        ntops.torch.add(tensor[:, ::2], tensor[:, ::2])

    # Of short rows there are tiles of three widths, with vectors of 16 and of 4 elements, and without.
    assert _compiled(fresh_cache) <= 18


@pytest.mark.parametrize(
    ("other", "tile"),
    [
        (lambda a: a, FLAT // 2),
        (lambda a: a.transpose(1, 2).contiguous().transpose(1, 2), (1, 64, 64)),
        (lambda a: a.permute(2, 1, 0).contiguous().permute(2, 1, 0), (64, 1, 64)),
        # Expanded along the last dim: each row reads one element.
        (lambda a: a[:, :1, :].transpose(1, 2).expand(20, 65, 65), (1, FLAT // 2 // 64, 64)),
        # Too short a dim for a square tile.
        (lambda a: a[:2].permute(2, 1, 0).contiguous().permute(2, 1, 0), (1, FLAT // 2 // 64, 64)),
    ],
    ids=["contiguous", "transposed", "outermost first", "expanded", "short"],
)
def test_operands_that_run_along_different_dims_take_square_tiles(other, tile, fresh_cache):
    second = other(torch.randn(20, 65, 65, device=DEVICE))
    first = torch.randn(second.shape, device=DEVICE)
    assert torch.equal(ntops.torch.add(first, second), first + second)
    ((_, _, blocks, *_),) = fresh_cache
    assert dict(blocks)["block_size"] == tile


@pytest.mark.parametrize("columns", [FLAT // 4, FLAT - 1, FLAT, 2 * FLAT + 1])
def test_an_operand_that_is_constant_along_a_row_is_loaded_once(columns, fresh_cache):
    first, second = (torch.randn(3, size, device=DEVICE).to(torch.bfloat16) for size in (columns, 1))
    assert torch.equal(ntops.torch.sub(first, second), first - second)
    ((_, _, blocks, *_),) = fresh_cache
    assert dict(blocks)["block_size"] == Tile(FLAT if columns >= FLAT else FLAT // 2, ("other",))


def test_shapes_of_softmax_need_a_kernel_a_power_of_two(fresh_cache):
    for columns in range(1, 513, 3):
        ntops.torch.softmax(torch.ones(1 + columns % 5, columns, device=DEVICE), -1)

    # Six powers of two from 16 to 512, with vectors of 16 and of 4 elements, and without; single columns and single
    # elements.
    assert _compiled(fresh_cache) <= 3 * 6 + 2


def test_shapes_of_mm_need_a_handful_of_kernels(fresh_cache):
    for size in range(1, 40):
        ntops.torch.mm(torch.ones(size, size + 1, device=DEVICE), torch.ones(size + 1, 2 * size, device=DEVICE))

    assert _compiled(fresh_cache) <= 8


@pytest.mark.parametrize("name", ["num_warps", "num_stages", "max_num_configs"])
def test_a_default_can_be_set_and_unset(name, fresh_cache):
    set_default = getattr(ntops.torch, f"set_default_{name}")
    get_default = getattr(ntops.torch, f"get_default_{name}")
    tensor = torch.arange(5.0, device=DEVICE)
    assert get_default() is None
    ntops.torch.add(tensor, 1)
    before = len(fresh_cache)

    try:
        set_default(2)
        assert get_default() == 2
        assert torch.equal(ntops.torch.add(tensor, 1), tensor + 1)
        # Of a tensor of one dim there is one configuration to measure.
        made_again = name != "max_num_configs"
        assert len(fresh_cache) == before + made_again
    finally:
        set_default(None)

    ntops.torch.add(tensor, 1)
    assert len(fresh_cache) == before + made_again


@pytest.mark.parametrize("value", [3, 12, 64])
def test_warps_are_a_power_of_two(value):
    with pytest.raises(ValueError, match=f"num_warps must be a power of two up to 32 or None, not {value}"):
        ntops.torch.set_default_num_warps(value)

    assert ntops.torch.get_default_num_warps() is None


@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True])
def test_a_default_that_is_no_positive_integer_is_refused(value):
    with pytest.raises(ValueError, match="num_warps must be a positive integer or None"):
        ntops.torch.set_default_num_warps(value)

    assert ntops.torch.get_default_num_warps() is None


def test_offsets_past_32_bits_reach_their_elements():
    # Untouched pages of this storage cost nothing; its ends are 2^31 elements apart.
    storage = torch.empty(2**31 + 64, dtype=torch.int8, device=DEVICE)
    far = storage.as_strided((2, 3), (2**31, 2))
    far.copy_(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    assert ntops.torch.add(far, far).tolist() == [[2, 4, 6], [8, 10, 12]]
    ntops.torch.relu(far, inplace=True)
    ntops.torch.add(far, 1, out=far)
    assert far.tolist() == [[2, 3, 4], [5, 6, 7]]


@pytest.mark.parametrize("name", ["argmax", "amax", "sum"])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_reductions_reach_elements_past_32_bits(name, dim):
    far = torch.empty(2**31 + 64, dtype=torch.int8, device=DEVICE).as_strided((3, 5), (2**30, 2))
    far.copy_(torch.tensor([[1, 9, 3, 0, 2], [4, 5, 6, 8, 7], [3, 2, 9, 1, 4]]))
    found = getattr(ntops.torch, name)(far) if dim is None else getattr(ntops.torch, name)(far, dim)
    near = far.contiguous()
    assert found.tolist() == (getattr(torch, name)(near) if dim is None else getattr(torch, name)(near, dim)).tolist()


def test_no_kernel_negates_with_a_minus():
    """Triton's "-x" is 0 - x, which turns 0 into 0 and not -0: "x * -1.0" does, and "0 - x" of an integer says it."""
    negations = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in pathlib.Path(ntops.kernels.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not _of_numbers(node.operand)
    ]
    assert not negations


def _of_numbers(node):
    """Tell whether it is computed in Python: of literals and of bits of a dtype."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return not any(isinstance(one, ast.Call) for one in ast.walk(node)) and names <= {"bits"}
