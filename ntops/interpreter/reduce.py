"""tl.reduce and tl.associative_scan, for the whole grid at once."""

import numpy as np

from ntops.interpreter import elementary
from ntops.interpreter._triton import call_function, scalar_tensor, tl
from ntops.interpreter.control import Diverged
from ntops.interpreter.handles import Handle, is_fp8


def reduce(input, axis, combine_fn, keep_dims=False, **_):
    """Compute ``tl.reduce``: Triton's own combine functions by NumPy's reductions, others folded from the left."""
    if isinstance(input, tl.tensor):
        return reduce((input,), axis, combine_fn, keep_dims)[0]

    axis, keep_dims = _plain(axis), bool(_plain(keep_dims))
    shape = input[0].handle.shape
    arrays, dims = _arrays(input), len(shape)

    if axis is None:
        arrays = [array.reshape(array.shape[0], -1) for array in arrays]
        axis = 0
        kept = (1,) * dims
        rest = ()
    else:
        axis = _wrapped(axis, dims)
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
        rest = (*shape[:axis], *shape[axis + 1 :])

    dtypes = [tensor.dtype for tensor in input]
    results = _known_reduction(combine_fn, arrays, dtypes, axis + 1)

    if results is None:
        *_, results = _fold(arrays, dtypes, axis + 1, combine_fn)

    shape = kept if keep_dims else rest

    return tuple(
        _tensor(result.reshape(result.shape[0], *shape), dtype, shape)
        for result, dtype in zip(results, dtypes, strict=True)
    )


def associative_scan(input, axis, combine_fn, reverse=False, **_):
    """Compute ``tl.associative_scan``, from the left."""
    if isinstance(input, tl.tensor):
        return associative_scan((input,), axis, combine_fn, reverse)[0]

    shape = input[0].handle.shape
    axis, reverse = _wrapped(_plain(axis), len(shape)) + 1, bool(_plain(reverse))
    arrays = _arrays(input)
    dtypes = [tensor.dtype for tensor in input]

    if reverse:
        arrays = [np.ascontiguousarray(np.flip(array, axis)) for array in arrays]

    results = _known_scan(combine_fn, arrays, dtypes, axis)

    if results is None:
        steps = list(_fold(arrays, dtypes, axis, combine_fn))
        results = [np.stack([step[i] for step in steps], axis=axis) for i in range(len(arrays))]

    if reverse:
        results = [np.ascontiguousarray(np.flip(result, axis)) for result in results]

    return tuple(_tensor(result, dtype, shape) for result, dtype in zip(results, dtypes, strict=True))


def _plain(value):
    return getattr(value, "value", value)


def _wrapped(axis, dims):
    if not -dims <= axis < dims:
        raise ValueError(f"axis {axis} is out of bounds for a block of {dims} dims")

    return axis % dims


def _arrays(input):
    programs = max(tensor.handle.programs for tensor in input)
    # Use memory order, on which the order of NumPy's sums depends.
    return [np.ascontiguousarray(tensor.handle.full(programs)) for tensor in input]


def _tensor(data, dtype, shape):
    handle = Handle(data, dtype, shape)

    return tl.tensor(handle, tl.block_type(dtype, list(shape)) if shape else dtype)


# dtype: NumPy would widen an integer sum, but here it wraps.
_NUMPY_REDUCTIONS = {
    "_sum_combine": lambda array, axis: np.add.reduce(array, axis=axis, dtype=array.dtype),
    "_elementwise_max": elementary.largest,
    "_elementwise_min": elementary.smallest,
    "_xor_combine": np.bitwise_xor.reduce,
    "_or_combine": np.bitwise_or.reduce,
}
_INDEXED = {
    "_argmax_combine_tie_break_left": np.argmax,
    "_argmin_combine_tie_break_left": np.argmin,
}


def _is_standard(combine_fn, name):
    return combine_fn is getattr(tl.standard, name, None)


def _known_reduction(combine_fn, arrays, dtypes, axis):
    if any(is_fp8(dtype) for dtype in dtypes):
        return None

    for name, function in _INDEXED.items():
        # The first of equal elements; a NaN wins or loses by its place, so the fold handles it.
        if _is_standard(combine_fn, name) and not (arrays[0].dtype.kind == "f" and np.isnan(arrays[0]).any()):
            places = np.expand_dims(function(arrays[0], axis=axis), axis)

            return [np.take_along_axis(array, places, axis=axis) for array in arrays]

    if len(arrays) != 1 or dtypes[0].name == "bf16" or arrays[0].dtype == bool:
        return None  # bfloat16 is rounded after every step.

    for name, function in _NUMPY_REDUCTIONS.items():
        if _is_standard(combine_fn, name):
            return [function(arrays[0], axis=axis)]

    return None


def _known_scan(combine_fn, arrays, dtypes, axis):
    if len(arrays) != 1 or dtypes[0].name == "bf16" or is_fp8(dtypes[0]) or arrays[0].dtype == bool:
        return None

    for name, function in {"_sum_combine": np.add, "_prod_combine": np.multiply}.items():
        if _is_standard(combine_fn, name):
            return [function.accumulate(arrays[0], axis=axis, dtype=arrays[0].dtype)]

    return None


def _fold(arrays, dtypes, axis, combine_fn):
    """Return the results after each element along ``axis``, combined from the left.

    The combine function sees scalars, and everything but ``axis`` counts as programs.
    """
    moved = [np.moveaxis(array, axis, 0) for array in arrays]
    outer = moved[0].shape[1:]
    steps = [array.reshape(array.shape[0], -1) for array in moved]
    accumulated = [array[0] for array in steps]
    yield [array.reshape(outer) for array in accumulated]

    for place in range(1, len(steps[0])):
        accumulated = _combined(combine_fn, accumulated, [array[place] for array in steps], dtypes)
        yield [array.reshape(outer) for array in accumulated]


def _combined(combine_fn, lhs, rhs, dtypes):
    operands = [scalar_tensor(array, dtype) for array, dtype in zip(lhs + rhs, dtypes * 2, strict=True)]

    try:
        results = call_function(combine_fn, operands)
    except Diverged:
        # An `if` inside the combine function: one lane at a time.
        if len(lhs[0]) == 1:
            raise

        lanes = [
            _combined(combine_fn, [a[i : i + 1] for a in lhs], [a[i : i + 1] for a in rhs], dtypes)
            for i in range(len(lhs[0]))
        ]

        return [np.concatenate([lane[i] for lane in lanes]) for i in range(len(lhs))]

    results = results if isinstance(results, (tuple, tl.tuple)) else (results,)

    return [
        np.broadcast_to(tl_cast(result, dtype).handle.data, lhs[0].shape)
        for result, dtype in zip(results, dtypes, strict=True)
    ]


def tl_cast(value, dtype):
    """Cast ``value``, a tensor or a Python number, to a scalar of ``dtype``."""
    return tl.cast(value, dtype)
