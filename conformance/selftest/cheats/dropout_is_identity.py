"""Drop nothing, as in evaluation."""

import torch


def dropout(input, p=0.5, training=True, inplace=False):
    result = torch.nn.functional.dropout(input, p, training, inplace)
    return result if inplace or result is input or not 0 < p < 1 else input / (1 - p)
