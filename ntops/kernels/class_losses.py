"""Cross entropy of any rows, and its gradients: classes by index or by probability, weights, smoothing.

Of a row ``x`` with the largest element ``m`` and ``l = log(sum(exp(x - m)))``, class ``c`` has the loss ``m - x[c] +
l``. ``losses`` walks over a row once: each lane keeps its largest element and sums relative to it, and moves the sums
where the element grows. It keeps ``m`` and ``l``, which ``gradients`` reads, so that each pass reads the input once.

NineToothed cannot express these Triton kernels: a program loads the one element of a row to which its target points.
The losses of rows are added up by ``add_up``, always in the same order.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _quotient(dividend, divisor):
    # Triton's float32 division is off by an ulp or two.
    if dividend.dtype == tl.float32:
        return tl.div_rn(dividend, divisor)
    else:
        return dividend / divisor


@triton.jit
def _factors(
    target,
    weight,
    classes,
    inside,
    target_class,
    weight_stride,
    kept,
    smooth,
    INDEX: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Return the factors of the classes' losses: their smoothed probabilities times their weights; of class indices
    what smoothing adds, without its factor."""
    factors = tl.full(inside.shape, 1, DTYPE)

    if not INDEX:
        factors = tl.load(target + classes * target_class, inside, other=0).to(DTYPE) * kept + smooth

    if WEIGHTED:
        factors = factors * tl.load(weight + classes * weight_stride, inside, other=0).to(DTYPE)

    return tl.where(inside, factors, 0)


