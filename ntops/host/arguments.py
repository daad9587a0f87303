"""What a torch function takes: each check names the argument, what was wrong and what to do."""

import math
import numbers

import torch

from ntops._runtime import INTERPRETED
from ntops.host import memory, promotion

DTYPES = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
}


def check_tensor(value, name, dtypes=DTYPES):
    """Refuse what is not a tensor that a kernel can take.

    :param dtypes: Those that the operator takes.
    :raises TypeError: It is no tensor.
    :raises NotImplementedError: Its layout, dtype or need of a gradient is deliberately left out, or as
        :func:`check_memory`.
    :raises RuntimeError: It is on a device where kernels do not run.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"argument '{name}' must be a Tensor, not {type(value).__name__}")

    if value.dtype not in dtypes:
        raise NotImplementedError(f"argument '{name}' has dtype {value.dtype}, which this operator leaves out")

    check_memory(value, name)

    if value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            f"argument '{name}' requires grad, and there are no backward kernels: detach it, or call under "
            "torch.no_grad()"
        )


_KNOWN = ("cpu", "cuda", "meta")


def check_memory(value, name):
    """Refuse a tensor whose values are not what its memory holds, so that a kernel would not see them.
    :func:`common_device` refuses tensors of other devices, meta ones among them.

    :raises NotImplementedError: It is sparse, quantized, nested or negated lazily; fake, functional, batched or tracked
        by a transform, or of a subclass with a dispatch of its own; dual; without storage. Or a mode or transform is
        active under which torch makes such tensors, or follows what is called.
    """
    if value.device.type in _KNOWN and not memory.is_ordinary(value):
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise NotImplementedError(
                f"argument '{name}' must be a dense strided tensor; sparse, quantized and nested ones are left out"
            )

        if value.is_neg():
            raise NotImplementedError(
                f"argument '{name}' is negated lazily, which kernels do not see; call resolve_neg()"
            )

        raise NotImplementedError(
            f"argument '{name}' is not memory alone but fake, functional, zero, of a transform (vmap, grad, jvp) or of "
            f"a subclass ({type(value).__name__}) that dispatches by itself; kernels take tensors with memory of their "
            "own"
        )

    if memory.has_tangent(value):
        raise NotImplementedError(
            f"argument '{name}' has a tangent, and there are no kernels of forward-mode differentiation"
        )

    if memory.is_missing(value) and not value.is_meta:
        raise NotImplementedError(f"argument '{name}' has no memory: its storage was freed")

    if memory.is_hidden():
        raise NotImplementedError(
            f"argument '{name}' is given under a mode or transform that kernels take no part in: fake, functional or "
            "traced tensors, or grad, jvp and functionalize of torch.func"
        )


def check_operands(**operands):
    """Refuse an operand that is neither a Python number nor a tensor that a kernel can take.

    :raises TypeError: It is neither.
    :raises NotImplementedError: A complex number, and as :func:`check_tensor`.
    :raises OverflowError: An integer that 64 bits do not hold.
    """
    for name, value in operands.items():
        if isinstance(value, torch.Tensor) or not isinstance(value, numbers.Number):
            check_tensor(value, name)
        else:
            check_number(value, name)


def check_number(value, name):
    """Refuse a complex number and an integer that 64 bits do not hold."""
    if isinstance(value, complex):
        raise NotImplementedError(f"argument '{name}' is complex, which this operator leaves out")

    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(f"argument '{name}' is {value}, which does not fit into 64 bits")


def check_scale(value, dtype, name):
    """Refuse a factor that a result of ``dtype`` cannot take, and return it as a Python number.

    :raises TypeError: It is no number, nor a 0-d tensor.
    :raises NotImplementedError: As :func:`check_memory`.
    :raises RuntimeError: A bool for a result that is not bool, or a float for an integer result.
    """
    value = _read(value, name)

    if not isinstance(value, numbers.Number):
        raise TypeError(f"argument '{name}' must be a number, not {type(value).__name__}")

    if isinstance(value, bool) and dtype is not torch.bool:
        raise RuntimeError(f"argument '{name}' is a bool, which only a bool result takes, not one of {dtype}")

    if isinstance(value, complex) or (isinstance(value, float) and not dtype.is_floating_point):
        raise RuntimeError(f"argument '{name}' is {value!r}, which a result of {dtype} does not take")

    check_number(value, name)
    return value


def _read(value, name):
    """The number that a 0-d tensor holds; what is none as it is."""
    if not isinstance(value, torch.Tensor) or value.ndim:
        return value

    check_memory(value, name)
    return value.item()


def check_real(value, name):
    """Refuse what is no real number, and return it as a float.

    :raises TypeError: It is no number, nor a 0-d tensor.
    """
    value = _read(value, name)

    if not isinstance(value, numbers.Real):
        raise TypeError(f"argument '{name}' must be a float, not {type(value).__name__}")

    return float(value)


def check_fits(value, dtype, name, accumulated=True):
    """Refuse a number that a result of ``dtype`` does not hold; as in torch, a negative one wraps if unsigned.

    :param accumulated: Whether it goes into a computation, which half types have done in float32.
    :raises RuntimeError: It is too large or too small.
    """
    check_number(value, name)

    if dtype is torch.bool or not math.isfinite(value):
        return

    if accumulated and dtype.is_floating_point:
        dtype = promotion.accumulate_dtype(dtype)

    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)

    if not (limits.min or -limits.max) <= value <= limits.max:
        raise RuntimeError(f"argument '{name}' is {value!r}, which does not fit into {dtype}")


def common_device(tensors):
    """The device that all the tensors are on; a 0-d CPU tensor may go with CUDA tensors, as a number would.

    :param tensors: The tensors by argument name.
    :raises RuntimeError: They are on different devices, or on one where kernels do not run.
    :raises NotImplementedError: They are on the meta device.
    """
    device = next((tensor.device for tensor in tensors.values() if tensor.ndim), None)
    device = device or next(
        (tensor.device for tensor in tensors.values() if tensor.is_cuda), next(iter(tensors.values())).device
    )

    for name, tensor in tensors.items():
        if tensor.device != device and not (tensor.ndim == 0 and tensor.device.type == "cpu"):
            raise RuntimeError(f"argument '{name}' is on {tensor.device}, but another argument is on {device}")

    if device.type != "cuda" and not (INTERPRETED and device.type == "cpu"):
        where = "CPU tensors, as kernels are interpreted" if INTERPRETED else "CUDA tensors"
        name = next(name for name, tensor in tensors.items() if tensor.device == device)

        if device.type == "meta":
            raise NotImplementedError(
                f"argument '{name}' is on meta, but ntops takes {where} here: tensors on meta have no memory"
            )

        raise RuntimeError(
            f"argument '{name}' is on {device}, but ntops takes {where} here; move it, or set TRITON_INTERPRET=1 "
            "before Python starts to run kernels on the CPU"
        )

    return device
