from ntops.host.families import activate, activation


@activation(gradient="silu")
def silu(input, inplace=False):
    """Compute ``input * sigmoid(input)`` elementwise, as :func:`torch.nn.functional.silu` does."""
    return activate("silu", input, inplace)
