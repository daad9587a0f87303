"""``beta * input + alpha * (mat1 @ mat2)``."""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants, functions, mm
from ntops.kernels.mm import arrangement


def application(output, mat1, mat2, input, alpha, beta, compute_dtype, input_precision):
    accumulator = ntl.zeros(output.shape, dtype=compute_dtype)

    for k in range(mat1.shape[0]):
        accumulator = ntl.dot(
            mat1[k], mat2[k], acc=accumulator, input_precision=input_precision, out_dtype=compute_dtype
        )

    product = ntl.cast(alpha, compute_dtype) * accumulator
    total = functions.multiply_add(
        ntl.cast(beta, compute_dtype), ntl.cast(input, compute_dtype), product, compute_dtype
    )
    output = ntl.cast(total, output.dtype)


def application_scaled(output, mat1, mat2, alpha, compute_dtype, input_precision):
    # With beta = 0 the input is ignored, NaN and all.
    accumulator = ntl.zeros(output.shape, dtype=compute_dtype)

    for k in range(mat1.shape[0]):
        accumulator = ntl.dot(
            mat1[k], mat2[k], acc=accumulator, input_precision=input_precision, out_dtype=compute_dtype
        )

    output = ntl.cast(ntl.cast(alpha, compute_dtype) * accumulator, output.dtype)


def premake(
    with_input=True,
    dtype=None,
    compute_dtype=None,
    input_precision=None,
    scalars=None,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
):
    """Return the arrangement, application and tensors of ``addmm``; ``scalars`` has the type of ``alpha`` and
    ``beta``."""
    blocks = {"block_size_m": block_size_m, "block_size_n": block_size_n, "block_size_k": block_size_k}
    types = {"dtype": dtype, "compute_dtype": compute_dtype, "input_precision": input_precision}
    scalars = scalars or constants.numbers(dtype, "alpha", "beta")
    alpha, beta = (Tensor(0, dtype=scalars.get(name), name=name) for name in ("alpha", "beta"))
    others = (Tensor(2, dtype=dtype, name="added"), alpha, beta) if with_input else (alpha,)
    variant = application if with_input else application_scaled

    return functools.partial(arrangement, **blocks), *mm.bind(variant, 0, *others, **types)
