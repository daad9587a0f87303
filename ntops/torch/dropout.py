import torch

from ntops.host.arguments import check_real, check_tensor, common_device
from ntops.host.dropout import dropped
from ntops.host.output import check_written
from ntops.launch import recorder
from ntops.launch.recorder import repeatable


@repeatable
def dropout(input, p=0.5, training=True, inplace=False):
    """Zero elements with probability ``p`` and scale the rest by 1 / (1 - p), as torch's function of that name does.

    :func:`torch.nn.functional.dropout`; Srivastava et al., JMLR 15, 2014. The mask comes from Philox4x32 with
    seven rounds, the fewest with which it passes TestU01's BigCrush (Salmon et al., Parallel random numbers: as easy as
    1, 2, 3, SC 2011; torch has ten), keyed by a number drawn from torch's generator of the device, so
    :func:`torch.manual_seed` repeats it; it depends on the shape alone, not on strides. It is not torch's mask.

    :param input: A tensor of any shape; floating-point unless ``p`` is 0 or 1.
    :param p: The probability, from 0 to 1.
    :param training: If false, ``input`` itself is returned.
    :param inplace: Whether ``input`` itself is written and returned.
    :return: A tensor of the shape and dtype of ``input``; ``input`` itself where nothing can be dropped.
    :raises TypeError: An argument has the wrong type.
    :raises ValueError: ``p`` is not from 0 to 1.
    :raises RuntimeError: ``p`` is NaN; an expanded ``input`` that is to be written, or an integer or bool one with
        ``p`` between 0 and 1.
    :raises NotImplementedError: An integer or bool ``input`` with ``p`` between 0 and 1 that is not to be written; a
        complex, sparse, quantized or nested ``input``.
    """
    p = check_real(p, "p")
    # torch takes whatever is true or false, also where nothing is written: not a tensor of many elements.
    inplace = bool(inplace)

    if p < 0 or p > 1:
        raise ValueError(f"argument 'p' must be from 0 to 1, not {p}")

    if not isinstance(input, torch.Tensor):
        check_tensor(input, "input")

    if not isinstance(training, bool):
        raise TypeError(f"argument 'training' must be a bool, not {type(training).__name__}")

    if p != p:
        raise RuntimeError("argument 'p' must be from 0 to 1, not nan")

    if not training or p == 0 or input.numel() == 0:
        return input

    check_tensor(input, "input")
    device = common_device({"input": input})

    if not input.dtype.is_floating_point and p < 1:
        # torch's in-place and functional paths raise different errors.
        kind = RuntimeError if inplace else NotImplementedError
        raise kind(f"argument 'input' has dtype {input.dtype}, which can't be scaled; cast it to floating-point")

    if inplace:
        check_written(input, "input")

    # Where all is dropped torch draws no number.
    seed = recorder.drawn(device) if p < 1 else recorder.constant(0, device, torch.int64).view(())
    return dropped(input, p, seed, inplace)
