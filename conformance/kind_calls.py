"""Make a call with tensors of another kind: complex, sparse, unsigned, or on the meta device.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import torch

KIND = "another kind of tensors"
COMPLEX, CONJUGATED, SPARSE, UNSIGNED, META = "complex", "complex, conjugated lazily", "sparse", "unsigned", "meta"
NUMBER = "beside a complex number"
ALL = (COMPLEX, CONJUGATED, NUMBER, SPARSE, UNSIGNED, META)
_PARTNERS = {torch.int16: torch.uint16, torch.int32: torch.uint32, torch.int64: torch.uint64}


def applies(which, tensors, numbers):
    """Tell whether a call can be made with tensors of this kind, or numbers.

    :param numbers: The Python numbers among the arguments.
    """
    if which in (COMPLEX, CONJUGATED):
        return any(one.dtype in (torch.float32, torch.float64) for one in tensors)
    if which == NUMBER:
        return any(type(one) is float for one in numbers)
    if which == UNSIGNED:
        return any(one.dtype in _PARTNERS for one in tensors)
    return bool(tensors) and (which == META or tensors[0].ndim > 0)


def _of_kind(function, tools, which):
    """Let the call see its tensors as others of the kind ``which``. For each result it returns what kind it is of, and
    its elements: of a complex one both parts, of a sparse one all, of a meta one its shape."""

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        new = [_changed(which, one, place) for place, one in enumerate(given)]
        args, kwargs = tools.replaced(args, kwargs, given, new)
        if which == NUMBER:
            args = [complex(one, 0.5) if type(one) is float else one for one in args]
            kwargs = {name: complex(one, 0.5) if type(one) is float else one for name, one in kwargs.items()}
        value = function(*args, **kwargs)
        results = value if isinstance(value, tuple | list) else (value,)
        return tuple(part for one in results for part in _shown(one))

    return call


def _changed(which, tensor, place):
    if which in (COMPLEX, CONJUGATED) and tensor.dtype in (torch.float32, torch.float64):
        # The parts differ, so that a lost or swapped one shows.
        parts = tensor.contiguous(), tensor.flatten().flip(0).view(tensor.shape) * 0.5 + 0.25
        return torch.complex(*parts) if which == COMPLEX else torch.complex(parts[0], -parts[1]).conj()
    if which == SPARSE and place == 0:
        found = tensor.detach().to_sparse()
        # An element that is there twice counts as the sum, which no kernel of the stored values alone knows.
        twice = torch.cat([found.indices(), found.indices()], 1), torch.cat([found.values() * 2, -found.values()])
        return torch.sparse_coo_tensor(*twice, found.shape, check_invariants=False)
    if which == UNSIGNED and tensor.dtype in _PARTNERS:
        return tensor.to(_PARTNERS[tensor.dtype])
    return tensor.to("meta") if which == META else tensor


def told(tensor, is_meta):
    """Return in words what kind a tensor is of."""
    return f"{tensor.dtype}, {tensor.layout}, {'meta' if is_meta else 'with elements'}, {list(tensor.shape)}"


def _shown(result):
    """Return what kind a result is of, as numbers, and its elements."""
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"returned {type(result).__name__} and no tensor")
    said = torch.frombuffer(bytearray(told(result, result.device.type == "meta").encode()), dtype=torch.uint8)
    if result.device.type == "meta":
        return said, said
    plain = result.detach().to_dense() if result.layout is not torch.strided else result.detach()
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    # Other parts of the harness know signed integers alone.
    return said, (plain.to(torch.float64) if plain.dtype in _PARTNERS.values() else plain).clone()


KINDS = {KIND: _of_kind}
"""As ``dispatcher_calls.KINDS``."""
