"""What the tests of gradients share."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def doubled(values):
    """Tensors as float64 copies on the CPU that require a gradient where they do."""
    return [
        one.detach().cpu().double().requires_grad_(one.requires_grad)
        if isinstance(one, torch.Tensor) and one.is_floating_point()
        else one.cpu()
        if isinstance(one, torch.Tensor)
        else one
        for one in values
    ]


def gradients(function, args, gradient, **kwargs):
    """The gradients of a call for each of its tensors that requires one."""
    wanted = [one for one in args if isinstance(one, torch.Tensor) and one.requires_grad]
    return torch.autograd.grad(function(*args, **kwargs), wanted, gradient)


def tensor(*shape, dtype=torch.float32, seed=0, low=None, requires_grad=True):
    """Normal numbers on the device; ``low``: their sizes from there on."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = values.abs() + low if low is not None else values
    return values.to(DEVICE, dtype).requires_grad_(requires_grad)
