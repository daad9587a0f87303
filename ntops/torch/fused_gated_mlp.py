import dataclasses
import functools

import torch

from ntops.host import fused_products_hopper, mm_hopper
from ntops.host.dim_order import contiguous_strides, specialize
from ntops.host.product_configs import HOPPER, Options, config
from ntops.host.products import check_dims, check_factors
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels.fused_gated_mlp import ACTIVATIONS, premake
from ntops.launch import autotuning, boundary, recorder
from ntops.launch.configuration import heuristic, settled
from ntops.launch.devices import multiprocessors, on_device, shared_memory
from ntops.launch.kernel_sources import Config, make
from ntops.launch.recorder import repeatable

# The number of rows of tiles that go together, so that their shared columns come from the cache.
_GROUP = 8


@repeatable(state=torch.get_float32_matmul_precision)
def fused_gated_mlp(x, gate_weight, up_weight, activation="silu"):
    """Compute ``act(x @ gate_weight.T) * (x @ up_weight.T)``, the first half of a gated MLP (Shazeer,
    arXiv:2002.05202).

    One kernel does all, and writes neither product to memory. Half types accumulate, and are activated and multiplied,
    in float32, and are rounded once. Float32 follows :func:`torch.get_float32_matmul_precision` at the time of the
    call: "highest" is IEEE, anything else TF32.

    :param x: A floating-point tensor, (..., hidden).
    :param gate_weight: A tensor of the same dtype, (intermediate, hidden), as :class:`torch.nn.Linear` has it.
    :param up_weight: A tensor of the same dtype and shape.
    :param activation: "silu", "gelu" (by the error function), or "gelu_tanh" (its approximation by tanh).
    :return: A contiguous tensor, (..., intermediate).
    :raises TypeError: An argument has the wrong type.
    :raises ValueError: An unknown ``activation``.
    :raises RuntimeError: Shapes, dtypes or devices do not fit.
    :raises NotImplementedError: Integers or bools; complex, sparse, quantized or nested operands.
    """
    device = check_factors(x=x, gate_weight=gate_weight, up_weight=up_weight)
    check_dims(2, gate_weight=gate_weight, up_weight=up_weight)

    if not isinstance(activation, str):
        raise TypeError(f"argument 'activation' must be a str, not {type(activation).__name__}")

    if activation not in ACTIVATIONS:
        raise ValueError(f"argument 'activation' is {activation!r}; valid are {', '.join(ACTIVATIONS)}")

    # A member of an enum of strings is equal to one, and another word in a kernel's source.
    activation = ACTIVATIONS[ACTIVATIONS.index(activation)]

    if not x.dtype.is_floating_point:
        raise NotImplementedError(
            f"argument 'x' has dtype {x.dtype}; fused_gated_mlp is defined for floating-point only"
        )

    if x.ndim == 0:
        raise RuntimeError("argument 'x' must be (..., hidden), not 0-d")

    for name, weight in (("gate_weight", gate_weight), ("up_weight", up_weight)):
        if weight.shape[1] != x.shape[-1]:
            raise RuntimeError(
                f"argument '{name}' must be (intermediate, {x.shape[-1]}), as 'x' has rows, not {tuple(weight.shape)}"
            )

    if up_weight.shape != gate_weight.shape:
        raise RuntimeError(
            f"arguments 'gate_weight' {tuple(gate_weight.shape)} and 'up_weight' {tuple(up_weight.shape)} must have "
            "one shape"
        )

    shape = torch.Size((*x.shape[:-1], gate_weight.shape[0]))
    output = recorder.empty(shape, contiguous_strides(shape), x.dtype, device)

    if boundary.has_work(output):
        columns, terms = gate_weight.shape
        rows = output.numel() // columns
        _launch(output.view(rows, columns), x.reshape(rows, terms), gate_weight, up_weight, activation)

    return output


