"""Check arguments; each error names the argument, says what is wrong with it and what to do."""

import math
import numbers
import operator

import torch

from ntops._runtime import INTERPRETED
from ntops.host import promotion
from ntops.launch import boundary, virtual_tensors

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
    """Refuse an argument that is not a tensor that a kernel can take.

    :param dtypes: The dtypes that the operator takes.
    :raises TypeError: It is not a tensor.
    :raises NotImplementedError: Its layout or dtype is deliberately not supported; it requires grad and the call has no
        gradient; or :func:`check_memory` refuses it.
    :raises RuntimeError: It is on a device where kernels do not run.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"argument '{name}' must be a Tensor, not {type(value).__name__}")

    if value.dtype not in dtypes:
        raise NotImplementedError(f"argument '{name}' has dtype {value.dtype}, which this operator leaves out")

    check_memory(value, name)

    if value.requires_grad and torch.is_grad_enabled() and not boundary.is_inside():
        raise NotImplementedError(
            f"argument '{name}' requires grad, and this call has no gradient: detach it, or call under torch.no_grad()"
        )


_KNOWN = ("cpu", "cuda", "meta")


def check_memory(value, name):
    """Refuse a tensor whose memory does not hold its values, so that a kernel would not see them. :func:`common_device`
    refuses tensors of other devices, meta tensors among them.

    Check nothing in an abstract call, which only computes shapes.

    :raises NotImplementedError: It is sparse, quantized, nested or negated lazily; fake, functional, batched or tracked
        by a transform, or of a subclass with a dispatch of its own; dual; or without storage. Or a mode or transform is
        active under which torch makes such tensors or traces calls.
    """
    if boundary.is_abstract():
        return

    if value.device.type in _KNOWN and not virtual_tensors.is_ordinary(value):
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

    if virtual_tensors.has_tangent(value):
        raise NotImplementedError(
            f"argument '{name}' has a tangent, and there are no kernels of forward-mode differentiation"
        )

    if virtual_tensors.is_missing(value) and not value.is_meta:
        raise NotImplementedError(f"argument '{name}' has no memory: its storage was freed")

    if virtual_tensors.is_hidden():
        raise NotImplementedError(
            f"argument '{name}' is given under a mode or transform that kernels take no part in: fake, functional or "
            "traced tensors, or grad, jvp and functionalize of torch.func"
        )


def check_operands(**operands):
    """Refuse an operand that is neither a Python number nor a tensor that a kernel can take.

    :raises TypeError: It is neither.
    :raises NotImplementedError: It is a complex number, or :func:`check_tensor` refuses it.
    :raises OverflowError: It is an integer that does not fit 64 bits.
    """
    for name, value in operands.items():
        if isinstance(value, torch.Tensor) or not isinstance(value, numbers.Number):
            check_tensor(value, name)
        else:
            check_number(value, name)


def check_number(value, name):
    """Refuse a complex number and an integer that does not fit 64 bits."""
    if isinstance(value, complex):
        raise NotImplementedError(f"argument '{name}' is complex, which this operator leaves out")

    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(f"argument '{name}' is {value}, which does not fit into 64 bits")


def check_scale(value, dtype, name):
    """Refuse a factor that a result of ``dtype`` cannot take, and return it as a Python number.

    :raises TypeError: It is neither a number nor a 0-d tensor.
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
    """Return the number that a 0-d tensor holds, and any other value unchanged."""
    if not isinstance(value, torch.Tensor) or value.ndim:
        return value

    check_memory(value, name)
    return value.item()


def check_real(value, name):
    """Refuse a value that is not a real number, and return it as a float.

    :raises TypeError: It is neither a number nor a 0-d tensor.
    """
    value = _read(value, name)

    if not isinstance(value, numbers.Real):
        raise TypeError(f"argument '{name}' must be a float, not {type(value).__name__}")

    return float(value)


def check_index(value, name):
    """Refuse a value that is not an integer of 64 bits, and return it as an int.

    :raises TypeError: It is not an integer.
    :raises ValueError: It does not fit 64 bits.
    """
    if isinstance(value, torch.Tensor):
        check_memory(value, name)

    try:
        index = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        index = None

    if index is None:
        raise TypeError(f"argument '{name}' must be an int, not {type(value).__name__}")

    if not -(2**63) <= index < 2**63:
        raise ValueError(f"argument '{name}' is {index}, which does not fit into 64 bits")

    return index


def check_fits(value, dtype, name, accumulated=True):
    """Refuse a number that ``dtype`` does not hold; as in torch, a negative number wraps to an unsigned dtype.

    :param accumulated: Whether the number enters a computation, which is in float32 for half types.
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
    """Return the device of all the tensors; a 0-d CPU tensor may go with CUDA tensors, as a number would.

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

    if device.type != "cuda" and not (INTERPRETED and device.type == "cpu") and not boundary.is_abstract():
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
