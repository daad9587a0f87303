"""Products in the form for Hopper: which calls it takes, and its launch."""

import dataclasses

import torch

from ntops._runtime import INTERPRETED
from ntops.host import choice, repetition
from ntops.host.attention_hopper import REGISTERS
from ntops.host.launch import is_hopper, on_device
from ntops.torch.utils import get_default_num_stages, get_default_num_warps


@dataclasses.dataclass(frozen=True)
class Options:
    """A tile of the result is ``groups`` * 64 rows by ``blocks`` * 128 columns."""

    groups: int
    """Of four warps each: two or three."""
    blocks: int
    """Of right factors: one or two. A gated MLP has one of each weight, and half the columns."""
    num_stages: int
    """Steps along K, of 128 bytes, that there is shared memory for."""


def options(groups, blocks, output_itemsize, shared_memory):
    """With as many stages as there is room for beside what is stored, a block of each group."""
    step = (groups * 64 + blocks * 128) * 128
    room = shared_memory - 1024 - groups * 64 * 128 * output_itemsize
    return Options(groups, blocks, min(room // step, 6))


def takes(k, n, itemsize, output_itemsize):
    """Whether tensor descriptors could be of copies of all operands, so that the form of a product does not depend on
    their layout: rows of 16 bytes or a multiple, of a (M, K) and a (N, K) factor and of a (M, N) result."""
    return (
        not INTERPRETED
        # These are numbers for the other form: here warps and stages are parts of a whole.
        and not (get_default_num_warps() or get_default_num_stages())
        and is_hopper()
        and k > 0
        and k * itemsize % 16 == 0
        and n * output_itemsize % 16 == 0
    )


def fp8_gemm(chosen, output, a, b, a_scale, b_scale):
    """Launch ``kernels.fp8_gemm``.

    :param a: (M, K), and ``b`` (N, K), the right factor transposed, as ``aligned`` returns them.
    :param a_scale: What ``fp8.check_scale`` returned; ``b_scale`` likewise.
    """
    from ntops.kernels import fused_products_hopper as kernels

    scales = [_scales(*one) for one in (a_scale, b_scale)]
    _launch(
        kernels.fp8_gemm,
        chosen,
        output,
        chosen.blocks * 128,
        (_descriptor(a, 64, 128), _descriptor(b, 128, 128)),
        (found for found, _ in scales),
        (-(-a.shape[1] // 128), *(step for _, step in scales)),
        (
            *(bool(one[1]) for one in (a_scale, b_scale)),
            bool(a_scale[2] or b_scale[2]),
            *(chosen.groups, chosen.num_stages, chosen.blocks),
        ),
    )


def _scales(scale, row_stride, block_stride):
    """One scale, or one for each row, contiguous; and how far those of the next block are."""
    if not row_stride:
        return scale, block_stride

    return (scale.mT.contiguous(), scale.shape[0]) if block_stride else (scale[:, 0].contiguous(), 0)


def fused_gated_mlp(chosen, output, x, gate, up, activation):
    """Launch ``kernels.fused_gated_mlp`` of matrices."""
    from ntops.kernels import fused_products_hopper as kernels

    _launch(
        kernels.fused_gated_mlp,
        chosen,
        output,
        128,
        (_descriptor(aligned(x), 64, 64), *(_descriptor(aligned(weight), 128, 64) for weight in (gate, up))),
        (),
        (-(-x.shape[1] // 64),),
        (activation, chosen.num_stages),
    )


def _launch(kernel, chosen, output, width, factors, scales, steps, constants):
    (m, n), device = output.shape, output.device
    tiles = -(-m // (chosen.groups * 64)) * -(-n // width)

    with on_device(device):
        repetition.launch(
            kernel,
            (min(tiles, choice.device(device.index or 0).multiprocessors),),
            {"num_warps": 4, "maxnreg": REGISTERS[chosen.groups]},
            _descriptor(output, 64, 128),
            *factors,
            *scales,
            *(m, n, *steps),
            *constants,
        )


def aligned(matrix):
    """The matrix, of rows of a multiple of 16 bytes, or a copy of it that has them begin at such: what a descriptor can
    be of."""
    size, (step, unit) = matrix.element_size(), matrix.stride()
    fits = unit == 1 and step >= matrix.shape[1] and step * size % 16 == 0 and matrix.data_ptr() % 16 == 0

    # A contiguous one may begin anywhere.
    return matrix if fits else matrix.clone(memory_format=torch.contiguous_format)


def _descriptor(matrix, rows, columns):
    """A descriptor of a matrix in blocks."""
    # Calls that take the other form need not wait for this import.
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = NVMMASharedLayout(128, 8 * matrix.element_size(), rank=2)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
