"""8-bit floating-point numbers times their scales, for ahead-of-time builds.

``ntops.torch`` runs the kernels of ``ntops.kernels.fp8``. NineToothed has no 8-bit floating-point types: the numbers
are the bytes of a "u8" tensor.
"""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants
from ntops.kernels.element_wise import arrangement


def application(output, quantized, scale, e4m3):
    values = ntl.cast(quantized, ntl.float8e4nv if e4m3 else ntl.float8e5, bitcast=True)
    output = ntl.cast(ntl.cast(values, ntl.float32) * scale, output.dtype)


def premake(ndim, dtype=None, e4m3=True, block_size=None):
    """Return the arrangement, application and tensors of ``dequantize_fp8``, of GPUs from sm_89 on.

    :param ndim: The number of dims of the tensors; each scale is expanded to the elements that share it.
    :param dtype: The element type of the output.
    :param e4m3: Whether the numbers are float8_e4m3fn, else float8_e5m2.
    """
    output = Tensor(ndim, dtype=dtype, name="output")
    quantized = Tensor(shape=output.shape, dtype="u8", name="quantized")
    scale = Tensor(shape=output.shape, dtype="fp32", name="scale")
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(application, (output, quantized, scale), e4m3=bool(e4m3))
