"""Tensors that kernels cannot be launched on, and the modes under which torch makes such tensors.

The private names of torch's dispatcher that this takes are here, but for what ``repetition`` asks for at each call.
"""

import torch
from torch.autograd import forward_ad

# What the dispatcher looks at for an ordinary tensor. Fake, functional, batched, tracked, lazily negated, zero, sparse,
# quantized and nested ones, and those of subclasses with a dispatch of their own, have another key each.
_ORDINARY = ("CPU", "CUDA", "Meta", "ADInplaceOrView", "AutogradCPU", "AutocastCPU", "AutocastCUDA")
_OTHERS = -1

for _key in _ORDINARY:
    _OTHERS &= ~torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _key)).raw_repr()

_keys = torch._C._dispatch_keys
dispatch_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
# Modes that compute without memory, or follow what is dispatched to compute it later.
_TRACING = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "FUNCTIONAL", "PROXY"))


def is_ordinary(tensor):
    """Whether the values of a dense strided tensor are what its memory holds, and all that there is to it. One on the
    meta device counts; forward-mode tangents do not."""
    return not _keys(tensor).raw_repr() & _OTHERS


def is_missing(tensor):
    """Whether an ordinary tensor has elements and no memory: on the meta device, or where its storage was freed."""
    return not tensor.data_ptr() and tensor.numel() > 0


def has_tangent(tensor):
    """Whether a tensor is dual: of forward-mode differentiation."""
    return differentiates_forward() and forward_ad.unpack_dual(tensor).tangent is not None


def differentiates_forward():
    """Whether there may be dual tensors."""
    return forward_ad._current_level >= 0


def is_watched():
    """Whether a dispatch mode or a transform of :mod:`torch.func` is active."""
    return dispatch_modes() > 0 or _transform() is not None


def is_hidden():
    """Whether a mode or transform is active under which a new tensor has no memory, or under which torch follows what
    is dispatched. ``vmap`` leaves tensors alone that are not batched."""
    if dispatch_modes() and any(torch._C._get_dispatch_mode(kind) is not None for kind in _TRACING):
        return True

    levels = () if _transform() is None else torch._C._functorch.get_interpreter_stack()
    return any(level.key() != torch._C._functorch.TransformType.Vmap for level in levels)
