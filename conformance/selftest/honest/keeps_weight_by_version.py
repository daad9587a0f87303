"""Keep a prepared weight as long as the very tensor lives and its version stands."""

import weakref

import torch

_kept = {}


def rms_norm(input, normalized_shape, weight=None, eps=None):
    if weight is not None:
        tensor, version, prepared = _kept.get(id(weight), (lambda: None, 0, None))
        if tensor() is not weight or version != weight._version:
            prepared = weight.clone()
            _kept[id(weight)] = (weakref.ref(weight), weight._version, prepared)
        weight = prepared
    return torch.nn.functional.rms_norm(input, normalized_shape, weight, eps)