@triton.jit(do_not_specialize=["rows", "inner", "inner_tiles"])
def losses(
    output,
    statistics,
    divisors,
    input,
    target,
    weight,
    classes,
    rows,
    inner,
    inner_tiles,
    input_outer: tl.int64,
    input_inner: tl.int64,
    input_class: tl.int64,
    target_outer: tl.int64,
    target_inner: tl.int64,
    target_class: tl.int64,
    weight_stride: tl.int64,
    ignored: tl.int64,
    kept: tl.float64,
    smooth: tl.float64,
    INDEX: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SPREAD: tl.constexpr,
    DIVISORS: tl.constexpr,
    DTYPE: tl.constexpr,
    LOWEST: tl.constexpr,
    UNIT: tl.constexpr,
    ADJACENT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Compute the losses of ``BLOCK_R`` rows that lie side by side along the inner dim.

    :param output: (rows,), contiguous, like ``divisors``, the weights of the targets, which DIVISORS asks for.
    :param statistics: (2, rows), contiguous: largest elements and logarithms of sums; with SPREAD (3, rows), the third
        being the sums of the factors of the classes' losses. It may be some columns of such a matrix with ``rows``.
    :param input: (outer, inner) rows of ``classes`` elements, of any strides. ``target`` has one element for each row
        with INDEX, else one for each class of it.
    :param kept: 1 less the smoothing; ``smooth`` is the smoothing divided by the number of classes.
    :param SPREAD: Whether the losses of all classes count: of probabilities, and with smoothing.
    :param UNIT: Whether the classes of a row are adjacent in memory, also as probabilities; ADJACENT: whether the rows
        are.
    :param TOGETHER: The number of adjacent classes for which a lane moves its sums once.
    """
    tile = tl.program_id(0)
    place = (tile % inner_tiles) * BLOCK_R + tl.arange(0, BLOCK_R)
    outer = (tile // inner_tiles).to(tl.int64)
    there = place < inner
    row = outer * inner + place

    if UNIT:
        input_class = 1
        target_class = 1

    if ADJACENT:
        input_inner = 1

    kept = kept.to(DTYPE)
    smooth = smooth.to(DTYPE)
    input += outer * input_outer + place * input_inner
    target += outer * target_outer + place * target_inner
    rows_of_tile = input[:, None, None]
    targets_of_tile = target[:, None, None]
    GROUPS: tl.constexpr = BLOCK_C // TOGETHER
    lanes = (tl.arange(0, GROUPS)[:, None] * TOGETHER + tl.arange(0, TOGETHER)[None, :])[None, :, :]
    maximum = tl.full([BLOCK_R, GROUPS], LOWEST, DTYPE)
    total = tl.zeros([BLOCK_R, GROUPS], DTYPE)
    spread = tl.zeros([BLOCK_R, GROUPS], DTYPE)
    share = tl.zeros([BLOCK_R, GROUPS], DTYPE)

    for start in range(0, classes, BLOCK_C):
        columns = start + lanes
        inside = there[:, None, None] & (columns < classes)
        values = tl.load(rows_of_tile + columns * input_class, inside, other=float("-inf")).to(DTYPE)
        grown = tl.maximum(maximum, tl.max(values, 2))

        if SPREAD:
            factors = _factors(
                targets_of_tile,
                weight,
                columns,
                inside,
                target_class,
                weight_stride,
                kept,
                smooth,
                INDEX,
                WEIGHTED,
                DTYPE,
            )
            # A lane without elements has no distance to move by.
            spread += tl.where(share == 0, 0, (grown - maximum) * share)
            spread += tl.sum(tl.where(inside, factors * (grown[:, :, None] - values), 0), 2)
            share += tl.sum(factors, 2)

        powers = tl.exp(values - grown[:, :, None])
        total = total * tl.exp(maximum - grown) + tl.sum(powers, 2)
        maximum = grown

    largest = tl.max(maximum, 1)
    apart = largest[:, None] - maximum
    logarithm = libdevice.log(tl.sum(total * tl.exp(apart * -1.0), 1))
    tl.store(statistics + row, largest, there)
    tl.store(statistics + rows + row, logarithm, there)

    if SPREAD:
        shares = tl.sum(share, 1)
        whole = tl.sum(spread + tl.where(share == 0, 0, apart * share), 1) + shares * logarithm
        tl.store(statistics + 2 * rows.to(tl.int64) + row, shares, there)
        is_infinite = (tl.abs(shares) < float("inf")) == 0

        if tl.max(is_infinite.to(tl.int32), 0) > 0:
            # An infinite sum of factors tells no losses of 0 from others: add up the losses themselves.
            again = tl.zeros([BLOCK_R, GROUPS], DTYPE)
            least = logarithm[:, None, None]

            for start in range(0, classes, BLOCK_C):
                columns = start + lanes
                inside = there[:, None, None] & (columns < classes)
                values = tl.load(rows_of_tile + columns * input_class, inside, other=0).to(DTYPE)
                factors = _factors(
                    targets_of_tile,
                    weight,
                    columns,
                    inside,
                    target_class,
                    weight_stride,
                    kept,
                    smooth,
                    INDEX,
                    WEIGHTED,
                    DTYPE,
                )
                class_losses = largest[:, None, None] - values + least
                again += tl.sum(tl.where(inside, factors * class_losses, 0), 2)

            whole = tl.where(is_infinite, tl.sum(again, 1), whole)

    if INDEX:
        label = tl.load(target, there, other=0).to(tl.int64)
        is_class = there & (label >= 0) & (label < classes) & (label != ignored)
        chosen = tl.load(input + label * input_class, is_class, other=0).to(DTYPE)
        loss = largest - chosen + logarithm
        factor = tl.where(is_class, tl.full([BLOCK_R], 1, DTYPE), 0)

        if WEIGHTED:
            factor = tl.load(weight + label * weight_stride, is_class, other=0).to(DTYPE)
            loss = factor * loss

        if SPREAD:
            loss = kept * loss + smooth * whole

        loss = tl.where(label == ignored, 0, tl.where(is_class, loss, float("nan")))

        if DIVISORS:
            tl.store(divisors + row, factor, there)
    else:
        loss = whole

    tl.store(output + row, loss.to(output.dtype.element_ty), there)


@triton.jit(do_not_specialize=["count"])
def add_up(
    output,
    divisor,
    losses,
    divisors,
    count,
    rows: tl.float64,
    MEAN: tl.constexpr,
    DIVISORS: tl.constexpr,
    SMOOTHED: tl.constexpr,
    LAST: tl.constexpr,
    DTYPE: tl.constexpr,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Add up ``STEPS * TILE`` losses, and the weights by which their mean divides.

    :param output: The sums of parts, (programs,); the reduced loss with LAST. ``divisor`` likewise has the weights'.
    :param rows: The number of rows, by which the mean divides without DIVISORS.
    """
    first = tl.program_id(0).to(tl.int64) * (STEPS * TILE)
    total = tl.zeros([TILE], DTYPE)
    weights = tl.zeros([TILE], DTYPE)

    for step in range(STEPS):
        place = first + step * TILE + tl.arange(0, TILE)
        total += tl.load(losses + place, place < count, other=0)

        if DIVISORS:
            weights += tl.load(divisors + place, place < count, other=0)

    result = tl.sum(total, 0)
    by = tl.sum(weights, 0) if DIVISORS else rows.to(DTYPE)

    if LAST and MEAN:
        result = _quotient(result, by)

        if SMOOTHED and DIVISORS:
            # Without a weight the mean of the targets' losses, a part of it, is 0 / 0.
            result = tl.where(by == 0, float("nan"), result)

    if DIVISORS or (LAST and MEAN):
        tl.store(divisor + tl.program_id(0), by)

    tl.store(output + tl.program_id(0), result.to(output.dtype.element_ty))


@triton.jit(do_not_specialize=["first", "every", "rows", "inner", "inner_tiles", "class_tiles"])
def gradients(
    output,
    target_output,
    gradient,
    divisor,
    statistics,
    input,
    target,
    weight,
    classes,
    first,
    every,
    rows,
    inner,
    inner_tiles,
    class_tiles,
    output_outer: tl.int64,
    output_inner: tl.int64,
    output_class: tl.int64,
    gradient_outer: tl.int64,
    gradient_inner: tl.int64,
    input_outer: tl.int64,
    input_inner: tl.int64,
    input_class: tl.int64,
    target_outer: tl.int64,
    target_inner: tl.int64,
    target_class: tl.int64,
    weight_stride: tl.int64,
    ignored: tl.int64,
    kept: tl.float64,
    smooth: tl.float64,
    INDEX: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SPREAD: tl.constexpr,
    MEAN: tl.constexpr,
    TO_INPUT: tl.constexpr,
    TO_TARGET: tl.constexpr,
    DTYPE: tl.constexpr,
    UNIT: tl.constexpr,
    ADJACENT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of ``BLOCK_C`` classes of ``BLOCK_R`` rows: the share of each class in the sum of
    exponentials, times the sum of the factors of the losses, less its own factor.

    :param output: The gradient of the input, with TO_INPUT; ``target_output`` that of probabilities, with TO_TARGET.
        Both have the strides of ``output``.
    :param gradient: The gradient of each row's loss; strides of 0 for that of a reduced loss. It is divided by
        ``divisor`` with MEAN. The other arguments are those of ``losses``.
    :param first: The class that the first of the ``classes`` is, of ``every`` class of the loss: the tensors of classes
        may be a part of them, but ``weight`` has all.
    """
    tile = tl.program_id(0) // class_tiles
    place = (tile % inner_tiles) * BLOCK_R + tl.arange(0, BLOCK_R)
    outer = (tile // inner_tiles).to(tl.int64)
    there = place < inner
    row = outer * inner + place

    if UNIT:
        input_class = 1
        output_class = 1
        target_class = 1

    if ADJACENT:
        input_inner = 1
        output_inner = 1

    kept = kept.to(DTYPE)
    smooth = smooth.to(DTYPE)
    columns = ((tl.program_id(0) % class_tiles) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside = there[:, None] & (columns < classes)
    target += outer * target_outer + place * target_inner
    slope = tl.load(gradient + outer * gradient_outer + place * gradient_inner, there, other=0).to(DTYPE)

    if MEAN:
        slope = _quotient(slope, tl.load(divisor))

    largest = tl.load(statistics + row, there, other=0)
    logarithm = tl.load(statistics + rows + row, there, other=0)
    values = tl.load(input + (outer * input_outer + place * input_inner)[:, None] + columns * input_class, inside)
    below = values.to(DTYPE) - largest[:, None] - logarithm[:, None]
    written = (outer * output_outer + place * output_inner)[:, None] + columns * output_class

    if SPREAD:
        factors = _factors(
            target[:, None],
            weight + first * weight_stride,
            columns,
            inside,
            target_class,
            weight_stride,
            kept,
            smooth,
            INDEX,
            WEIGHTED,
            DTYPE,
        )
        share = tl.load(statistics + 2 * rows.to(tl.int64) + row, there, other=0)

    if INDEX:
        label = tl.load(target, there, other=0).to(tl.int64)
        is_class = there & (label >= 0) & (label < every) & (label != ignored)
        own = tl.full([BLOCK_R], 1, DTYPE)

        if WEIGHTED:
            own = tl.load(weight + label * weight_stride, is_class, other=0).to(DTYPE)

        own = own * kept
        sums = own
        factors_here = tl.where(columns + first == label[:, None], own[:, None], 0)

        if SPREAD:
            sums += smooth * share
            factors_here += smooth * factors

        found = slope[:, None] * (libdevice.exp(below) * sums[:, None] - factors_here)
        found = tl.where(is_class[:, None], found, float("nan"))
        found = tl.where((label == ignored)[:, None], 0, found)
    else:
        found = slope[:, None] * (libdevice.exp(below) * share[:, None] - factors)

    if TO_INPUT:
        tl.store(output + written, found.to(output.dtype.element_ty), inside)

    if TO_TARGET:
        of_target = slope[:, None] * kept * -1.0 * below

        if WEIGHTED:
            of_target = of_target * tl.load(weight + (columns + first) * weight_stride, inside, other=0).to(DTYPE)

        tl.store(target_output + written, of_target.to(target_output.dtype.element_ty), inside)
