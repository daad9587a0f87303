from ntops.host.arguments import check_index, check_real
from ntops.host.cross_entropy import class_loss
from ntops.host.cross_entropy_arguments import reduction_of
from ntops.launch.recorder import repeatable


@repeatable
def cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
):
    """Compute the cross entropy of logits and classes, as :func:`torch.nn.functional.cross_entropy` does; in float32
    for half types.

    On a GPU, a row whose class there is not has a loss of NaN, where torch's kernel stops the process; with
    ``NTOPS_CHECK=1`` in the environment it raises.

    :param input: Logits: (C,), (N, C) or (N, C, d1, d2, ...).
    :param target: Class indices, int64 or uint8: (), (N,) or (N, d1, d2, ...); or probabilities, of the shape of
        ``input``.
    :param weight: The weight of each class, (C,).
    :param size_average: Deprecated, like ``reduce``; see ``reduction``.
    :param ignore_index: The class index whose rows have neither a loss nor a part in the mean.
    :param reduction: "none", "sum" or "mean": the sum divided by that of the targets' weights, or with probabilities by
        the number of rows.
    :param label_smoothing: The share, up to 1, that all classes have in equal parts.
    :return: The losses of the rows, or a 0-d tensor.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: ``input`` has no dims, or a class there is not.
    :raises ValueError: There is no such reduction; batch sizes differ.
    :raises RuntimeError: Shapes, dtypes or devices do not fit; probabilities with an ``ignore_index``; a smoothing
        above 1.
    :raises NotImplementedError: An ``input`` that is not floating-point; complex, sparse, quantized or nested tensors.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    numbers = check_index(ignore_index, "ignore_index"), check_real(label_smoothing, "label_smoothing")

    return class_loss(input, target, weight, reduction, *numbers)[0]
