"""Make a call with tensors of another kind: complex, sparse, unsigned, or on the meta device.

Loaded by its path into the judged process, so it needs torch and nothing else.
"""

import torch

KIND = "another kind of tensors"
COMPLEX, CONJUGATED, SPARSE, UNSIGNED, META = "complex", "complex, conjugated lazily", "sparse", "unsigned", "meta"
COMPLEX_NUMBER = "with a complex number"
ALL = (COMPLEX, CONJUGATED, COMPLEX_NUMBER, SPARSE, UNSIGNED, META)
_UNSIGNED = {torch.int16: torch.uint16, torch.int32: torch.uint32, torch.int64: torch.uint64}


def applies(which, tensors, numbers):
    """Tell whether a call can be made with tensors of this kind, or numbers.

    :param numbers: The Python numbers among the arguments.
    """
    if which in (COMPLEX, CONJUGATED):
        return any(one.dtype in (torch.float32, torch.float64) for one in tensors)
    if which == COMPLEX_NUMBER:
        return any(type(one) is float for one in numbers)
    if which == UNSIGNED:
        return any(one.dtype in _UNSIGNED for one in tensors)
    # The sum of two bools is no negated one.
    return bool(tensors) and (which == META or (tensors[0].ndim > 0 and tensors[0].dtype != torch.bool))


def _of_kind(function, tools, which):
    """Make the call with tensors of the kind ``which``. Return two tensors for each result: its kind as the bytes of a
    text, and its elements: complex ones as pairs of real numbers, those of a sparse tensor as dense; of a meta tensor
    the text again."""

    def call(*args, **kwargs):
        given = tools.operands(args, kwargs)
        new = [_changed(which, one, place) for place, one in enumerate(given)]
        args, kwargs = tools.replaced(args, kwargs, given, new)
        if which == COMPLEX_NUMBER:
            args = [complex(one, 0.5) if type(one) is float else one for one in args]
            kwargs = {name: complex(one, 0.5) if type(one) is float else one for name, one in kwargs.items()}
        value = function(*args, **kwargs)
        results = value if isinstance(value, tuple | list) else (value,)
        return tuple(part for one in results for part in _as_plain_tensors(one))

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
    if which == UNSIGNED and tensor.dtype in _UNSIGNED:
        return tensor.to(_UNSIGNED[tensor.dtype])
    return tensor.to("meta") if which == META else tensor


def described(tensor, is_meta):
    """Return in words what kind a tensor is of."""
    return f"{tensor.dtype}, {tensor.layout}, {'meta' if is_meta else 'with elements'}, {list(tensor.shape)}"


def _as_plain_tensors(result):
    """Return what kind a result is of, as numbers, and its elements."""
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"returned {type(result).__name__} and no tensor")
    said = torch.frombuffer(bytearray(described(result, result.device.type == "meta").encode()), dtype=torch.uint8)
    if result.device.type == "meta":
        return said, said
    plain = result.detach().to_dense() if result.layout is not torch.strided else result.detach()
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    signed = {unsigned: one for one, unsigned in _UNSIGNED.items()}
    # Other parts of the harness know signed integers alone; the bits are the same.
    return said, (plain.view(signed[plain.dtype]) if plain.dtype in signed else plain).clone()


KINDS = {KIND: _of_kind}
"""As ``dispatcher_calls.KINDS``."""
