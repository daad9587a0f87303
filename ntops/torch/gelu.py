from ntops.host.elementwise import activation
from ntops.kernels.gelu import premake
from ntops.launch.recorder import repeatable


@repeatable
def gelu(input, approximate="none"):
    """Compute ``input * Phi(input)`` elementwise, as :func:`torch.nn.functional.gelu` does.

    :param input: A floating-point tensor of any shape.
    :param approximate: ``"none"`` (the normal distribution's Phi, through erf) or ``"tanh"``:
        ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` (Hendrycks and Gimpel, arXiv:1606.08415).
    :return: A tensor of the shape and dtype of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: ``approximate`` is another string.
    :raises NotImplementedError: An integer, bool, complex, sparse, quantized or nested ``input``.
    """
    if not isinstance(approximate, str):
        raise TypeError(f"argument 'approximate' must be a str, not {type(approximate).__name__}")

    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"argument 'approximate' must be 'none' or 'tanh', not {approximate!r}")

    return activation(premake, input, "gelu", approximate=approximate)
