"""Calls of the operators of ``torch.ops.ntops``, for tests of how torch's own system takes them."""

import torch
from operator_calls import CALLS, fresh, tensor, with_tensors
from torch.utils._python_dispatch import TorchDispatchMode

NUMBERS = [(name, number) for name, calls in CALLS.items() for number in range(len(calls))]
SCALES = {"quantize_fp8", "dequantize_fp8", "fp8_gemm"}
"""Operators with 0-d tensors that are not read as numbers."""


def call_with_numbers(name, number, without_out=False):
    """A call whose numbers are numbers, and whose views are of one cache."""
    args, kwargs = fresh(name, number)

    if name not in SCALES:
        args = [float(one) if isinstance(one, torch.Tensor) and not one.ndim else one for one in args]
        kwargs = {k: float(v) if isinstance(v, torch.Tensor) and not v.ndim else v for k, v in kwargs.items()}

    if (name, number) == ("scaled_dot_product_attention", 2):
        keys, values = tensor(2, 1, 2, 8, 16)
        args[1:] = [keys, values]
        kwargs["present_key"] *= 3
        kwargs["present_value"] *= 5
        kwargs |= {"present_key_slot": keys[:, :, :4], "present_value_slot": values[:, :, 4:]}

    if without_out:
        kwargs.pop("out", None)

    return args, kwargs


class Noted(TorchDispatchMode):
    """Notes the calls of ``torch.ops.ntops``, with copies of their tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "ntops":
            self.calls.append((function, *with_tensors((args, kwargs or {}), torch.clone)))

        return function(*args, **(kwargs or {}))


def normal(*shape):
    """Numbers of a normal distribution, where kernels run."""
    return torch.randn(*shape, device=tensor(1).device)