@heuristic(("m", "n"), ((16, 32), (16, 65536), (64, 32), (65, 33), (65, 32768), (2048, 1024), (4096, 4096)))
def _config(m, n, k, dtype, ieee, limit, multiprocessors, hopper):
    """Choose the options of a Hopper kernel, for many rows or for few; or the configuration of a product with twice the
    columns, half of whose tiles are of the gate. K is not split."""
    # Figures are us on an H200; those in parentheses are two products of cuBLAS, without the activation.
    if hopper and m > 16 and 2 * -(-m // 128) * -(-n // 128) >= multiprocessors:
        # 4096 x 4096 x 14336: 1238 (1214). 128 x 4096 x 14336: 70.4 (70.8), by the other kernel 75.6.
        return fused_products_hopper.options(2, 2, dtype.itemsize, limit)

    chosen = config.__wrapped__(m, 2 * n, k, dtype, ieee, limit, 0)

    if chosen.block_m == 16 and dtype.itemsize == 2:
        if -(-2 * n // chosen.block_n) <= 4 * multiprocessors:
            # With 3 stages a multiprocessor has room for three programs, with 4 for two. About one wave of programs: 16
            # x 4096 x 14336 takes 61, and 71 with 4 stages (65).
            chosen = dataclasses.replace(chosen, num_stages=3)
        elif hopper:
            # Several waves: 16 x 8192 x 28672 takes 223, and 236 in the other kernel (224).
            return Options(16, 64, 128, 4, 6, form=HOPPER)

    tiles = -(-m // chosen.block_m)
    blocks = (
        ("block_size_m", chosen.block_m),
        ("block_size_n", chosen.block_n // 2),
        ("block_size_k", chosen.block_k),
        # A group that is not full computes tiles in vain.
        ("group", next(size for size in (_GROUP, 4, 2, 1) if -tiles % size <= tiles // 32)),
    )

    return Config(blocks, chosen.num_warps, chosen.num_stages)


def _launch(output, x, gate_weight, up_weight, activation, chosen=None):
    """Launch the product of matrices; where ``chosen`` is ``None``, :func:`_config` chooses."""
    dtype, index = x.dtype, output.device.index or 0
    ieee = torch.get_float32_matmul_precision() == "highest"
    (rows, columns), terms = output.shape, x.shape[-1]
    hopper = settled("hopper", dtype.itemsize == 2 and fused_products_hopper.takes(terms, columns, 2, 2))

    if chosen is None:
        kind = rows, columns, terms, dtype, ieee, shared_memory(index), multiprocessors(index), hopper
        run = functools.partial(_launch, x=x, gate_weight=gate_weight, up_weight=up_weight, activation=activation)
        chosen = autotuning.fastest((premake, kind), _config(*kind), lambda: _config.alternatives(*kind), run, output)

    if isinstance(chosen, Options):
        with on_device(output.device):
            mm_hopper.launch(chosen, index, output, x, gate_weight.mT, up=up_weight.mT, activation=activation)

        return

    if isinstance(chosen, fused_products_hopper.Options):
        fused_products_hopper.fused_gated_mlp(chosen, output, x, gate_weight, up_weight, activation)
        return

    if _contiguous_dim(gate_weight) != _contiguous_dim(up_weight):
        # The tiles of both weights take turns in shared memory. If their layouts differ there, ptxas 12.8 may take a
        # descriptor from an uninitialized register: on an H200 a wrong product, or an illegal access.
        gate_weight, up_weight = gate_weight.contiguous(), up_weight.contiguous()

    views = {"output": output, "x": x, "gate": gate_weight, "up": up_weight}
    kernel = make(premake, {"activation": activation}, chosen, specialize(views, apart=True))

    with on_device(output.device):
        kernel(*views.values(), TRITON_DTYPES[accumulate_dtype(dtype)], "ieee" if ieee else "tf32")


def _contiguous_dim(weight):
    return next((dim for dim, stride in enumerate(weight.stride()) if stride == 1), None)
