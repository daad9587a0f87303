import torch

from ntops.host import fp8
from ntops.host.arguments import check_tensor, common_device
from ntops.launch.recorder import repeatable


@repeatable
def dequantize_fp8(quantized, scale, dtype=torch.float16):
    """Compute ``quantized * scale`` in float32, the inverse of :func:`ntops.torch.quantize_fp8`.

    :param quantized: A float8_e4m3fn or float8_e5m2 tensor of any shape, (..., columns).
    :param scale: float32 scales: () for the tensor, (..., 1) for each row, or (..., ceil(columns / 128)) for each 128
        columns of a row.
    :param dtype: ``torch.float16``, ``torch.bfloat16`` or ``torch.float32``; what float16 does not hold becomes
        infinite.
    :return: A contiguous tensor of the shape of ``quantized``. NaN and infinities stay what they are.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, devices or the dtype of ``scale`` do not fit.
    :raises NotImplementedError: Other dtypes; sparse, quantized or nested tensors, or one that requires grad: rounding
        to 8 bits is a step function, and the caller must choose a substitute for its derivative.
    """
    check_tensor(quantized, "quantized", fp8.FORMATS)
    fp8.check_dtype(dtype, "dtype", fp8.WIDE)
    common_device({"quantized": quantized})

    return fp8.dequantize(quantized, fp8.check_scale(scale, "scale", quantized), dtype)
