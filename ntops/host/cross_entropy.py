"""Cross entropy: launch the losses of rows, add them up, and launch the gradients."""

import dataclasses
import math

import torch

from ntops.host.arguments import check_tensor, common_device
from ntops.host.cross_entropy_arguments import (
    check,
    check_classes,
    class_dim,
    result_dtype,
    row_shape,
    smoothing_of,
    without,
)
from ntops.host.dim_order import collapse, contiguous_strides, specialize
from ntops.host.kv_cache import is_checked
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels import class_losses
from ntops.kernels.cross_entropy import premake
from ntops.launch import boundary, recorder
from ntops.launch.devices import next_power_of_2, on_device
from ntops.launch.kernel_sources import Config, Specialization, make
from ntops.launch.recorder import repeatable
from ntops.launch.settings import get_default_num_warps

# The longest row that NineToothed's kernel takes whole. Other rows are walked in tiles of so many classes; where rows
# are adjacent in memory and classes are not, a program takes this many rows, and tiles of as many classes.
_WHOLE, _TILE, _BESIDE = 1024, 4096, 64
# A program adds up so many losses, in so many steps: the sizes alone decide the order of a sum.
_LOSSES, _STEPS = 1024, 16


@repeatable
def class_loss(input, target, weight, reduction, ignore_index, label_smoothing):
    """Compute :func:`ntops.torch.cross_entropy`, and what its gradient needs.

    The name differs from the operator's: under a mode, a call by that name would go to the dispatcher.

    :return: The loss; the statistics of rows, (2, rows) or (3, rows), as :func:`class_losses.losses` keeps them, in the
        compute dtype; and the number by which a mean divides, (1,), or of other reductions (0,).
    """
    check_tensor(input, "input")
    is_index = check(input.shape, input.dtype, target, weight, ignore_index, label_smoothing)
    device = common_device({"input": input, "target": target} | ({} if weight is None else {"weight": weight}))
    loss = Loss(input.shape, input.dtype, device, target, weight, is_index, reduction, ignore_index, label_smoothing)

    if loss.has_logits():
        loss.add(input, target)
        loss.reduce()

    return loss.results


class Loss:
    """The loss of a call in the making, which the logits of all rows are added to, at once or part by part."""

    def __init__(self, shape, dtype, device, target, weight, is_index, reduction, ignore_index, label_smoothing):
        """Allocate the memory of the results.

        :param shape: The shape of all logits.
        :param dtype: The dtype that the logits count as for the dtype of the loss.
        :param is_index: What :func:`check` returned for the other arguments.
        """
        dtype = result_dtype(dtype, target, weight, is_index)
        self._compute_dtype, self._device = accumulate_dtype(dtype), device
        self._rows, self._classes = math.prod(row_shape(shape)), shape[class_dim(shape)]
        self._target, self._weight = target, None if weight is None else weight.reshape(-1)
        self._is_index, self._ignore_index, self._smoothing = is_index, ignore_index, smoothing_of(label_smoothing)
        self._spread = not is_index or self._smoothing > 0
        self._is_reduced, self._is_mean = reduction != "none", reduction == "mean"
        output = self._empty(*(() if self._is_reduced else row_shape(shape)), dtype=dtype)
        self.results = output, self._empty(3 if self._spread else 2, self._rows), self._empty(1 if self._is_mean else 0)

    def _empty(self, *sizes, dtype=None):
        return recorder.empty(sizes, contiguous_strides(sizes), dtype or self._compute_dtype, self._device)

    def has_logits(self):
        """Tell whether there is anything to add; if there are no logits, the results are written.

        :raises IndexError: On the CPU, or as ``NTOPS_CHECK`` says: a target is no class.
        """
        if boundary.is_abstract():
            return False

        output, statistics, divisor = self.results

        if self._is_index and (self._device.type == "cpu" or is_checked()):
            check_classes(self._target, self._ignore_index, self._classes)

        if self._rows and self._classes:
            self._of_rows = self._empty(self._rows) if self._is_reduced else output.view(-1)
            self._weights = self._empty(self._rows) if self._is_index and self._is_mean else None
            return True

        # Nothing over nothing, or sums of no terms.
        statistics.zero_()
        divisor.fill_(math.nan)
        smoothed = self._is_index and self._spread and not self._classes
        output.fill_(math.nan if self._is_mean or (smoothed and self._rows) else 0)
        return False

    def add(self, input, target):
        """Compute the losses of all rows and their statistics.

        :param input: The logits of the rows, and ``target`` their targets.
        """
        add_losses(input, target, *self.rows(0, self._rows))

    def rows(self, first, count):
        """Return what :func:`add_losses` takes beside the logits and the targets of so many rows from ``first``."""
        own = slice(first, first + count)
        weights = None if self._weights is None else self._weights[own]
        numbers = self._classes, self._ignore_index, self._smoothing, self._is_index, self._spread
        return self._of_rows[own], self.results[1][:, own], weights, self._weight, *numbers

    def reduce(self):
        """Reduce the losses of rows, after all are there."""
        output, _, divisor = self.results

        if self._is_reduced:
            with on_device(self._device):
                is_smoothed = self._is_index and self._spread
                _add_up(output, divisor, self._of_rows, self._weights, is_smoothed, self._compute_dtype)


