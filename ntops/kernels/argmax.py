"""The index of the largest element over dims: of the first NaN if there is one, else of the first of equal ones.

A kernel returns the largest element, too, so that the same search goes on over the results of parts.
"""

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants, dim_reduction

arrangement = dim_reduction.arrangement


def application(output, value, input, compute_dtype):
    best = ntl.cast(input[0], compute_dtype)
    tile = ntl.zeros(best.shape, dtype=ntl.int32)

    for i in range(1, input.shape[0]):
        values = ntl.cast(input[i], compute_dtype)
        better = (values > best) | ((values != values) & (best == best))
        best = ntl.where(better, values, best)
        # Sizes may have 64 bits.
        tile = ntl.cast(ntl.where(better, i, tile), ntl.int32)

    index = tile * best.shape[1] + ntl.arange(0, best.shape[1])[None, :]
    nan = best != best
    any_nan = ntl.max(ntl.cast(nan, ntl.int32), axis=1)
    largest = ntl.max(best, axis=1)
    # Padding comes last, so that it is never the first.
    found = ntl.where(any_nan[:, None] > 0, nan, best == largest[:, None])
    output = ntl.cast(ntl.min(ntl.where(found, index, 2147483647), axis=1), output.dtype)
    value = ntl.cast(ntl.where(any_nan > 0, ntl.sum(ntl.where(nan, best, 0), axis=1), largest), value.dtype)


def application_parts(output, value, input, places, scale, compute_dtype):
    best = ntl.cast(input[0], compute_dtype)
    place = places[0]
    tile = ntl.zeros(best.shape, dtype=ntl.int32)

    for i in range(1, input.shape[0]):
        values = ntl.cast(input[i], compute_dtype)
        better = (values > best) | ((values != values) & (best == best))
        best = ntl.where(better, values, best)
        place = ntl.where(better, places[i], place)
        # Sizes may have 64 bits.
        tile = ntl.cast(ntl.where(better, i, tile), ntl.int32)

    part = tile * best.shape[1] + ntl.arange(0, best.shape[1])[None, :]
    index = ntl.cast(part, ntl.int64) * scale + place
    nan = best != best
    any_nan = ntl.max(ntl.cast(nan, ntl.int32), axis=1)
    largest = ntl.max(best, axis=1)
    found = ntl.where(any_nan[:, None] > 0, nan, best == largest[:, None])
    output = ntl.min(ntl.where(found, index, 9223372036854775807), axis=1)
    value = ntl.cast(ntl.where(any_nan > 0, ntl.sum(ntl.where(nan, best, 0), axis=1), largest), value.dtype)


def premake(
    ndim,
    kept=1,
    dtype=None,
    value_dtype=None,
    compute_dtype=None,
    scalars=None,
    padding=None,
    parts=False,
    block_rows=None,
    block_columns=None,
    steps=-1,
):
    """Return the arrangement, application and tensors of ``argmax``; see :func:`dim_reduction.premaker`.

    :param value_dtype: The element type of the largest elements.
    :param parts: Whether the inputs are the results of parts of ``scale`` elements each: their largest elements, and
        where these are in the parts.
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    padding = constants.padding(constants.limits(dtype)[0] if padding is None else padding)
    index_dtype = dtype and "i64"
    tensors = (
        Tensor(kept + 1, dtype=index_dtype, name="output"),
        Tensor(kept + 1, dtype=value_dtype or compute_dtype, name="value"),
        Tensor(ndim, dtype=dtype, other=padding, name="input"),
    )

    if parts:
        scale = dict(scalars or {}).get("scale", index_dtype)
        tensors += (Tensor(ndim, dtype=index_dtype, other=0, name="places"), Tensor(0, dtype=scale, name="scale"))

    return dim_reduction.bind(
        application_parts if parts else application,
        tensors,
        compute_dtype,
        kept,
        block_rows,
        block_columns,
        steps,
        outputs=2,
    )
