import torch

from ntops.host import fp8
from ntops.host.arguments import check_tensor, common_device
from ntops.launch.recorder import repeatable


@repeatable
def quantize_fp8(tensor, scale=None, *, dtype=torch.float8_e4m3fn, granularity="tensor"):
    """Round ``tensor / scale`` to 8-bit floating point, so that ``quantized * scale`` is about ``tensor``.

    ``scale = amax / largest``, where amax is the largest finite magnitude of the tensor, row or block, and largest is
    the largest number of the format, 448 (float8_e4m3fn) or 57344 (float8_e5m2). This is the convention of
    :func:`torch._scaled_mm`, which multiplies by scales; Micikevicius et al., FP8 Formats for Deep Learning,
    arXiv:2209.05433, section 3.2, use the reciprocal. A scale is at least 2^-126, the smallest normal number of
    float32, and 1 where amax is 0.

    The quotient is computed in float32 (by the reciprocal of the scale, within 2^-23) and rounded to nearest, ties to
    even. Larger numbers, infinities included, become the largest number (the saturating conversion of the OCP 8-bit
    floating point specification); NaN stays NaN. So a finite number never becomes NaN, and zeros stay zeros. If all
    magnitudes are equal, they become exactly the largest number; multiplied by the scale, that gives back a
    half-precision number exactly, and a float32 number within an ulp.

    :param tensor: A float16, bfloat16 or float32 tensor of any shape, (..., columns).
    :param scale: ``None`` to compute it; or float32 scales: () for the tensor, (..., 1) for each row, or (...,
        ceil(columns / 128)) for each 128 columns of a row (the last ones may be fewer). It should be positive; divided
        by a scale of 0, a number becomes the largest number, and 0 stays 0.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param granularity: The part with a scale of its own if scales are computed: "tensor", "row" or "block".
    :return: ``(quantized, scale)``: a contiguous tensor of the shape of ``tensor``, and the scales, contiguous, or the
        given ones.
    :raises TypeError: An argument has the wrong type.
    :raises ValueError: The granularity is unknown.
    :raises RuntimeError: Shapes, devices or the dtype of ``scale`` do not fit; rows of a 0-d tensor.
    :raises NotImplementedError: Other dtypes; sparse, quantized or nested tensors, or one that requires grad: rounding
        to 8 bits is a step function, and the caller must choose a substitute for its derivative.
    """
    check_tensor(tensor, "tensor", fp8.WIDE)
    fp8.check_dtype(dtype, "dtype", fp8.FORMATS)
    fp8.scale_shape(tensor.shape, granularity)
    common_device({"tensor": tensor})
    given = None if scale is None else fp8.check_scale(scale, "scale", tensor)
    quantized, found = fp8.quantize(tensor, given, dtype, granularity)

    return quantized, found if scale is None else scale
