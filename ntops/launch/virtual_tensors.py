"""Detect tensors that kernels cannot be launched on, and the modes under which torch makes such tensors.

The private names of torch's dispatcher that this needs are here, except for those that ``recorder`` uses at each call.
"""

import torch
from torch.autograd import forward_ad

# The dispatch keys of an ordinary tensor. Fake, functional, batched, traced, lazily negated, zero, sparse, quantized
# and nested tensors, and subclasses with a dispatch of their own, have another key each.
_ORDINARY = ("CPU", "CUDA", "Meta", "ADInplaceOrView", "AutogradCPU", "AutocastCPU", "AutocastCUDA")
_OTHERS = -1

for _key in _ORDINARY:
    _OTHERS &= ~torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _key)).raw_repr()

_AUTOCAST = 0

for _key in ("AutocastCPU", "AutocastCUDA"):
    _AUTOCAST |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _key)).raw_repr()

included, excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
_INCLUDED, _EXCLUDED = included(), excluded()
_TRANSFORMS = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode)
_TRANSFORMS |= torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchDynamicLayerBackMode)
USUAL = _INCLUDED.raw_repr(), _EXCLUDED.raw_repr()
"""The keys that torch's dispatcher includes and excludes in a thread without active modes, as on import."""
_keys = torch._C._dispatch_keys
function_modes = torch._C._len_torch_function_stack
dispatch_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
# Modes that compute without memory, or that trace calls to compute them later.
_TRACING = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "FUNCTIONAL", "PROXY"))


def is_ordinary(tensor):
    """Tell whether a dense strided tensor's memory holds its values and nothing else. A meta tensor counts;
    forward-mode tangents do not."""
    return not _keys(tensor).raw_repr() & _OTHERS


def is_missing(tensor):
    """Tell whether an ordinary tensor has elements and no memory: on the meta device, or with freed storage."""
    return not tensor.data_ptr() and tensor.numel() > 0


def has_tangent(tensor):
    """Tell whether a tensor is dual, for forward-mode differentiation."""
    return differentiates_forward() and forward_ad.unpack_dual(tensor).tangent is not None


def differentiates_forward():
    """Tell whether there may be dual tensors."""
    return forward_ad._current_level >= 0


def transforms_forward():
    """Tell whether a transform of :mod:`torch.func` is active that differentiates in forward mode."""
    levels = () if _transform() is None else torch._C._functorch.get_interpreter_stack()
    return any(level.key() == torch._C._functorch.TransformType.Jvp for level in levels)


def transforms_gradients():
    """Tell whether a transform of :mod:`torch.func` is active that differentiates."""
    if _transform() is None:
        return False

    kinds = torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp
    return any(level.key() in kinds for level in torch._C._functorch.get_interpreter_stack())


def is_transformed():
    """Tell whether a transform of :mod:`torch.func` is active."""
    return _transform() is not None


def without_ended_transforms(tensors):
    """Return tensors that were saved under a transform of :mod:`torch.func` as they are after its end."""
    return tuple(map(torch._C._functorch.unwrap_if_dead, tensors))


def dispatching_anew():
    """Return a context in which a kernel's calls pass the transforms of :mod:`torch.func` that are active, as the call
    of the kernel did: torch excludes their keys while it runs."""
    return torch._C._ForceDispatchKeyGuard(_INCLUDED | _TRANSFORMS, _EXCLUDED)


def below_transforms():
    """Return a context in which calls with plain tensors do not pass the transforms of :mod:`torch.func`."""
    return torch._C._ExcludeDispatchKeyGuard(_TRANSFORMS)


def is_active():
    """Tell whether torch must do more than launch in this thread, because of a dispatch mode, a transform of
    :mod:`torch.func` or autocast."""
    return dispatch_modes() > 0 or _transform() is not None or excluded().raw_repr() & _AUTOCAST != _AUTOCAST


def is_watched():
    """Tell whether a dispatch mode or a transform of :mod:`torch.func` is active."""
    return dispatch_modes() > 0 or _transform() is not None


def is_hidden():
    """Tell whether a mode or transform is active under which a new tensor has no memory, or torch traces dispatched
    calls. ``vmap`` leaves tensors alone that are not batched."""
    if dispatch_modes() and any(torch._C._get_dispatch_mode(kind) is not None for kind in _TRACING):
        return True

    levels = () if _transform() is None else torch._C._functorch.get_interpreter_stack()
    return any(level.key() != torch._C._functorch.TransformType.Vmap for level in levels)


def resolved(value):
    """Return a tensor that is negated lazily with its elements in memory, and any other value itself."""
    return value.resolve_neg() if isinstance(value, torch.Tensor) and value.is_neg() else value
