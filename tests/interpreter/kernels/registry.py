"""Families of random launches, by name."""

import numpy as np
import torch

FAMILIES = {}
# What Triton's own interpreter does otherwise on purpose or by mistake, in some version that we run on.
NOT_LIKE_STOCK = set()


def family(function=None, *, like_stock=True):
    """Register a function that makes one random launch: (kernel, grid, positional arguments, keyword arguments)."""

    def register(function):
        FAMILIES[function.__name__] = function

        if not like_stock:
            NOT_LIKE_STOCK.add(function.__name__)

        return function

    return register(function) if function is not None else register


def launches(name, count):
    """``count`` launches of a family, the same for every process."""
    for number in range(count):
        yield FAMILIES[name](np.random.default_rng([number, *name.encode()]))


def run(launch, device="cpu"):
    """Run one launch on copies of its arguments, and return the copies that are tensors."""
    kernel, grid, args, options = launch
    args = [argument.to(device, copy=True) if isinstance(argument, torch.Tensor) else argument for argument in args]
    kernel[grid](*args, **options)

    return [argument.cpu() for argument in args if isinstance(argument, torch.Tensor)]


def floats(rng, *shape, dtype=torch.float32):
    """Normal numbers of a random scale."""
    return torch.from_numpy(rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3)).to(dtype)


def integers(rng, *shape, dtype=torch.int32, low=-1000, high=1000):
    """Integers from ``low`` to below ``high``."""
    return torch.from_numpy(rng.integers(low, high, shape)).to(dtype)


def size(rng, largest=200):
    """From 1 to below ``largest``."""
    return int(rng.integers(1, largest))
