"""Linear cross entropy: a product makes the logits of a chunk, which the kernels of cross entropy read.

The loss walks over rows, and gradients over classes: all rows of a chunk of classes make the whole gradient of these
classes' weights. The gradient of the input is added up over chunks in the compute dtype, always in the same order.
"""

import contextlib
import math

import torch

from ntops.host import gradients
from ntops.host.arguments import check_tensor, common_device
from ntops.host.cross_entropy import Loss, add_losses, write_gradients
from ntops.host.cross_entropy_arguments import check
from ntops.host.dim_order import contiguous_strides
from ntops.host.products import check_factors, multiply
from ntops.host.promotion import accumulate_dtype
from ntops.kernels import addmm, mm
from ntops.launch import recorder
from ntops.launch.recorder import repeatable

# A chunk has no more logits than this (128 MiB of half types), and no more than about a part of all in so many.
_LOGITS, _PARTS = 2**26, 16
# But it has at least so many rows or classes: with fewer, a product waits for its other factor, which each chunk reads.
# The number is a multiple of the tiles of products.
_LEAST, _MULTIPLE = 256, 128


def chunk(count, each):
    """Return the number of rows or classes of a chunk.

    :param count: The number of all.
    :param each: The logits of one.
    """
    return part(min(_LOGITS // max(each, 1) * _PARTS, count))


def part(count):
    """Return the number of rows or classes of one of the parts of so many."""
    return max(-(-count // (_PARTS * _MULTIPLE)) * _MULTIPLE, _LEAST)


@contextlib.contextmanager
def _walking(count, step):
    """Return a context for the work on chunks. If there are several, each is recorded by itself: a recording of all,
    and each of its repetitions, would hold the working memory of all of them, copies for products among it."""
    if step >= count:
        yield
        return

    recorder.prevent()

    with recorder.unrecorded():
        yield


@repeatable(state=torch.get_float32_matmul_precision)
def linear_class_loss(
    input, linear_weight, target, linear_bias, weight, reduction, ignore_index, label_smoothing, dtype=None
):
    """Compute :func:`ntops.torch.linear_cross_entropy`, and what its gradient needs.

    :param dtype: The dtype that the logits count as; ``None``: that of ``input``. Autocast makes logits of half types
        and a loss of float32.
    :return: As :func:`class_loss`.
    """
    shape = _check_factors(input, linear_weight, linear_bias)

    if ignore_index is not None and isinstance(target, torch.Tensor) and target.shape == shape:
        raise RuntimeError(f"argument 'ignore_index' is {ignore_index}, but 'target' has probabilities")

    ignore_index = index_of(ignore_index)
    dtype = dtype or input.dtype
    is_index = check(shape, dtype, target, weight, ignore_index, label_smoothing)
    tensors = {"input": input, "linear_weight": linear_weight, "target": target}
    tensors |= {name: one for name, one in (("linear_bias", linear_bias), ("weight", weight)) if one is not None}
    device = common_device(tensors)
    loss = Loss(shape, dtype, device, target, weight, is_index, reduction, ignore_index, label_smoothing)

    if loss.has_logits():
        layer = Layer(input, linear_weight, linear_bias)
        target = layer.batched(target, is_index)
        step = chunk(layer.rows, layer.classes * layer.inner)

        with _walking(layer.rows, step):
            memory = layer.memory(min(step, layer.rows) * layer.classes)

            for first in range(0, layer.rows, step):
                rows = slice(first, first + step)
                own = loss.rows(first * layer.inner, layer.input[rows].shape[0] * layer.inner)
                _add_chunk(memory, *layer.part(rows, slice(None)), layer.others, target[rows], *own)

        loss.reduce()

    return loss.results


@repeatable(state=torch.get_float32_matmul_precision)
def linear_class_gradients(
    gradient,
    input,
    linear_weight,
    target,
    linear_bias,
    weight,
    statistics,
    divisor,
    ignore_index,
    label_smoothing,
    to_input,
    to_linear_weight,
    to_target,
    to_linear_bias,
):
    """Return the gradients of the input, the linear weight, probabilities and the bias, contiguous, or ``None`` where
    they are not needed.

    :param gradient: The gradient of the loss.
    :param statistics: What :func:`linear_class_loss` returned, like ``divisor``.
    """
    layer = Layer(input, linear_weight, linear_bias)
    is_index = target.shape != logits_shape(input, linear_weight)
    wanted = (input, to_input), (linear_weight, to_linear_weight), (target, to_target), (linear_bias, to_linear_bias)
    found = [
        recorder.empty(one.shape, contiguous_strides(one.shape), one.dtype, input.device) if needed else None
        for one, needed in wanted
    ]

    if not statistics.shape[1] or not layer.classes:
        return tuple(one if one is None else one.zero_() for one in found)

    of_input, of_linear_weight, of_target, of_linear_bias = found
    tensors = gradient.expand(layer.rows, *layer.others), layer.batched(target, is_index), weight, statistics, divisor
    numbers = index_of(ignore_index), label_smoothing, is_index

    if of_target is not None:
        with _walking(layer.rows, chunk(layer.rows, layer.classes * layer.inner)):
            _write_probabilities(layer, layer.batched(of_target, False), *tensors, *numbers)

    if to_input or to_linear_weight or to_linear_bias:
        with _walking(layer.classes, chunk(layer.classes, layer.rows * layer.inner)):
            _write_factors(layer, of_input, of_linear_weight, of_linear_bias, *tensors, *numbers)

    return of_input, of_linear_weight, of_target, of_linear_bias


def _write_probabilities(layer, output, slopes, target, weight, statistics, divisor, *numbers):
    """Write the gradient of probabilities, which takes all classes of a row."""
    step = chunk(layer.rows, layer.classes * layer.inner)
    memory = layer.memory(min(step, layer.rows) * layer.classes)

    for first in range(0, layer.rows, step):
        rows = slice(first, first + step)
        logits = _logits(memory, *layer.part(rows, slice(None)), layer.others)
        own = statistics[:, first * layer.inner : (first + step) * layer.inner]
        write_gradients(None, output[rows], slopes[rows], logits, target[rows], weight, own, divisor, *numbers)


def _write_factors(
    layer, of_input, of_weight, of_bias, slopes, target, weight, statistics, divisor, ignored, smoothing, is_index
):
    """Write the gradients of the input, the linear weight and the bias that are not ``None``: the gradients of a chunk
    of logits are written in their place."""
    step = chunk(layer.classes, layer.rows * layer.inner)
    memory = layer.memory(layer.rows * min(step, layer.classes))
    dtype = layer.input.dtype
    # Of several chunks, the sum is rounded once.
    wide = dtype if step >= layer.classes else accumulate_dtype(dtype)
    summed = of_input

    if of_input is not None and wide is not dtype:
        summed = recorder.empty(of_input.shape, contiguous_strides(of_input.shape), wide, of_input.device)

    for first in range(0, layer.classes, step):
        classes = slice(first, first + step)
        columns = layer.columns(classes)
        _write_chunk(
            memory,
            *layer.part(slice(None), classes),
            layer.others,
            *(slopes, target if is_index else target[:, classes], weight, statistics, divisor),
            *(ignored, smoothing, is_index, first, layer.classes),
            None if summed is None else summed.view(layer.input.shape),
            None if of_weight is None else of_weight.view(layer.weight.shape)[columns],
            None if of_bias is None else of_bias.view(-1)[columns],
        )

    if summed is not of_input:
        gradients.cast(summed, of_input)


@repeatable(state=torch.get_float32_matmul_precision)
def _add_chunk(memory, input, linear_weight, linear_bias, others, target, *rows):
    """Compute the losses of a chunk of rows. The arguments are those of :func:`_logits` and of :func:`add_losses`."""
    add_losses(_logits(memory, input, linear_weight, linear_bias, others), target, *rows)
    return memory


@repeatable(state=torch.get_float32_matmul_precision)
def _write_chunk(
    memory,
    input,
    linear_weight,
    linear_bias,
    others,
    slopes,
    target,
    weight,
    statistics,
    divisor,
    ignored,
    smoothing,
    is_index,
    first,
    every,
    summed,
    of_weight,
    of_bias,
):
    """Write the gradients of a chunk of classes of the linear weight and the bias, and add its part to that of the
    input, where these are not ``None``. The first arguments are those of :func:`_logits`, the next those of
    :func:`write_gradients`."""
    logits = _logits(memory, input, linear_weight, linear_bias, others)
    numbers = ignored, smoothing, is_index, first, every
    write_gradients(logits, None, slopes, logits, target, weight, statistics, divisor, *numbers)
    flow = logits.view(len(input), -1)

    if summed is not None:
        premake, *added = (addmm.premake, summed, (1.0, 1.0)) if first else (mm.premake,)
        multiply(premake, summed, flow, linear_weight, *added)

    if of_weight is not None:
        multiply(mm.premake, of_weight, flow.mT, input)

    if of_bias is not None:
        gradients.add_up(flow, of_bias.dtype, output=of_bias)

    return memory


def _logits(memory, input, weight, bias, others):
    """Compute the logits of some rows and classes, (rows, classes, *others), in contiguous memory.

    :param input: (rows, K), and ``weight`` (classes * others, K); ``bias`` has one number for each row of it.
    """
    shape = len(input), len(weight)
    result = memory[: math.prod(shape)].view(shape)

    if bias is None:
        multiply(mm.premake, result, input, weight.mT)
    else:
        multiply(addmm.premake, result, input, weight.mT, bias.expand(shape), (1.0, 1.0))

    return result.view(shape[0], -1, *others)


class Layer:
    """A linear layer and its input, as matrices."""

    def __init__(self, input, weight, bias):
        """Flatten the dims beside those of classes.

        :param input: (K,) or (N, K).
        :param weight: (C, d1, ..., K).
        :param bias: (C, d1, ...) or ``None``.
        """
        self.input = input if input.ndim == 2 else input[None]
        self.rows, self.classes, self.others = self.input.shape[0], weight.shape[0], weight.shape[1:-1]
        self.inner = math.prod(self.others)
        self.weight = weight.reshape(self.classes * self.inner, weight.shape[-1])
        self._bias = None if bias is None else bias.reshape(-1)
        self._is_row = input.ndim == 1

    def columns(self, classes):
        """Return the rows of the weight of a slice of classes."""
        start, stop, _ = classes.indices(self.classes)
        return slice(start * self.inner, stop * self.inner)

    def batched(self, target, is_index):
        """Return the targets of a single row as those of a batch of one, and others unchanged."""
        if not self._is_row:
            return target

        return target.reshape(1) if is_index else target[None]

    def memory(self, count):
        """Allocate the memory of so many rows and classes, in pairs."""
        return recorder.empty((count * self.inner,), (1,), self.input.dtype, self.input.device)

    def part(self, rows, classes):
        """Return the input of some rows, and the weight and the bias of some classes."""
        columns = self.columns(classes)
        return self.input[rows], self.weight[columns], None if self._bias is None else self._bias[columns]


def index_of(ignore_index):
    """Return the class index that is ignored."""
    return -100 if ignore_index is None else ignore_index


def logits_shape(input, linear_weight):
    """Return the shape of the logits: (*N, C, d1, ...)."""
    return torch.Size((*input.shape[:-1], *linear_weight.shape[:-1]))


def _check_factors(input, linear_weight, linear_bias):
    """Refuse tensors that do not make logits, and return the shape of those that they make.

    :raises TypeError: One is not a tensor.
    :raises RuntimeError: Shapes, dtypes or devices do not fit.
    :raises NotImplementedError: The dtype is not floating-point; complex, sparse, quantized or nested tensors.
    """
    factors = {"input": input, "linear_weight": linear_weight}
    factors |= {} if linear_bias is None else {"linear_bias": linear_bias}

    for name, one in factors.items():
        check_tensor(one, name)

    if not 1 <= input.ndim <= 2:
        raise RuntimeError(f"argument 'input' must have 1 or 2 dims, not {input.ndim}")

    if linear_weight.ndim < 2:
        raise RuntimeError(f"argument 'linear_weight' must have 2 dims or more, not {linear_weight.ndim}")

    if input.shape[-1] != linear_weight.shape[-1]:
        raise RuntimeError(
            f"arguments 'input' {tuple(input.shape)} and 'linear_weight' {tuple(linear_weight.shape)} must have the "
            "same last size"
        )

    if linear_bias is not None and linear_bias.shape != linear_weight.shape[:-1]:
        raise RuntimeError(
            f"argument 'linear_bias' must have the shape of 'linear_weight' without its last dim, "
            f"{tuple(linear_weight.shape[:-1])}, not {tuple(linear_bias.shape)}"
        )

    if linear_weight.ndim > 2 and input.ndim == 1:
        raise RuntimeError(f"with a 'linear_weight' of {linear_weight.ndim} dims, 'input' must have 2 dims, not 1")

    check_factors(**factors)
    return logits_shape(input, linear_weight)
