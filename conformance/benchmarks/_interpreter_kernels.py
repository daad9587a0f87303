"""NineToothed kernels for the interpreter's benchmark, one of each form that the operators have.

They stand for kinds of work (one block, a row per program, two passes over a row, a loop of products), so that the
figures can be followed while the operators change.
"""

import ninetoothed
import ninetoothed.language as ntl
from ninetoothed import Tensor


def absolute(block_size):
    """Make the kernel of ``abs`` of a matrix."""

    def arrangement(input, output):
        return input.flatten().tile((block_size,)), output.flatten().tile((block_size,))

    def application(input, output):
        output = ntl.abs(input)  # noqa: F841

    return ninetoothed.make(arrangement, application, (Tensor(2), Tensor(2)), kernel_name="bench_abs")


def add(block_size):
    """Make the kernel that adds two matrices."""

    def arrangement(input, other, output):
        return tuple(tensor.flatten().tile((block_size,)) for tensor in (input, other, output))

    def application(input, other, output):
        output = input + other  # noqa: F841

    return ninetoothed.make(arrangement, application, (Tensor(2), Tensor(2), Tensor(2)), kernel_name="bench_add")


def _rows(*tensors, block_size):
    return tuple(tensor.tile((1, block_size)) for tensor in tensors)


def softmax(block_size):
    """Make the kernel of softmax over rows that fit one block."""

    def arrangement(input, output):
        return _rows(input, output, block_size=block_size)

    def application(input, output):
        powers = ntl.exp(input - ntl.max(input, 1))
        output = powers / ntl.sum(powers, 1)  # noqa: F841

    tensors = (Tensor(2, other=float("-inf")), Tensor(2))

    return ninetoothed.make(arrangement, application, tensors, kernel_name="bench_softmax")


def layer_norm(block_size):
    """Make the kernel of layer norm over rows that fit one block, with weight and bias."""

    def arrangement(input, weight, bias, size, output):
        rows = _rows(input, output, block_size=block_size)
        expanded = [t.tile((1, block_size)).expand((rows[0].shape[0], -1)) for t in (weight, bias)]

        return rows[0], *expanded, size, rows[1]

    def application(input, weight, bias, size, output):
        mean = ntl.sum(input, 1) / size
        centred = ntl.where(input.offsets(-1) < input.source.shape[-1], input - mean, 0)
        variance = ntl.sum(centred * centred, 1) / size
        output = centred * ntl.rsqrt(variance + 1e-5) * weight + bias  # noqa: F841

    tensors = (Tensor(2, other=0), Tensor(2), Tensor(2), Tensor(0), Tensor(2))

    return ninetoothed.make(arrangement, application, tensors, kernel_name="bench_layer_norm")


def rms_norm(block_size):
    """Make the kernel of RMS norm over rows that fit one block, with weight."""

    def arrangement(input, weight, size, output):
        rows = _rows(input, output, block_size=block_size)

        return rows[0], weight.tile((1, block_size)).expand((rows[0].shape[0], -1)), size, rows[1]

    def application(input, weight, size, output):
        output = input * ntl.rsqrt(ntl.sum(input * input, 1) / size + 1e-5) * weight  # noqa: F841

    tensors = (Tensor(2, other=0), Tensor(2), Tensor(0), Tensor(2))

    return ninetoothed.make(arrangement, application, tensors, kernel_name="bench_rms_norm")


def mm(block_size):
    """Make the kernel of the product of two matrices."""

    def arrangement(input, other, output):
        output_tiled = output.tile((block_size, block_size))
        rows = input.tile((block_size, block_size)).tile((1, -1)).expand((-1, output_tiled.shape[1]))
        rows.dtype = rows.dtype.squeeze(0)
        columns = other.tile((block_size, block_size)).tile((-1, 1)).expand((output_tiled.shape[0], -1))
        columns.dtype = columns.dtype.squeeze(1)

        return rows, columns, output_tiled

    def application(input, other, output):
        total = ntl.zeros(output.shape, dtype=ntl.float32)

        for k in range(input.shape[0]):
            total += ntl.dot(input[k], other[k])

        output = total

    tensors = (Tensor(2, other=0), Tensor(2, other=0), Tensor(2))

    return ninetoothed.make(arrangement, application, tensors, kernel_name="bench_mm")


def attention(block_size):
    """Make the kernel of attention of (B, H, L, E) with equal head counts: each block of queries loops over blocks of
    keys."""

    def arrangement(query, key, value, scale, output):
        def queries(tensor):
            tiled = tensor.tile((1, 1, block_size, -1))
            tiled.dtype = tiled.dtype.squeeze((0, 1))

            return tiled

        def keys(tensor):
            looped = tensor.tile((1, 1, block_size, -1)).tile((1, 1, -1, -1))
            looped = looped.expand((-1, -1, queries(query).shape[2], -1))
            looped.dtype = looped.dtype.squeeze((0, 1, 3))
            looped.dtype.dtype = looped.dtype.dtype.squeeze((0, 1))

            return looped

        return queries(query), keys(key), keys(value), scale, queries(output)

    def application(query, key, value, scale, output):
        scaled = query * scale * 1.4426950408889634
        total = ntl.zeros((query.shape[-2], query.shape[-1]), dtype=ntl.float32)
        largest = ntl.full((query.shape[-2],), float("-inf"), dtype=ntl.float32)
        weight = ntl.zeros((query.shape[-2],), dtype=ntl.float32)

        for i in range(key.shape[0]):
            scores = ntl.dot(scaled, ntl.trans(key[i]))
            scores = ntl.where(key[i].offsets(-2) < key.source.shape[-2], scores, float("-inf"))
            new_largest = ntl.maximum(largest, ntl.max(scores, 1))
            shrink = ntl.exp2(largest - new_largest)
            share = ntl.exp2(scores - new_largest[:, None])
            total = total * shrink[:, None] + ntl.dot(share, value[i])
            weight = weight * shrink + ntl.sum(share, 1)
            largest = new_largest

        output = total / weight[:, None]  # noqa: F841

    sizes = {"shape_options": (None, None, None, {"constexpr": True})}
    inputs = (Tensor(4, other=0, **sizes) for _ in range(3))
    tensors = (*inputs, Tensor(0), Tensor(4, **sizes))

    return ninetoothed.make(arrangement, application, tensors, kernel_name="bench_attention")
