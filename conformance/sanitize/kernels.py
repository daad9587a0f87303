"""The kernels of the controls, in Triton and Gluon."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from conformance.sanitize import controls

ROWS, COLUMNS = 64, 64
"""The sizes of a tile."""
DEVICE = "cuda"


@triton.jit
def control_product(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPECIALIZED: tl.constexpr
):
    """``c = a @ b`` in the persistent form of Triton's tutorial, loaded and stored by tensor descriptors: every barrier
    is Triton's own."""
    across = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * across

    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=SPECIALIZED):
        m = tile // across * BLOCK_M
        n = tile % across * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)

        for k in range(0, K, BLOCK_K):
            sums = tl.dot(a.load([m, k]), b.load([k, n]), sums)

        c.store([m, n], sums.to(tl.bfloat16))


@gluon.jit
def control_copy(source, target, TOO_EARLY: gl.constexpr):
    """A tile for each program: one load, one wait, one read. ``TOO_EARLY``: it reads before it waits."""
    rows: gl.constexpr = source.block_type.shape[0]
    columns: gl.constexpr = source.block_type.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    memory = gl.allocate_shared_memory(source.dtype, [rows, columns], source.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    fence_async_shared()
    first = gl.program_id(0) * rows
    mbarrier.expect(loaded, source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, [first, 0], loaded, memory)

    if TOO_EARLY:
        values = memory.load(layout)
        mbarrier.wait(loaded, 0)
    else:
        mbarrier.wait(loaded, 0)
        values = memory.load(layout)

    m = first + gl.arange(0, rows, gl.SliceLayout(1, layout))
    n = gl.arange(0, columns, gl.SliceLayout(0, layout))
    gl.store(target + m[:, None] * columns + n[None, :], values)


@gluon.jit
def control_barrier():
    """Arrives at a barrier that is not initialised."""
    barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.arrive(barrier, count=1)


@triton.jit
def control_double(source, target, size, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Twice each element; without MASKED it reads a whole block."""
    place = tl.arange(0, BLOCK)
    inside = place < size
    values = tl.load(source + place, mask=inside) if MASKED else tl.load(source + place)
    tl.store(target + place, values * 2, mask=inside)


def _product(specialized: bool) -> None:
    m, n, k = 3 * ROWS + 12, 5 * COLUMNS, 4 * COLUMNS
    left, right = _matrix(m, k), _matrix(k, n)
    a, b, c = left.to(DEVICE), right.to(DEVICE), torch.empty(m, n, dtype=torch.bfloat16, device=DEVICE)
    described = [TensorDescriptor.from_tensor(one, [ROWS, COLUMNS]) for one in (a, b, c)]
    # Fewer programs than tiles, so that each computes several.
    control_product[(4,)](*described, m, n, k, ROWS, COLUMNS, COLUMNS, specialized, num_stages=3)
    _compare(c, (left.float() @ right.float()).bfloat16())


def _copy(too_early: bool) -> None:
    given = _matrix(4 * ROWS, COLUMNS)
    source, target = given.to(DEVICE), torch.zeros(4 * ROWS, COLUMNS, dtype=torch.bfloat16, device=DEVICE)
    described = GluonDescriptor(
        source, list(source.shape), list(source.stride()), [ROWS, COLUMNS], gl.NVMMASharedLayout(128, 16, rank=2)
    )
    control_copy[(4,)](described, target, too_early)
    if not too_early:
        _compare(target, given)


def _double(size: int, empty: bool) -> None:
    source = torch.empty(size, device=DEVICE) if empty else torch.ones(size).to(DEVICE)
    target = torch.zeros(size, device=DEVICE)
    control_double[(1,)](source, target, size, 128, MASKED=empty)


def _barrier() -> None:
    control_barrier[(1,)]()


def _matrix(rows: int, columns: int) -> torch.Tensor:
    """Return integers all of whose sums of products are exact."""
    return (torch.arange(rows * columns).view(rows, columns) % 7 - 3).to(torch.bfloat16)


def _compare(found: torch.Tensor, right: torch.Tensor) -> None:
    if not torch.equal(found.cpu(), right):
        raise controls.WrongResult("the control computed something else than torch on the CPU")


RUNS: Mapping[str, Callable[[], None]] = {
    controls.PRODUCT: lambda: _product(specialized=False),
    controls.SPECIALIZED: lambda: _product(specialized=True),
    controls.COPY: lambda: _copy(too_early=False),
    controls.TOO_EARLY: lambda: _copy(too_early=True),
    controls.PAST_END: lambda: _double(100, empty=False),
    controls.EMPTY: lambda: _double(100, empty=True),
    controls.NO_BARRIER: _barrier,
}
"""The launcher of each control."""


def run(name: str) -> None:
    """Launch the control on the GPU. Raises WrongResult."""
    RUNS[name]()
