import torch

from ntops.host.products import check_dims, check_factors, check_inner, product
from ntops.kernels.bmm import premake


def bmm(input, mat2, *, out=None):
    """The products of a batch of matrices, as :func:`torch.bmm`; an expanded batch is not copied.

    Half types accumulate in float32. Float32 follows :func:`torch.get_float32_matmul_precision` at the time of the
    call: "highest" is IEEE, anything else TF32.

    :param input: A floating-point tensor, (B, M, K).
    :param mat2: A tensor of the same dtype, (B, K, N).
    :param out: Where the result is written; it has the very dtype of the operands.
    :return: A tensor, (B, M, N).
    :raises TypeError: An argument is no tensor.
    :raises RuntimeError: Shapes, dtypes, devices or ``out`` do not fit.
    :raises NotImplementedError: Integer, bool, complex, sparse, quantized or nested operands, or one that requires
        grad.
    """
    check_factors(input=input, mat2=mat2)
    check_dims(3, input=input, mat2=mat2)
    check_inner(input=input, mat2=mat2)

    if input.shape[0] != mat2.shape[0]:
        raise RuntimeError(
            f"arguments 'input' and 'mat2' must have one batch size, not {input.shape[0]} and {mat2.shape[0]}"
        )

    return product(premake, torch.Size((*input.shape[:2], mat2.shape[2])), input, mat2, out)
