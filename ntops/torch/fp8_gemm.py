import torch

from ntops.host import fp8
from ntops.host.arguments import check_tensor, common_device
from ntops.host.products import check_dims, check_inner
from ntops.launch import recorder
from ntops.launch.recorder import repeatable


@repeatable
def fp8_gemm(a, b, a_scale=None, b_scale=None, out_dtype=torch.float16):
    """Compute ``(a * a_scale) @ (b * b_scale)`` of 8-bit matrices, as :func:`torch._scaled_mm` without fast
    accumulation.

    Sums of 128 terms or fewer are added up in float32, so that an element lies within 2^-10 of the sum of the
    magnitudes of its terms; then it is rounded once. A product of a scale of ``a`` and one of ``b`` is a float32
    number, and should be a normal one.

    A matrix that is not 8-bit is quantized first, to float8_e4m3fn: with its scale if one is given, else with one for
    each row of ``a`` and each column of ``b``, as ``quantize_fp8(a, granularity="row")`` and the transpose of
    ``quantize_fp8(b.mT, granularity="row")`` compute them.

    The product is fast if both lie along K, ``a`` row-major and ``b`` column-major, such as ``weight.mT`` of a weight
    (N, K); other layouts are copied first. A GPU that does not multiply 8-bit numbers (before sm_89; AMD's, gfx942
    among them) multiplies float16 decoded from them, which is exact, and as fast as a product of float16.

    :param a: (M, K), float8_e4m3fn, float8_e5m2, float16, bfloat16 or float32.
    :param b: (K, N), likewise; the formats may differ.
    :param a_scale: float32: () for the matrix, (M, 1) for each row, or (M, ceil(K / 128)) for each 128 terms of a
        row. ``None`` with an 8-bit ``a``: 1.
    :param b_scale: float32: (), (1, N) for each column, or (ceil(K / 128), N), the transpose of the scales that
        ``quantize_fp8(b.mT)`` returns. The forms of both need not be the same.
    :param out_dtype: ``torch.float16``, ``torch.bfloat16`` or ``torch.float32``.
    :return: A contiguous tensor, (M, N).
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, devices or the dtype of a scale do not fit.
    :raises NotImplementedError: Other dtypes; sparse, quantized or nested tensors, or one that requires grad: rounding
        to 8 bits is a step function, and the caller must choose a substitute for its derivative.
    """
    for name, matrix in {"a": a, "b": b}.items():
        check_tensor(matrix, name, fp8.FORMATS + fp8.WIDE)

    check_dims(2, a=a, b=b)
    check_inner(a=a, b=b)
    fp8.check_dtype(out_dtype, "out_dtype", fp8.WIDE)
    common_device({"a": a, "b": b})
    a, a_scale = _operand(a, a_scale, "a_scale")
    b, b_scale = _operand(b.mT, b_scale, "b_scale", transposed=True)

    return fp8.gemm(a, b.mT, a_scale, b_scale, out_dtype)


def _operand(rows, scale, name, transposed=False):
    """Return the matrix in fp8, and its scales as :func:`fp8.check_scale` returns them."""
    found = None if scale is None else fp8.check_scale(scale, name, rows, transposed)

    if rows.dtype in fp8.WIDE:
        rows, scale = fp8.quantize(rows, found, torch.float8_e4m3fn, "row")
        return rows, found or fp8.check_scale(scale, name, rows)

    return rows, found or (recorder.constant(1.0, rows.device), 0, 0)
