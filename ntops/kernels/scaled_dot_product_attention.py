"""``softmax(query @ key.T * scale + mask) @ value``, for ahead-of-time builds.

``ntops.torch`` runs the kernels of ``ntops.kernels.attention``, which says why they are not in NineToothed.
"""

import enum
import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size

from ntops.kernels import constants


class CausalVariant(enum.IntEnum):
    """The place of a causal mask's diagonal if the numbers of keys and queries differ.

    Equal to the members of ``torch.nn.attention.bias.CausalVariant``.
    """

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


def arrangement(
    output, query, key, value, *others, block_size_m=None, block_size_n=None, block_size_e=None, block_size_ev=None
):
    """Tile the queries; each program takes a tile of them, all the keys and values that they read, and its mask."""
    if block_size_m is None:
        block_size_m = block_size()

    if block_size_n is None:
        block_size_n = block_size()

    def rows(tensor, columns):
        return _squeeze(tensor.tile((1, 1, 1, block_size_m, columns)))

    output_tiled = rows(output, block_size_ev)

    def walked(tensor, columns):
        tiled = tensor.tile((1, 1, 1, block_size_n, columns)).tile((1, 1, 1, -1, -1))
        return _squeeze(tiled.expand((-1, -1, output_tiled.shape[2], output_tiled.shape[3], -1)), (0, 1, 2, 4))

    def bias(tensor):
        return _squeeze(tensor.tile((1, 1, 1, block_size_m, block_size_n)).tile((1, 1, 1, 1, -1)), (0, 1, 2, 3))

    return (
        output_tiled,
        rows(query, block_size_e),
        walked(key, block_size_e),
        walked(value, block_size_ev),
        *(bias(other) if other.ndim else other for other in others),
    )


def _squeeze(tensor, walked=()):
    """Drop the batch dims of the tiles, and the dims along which a program's tiles are not walked."""
    level = tensor

    if walked:
        level.dtype = level.dtype.squeeze(walked)
        level = level.dtype

    level.dtype = level.dtype.squeeze((0, 1, 2))

    return tensor


def application(output, query, key, value, mask, scale, shift, is_causal, is_masked, compute_dtype, input_precision):
    rows = query.offsets(-2)
    accumulator = ntl.zeros((query.shape[0], value.dtype.shape[1]), dtype=compute_dtype)
    normalizer = ntl.zeros((query.shape[0],), dtype=compute_dtype)
    maximum = ntl.full((query.shape[0],), float("-inf"), dtype=compute_dtype)

    for i in range(key.shape[0]):
        scores = ntl.dot(query, ntl.trans(key[i]), input_precision=input_precision, out_dtype=compute_dtype)
        scores = scores * ntl.cast(scale, compute_dtype)
        columns = key[i].offsets(-2)

        if is_masked:
            scores = scores + ntl.cast(mask[i], compute_dtype)

        if is_causal:
            scores = ntl.where(columns[None, :] <= rows[:, None] + shift, scores, float("-inf"))

        scores = ntl.where((columns < key.source.shape[-2])[None, :], scores, float("-inf"))
        largest = ntl.maximum(maximum, ntl.max(scores, axis=1))
        # Before any key took part, the difference of two infinities must be avoided.
        reference = ntl.where(largest == float("-inf"), 0, largest)
        weights = ntl.exp(scores - reference[:, None])
        shrunk = ntl.exp(maximum - reference)
        normalizer = normalizer * shrunk + ntl.sum(weights, axis=1)
        accumulator = ntl.dot(
            ntl.cast(weights, value.dtype.dtype),
            value[i],
            acc=accumulator * shrunk[:, None],
            input_precision=input_precision,
            out_dtype=compute_dtype,
        )
        maximum = largest

    # A row to which no key took part is 0.
    output = ntl.cast(accumulator / ntl.where(normalizer == 0, 1, normalizer)[:, None], output.dtype)


def premake(
    is_causal=False,
    is_masked=False,
    dtype=None,
    mask_dtype=None,
    compute_dtype=None,
    input_precision=None,
    block_size_m=None,
    block_size_n=None,
    block_size_e=None,
    block_size_ev=None,
):
    """Return the arrangement, application and tensors of attention without a cache.

    The tensors are (batch, key/value heads, query heads that read each, rows, columns). For key and value the third dim
    has one element, and the mask, of floats that are added to the scores, is expanded (and not read unless
    ``is_masked``). Then come the scale of the scores and, if causal, the place of the diagonal: row l sees the keys up
    to l + shift.

    :param mask_dtype: The element type of the mask, by default ``dtype``.
    :param block_size_e: The head dim, padded to a power of two that is at least 16; ``block_size_ev`` that of values.
    """
    tensors = (
        Tensor(5, dtype=dtype, name="output"),
        Tensor(5, dtype=dtype, other=0, name="query"),
        Tensor(5, dtype=dtype, other=0, name="key"),
        # Padding must add nothing, not NaN.
        Tensor(5, dtype=dtype, other=0, name="value"),
        Tensor(5, dtype=mask_dtype or dtype, other=0, name="mask"),
        Tensor(0, dtype="fp64", name="scale"),
        Tensor(0, dtype="i64", name="shift"),
    )
    blocks = {
        "block_size_m": block_size_m,
        "block_size_n": block_size_n,
        "block_size_e": block_size_e,
        "block_size_ev": block_size_ev,
    }
    bound = constants.bind(
        application,
        tensors,
        is_causal=bool(is_causal),
        is_masked=bool(is_masked),
        compute_dtype=compute_dtype or constants.accumulated(dtype),
        input_precision=input_precision or (dtype and "ieee"),
    )

    return functools.partial(arrangement, **blocks), *bound
