import torch

from ntops.host import fp8
from ntops.host.arguments import check_tensor, common_device
from ntops.host.repetition import repeatable


@repeatable
def quantize_fp8(tensor, scale=None, *, dtype=torch.float8_e4m3fn, granularity="tensor"):
    """Round ``tensor / scale`` to 8-bit floating point, so that ``quantized * scale`` is about ``tensor``.

    ``scale = amax / largest``, where amax is the largest finite magnitude of the tensor, row or block, and largest the
    largest number of the format, 448 (float8_e4m3fn) or 57344 (float8_e5m2): the convention of
    :func:`torch._scaled_mm`, which multiplies by scales (Micikevicius et al., FP8 Formats for Deep Learning,
    arXiv:2209.05433, section 3.2, has the reciprocal for a scale). A scale is at least 2^-126, the smallest normal
    number of float32, and 1 where amax is 0.

    The quotient is that of float32 (by the reciprocal of the scale, within 2^-23), rounded to nearest, ties to even.
    What is beyond the largest number becomes the largest (the saturating conversion of the OCP 8-bit floating point
    specification), infinities too; NaN stays NaN. So NaN never comes from a finite number, zeros stay zeros, and
    where all magnitudes are equal they become the largest number exactly; times the scale that is the half-precision
    number that it was, or one float32 within an ulp.

    :param tensor: A float16, bfloat16 or float32 tensor of any shape, (..., columns).
    :param scale: ``None``: found here; or float32 scales: () for the tensor, (..., 1) for each row, or
        (..., ceil(columns / 128)) for each 128 columns of a row (the last ones may be fewer). It should be positive;
        by a scale of 0 a number becomes the largest, and 0 stays 0.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param granularity: What has a scale of its own where they are found here: "tensor", "row" or "block".
    :return: ``(quantized, scale)``: a contiguous tensor of the shape of ``tensor``, and the scales, contiguous, or
        those that were given.
    :raises TypeError: An argument has the wrong type.
    :raises ValueError: The granularity is unknown.
    :raises RuntimeError: Shapes, devices or the dtype of ``scale`` do not fit; rows of a 0-d tensor.
    :raises NotImplementedError: Other dtypes; sparse, quantized or nested tensors, or one that requires grad.
    """
    check_tensor(tensor, "tensor", fp8.WIDE)
    fp8.check_dtype(dtype, "dtype", fp8.FORMATS)
    fp8.scale_shape(tensor.shape, granularity)
    common_device({"tensor": tensor})
    given = None if scale is None else fp8.check_scale(scale, "scale", tensor)
    quantized, found = fp8.quantize(tensor, given, dtype, granularity)

    return quantized, found if scale is None else scale