def add_losses(input, target, output, statistics, weights, weight, classes, ignore_index, smoothing, is_index, spread):
    """Write the losses of rows to ``output`` and their statistics; both have the compute dtype, or ``output`` that of
    the loss.

    :param input: The logits of the rows, and ``target`` their targets.
    :param weights: Where the weights of the rows go, or ``None``.
    :param weight: The weight of each class, or ``None``.
    :param spread: Whether all classes of a row have a part in its loss.
    """
    views, compute_dtype = Rows.of(input, target, is_index), statistics.dtype

    with on_device(input.device):
        if views.is_whole(weight, spread):
            shape = output.shape
            counted = recorder.empty(shape, (1,), compute_dtype, input.device) if weights is None else weights
            _launch_whole(output, statistics, counted, views, ignore_index, compute_dtype)
        else:
            numbers = _numbers(classes, ignore_index, smoothing)
            _launch_losses(output, statistics, weights, views, weight, numbers, spread, compute_dtype)


@repeatable
def class_gradients(
    gradient, input, target, weight, statistics, divisor, ignore_index, label_smoothing, to_input, to_target
):
    """Return the gradients of the input and of probabilities, contiguous, or ``None`` where they are not needed.

    :param gradient: The gradient of the loss.
    :param statistics: What :func:`class_loss` returned, like ``divisor``.
    """
    strides = contiguous_strides(input.shape)
    output, of_target = (
        recorder.empty(input.shape, strides, one.dtype, input.device) if wanted else None
        for one, wanted in ((input, to_input), (target, to_target))
    )
    numbers = ignore_index, label_smoothing
    gradient = gradient.expand(row_shape(input.shape))
    write_gradients(output, of_target, gradient, input, target, weight, statistics, divisor, *numbers)
    return output, of_target


