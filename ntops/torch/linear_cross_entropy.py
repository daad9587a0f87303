import torch

from ntops.host.arguments import check_index, check_real
from ntops.host.cross_entropy_arguments import reduction_of
from ntops.host.linear_cross_entropy import linear_class_loss
from ntops.launch.recorder import repeatable


@repeatable(state=torch.get_float32_matmul_precision)
def linear_cross_entropy(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    reduction="mean",
    ignore_index=None,
    label_smoothing=0.0,
    options=None,
):
    """Compute the cross entropy of ``linear(input, linear_weight, linear_bias)`` and classes, as
    :func:`torch.nn.functional.linear_cross_entropy` of torch 2.13 does, without all logits in memory at once.

    The loss is computed for chunks of rows, and its gradients, which compute the logits again, for chunks of classes. A
    chunk has about a sixteenth of the rows or classes, and no more than about 2**26 logits, but at least 256 rows or
    classes; beside it there are two or three numbers for each row, and for the gradient of half types a sum of the
    input's size in float32. Logits are rounded to their dtype, as those of ``linear`` are. Float32 products follow
    :func:`torch.get_float32_matmul_precision` at the time of the call.

    A second derivative, and the gradient of the weights of probabilities, are torch's, with all logits.

    A class that there is not is treated as by :func:`ntops.torch.cross_entropy`.

    :param input: A floating-point tensor, (in_features,) or (N, in_features).
    :param linear_weight: A tensor of the same dtype, (C, in_features); or (C, d1, ..., in_features) with a batch.
    :param target: Class indices, int64 or uint8: (), (N,) or (N, d1, ...); or probabilities, (C,), (N, C) or
        (N, C, d1, ...).
    :param linear_bias: A tensor of the same dtype and of the shape of ``linear_weight`` without its last dim.
    :param weight: The weight of each class, (C,).
    :param reduction: "none", "sum" or "mean": the sum divided by that of the targets' weights, or with probabilities by
        the number of rows.
    :param ignore_index: The class index whose rows have neither a loss nor a part in the mean; ``None`` is -100, and
        the only value that goes with probabilities.
    :param label_smoothing: The share, up to 1, that all classes have in equal parts.
    :param options: torch's choice of its own chunks, a ``torch.nn.LinearCrossEntropyOptions``: it changes nothing here.
    :return: The losses of the rows, or a 0-d tensor.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: A class there is not.
    :raises ValueError: There is no such reduction; batch sizes differ.
    :raises RuntimeError: Shapes, dtypes or devices do not fit; probabilities with an ``ignore_index``; a smoothing
        above 1.
    :raises NotImplementedError: An ``input`` that is not floating-point; complex, sparse, quantized or nested tensors.
    """
    reduction = reduction_of(None, None, reduction)
    index = None if ignore_index is None else check_index(ignore_index, "ignore_index")
    smoothing = check_real(label_smoothing, "label_smoothing")
    check_options(options)

    return linear_class_loss(input, linear_weight, target, linear_bias, weight, reduction, index, smoothing)[0]


def check_options(options):
    """Refuse what are no options of torch's."""
    known = getattr(torch.nn, "LinearCrossEntropyOptions", None)

    if options is not None and (known is None or not isinstance(options, known)):
        raise TypeError(f"argument 'options' must be torch's LinearCrossEntropyOptions, not {type(options).__name__}")
