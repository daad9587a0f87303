"""Choose where results go: a new tensor, or the caller's ``out=`` under torch's rules."""

import warnings

import torch

from ntops.host.arguments import check_tensor
from ntops.host.dim_order import is_dense
from ntops.launch import boundary, recorder


def check_out(out, dtype, device, exact_dtype=False):
    """Refuse an ``out`` that cannot take a result of ``dtype``.

    :param exact_dtype: Whether torch requires exactly ``dtype`` (as for products), not one that it casts to safely.
    :raises TypeError: It is not a tensor.
    :raises RuntimeError: Its dtype or device is wrong.
    """
    check_tensor(out, "out")

    if exact_dtype and out.dtype != dtype:
        raise RuntimeError(f"argument 'out' has dtype {out.dtype}, but the result has {dtype}")

    if not torch.can_cast(dtype, out.dtype):
        raise RuntimeError(f"argument 'out' has dtype {out.dtype}, to which a result of {dtype} can't be cast")

    if out.device != device:
        raise RuntimeError(f"argument 'out' is on {out.device}, but the operands are on {device}")


def check_inference(tensor, name):
    """Refuse to write a tensor that inference mode made outside of it.

    :raises RuntimeError: Autograd could not know of the change.
    """
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"argument '{name}' was made in inference mode, and may be written there alone; clone() it first"
        )


def check_written(tensor, name, shape=None):
    """Refuse to write a tensor of which several elements share one place in memory, or one that inference mode made
    outside of it.

    :param shape: The shape to which it is resized first, where it has another one; ``None``: its own.
    :raises RuntimeError: A dim is expanded (stride 0), or autograd could not know of the change.
    """
    check_inference(tensor, name)

    if shape is not None and tensor.shape != shape:
        return

    expanded = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))

    if expanded and tensor.numel():
        raise RuntimeError(
            f"argument '{name}' is expanded: several of its elements are one place in memory; clone() it first"
        )


def check_overlap(out, inputs):
    """Refuse an ``out`` that shares part of its memory with an input; sharing all of it is in-place work.

    As in torch, the check skips tensors that are not dense.

    :param inputs: The input tensors by argument name.
    :raises RuntimeError: An input overlaps ``out`` in part.
    """
    if boundary.is_abstract():
        return

    for name, tensor in inputs.items():
        if tensor is out or out.numel() == 0 or tensor.numel() == 0:
            continue

        if not is_dense(out.shape, out.stride()) or not is_dense(tensor.shape, tensor.stride()):
            continue

        if out.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
            continue

        begin, end = _extent(out)
        other_begin, other_end = _extent(tensor)
        same = (begin, end) == (other_begin, other_end) and out.stride() == tensor.stride()

        if not same and begin < other_end and other_begin < end:
            raise RuntimeError(f"arguments 'out' and '{name}' share a part of their memory; clone() one of them first")


def shares_memory(out, tensor):
    """Tell whether ``out`` may share memory with a tensor: they have one storage and their extents overlap."""
    if boundary.is_abstract() or out.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
        return False

    begin, end = _extent(out)
    other_begin, other_end = _extent(tensor)
    return begin < other_end and other_begin < end


def _extent(tensor):
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()

    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def resize_out(out, shape, strides):
    """Resize ``out`` to the shape of the result if it has another shape, with torch's warning if it is not empty."""
    if out.shape == shape:
        return

    if out.numel():
        warnings.warn(
            f"argument 'out' had shape {tuple(out.shape)} and was resized to {tuple(shape)}; "
            "resize it to 0 elements first to reuse its memory knowingly",
            UserWarning,
            stacklevel=4,
        )

    recorder.prevent()
    out.resize_(shape)
    out.as_strided_(shape, strides)


def given(out, result):
    """Return the function's result: the written tensor, or ``out`` after copying the result to it.

    :param out: The caller's ``out=``, the operand that is written in place, or ``None``.
    :param result: The tensor that a kernel wrote; it may be ``out`` itself.
    """
    if out is None:
        return result

    if out is result:
        recorder.written(out)
    else:
        recorder.prevent()
        out.copy_(result)

    return out
