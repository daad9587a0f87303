"""Products in the form for Hopper: which calls it takes, and its launch."""

import dataclasses

import torch

from ntops._runtime import INTERPRETED
from ntops.host import choice, repetition
from ntops.host.attention_hopper import REGISTERS
from ntops.host.launch import is_hopper, on_device

_TALL = 8
"""Tiles that lie below each other and are computed together."""


@dataclasses.dataclass(frozen=True)
class Options:
    """A tile of the result is ``groups`` * 64 rows by ``blocks`` * 128 columns."""

    groups: int
    """Of four warps each: two or three."""
    blocks: int
    """Of the right factor: one or two. A gated MLP has one of each weight."""
    num_stages: int
    """Steps along K that there is shared memory for."""


def takes(k, n, itemsize, output_itemsize):
    """Whether tensor descriptors could be of copies of all operands, so that the form of a product does not depend on
    their layout: rows of 16 bytes or a multiple, of a (M, K) and a (N, K) factor and of a (M, N) result."""
    return not INTERPRETED and is_hopper() and k > 0 and k * itemsize % 16 == 0 and n * output_itemsize % 16 == 0


def fp8_gemm(chosen, output, a, b, a_scale, b_scale):
    """Launch ``kernels.fp8_gemm``.

    :param a: (M, K); ``b`` (N, K), the right factor transposed.
    :param a_scale: What ``fp8.check_scale`` returned, of the matrix or of each row; ``b_scale`` likewise.
    """
    from ntops.kernels import products_hopper as kernels

    rows, columns = kernels.ROWS.value, kernels.COLUMNS.value
    _launch(
        kernels.fp8_gemm,
        chosen,
        output,
        chosen.blocks * columns,
        (_descriptor(_copied(a), rows, 128), _descriptor(_copied(b), columns, 128)),
        (_scales(a_scale), _scales(b_scale)),
        -(-a.shape[1] // 128),
        (bool(a_scale[1]), bool(b_scale[1]), chosen.groups, chosen.num_stages, chosen.blocks),
    )


def _scales(scale):
    """One scale, or one for each row, contiguous."""
    matrix, step, _ = scale
    return matrix.contiguous() if step else matrix


def fused_gated_mlp(chosen, output, x, gate, up, activation):
    """Launch ``kernels.fused_gated_mlp`` of matrices."""
    from ntops.kernels import products_hopper as kernels

    rows, columns = kernels.ROWS.value, kernels.COLUMNS.value
    _launch(
        kernels.fused_gated_mlp,
        chosen,
        output,
        columns,
        (_descriptor(_copied(x), rows, 64), *(_descriptor(_copied(weight), columns, 64) for weight in (gate, up))),
        (),
        -(-x.shape[1] // 64),
        (activation, chosen.num_stages),
    )


def _launch(kernel, chosen, output, width, factors, scales, steps, constants):
    from ntops.kernels import products_hopper as kernels

    (m, n), device = output.shape, output.device
    tiles = -(-m // (chosen.groups * kernels.ROWS.value)) * -(-n // width)

    with on_device(device):
        repetition.launch(
            kernel,
            (min(tiles, choice.device(device.index or 0).multiprocessors),),
            {"num_warps": 4, "maxnreg": REGISTERS[chosen.groups]},
            _descriptor(output, kernels.ROWS.value, kernels.COLUMNS.value),
            *factors,
            *scales,
            *(m, n, steps),
            *constants,
            _TALL,
        )


def _copied(matrix):
    """The matrix, or a copy of it that a descriptor can be of: with rows of multiples of 16 bytes."""
    size = matrix.element_size()
    fits = matrix.stride(1) == 1 and (matrix.shape[0] == 1 or matrix.stride(0) >= matrix.shape[1])
    aligned = matrix.data_ptr() % 16 == 0 and matrix.stride(0) * size % 16 == 0

    # A contiguous one may begin anywhere.
    return matrix if fits and aligned else matrix.clone(memory_format=torch.contiguous_format)


def _descriptor(matrix, rows, columns):
    """A descriptor of a matrix in blocks."""
    # Calls that take the other form need not wait for this import.
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = NVMMASharedLayout(128, 8 * matrix.element_size(), rank=2)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
