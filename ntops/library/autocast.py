"""Autocast: the dtypes in which operators compute inside of :class:`torch.autocast`, following torch's own lists.

Each operator does what torch's function of its name does on the device (``aten/src/ATen/autocast_mode.h``), and nothing
if the installed torch does not list it. As in torch, ``out=`` and in-place calls are not cast.
"""

import torch

from ntops.host import families
from ntops.library import schemas

DEVICES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)

LOWER, FLOAT32, RESULT_FLOAT32, LOSS = "lower", "float32", "result float32", "loss"
"""The policies: cast operands to the device's autocast dtype; cast them to float32; or return float32 unless the call
names a dtype; or cast those of a product to the autocast dtype, and the others to float32, for a loss of float32."""
_OF_PRODUCT = ("input", "linear_weight", "linear_bias")

POLICIES = {
    "addmm": (LOWER, "addmm"),
    "bmm": (LOWER, "bmm"),
    # torch has this loss in that of class indices.
    "cross_entropy": (FLOAT32, "nll_loss"),
    "cumsum": (RESULT_FLOAT32, "cumsum"),
    # torch has this product in linear layers.
    "fused_gated_mlp": (LOWER, "linear"),
    "layer_norm": (FLOAT32, "layer_norm"),
    # torch composes it of a linear layer and a loss.
    "linear_cross_entropy": (LOSS, "linear"),
    "log_softmax": (RESULT_FLOAT32, "log_softmax.int"),
    "logsumexp": (FLOAT32, "logsumexp"),
    "matmul": (LOWER, "matmul"),
    "mm": (LOWER, "mm"),
    "pow": (FLOAT32, "pow.Tensor_Tensor"),
    "rms_norm": (FLOAT32, "rms_norm"),
    "scaled_dot_product_attention": (LOWER, "scaled_dot_product_attention"),
    "softmax": (RESULT_FLOAT32, "softmax.int"),
    "sum": (RESULT_FLOAT32, "sum.dim_IntList"),
} | {name: (FLOAT32, name) for name in families.members("floating")}
"""The policy of each operator, and the function that torch must list for it."""


def register(library, overload, op):
    """Register the policy of an overload for each device whose list has its function."""
    policy, aten = POLICIES.get(overload.operator, (None, None))

    if policy is None or overload.writes is not None or overload.name in schemas.BACKWARD:
        return

    arguments = op._schema.arguments
    written = {place for place, argument in enumerate(arguments) if argument.alias_info is not None}

    for device, key in DEVICES.items():
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{aten}", key):
            library.impl(overload.name, _kernel(op, policy, device, written, arguments), key)


def _kernel(op, policy, device, written, arguments):
    def kernel(*args):
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if policy == RESULT_FLOAT32:
                # The dtype is the last argument, which the dispatcher leaves out if it is the default.
                *args, dtype = (*args, *(one.default_value for one in arguments[len(args) :]))
                return op(*args, dtype or (torch.float32 if _is_eligible(args[0], device) else None))

            dtype = torch.float32 if policy == FLOAT32 else torch.get_autocast_dtype(device)

            if policy == LOSS:
                *args, _ = (*args, *(one.default_value for one in arguments[len(args) :]))
                named = zip((argument.name for argument in arguments), args, strict=False)
                args = [_cast(one, device, dtype if name in _OF_PRODUCT else torch.float32) for name, one in named]
                return op(*args, torch.float32 if args[0].dtype is dtype else None)

            # A cache is written in place, so it is never cast.
            return op(*(one if place in written else _cast(one, device, dtype) for place, one in enumerate(args)))

    return kernel


def _is_eligible(value, device):
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == device
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _cast(value, device, dtype):
    return value.to(dtype) if _is_eligible(value, device) else value
