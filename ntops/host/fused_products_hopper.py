"""Fused products on Hopper: tell which calls the Gluon kernels take, and launch them."""

import dataclasses

import torch

from ntops._runtime import INTERPRETED
from ntops.host.attention_hopper import REGISTERS
from ntops.launch import config_selection, recorder
from ntops.launch.devices import is_hopper, on_device
from ntops.launch.settings import get_default_num_stages, get_default_num_warps


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a product; a tile of the result is ``groups`` * 64 rows by ``blocks`` * 128 columns."""

    groups: int
    """The number of groups of four warps: two or three."""
    blocks: int
    """The number of blocks of right factors: one or two. A gated MLP has one block of each weight, and half the
    columns."""
    num_stages: int
    """The number of steps along K, of 128 bytes each, that shared memory holds."""


def options(groups, blocks, output_itemsize, shared_memory):
    """Return options with as many stages as fit shared memory beside the result blocks, one for each group."""
    step = (groups * 64 + blocks * 128) * 128
    room = shared_memory - 1024 - groups * 64 * 128 * output_itemsize
    return Options(groups, blocks, min(room // step, 6))


def takes(k, n, itemsize, output_itemsize):
    """Tell whether tensor descriptors fit copies of all operands: rows of the (M, K) and (N, K) factors and of the (M,
    N) result must be multiples of 16 bytes. Layouts do not count, so that they do not change the kernel that runs."""
    return (
        not INTERPRETED
        # The user's numbers are for Triton's kernel: here warps and stages are parts of a fixed design.
        and not (get_default_num_warps() or get_default_num_stages())
        and is_hopper()
        and k > 0
        and k * itemsize % 16 == 0
        and n * output_itemsize % 16 == 0
    )


def fp8_gemm(chosen, output, a, b, a_scale, b_scale):
    """Launch ``kernels.fp8_gemm``.

    :param a: (M, K), as ``aligned`` returns it; ``b``, (N, K), is the transposed right factor, likewise.
    :param a_scale: The return value of ``fp8.check_scale``; ``b_scale`` likewise.
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
    """Return one scale, or contiguous scales, one for each row, and the distance to the scales of the next block."""
    if not row_stride:
        return scale, block_stride

    return (scale.mT.contiguous(), scale.shape[0]) if block_stride else (scale[:, 0].contiguous(), 0)


def fused_gated_mlp(chosen, output, x, gate, up, activation):
    """Launch ``kernels.fused_gated_mlp`` on matrices."""
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
        recorder.launch(
            kernel,
            (min(tiles, config_selection.device(device.index or 0).multiprocessors),),
            {"num_warps": 4, "maxnreg": REGISTERS[chosen.groups]},
            _descriptor(output, 64, 128),
            *factors,
            *scales,
            *(m, n, *steps),
            *constants,
        )


def aligned(matrix):
    """Return a matrix, or a copy of it, that a descriptor fits: its rows are multiples of 16 bytes and begin at
    such."""
    size, (step, unit) = matrix.element_size(), matrix.stride()
    fits = unit == 1 and step >= matrix.shape[1] and step * size % 16 == 0 and matrix.data_ptr() % 16 == 0

    # A contiguous matrix may still begin at any address.
    return matrix if fits else matrix.clone(memory_format=torch.contiguous_format)


def _descriptor(matrix, rows, columns):
    """Return a descriptor of a matrix in blocks."""
    # Import here, so that calls of the other kernel do not pay for it.
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = NVMMASharedLayout(128, 8 * matrix.element_size(), rank=2)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
