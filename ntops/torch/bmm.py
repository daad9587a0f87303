import torch

from ntops.host.products import check_dims, check_factors, check_inner, product
from ntops.kernels.bmm import premake
from ntops.launch.recorder import repeatable


@repeatable(state=torch.get_float32_matmul_precision)
def bmm(input, mat2, *, out=None):
    """Compute the products of a batch of matrices, as :func:`torch.bmm` does; an expanded batch is not copied.

    Half types accumulate in float32. Float32 follows :func:`torch.get_float32_matmul_precision` at the time of the
    call: "highest" is IEEE, anything else TF32.

    :param input: A floating-point tensor, (B, M, K).
    :param mat2: A tensor of the same dtype, (B, K, N); of any dtype where there is nothing to multiply.
    :param out: Where the result is written; it has the very dtype of the result.
    :return: A tensor, (B, M, N).
    :raises TypeError: An argument is not a tensor.
    :raises RuntimeError: Shapes, dtypes, devices or ``out`` do not fit.
    :raises NotImplementedError: Integers or bools, unless there is nothing to multiply; complex, sparse, quantized or
        nested operands.
    """
    check_factors(input=input, mat2=mat2, mixed_empty=True)
    check_dims(3, input=input, mat2=mat2)
    check_inner(input=input, mat2=mat2)

    if input.shape[0] != mat2.shape[0]:
        raise RuntimeError(
            f"arguments 'input' and 'mat2' must have one batch size, not {input.shape[0]} and {mat2.shape[0]}"
        )

    if input.dtype is not mat2.dtype:
        # Nothing is multiplied, and the result has the second dtype, as in torch.
        input = mat2.new_empty(input.shape)

    return product(premake, torch.Size((*input.shape[:2], mat2.shape[2])), input, mat2, out)
