"""A product of 8-bit floating-point matrices with their scales, for ahead-of-time builds.

``ntops.torch`` runs the kernels of ``ntops.kernels.fp8``, which says why the tensor cores do not add up all terms.
NineToothed has no 8-bit floating-point types: the numbers are the bytes of "u8" tensors.
"""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants, mm

arrangement = mm.arrangement


def application(output, a, b, a_scale, b_scale, e4m3):
    total = ntl.zeros(output.shape, dtype=ntl.float32)

    for k in range(a.shape[0]):
        left = ntl.cast(a[k], ntl.float8e4nv if e4m3 else ntl.float8e5, bitcast=True)
        right = ntl.cast(b[k], ntl.float8e4nv if e4m3 else ntl.float8e5, bitcast=True)
        # Naming a limit keeps the compiler from adding to the total within the tensor cores.
        total += ntl.dot(left, right, max_num_imprecise_acc=32)

    output = ntl.cast(total * (a_scale * b_scale), output.dtype)


def premake(dtype=None, e4m3=True, block_size_m=None, block_size_n=None, block_size_k=None):
    """Return the arrangement, application and tensors of ``fp8_gemm`` with scales of rows and columns, of GPUs from
    sm_89 on.

    :param dtype: The element type of the output, (M, N); both scales are expanded to its shape.
    :param e4m3: Whether the numbers are float8_e4m3fn, else float8_e5m2.
    :param block_size_k: At most 128 terms, and at least 32, are added up before float32 takes their sum.
    """
    tensors = (
        Tensor(2, dtype=dtype, name="output"),
        # A tile that passes the end of K must add nothing beyond it.
        Tensor(2, dtype="u8", other=0, name="a"),
        Tensor(2, dtype="u8", other=0, name="b"),
        Tensor(2, dtype="fp32", name="a_scale"),
        Tensor(2, dtype="fp32", name="b_scale"),
    )
    blocks = {"block_size_m": block_size_m, "block_size_n": block_size_n, "block_size_k": block_size_k}

    return functools.partial(arrangement, **blocks), *constants.bind(application, tensors, e4m3=bool(e4m3))
