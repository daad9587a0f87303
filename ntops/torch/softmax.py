from ntops.host.softmax import normalize
from ntops.kernels import long_rows
from ntops.kernels.softmax import premake
from ntops.launch.recorder import repeatable


@repeatable
def softmax(input, dim, dtype=None):
    """Compute ``exp(input) / sum(exp(input))`` over ``dim``, as :func:`torch.nn.functional.softmax` does.

    :param input: A floating-point tensor of any shape and strides.
    :param dim: The dim whose elements sum to 1.
    :param dtype: The dtype to which ``input`` is cast first; then it may be of any dtype.
    :return: A contiguous tensor of the shape of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: ``dim`` is out of range.
    :raises NotImplementedError: A result that is not floating-point, unless it is empty; a complex, sparse, quantized
        or nested ``input``.
    """
    return normalize(premake, "softmax", input, dim, dtype, long_rows.softmax, long_rows.softmax_across)
