"""Check the arguments of cross entropy, with torch's errors, and say what they mean."""

import warnings

import torch

from ntops.host.arguments import check_tensor
from ntops.host.softmax import FLOATING
from ntops.launch import recorder

REDUCTIONS = ("none", "mean", "sum")


def reduction_of(size_average, reduce, reduction):
    """Return the name of the reduction that a call asks for, with torch's warning of its deprecated arguments.

    :raises ValueError: There is no such reduction.
    """
    if size_average is not None or reduce is not None:
        # A repeated call would not warn.
        recorder.prevent()
        average, reduces = size_average is None or size_average, reduce is None or reduce
        reduction = "none" if not reduces else "mean" if average else "sum"
        _warn(f"arguments 'size_average' and 'reduce' are deprecated; give reduction={reduction!r} instead")

    if reduction == "elementwise_mean":
        recorder.prevent()
        _warn("reduction='elementwise_mean' is deprecated; give reduction='mean' instead")
        return "mean"

    if reduction not in REDUCTIONS:
        raise ValueError(f"argument 'reduction' is {reduction!r}; valid are {', '.join(REDUCTIONS)}")

    return reduction


def _warn(message):
    # torch 2.11 traces no warnings.
    if not torch.compiler.is_compiling():
        warnings.warn(message, stacklevel=4)


def smoothing_of(label_smoothing):
    """Return the smoothing of a call; as in torch, one below 0 is none."""
    return label_smoothing if label_smoothing > 0 else 0.0


def class_dim(shape):
    """Return the dim of the classes in logits of a shape."""
    return min(len(shape) - 1, 1)


def row_shape(shape):
    """Return the shape of the losses of rows: that of the logits without their classes."""
    return without(shape, class_dim(shape))


def without(sizes, dim):
    """Return sizes or strides without those of a dim."""
    return (*sizes[:dim], *sizes[dim + 1 :])


def result_dtype(dtype, target, weight, is_index):
    """Return the dtype of the loss: that of the logits; with probabilities, the one to which all tensors promote."""
    if is_index:
        return dtype

    dtype = torch.promote_types(dtype, target.dtype)
    return dtype if weight is None else torch.promote_types(dtype, weight.dtype)


def check(shape, dtype, target, weight, ignore_index, label_smoothing):
    """Refuse the arguments that torch refuses beside logits of a shape and dtype, and return whether targets are class
    indices.

    :raises TypeError: One is not a tensor.
    :raises IndexError: The logits have no dims.
    :raises ValueError: Batch sizes differ.
    :raises RuntimeError: Shapes, dtypes or devices do not fit; probabilities with an ``ignore_index``; a smoothing
        above 1.
    :raises NotImplementedError: Logits that are not floating-point; complex, sparse, quantized or nested tensors.
    """
    check_tensor(target, "target")
    is_index = shape != target.shape

    if not is_index and not target.dtype.is_floating_point:
        raise RuntimeError(
            f"argument 'target' has dtype {target.dtype}; of the shape of the logits it is probabilities, which are "
            "floating-point"
        )

    if not is_index and ignore_index >= 0:
        raise RuntimeError(f"argument 'ignore_index' is {ignore_index}, but 'target' has probabilities")

    if label_smoothing > 1:
        raise RuntimeError(f"argument 'label_smoothing' is {label_smoothing}; it must be from 0 to 1")

    if not shape:
        raise IndexError("argument 'input' must have a dim of classes, not be 0-d")

    if dtype not in FLOATING:
        raise NotImplementedError(f"cross_entropy of {dtype} is not defined; logits must be floating-point")

    if is_index:
        _check_indices(shape, target, label_smoothing)

    if weight is not None:
        _check_weight(shape, dtype, weight, is_index, label_smoothing)

    return is_index


def _check_indices(logits, target, label_smoothing):
    shape = row_shape(logits)

    if len(logits) > 1 and (not target.ndim or target.shape[0] != shape[0]):
        raise ValueError(
            f"argument 'target' has shape {tuple(target.shape)}, but the logits are a batch of {shape[0]} rows"
        )

    if len(logits) == 1 and target.ndim == 1 and target.shape[0] != 1:
        raise ValueError(f"argument 'target' has {target.shape[0]} classes, but the logits are a single row")

    # A single row takes a target of one element.
    fits = target.shape == shape or (len(logits) == target.ndim == 1 and not label_smoothing > 0)

    if not fits:
        raise RuntimeError(
            f"argument 'target' has shape {tuple(target.shape)}; of logits {tuple(logits)} it must have the classes, "
            f"{tuple(shape)}, or probabilities, {tuple(logits)}"
        )

    if target.dtype is not torch.int64 and (target.dtype is not torch.uint8 or len(logits) > 2):
        raise RuntimeError(
            f"argument 'target' has dtype {target.dtype}; class indices are int64, or of up to 2 dims uint8"
        )


def _check_weight(logits, dtype, weight, is_index, label_smoothing):
    check_tensor(weight, "weight")
    classes = logits[class_dim(logits)]
    # torch takes other shapes with as many elements where the logits have more than two dims.
    fits = weight.ndim == 1 or (is_index and len(logits) > 2 and not label_smoothing > 0)

    if not fits or weight.numel() != classes:
        raise RuntimeError(f"argument 'weight' has shape {tuple(weight.shape)}; it must have the {classes} classes")

    if is_index and weight.dtype is not dtype:
        raise RuntimeError(f"argument 'weight' has dtype {weight.dtype}, but the logits have {dtype}")


def check_classes(target, ignore_index, classes):
    """Refuse a class that there is not.

    :raises IndexError: A target is none of the classes, and not ``ignore_index``.
    """
    recorder.prevent()
    # A number that is compared with uint8 wraps around.
    target = target.long()
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)

    if wrong.any():
        raise IndexError(
            f"argument 'target' has class {int(target[wrong].flatten()[0])}, which is not from 0 to {classes - 1}, nor "
            f"'ignore_index', {ignore_index}"
        )
