"""The losses of class indices for the logits ``input @ weight.T``, of which no tile is written.

Calls of ``ntops.torch`` make logits with the kernels of products instead, which do not compute a row's logits one tile
after the other, and so fill the GPU where there are few rows.
"""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size
from ninetoothed.language import libdevice

from ntops.kernels import constants


def arrangement(
    output,
    maximum,
    logarithm,
    counted,
    input,
    weight,
    target,
    *numbers,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
):
    """Tile the rows; each program takes its tiles of the input, and all tiles of the weight."""
    block_m, block_n, block_k = (size or block_size() for size in (block_size_m, block_size_n, block_size_k))

    def of_rows(tensor):
        tiled = tensor.unsqueeze(1).tile((block_m, 1))
        tiled.dtype = tiled.dtype.squeeze(1)
        return tiled

    tiles = [of_rows(tensor) for tensor in (output, maximum, logarithm, counted)]
    rows = input.tile((block_m, block_k)).tile((1, -1))
    rows.dtype = rows.dtype.squeeze(0)
    classes = weight.permute((1, 0)).tile((block_k, block_n)).tile((-1, -1)).expand((tiles[0].shape[0], -1))

    return *tiles, rows, classes, of_rows(target), *numbers


def application(
    output, maximum, logarithm, counted, input, weight, target, classes, ignored, compute_dtype, input_precision
):
    label = ntl.cast(target, ntl.int64)
    largest = ntl.full(output.shape, float("-inf"), dtype=compute_dtype)
    total = ntl.zeros(output.shape, dtype=compute_dtype)
    chosen = ntl.zeros(output.shape, dtype=compute_dtype)

    for tile in range(weight.shape[1]):
        logits = ntl.dot(input[0], weight[0, tile], input_precision=input_precision, out_dtype=compute_dtype)

        for k in range(1, input.shape[0]):
            logits = ntl.dot(
                input[k], weight[k, tile], acc=logits, input_precision=input_precision, out_dtype=compute_dtype
            )

        columns = ntl.arange(0, logits.shape[1])[None, :] + tile * logits.shape[1]
        inside = ntl.where(columns < ntl.cast(classes, ntl.int64), logits, float("-inf"))
        grown = ntl.maximum(largest, ntl.max(inside, axis=1))
        total = total * ntl.exp(largest - grown) + ntl.sum(ntl.exp(inside - grown[:, None]), axis=1)
        chosen += ntl.sum(ntl.where(columns == label[:, None], logits, 0), axis=1)
        largest = grown

    logarithms = libdevice.log(total)
    is_class = (label >= 0) & (label < ntl.cast(classes, ntl.int64))
    losses = ntl.where(is_class, largest - chosen + logarithms, float("nan"))
    is_ignored = label == ntl.cast(ignored, ntl.int64)
    output = ntl.cast(ntl.where(is_ignored, 0, losses), output.dtype)
    counted = ntl.cast(ntl.where(is_ignored, 0, 1), counted.dtype)
    maximum = ntl.cast(largest, maximum.dtype)
    logarithm = ntl.cast(logarithms, logarithm.dtype)


def premake(
    dtype=None,
    output_dtype=None,
    compute_dtype=None,
    target_dtype=None,
    input_precision=None,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
):
    """Return the arrangement, application and tensors of ``linear_cross_entropy`` without a reduction.

    ``input`` is (rows, terms) and ``weight`` (classes, terms). ``classes`` is the number of classes, and ``ignored``
    the class index whose rows have a loss of 0, and are not ``counted``.
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    integers = "i64" if dtype else None
    tensors = (
        *(
            Tensor(1, dtype=name_dtype, name=name)
            for name, name_dtype in (
                ("output", output_dtype or dtype),
                ("maximum", compute_dtype),
                ("logarithm", compute_dtype),
                ("counted", compute_dtype),
            )
        ),
        # A tile that passes the end of the terms must add nothing beyond it.
        *(Tensor(2, dtype=dtype, other=0, name=name) for name in ("input", "weight")),
        Tensor(1, dtype=target_dtype or integers, other=0, name="target"),
        Tensor(0, dtype=integers, name="classes"),
        Tensor(0, dtype=integers, name="ignored"),
    )
    blocks = {"block_size_m": block_size_m, "block_size_n": block_size_n, "block_size_k": block_size_k}
    types = {"compute_dtype": compute_dtype, "input_precision": input_precision or (dtype and "ieee")}

    return functools.partial(arrangement, **blocks), *constants.bind(application, tensors, **types)
