import torch

from ntops.host.arguments import check_fits, check_scale
from ntops.host.products import check_dims, check_factors, check_inner, multiplies, product
from ntops.kernels.addmm import premake
from ntops.launch.recorder import repeatable


@repeatable(state=torch.get_float32_matmul_precision)
def addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """Compute ``beta * input + alpha * (mat1 @ mat2)``, as :func:`torch.addmm` does.

    Half types accumulate in float32. Float32 follows :func:`torch.get_float32_matmul_precision` at the time of the
    call: "highest" is IEEE, anything else TF32.

    :param input: A floating-point tensor that broadcasts to (M, N); ignored, NaN and all, where ``beta`` is 0.
    :param mat1: A tensor of the same dtype, (M, K).
    :param mat2: A tensor of the same dtype, (K, N).
    :param beta: The factor of ``input``, a number.
    :param alpha: The factor of the product, a number.
    :param out: Where the result is written; it has the very dtype of the operands.
    :return: A tensor, (M, N).
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, dtypes, devices or ``out`` do not fit.
    :raises NotImplementedError: Integers or bools, unless there is nothing to multiply; complex, sparse, quantized or
        nested operands.
    """
    check_factors(mat1=mat1, mat2=mat2, input=input)
    # torch on CUDA checks that a factor fits if the product has terms, after it has found a kernel.
    asked = input.dtype if input.dtype.is_floating_point and multiplies(mat1, mat2) else torch.float64
    beta = check_scale(int(beta) if isinstance(beta, bool) else beta, asked, "beta")
    check_fits(beta, asked, "beta")
    alpha = check_scale(int(alpha) if isinstance(alpha, bool) else alpha, asked, "alpha")
    check_fits(alpha, asked, "alpha")
    check_dims(2, mat1=mat1, mat2=mat2)
    check_inner(mat1=mat1, mat2=mat2)
    shape = torch.Size((mat1.shape[0], mat2.shape[1]))

    try:
        # As in torch on CUDA, an ignored input is not checked.
        added = input.expand(shape) if beta != 0 else None
    except RuntimeError:
        raise RuntimeError(
            f"argument 'input' {tuple(input.shape)} does not broadcast to the product's {tuple(shape)}"
        ) from None

    return product(premake, shape, mat1, mat2, out, added=added, scales=(alpha, beta))
