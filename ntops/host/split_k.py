"""Products whose K is split: the sizes of the parts, their operands, and adding them up."""

from ntops.kernels import split_k as kernels
from ntops.launch import recorder


def part(k, splits):
    """Return the number of terms of each part of a product but the last, which may have fewer: whole blocks of every
    tile where parts are long, else whole steps of the tensor cores."""
    if splits == 1:
        return k

    unit = 128 if k // splits >= 512 else 16
    return -(-k // (splits * unit)) * unit


def has_parts(k, splits):
    """Tell whether none of the parts of K is empty."""
    return (splits - 1) * part(k, splits) < k


def operands(partial, views):
    """Return a product's operands as those of batches of products, each over a part of the terms: a batch of parts that
    are alike, and one of the last part if that is shorter."""
    input, mat2 = views["input"], views["mat2"]
    splits, k = partial.shape[0], input.shape[1]
    size = part(k, splits)
    whole = k // size
    batches = [(0, whole, size)] + ([(whole, 1, k - whole * size)] if whole < splits else [])

    def parts(matrix, first, count, terms, dim):
        shape = [count, *matrix.shape]
        shape[dim + 1] = terms
        offset = matrix.storage_offset() + first * size * matrix.stride(dim)
        return matrix.as_strided(shape, (size * matrix.stride(dim), *matrix.stride()), offset)

    return [
        {
            "output": partial[first : first + count],
            "input": parts(input, first, count, terms, 1),
            "mat2": parts(mat2, first, count, terms, 0),
        }
        for first, count, terms in batches
    ]


def add_up(result, partial, added, numbers, classes=1):
    """Write the sum of the parts to ``result``, and do what ``addmm`` does to a product.

    :param partial: (splits * classes, M, N).
    :param added: What is added, of the shape of the result, or ``None``.
    :param numbers: The factors of the product and of ``added``; fewer if there are no more.
    :param classes: The classes of terms whose sums a part has, see ``few_rows.multiply``.
    """
    alpha, beta = (*numbers, 1.0, 0.0)[:2]
    count = result.numel()
    block = 256

    recorder.launch(
        kernels.add_up,
        (-(-count // block),),
        {},
        result,
        partial,
        result if added is None else added,
        *result.stride(),
        *(result if added is None else added).stride(),
        result.shape[1],
        count,
        partial.shape[0] // classes,
        alpha,
        beta,
        bool(numbers),
        added is not None,
        classes,
        block,
    )
