"""Make a call with arguments that torch's signature refuses, or hardly takes: one after the other.

Loaded by its path into the judged process, so it needs torch and NumPy and nothing else.
"""

import enum

import numpy as np
import torch

KIND = "other arguments"
KEYWORD, DROPPED, BEHIND, CHANGED, DTYPE, FLOAT8 = "keyword", "dropped", "behind", "changed", "dtype", "float8"
"""Each names an edit of the arguments, which adds a keyword, leaves an argument out, puts a tensor behind the
positional ones (where an ``out`` would be), gives one another type, gives a ``dtype``, or gives operands of float8."""
DTYPES = {
    "float": float,
    "int": int,
    "bool": bool,
    "'float32'": "float32",
    "np.float32": np.float32,
    "np.dtype": np.dtype("float32"),
}
OF_PYTHON = ("float", "int", "bool")
"""torch takes these, Python's types, as a ``dtype``, and none of NumPy's."""
_PLAIN = {torch.bfloat16: torch.float32}
"""The dtypes that NumPy lacks, and what holds their numbers."""
FILLING = 7


class _Dim(enum.Enum):
    ANY = 0


def _whole(value):
    return value if isinstance(value, tuple) else (value,)


def _as_array(tensor):
    plain = tensor.detach().cpu()
    return plain.to(_PLAIN.get(plain.dtype, plain.dtype)).numpy()


OF_DIMS = {
    "a set": lambda value: {*_whole(value)},
    "a frozenset": lambda value: frozenset(_whole(value)),
    "a dict": lambda value: dict.fromkeys(_whole(value)),
    "a range": lambda value: range(min(_whole(value)), max(_whole(value)) + 1),
    "a generator": lambda value: (one for one in _whole(value)),
    "an iterator": lambda value: iter(_whole(value)),
    "an array": lambda value: np.array(_whole(value)),
    "floats": lambda value: tuple(map(float, value)) if isinstance(value, tuple) else float(value),
    "strings": lambda value: tuple(map(str, value)) if isinstance(value, tuple) else str(value),
    "an enum": lambda value: _Dim.ANY,
    "bytes": lambda value: bytes(one % 256 for one in _whole(value)),
    "another tuple": lambda value: (value,),
}
"""Other types for dims and sizes, which are whole numbers or tuples of them."""
OF_TENSORS = {
    "a NumPy array": _as_array,
    "a list": lambda value: _as_array(value).tolist(),
    "a memoryview": lambda value: np.ascontiguousarray(_as_array(value)).data,
    "None": lambda value: None,
    "a string": lambda value: str(value.dtype),
}
OF_NUMBERS = {
    "a string": str,
    "a list": lambda value: [value],
    "bytes": lambda value: str(value).encode(),
    "an array": lambda value: np.array([value]),
}
OF_FLAGS = {
    "a bool of NumPy": np.bool_,
    "a string": str,
    "a list": lambda value: [value],
    "a float": float,
}
OF_WORDS = {
    "in capitals": str.upper,
    "its first letter": lambda value: value[:1],
    "with a space": lambda value: f"{value} ",
    "a list": lambda value: [value],
}
TYPES = {"dims": OF_DIMS, "tensor": OF_TENSORS, "number": OF_NUMBERS, "flag": OF_FLAGS, "word": OF_WORDS}
"""Each kind of value is given as these other types."""


def _with_arguments(function, tools, edits):
    """Make the call once for each edit, of operands of their own, and return two tensors for each: what came of it, as
    the bytes of a text, and the elements of its result; none where it was refused or is not one tensor.

    :param edits: Of each what is done, with which argument (its place or name) and the details.
    """

    def call(*args, **kwargs):
        found = []
        for edit in edits:
            given = tools.operands(args, kwargs)
            copies = tools.copied(given)
            found += _made(function, *_edited(edit, *tools.replaced(args, kwargs, given, copies)), given, copies)
        return tuple(found)

    return call


def _edited(edit, args, kwargs):
    """Return the arguments of a call after an edit, and the tensor that was added; None: none was."""
    action, key, value = edit
    added = None
    if action == KEYWORD:
        kwargs[key] = value
    if action == DROPPED:
        args, kwargs = args[:key] if isinstance(key, int) else args, {n: v for n, v in kwargs.items() if n != key}
    if action == BEHIND:
        shape, dtype, device = key
        added = torch.full(shape, FILLING, dtype=getattr(torch, dtype), device=device)
        args = [*args, *value, added]
    if action == CHANGED:
        kind, name = value
        place = args if isinstance(key, int) else kwargs
        place[key] = TYPES[kind][name](place[key])
    if action == DTYPE:
        kwargs["dtype"] = DTYPES[value]
    if action == FLOAT8:
        dtype = getattr(torch, value)
        args = [_of_dtype(one, dtype) for one in args]
        kwargs = {name: _of_dtype(one, dtype) for name, one in kwargs.items()}
    return args, kwargs, added


def _of_dtype(value, dtype):
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


REFUSED, WRITTEN = "refused with ", ", after it had written "


def _made(function, args, kwargs, added, given, copies):
    elements = torch.zeros(0)
    try:
        value = function(*args, **kwargs)
    # The function is a stranger's, and any exception refuses: torch's own raise AttributeError, too, since some look at
    # attributes before types. The class is told, and what was written counts.
    except Exception as error:  # noqa: BLE001
        said = f"{REFUSED}{type(error).__name__}"
        if not all(map(_same, given, copies)):
            said += f"{WRITTEN}an operand"
        # A bool holds another number than it is filled with.
        if added is not None and not _same(added, torch.full_like(added, FILLING)):
            said += f"{WRITTEN}the tensor"
    else:
        said = "; ".join(map(_described, value if isinstance(value, tuple | list) else [value]))
        if type(value) is torch.Tensor and value.layout is torch.strided and value.dtype in _JUDGED:
            elements = value.detach().resolve_neg().clone()
    return torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8), elements


_JUDGED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)


def _same(one, other):
    # A dim of one element may have any stride, which "contiguous" leaves as it is, and no view of bytes takes.
    plain = (x.detach().cpu().clone(memory_format=torch.contiguous_format) for x in (one, other))
    words = (x.reshape(-1).view(torch.uint8) for x in plain)
    return torch.equal(*words)


def _described(result):
    if not isinstance(result, torch.Tensor):
        return type(result).__name__
    return f"{result.dtype}{list(result.shape)}"


KINDS = {KIND: _with_arguments}
"""As ``dispatcher_calls.KINDS``."""