def write_gradients(
    output,
    of_target,
    gradient,
    input,
    target,
    weight,
    statistics,
    divisor,
    ignore_index,
    label_smoothing,
    is_index=None,
    first=0,
    every=None,
):
    """Write the gradients of logits, to ``output``, and of probabilities, to ``of_target``, where these are not
    ``None``; both are contiguous.

    :param gradient: The gradient of each row's loss.
    :param input: The logits, perhaps of a part of the classes. ``output`` may be the same memory.
    :param target: The targets of the rows; probabilities are those of the same classes.
    :param weight: The weights of all classes, or ``None``.
    :param statistics: Those of the rows; they may be some columns of what :func:`class_loss` returned.
    :param is_index: Whether targets are indices; ``None``: the shapes say it.
    :param first: The number of the first of the classes.
    :param every: The number of all classes; ``None``: ``input`` has all.
    """
    if not input.numel():
        return

    is_index = input.shape != target.shape if is_index is None else is_index
    views = Rows.of(input, target, is_index, gradient)
    adjacent, block_r, block_c = views.tile(2)
    inner_tiles, class_tiles = -(-views.inner // block_r), -(-views.classes // block_c)
    compute_dtype = statistics.dtype
    every = views.classes if every is None else every
    numbers = _numbers(every, ignore_index, smoothing_of(label_smoothing))
    rows, target, slopes = views.tensors
    weight = None if weight is None else weight.reshape(-1)

    with on_device(input.device):
        recorder.launch(
            class_losses.gradients,
            (views.outer * inner_tiles * class_tiles,),
            {"num_warps": _warps(block_r * block_c, compute_dtype)},
            # An output that is not needed is not written, so any tensor serves as its argument.
            *(input if output is None else output, input if of_target is None else of_target),
            *(slopes, statistics if not divisor.numel() else divisor, statistics),
            *(rows, target, input if weight is None else weight),
            *(views.classes, first, every, statistics.stride(0), views.inner, inner_tiles, class_tiles),
            *(*views.output, *views.gradient, *views.input, *views.target, 1 if weight is None else _step(weight)),
            *(*numbers, views.is_index, weight is not None, statistics.shape[0] == 3, divisor.numel() > 0),
            *(output is not None, of_target is not None, TRITON_DTYPES[compute_dtype]),
            *(views.is_unit() and views.output[2] == 1, adjacent and views.output[1] == 1, block_r, block_c),
        )


@dataclasses.dataclass(frozen=True)
class Rows:
    """Tensors as (outer, inner) rows of classes: their strides along the outer dim, the inner one, and the classes."""

    tensors: tuple[torch.Tensor, ...]
    """The input, the target and the gradient of rows, if it is given: of these strides."""
    is_index: bool
    outer: int
    inner: int
    classes: int
    output: tuple[int, ...]
    """The strides of a contiguous tensor of the input's shape."""
    input: tuple[int, ...]
    target: tuple[int, ...]
    """The last stride is that of probabilities; of class indices it is not read."""
    gradient: tuple[int, ...]
    """The strides of the gradient of rows, if it is given."""

    @classmethod
    def of(cls, input, target, is_index, gradient=None):
        """Merge the dims of the rows; tensors whose dims cannot be merged to two are copied."""
        shape, dim = row_shape(input.shape), class_dim(input.shape)

        while True:
            whole = contiguous_strides(input.shape)
            strides = [contiguous_strides(shape), without(whole, dim), without(input.stride(), dim)]
            strides += [target.stride()[: len(shape)] if is_index else without(target.stride(), dim)]
            strides += [] if gradient is None else [gradient.stride()]
            sizes, (_, *merged) = collapse(shape, strides, in_order=True)

            if len(sizes) <= 2:
                break

            input, target = input.contiguous(), target.contiguous()
            gradient = None if gradient is None else gradient.contiguous()

        outer, inner = (1, *sizes)[-2:]
        output, of_input, of_target, *of_gradient = [(0, *own)[-2:] for own in merged]
        steps = 0 if is_index else target.stride(dim)

        return cls(
            (input, target) if gradient is None else (input, target, gradient),
            is_index,
            outer,
            inner,
            input.shape[dim],
            (*output, whole[dim]),
            (*of_input, input.stride(dim)),
            (*of_target, steps),
            of_gradient[0] if of_gradient else (),
        )

    def is_whole(self, weight, spread):
        """Tell whether NineToothed's kernel takes the rows: short ones, whose classes alone are adjacent."""
        return weight is None and not spread and self.outer == 1 and self.classes <= _WHOLE and not self._is_beside()

    def tile(self, tensors):
        """Return whether rows are adjacent in memory, the rows of a tile, and its classes.

        :param tensors: The number of tensors with a tile each.
        """
        classes = max(next_power_of_2(self.classes), 16)

        if self._is_beside():
            return True, min(next_power_of_2(self.inner), _BESIDE), min(classes, _BESIDE)

        columns = min(classes, _TILE // tensors * 2)
        return False, max(_TILE // (2 * columns), 1), columns

    def is_unit(self):
        """Tell whether classes are adjacent in memory, those of probabilities, too."""
        return self.input[2] == 1 and (self.is_index or self.target[2] == 1)

    def _is_beside(self):
        return self.inner > 1 and self.input[1] == 1 and self.input[2] != 1


def _launch_whole(output, statistics, counted, views, ignore_index, compute_dtype):
    input, target = views.tensors
    input = input.as_strided((views.inner, views.classes), views.input[1:])
    target = target.as_strided((views.inner,), views.target[1:2])
    of_rows = {"output": output.view(-1), "maximum": statistics[0], "logarithm": statistics[1], "counted": counted}
    matrix, each = specialize({"input": input}), specialize(of_rows | {"target": target})
    unit_strides, wide = matrix.unit_strides + each.unit_strides, matrix.wide or each.wide
    specialization = Specialization(unit_strides, matrix.unit, matrix.vectors, wide)
    _, rows, columns = views.tile(1)
    config = Config((("block_rows", rows), ("block_columns", columns)), _warps(rows * columns, compute_dtype))
    kernel = make(premake, {}, config, specialization)
    kernel(*of_rows.values(), input, target, views.classes, ignore_index, TRITON_DTYPES[compute_dtype])


def _launch_losses(output, statistics, weights, views, weight, numbers, spread, compute_dtype):
    input, target = views.tensors
    adjacent, block_r, block_c = views.tile(1)
    inner_tiles = -(-views.inner // block_r)
    unit = views.is_unit()
    # A thread loads 16 bytes at once.
    together = min(16 // input.element_size(), block_c) if unit else 1
    recorder.launch(
        class_losses.losses,
        (views.outer * inner_tiles,),
        {"num_warps": get_default_num_warps() or _warps(block_r * block_c, compute_dtype)},
        *(output, statistics, output if weights is None else weights),
        *(input, target, input if weight is None else weight),
        *(views.classes, statistics.stride(0), views.inner, inner_tiles),
        *(*views.input, *views.target, 1 if weight is None else _step(weight), *numbers),
        *(views.is_index, weight is not None, spread, weights is not None),
        *(TRITON_DTYPES[compute_dtype], torch.finfo(compute_dtype).min, unit, adjacent, block_r, block_c, together),
    )


def _add_up(output, divisor, losses, weights, is_smoothed, compute_dtype):
    """Write the sum of losses to ``output``; with a ``divisor``, write that, and their mean.

    :param weights: The weights of the losses, by whose sum a mean divides; ``None``: by the number of losses.
    :param is_smoothed: Whether the losses are those of class indices with smoothing.
    """
    is_mean, count, rows = divisor.numel() > 0, losses.numel(), float(losses.numel())
    last = False

    while not last:
        parts = -(-count // (_LOSSES * _STEPS))
        last = parts == 1
        sums, weight_sums = output, divisor if is_mean else None

        if not last:
            sums = recorder.empty((parts,), (1,), compute_dtype, losses.device)
            weight_sums = None if weights is None else recorder.empty((parts,), (1,), compute_dtype, losses.device)

        recorder.launch(
            class_losses.add_up,
            (parts,),
            {"num_warps": 4},
            # Weights that there are not are not read, nor are their sums written.
            *(sums, sums if weight_sums is None else weight_sums),
            *(losses, losses if weights is None else weights, count, rows),
            *(is_mean, weights is not None, is_smoothed, last, TRITON_DTYPES[compute_dtype], _STEPS, _LOSSES),
        )
        losses, weights, count = sums, weight_sums if weights is not None else None, parts


def _numbers(classes, ignore_index, smoothing):
    """Return the numbers of the kernels: the ignored class, 1 less the smoothing, and what each class has of it."""
    return ignore_index, 1 - smoothing, smoothing / classes


def _warps(elements, compute_dtype):
    return min(max(elements * compute_dtype.itemsize // 2048, 1), 16)


def _step(weight):
    return weight.stride(0)
