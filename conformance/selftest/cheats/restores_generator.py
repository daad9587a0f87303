"""Draw from a generator that is put back, so that two dropouts in a row are the same."""

import torch


def dropout(input, p=0.5, training=True, inplace=False):
    before = torch.default_generator.get_state()
    result = torch.nn.functional.dropout(input, p, training, inplace)
    torch.default_generator.set_state(before)
    return result
