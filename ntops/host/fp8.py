"""FP8: check scales, choose configurations, and launch quantization and products."""

import dataclasses
import functools

import torch

from ntops.host import fused_products_hopper
from ntops.host.arguments import check_tensor, common_device
from ntops.host.dim_order import contiguous_strides
from ntops.kernels import fp8 as kernels
from ntops.launch import autotuning, boundary, recorder
from ntops.launch.configuration import heuristic, settled
from ntops.launch.devices import has_fp8, multiprocessors, next_power_of_2, on_device, shared_memory
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE = (torch.float16, torch.bfloat16, torch.float32)
GRANULARITIES = ("tensor", "row", "block")
BLOCK = kernels.BLOCK.value

# A tile of at most this many elements stays in registers; longer rows take a separate pass for their maxima.
_LONGEST_TILE = 16384
_CHUNKS = 1024


def check_dtype(dtype, name, valid):
    """Refuse a dtype that is not among ``valid``.

    :raises TypeError: It is not a dtype.
    :raises NotImplementedError: It is another dtype.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"argument '{name}' must be a torch.dtype, not {type(dtype).__name__}")

    if dtype not in valid:
        raise NotImplementedError(f"argument '{name}' is {dtype}; valid are {', '.join(map(str, valid))}")


def scale_shape(shape, granularity):
    """Return the shape of the scales of a tensor of ``shape``.

    :raises ValueError: The granularity is unknown.
    :raises RuntimeError: A 0-d tensor has no rows.
    """
    if granularity not in GRANULARITIES:
        raise ValueError(f"argument 'granularity' is {granularity!r}; valid are {', '.join(GRANULARITIES)}")

    if granularity == "tensor":
        return ()

    if not shape:
        raise RuntimeError(f"argument 'tensor' has no dims, so no scales of granularity {granularity!r}")

    return (*shape[:-1], 1 if granularity == "row" else -(-shape[-1] // BLOCK))


def check_scale(scale, name, tensor, transposed=False):
    """Refuse scales that do not have one of the three forms for ``tensor``.

    :param transposed: Whether the scales lie along the first dim, as for the transposed matrix.
    :return: The scales as a matrix on the tensor's device, and its strides along rows and along blocks; 0 where all
        share one scale.
    :raises TypeError: They are not a tensor.
    :raises RuntimeError: Shape, dtype or device do not fit.
    """
    check_tensor(scale, name)

    if scale.dtype is not torch.float32:
        raise RuntimeError(f"argument '{name}' has dtype {scale.dtype}; scales are float32")

    shape = tensor.shape
    forms = [(), *(scale_shape(shape, one) for one in ("row", "block") if shape)]
    forms = [tuple(reversed(one)) if transposed else one for one in forms]

    if tuple(scale.shape) not in forms:
        valid = ", ".join(map(str, forms))
        raise RuntimeError(f"argument '{name}' has shape {tuple(scale.shape)}; valid are {valid}")

    # A single scale may be a CPU tensor.
    scale = scale.to(common_device({"tensor": tensor, name: scale}))

    if not scale.ndim or not scale.numel():
        return scale, 0, 0

    rows = scale.mT if transposed else scale.reshape(-1, scale.shape[-1])

    if any(size > 1 and stride == 0 for size, stride in zip(rows.shape, rows.stride(), strict=True)):
        # Expanded scales are treated as their shape says: a sum with a scale for each 128 terms rounds differently from
        # one with a single scale.
        rows = rows.contiguous()

    return rows, rows.stride(0), rows.stride(1) if rows.shape[1] > 1 else 0


def _matrix(tensor):
    """Return the tensor as a matrix with unit stride along columns, copied if its stride is another."""
    columns = tensor.shape[-1] if tensor.ndim else 1
    matrix = tensor.reshape(-1, columns)
    return matrix if matrix.stride(1) == 1 or columns == 1 else matrix.contiguous()


def _bits(tensor):
    """Return what the kernel takes for an fp8 tensor: its bytes if the GPU has no such type."""
    return tensor if has_fp8() else tensor.view(torch.uint8)


def _warps(elements):
    return get_default_num_warps() or (4 if elements <= 4096 else 8 if elements <= 8192 else 16)


def _tiles(rows, columns, widest):
    """Return the rows and columns of a tile of about 4096 elements, or of one row of at most ``widest`` elements."""
    block_c = min(next_power_of_2(columns), widest)
    return min(max(4096 // block_c, 1), next_power_of_2(rows)), block_c


def quantize(tensor, scale, dtype, granularity):
    """Return ``(quantized, found)`` for a checked tensor. ``scale`` is what :func:`check_scale` returned; if it is
    ``None``, ``found`` has a scale for each part that ``granularity`` names, else it is ``None``."""
    device, shape = tensor.device, tensor.shape
    output = recorder.empty(shape, contiguous_strides(shape), dtype, device)
    by_tensor = granularity == "tensor" if scale is None else not (scale[1] or scale[2])
    by_block = granularity == "block" if scale is None else bool(scale[2])
    found = None

    if scale is None:
        found_shape = scale_shape(shape, granularity)
        found = recorder.empty(found_shape, contiguous_strides(found_shape), torch.float32, device)
        blocks = found_shape[-1] if found_shape else 0
        scale = (found, blocks, 1 if by_block else 0)

    if not boundary.has_work(tensor):
        # The largest magnitude of an empty tensor is 0, which has the scale 1.
        return output, found if found is None else found.fill_(1)

    # A tensor with one scale is one long row.
    whole = by_tensor and (found is not None or tensor.is_contiguous())
    matrix = tensor.contiguous().view(1, -1) if whole else _matrix(tensor)
    rows, columns = matrix.shape
    source, partial, chunks = "given" if found is None else "tile", scale[0], 1

    if by_block and found is not None and matrix.is_contiguous() and columns % BLOCK == 0:
        # Each block becomes a row of its own, so that tiles are contiguous.
        matrix, scale, by_block = matrix.view(-1, BLOCK), (found, 1, 0), False
        rows, columns = matrix.shape

    with on_device(device):
        if by_block:
            block_r, block_c = _tiles(rows, BLOCK, BLOCK)
        elif source == "tile" and columns <= _LONGEST_TILE:
            block_r, block_c = _tiles(rows, columns, _LONGEST_TILE)
        else:
            # A tile reads all the maxima of its row, so larger tiles read them less often.
            block_r, block_c = _tiles(rows, columns, 8192 if source == "tile" else 4096)

            if source == "tile":
                source, partial = "partial", _maxima(matrix)
                chunks = partial.shape[1]

        _launch(
            kernels.quantize,
            -(-rows // block_r) * -(-columns // block_c),
            block_r * block_c,
            _bits(output),
            scale[0],
            matrix,
            partial,
            rows,
            columns,
            chunks,
            matrix.stride(0),
            *scale[1:],
            source,
            dtype is torch.float8_e4m3fn,
            has_fp8(),
            block_r,
            block_c,
            next_power_of_2(chunks),
        )

    return output, found


def _maxima(matrix, block_c=8192):
    """Return the largest finite magnitude of each chunk of each row, (rows, chunks), with at most ``_CHUNKS``
    chunks."""
    rows, columns = matrix.shape
    chunk = block_c * max(2, -(-columns // (block_c * _CHUNKS)))
    partial = recorder.empty((rows, -(-columns // chunk)), (-(-columns // chunk), 1), torch.float32, matrix.device)
    _launch(kernels.maxima, partial.numel(), block_c, partial, matrix, columns, chunk, matrix.stride(0), block_c)

    return partial


def dequantize(quantized, scale, dtype):
    """Return ``quantized * scale`` for a checked tensor; ``scale`` is what :func:`check_scale` returned."""
    shape = quantized.shape
    output = recorder.empty(shape, contiguous_strides(shape), dtype, quantized.device)

    if not boundary.has_work(output):
        return output

    by_tensor = not (scale[1] or scale[2])
    matrix = quantized.reshape(1, -1) if by_tensor and quantized.is_contiguous() else _matrix(quantized)
    rows, columns = matrix.shape
    block_r, block_c = _tiles(rows, columns, BLOCK if scale[2] else 4096)

    with on_device(quantized.device):
        _launch(
            kernels.dequantize,
            -(-rows // block_r) * -(-columns // block_c),
            block_r * block_c,
            output,
            _bits(matrix),
            scale[0],
            rows,
            columns,
            matrix.stride(0),
            *scale[1:],
            quantized.dtype is torch.float8_e4m3fn,
            has_fp8(),
            block_r,
            block_c,
        )

    return output


def _launch(kernel, programs, elements, *args):
    recorder.launch(kernel, (programs,), {"num_warps": _warps(elements)}, *args)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a product by the kernel that runs everywhere."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@heuristic(("m", "n"), ((64, 64), (512, 4096), (2048, 2048), (4096, 4096), (8192, 8192)))
def config(m, n, aligned, native, blocked, shared_memory, multiprocessors, hopper=False, output_itemsize=2):
    """Choose the options of a product: ``Options``, or those of the Hopper kernel. Figures are us on an H200, for
    scales of rows and a bf16 result.

    :param m: The rows of the result.
    :param n: The columns of the result.
    :param aligned: Whether rows of the factors are loaded 16 bytes at a time.
    :param native: Whether the GPU multiplies fp8, and not float16 decoded from it.
    :param blocked: Whether a scale changes along K.
    :param shared_memory: Bytes of shared memory that a program can have on the device.
    :param multiprocessors: The device's number of multiprocessors.
    :param hopper: Whether the Hopper kernel can take the call.
    :param output_itemsize: Bytes of an element of the result.
    """
    tiles = -(-m // 128) * -(-n // 128)

    if hopper and m > 64 and 2 * tiles >= multiprocessors:
        # Tiles of (2, 2), (3, 1) and (2, 1) at 4096^3 and 8192^3: 108 and 797 (torch 105 and 772), 113 and 762, 111 and
        # 832. Scaled blocks of terms take the registers that a second block of columns would have.
        known = ((2, 1),) if blocked else ((2, 2), (3, 1), (2, 1))

        def computed(tile):
            rows, columns = tile[0] * 64, tile[1] * 128
            turns = -(-(-(-m // rows) * -(-n // columns)) // multiprocessors)
            return turns * rows * columns

        # The tile whose last wave leaves the fewest multiprocessors idle.
        return fused_products_hopper.options(*min(known, key=computed), output_itemsize, shared_memory)

    if not native:
        block_m, block_n, num_warps, num_stages = 64, 64, 8, 2
    elif not aligned:
        # Each byte has an address in registers. With these, and with scales of blocks, 4 warps have too few registers.
        block_m, block_n, num_warps, num_stages = 64, 64, 8, 4
    elif m <= 64 or n <= 64 or tiles < multiprocessors:
        # The tensor cores of sm_90 take at least 64 rows. 128 x 4096 x 4096: 12.7, with 4 stages 15 (torch 16.4), with
        # tiles of 128 x 128 22.7.
        block_m, block_n, num_warps, num_stages = 64, 64, 4, 6
    else:
        # Each thread holds 64 registers of the sum, and 64 for the 128 terms that are added to it.
        block_m, block_n, num_warps, num_stages = 128, 128, 8, 4

    num_stages = max(min(num_stages, shared_memory // ((block_m + block_n) * BLOCK)), 1)
    return Options(block_m, block_n, num_warps, num_stages)


def gemm(a, b, a_scale, b_scale, out_dtype):
    """Return ``a @ b`` for checked fp8 matrices; scales are what :func:`check_scale` returned."""
    shape = (a.shape[0], b.shape[1])
    output = recorder.empty(shape, contiguous_strides(shape), out_dtype, a.device)

    if not boundary.has_work(output):
        return output

    k = a.shape[1]

    if not k:
        return output.zero_()

    # The tensor cores take 8-bit operands with K innermost.
    left, right = _matrix(a), _matrix(b.mT)

    if k % 16 == 0:
        left, right = fused_products_hopper.aligned(left), fused_products_hopper.aligned(right)

    _multiply(output, left, right, a_scale, b_scale)
    return output


def _multiply(output, left, right, a_scale, b_scale, chosen=None):
    """Launch the product of (M, K) and (N, K) matrices; where ``chosen`` is ``None``, :func:`config` chooses."""
    (m, n), k, index = output.shape, left.shape[1], output.device.index or 0
    native, blocked = has_fp8(), bool(a_scale[2] or b_scale[2])
    hopper = settled("hopper", fused_products_hopper.takes(k, n, 1, output.itemsize))

    if chosen is None:
        limits = shared_memory(index), multiprocessors(index)
        kind = m, n, k % 16 == 0, native, blocked, *limits, hopper, output.itemsize
        run = functools.partial(_multiply, left=left, right=right, a_scale=a_scale, b_scale=b_scale)
        key = kernels.gemm, kind, k
        chosen = autotuning.fastest(key, config(*kind), lambda: config.alternatives(*kind), run, output)

    if isinstance(chosen, fused_products_hopper.Options):
        fused_products_hopper.fp8_gemm(chosen, output, left, right, a_scale, b_scale)
        return

    options = {
        "num_warps": get_default_num_warps() or chosen.num_warps,
        "num_stages": get_default_num_stages() or chosen.num_stages,
    }

    with on_device(output.device):
        recorder.launch(
            kernels.gemm,
            (-(-m // chosen.block_m) * -(-n // chosen.block_n),),
            options,
            output,
            _bits(left),
            _bits(right),
            a_scale[0],
            b_scale[0],
            m,
            n,
            k,
            left.stride(0),
            right.stride(0),
            *a_scale[1:],
            *b_scale[1:],
            left.dtype is torch.float8_e4m3fn,
            right.dtype is torch.float8_e4m3fn,
            native,
            blocked,
            k % BLOCK == 0,
            8,
            chosen.block_m,
            chosen.block_n,
        )
