from ntops.host.families import activate, activation


@activation(runtime_error="``approximate`` is another string.")
def gelu(input, approximate="none"):
    """Compute ``input * Phi(input)`` elementwise, as :func:`torch.nn.functional.gelu` does.

    :param approximate: ``"none"`` (the normal distribution's Phi, through erf) or ``"tanh"``:
        ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` (Hendrycks and Gimpel, arXiv:1606.08415).
    """
    if not isinstance(approximate, str):
        raise TypeError(f"argument 'approximate' must be a str, not {type(approximate).__name__}")

    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"argument 'approximate' must be 'none' or 'tanh', not {approximate!r}")

    return activate("gelu", input, approximate=approximate)
