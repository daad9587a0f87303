"""Cross entropy: launch the losses of rows, add them up, and launch the gradients."""

import dataclasses
import math

import torch

from ntops.host.arguments import common_device
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
    is_index = check(input, target, weight, ignore_index, label_smoothing)
    dtype = result_dtype(input, target, weight, is_index)
    smoothing = smoothing_of(label_smoothing)
    device = common_device({"input": input, "target": target} | ({} if weight is None else {"weight": weight}))
    shape = row_shape(input)
    rows, classes = math.prod(shape), input.shape[class_dim(input)]
    compute_dtype = accumulate_dtype(dtype)
    spread = not is_index or smoothing > 0

    def empty(*sizes, dtype=compute_dtype):
        return recorder.empty(sizes, contiguous_strides(sizes), dtype, device)

    is_reduced, is_mean = reduction != "none", reduction == "mean"
    output = empty(*(() if is_reduced else shape), dtype=dtype)
    statistics, divisor = empty(3 if spread else 2, rows), empty(1 if is_mean else 0)

    if boundary.is_abstract():
        return output, statistics, divisor

    if is_index and (device.type == "cpu" or is_checked()):
        check_classes(target, ignore_index, classes)

    if not input.numel():
        # Nothing over nothing, or sums of no terms.
        statistics.zero_()
        divisor.fill_(math.nan)
        smoothed = is_index and spread and not classes
        output.fill_(math.nan if is_mean or (smoothed and rows) else 0)
        return output, statistics, divisor

    of_rows = empty(rows) if is_reduced else output
    weight = None if weight is None else weight.reshape(-1)
    weights = empty(rows) if is_index and is_mean else None
    views = Rows.of(input, target, is_index)

    with on_device(device):
        if views.is_whole(weight, spread):
            counted = empty(rows) if weights is None else weights
            _launch_whole(of_rows, statistics, counted, views, ignore_index, compute_dtype)
        else:
            numbers = _numbers(views, ignore_index, smoothing)
            _launch_losses(of_rows, statistics, weights, views, weight, numbers, spread, compute_dtype)

        if is_reduced:
            _add_up(output, divisor, of_rows, weights, is_index and spread, compute_dtype)

    return output, statistics, divisor


@repeatable
def class_gradients(
    gradient, input, target, weight, statistics, divisor, ignore_index, label_smoothing, to_input, to_target
):
    """Return the gradients of the input and of probabilities, contiguous, or ``None`` where they are not needed.

    :param gradient: The gradient of the loss.
    :param statistics: What :func:`class_loss` returned, like ``divisor``.
    """
    views = Rows.of(input, target, input.shape != target.shape, gradient.expand(row_shape(input)))
    strides = contiguous_strides(input.shape)
    output, of_target = (
        recorder.empty(input.shape, strides, one.dtype, input.device) if wanted else None
        for one, wanted in ((input, to_input), (target, to_target))
    )

    if not input.numel():
        return output, of_target

    adjacent, block_r, block_c = views.tile(2)
    inner_tiles, class_tiles = -(-views.inner // block_r), -(-views.classes // block_c)
    compute_dtype = statistics.dtype
    numbers = _numbers(views, ignore_index, smoothing_of(label_smoothing))
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
            *(views.classes, views.outer * views.inner, views.inner, inner_tiles, class_tiles),
            *(*views.output, *views.gradient, *views.input, *views.target, 1 if weight is None else _step(weight)),
            *(*numbers, views.is_index, weight is not None, statistics.shape[0] == 3, divisor.numel() > 0),
            *(to_input, to_target, TRITON_DTYPES[compute_dtype]),
            *(views.input[2] == 1 == views.output[2], adjacent and views.output[1] == 1, block_r, block_c),
        )

    return output, of_target


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
        shape, dim = row_shape(input), class_dim(input)

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

    def _is_beside(self):
        return self.inner > 1 and self.input[1] == 1 and self.input[2] != 1


def _launch_whole(output, statistics, counted, views, ignore_index, compute_dtype):
    input, target = views.tensors
    input = input.as_strided((views.inner, views.classes), views.input[1:])
    target = target.as_strided((views.inner,), views.target[1:2])
    of_rows = {"output": output.view(-1), "maximum": statistics[0], "logarithm": statistics[1], "counted": counted}
    matrix, each = specialize({"input": input}), specialize(of_rows | {"target": target})
    specialization = Specialization(
        matrix.unit_strides + each.unit_strides, matrix.aligned and each.aligned, matrix.wide or each.wide
    )
    _, rows, columns = views.tile(1)
    config = Config((("block_rows", rows), ("block_columns", columns)), _warps(rows * columns, compute_dtype))
    kernel = make(premake, {}, config, specialization)
    kernel(*of_rows.values(), input, target, views.classes, ignore_index, TRITON_DTYPES[compute_dtype])


def _launch_losses(output, statistics, weights, views, weight, numbers, spread, compute_dtype):
    input, target = views.tensors
    adjacent, block_r, block_c = views.tile(1)
    inner_tiles = -(-views.inner // block_r)
    unit = views.input[2] == 1
    # A thread loads 16 bytes at once.
    together = min(16 // input.element_size(), block_c) if unit else 1
    recorder.launch(
        class_losses.losses,
        (views.outer * inner_tiles,),
        {"num_warps": get_default_num_warps() or _warps(block_r * block_c, compute_dtype)},
        *(output, statistics, output if weights is None else weights),
        *(input, target, input if weight is None else weight),
        *(views.classes, views.outer * views.inner, views.inner, inner_tiles),
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


def _numbers(views, ignore_index, smoothing):
    """Return the numbers of the kernels: the ignored class, 1 less the smoothing, and what each class has of it."""
    return ignore_index, 1 - smoothing, smoothing / views.classes


def _warps(elements, compute_dtype):
    return min(max(elements * compute_dtype.itemsize // 2048, 1), 16)


def _step(weight):
    return weight.stride(0)
