import torch

from ntops.host.products import check_dims, check_factors, check_inner, product
from ntops.kernels.mm import premake
from ntops.launch.recorder import repeatable


@repeatable(state=torch.get_float32_matmul_precision)
def mm(input, mat2, *, out=None):
    """Compute the product of two matrices, as :func:`torch.mm` does.

    Half types accumulate in float32. Float32 follows :func:`torch.get_float32_matmul_precision` at the time of the
    call: "highest" is IEEE, anything else TF32.

    :param input: A floating-point tensor, (M, K).
    :param mat2: A tensor of the same dtype, (K, N).
    :param out: Where the result is written; it has the very dtype of the operands.
    :return: A tensor, (M, N).
    :raises TypeError: An argument is not a tensor.
    :raises RuntimeError: Shapes, dtypes, devices or ``out`` do not fit.
    :raises NotImplementedError: Integers or bools, unless there is nothing to multiply; complex, sparse, quantized or
        nested operands.
    """
    check_factors(input=input, mat2=mat2)
    check_dims(2, input=input, mat2=mat2)
    check_inner(input=input, mat2=mat2)

    return product(premake, torch.Size((input.shape[0], mat2.shape[1])), input, mat2, out)
