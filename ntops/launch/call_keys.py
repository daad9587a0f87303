"""Keys that tell calls apart: of all that decides what a call launches."""

import enum
import itertools

import torch

from ntops.launch import replay

_NUMBERS = {int, bool, str, type(None), torch.dtype}
_describers = {}
_numbers = itertools.count()


def describe_call(values, context):
    """Return a key of everything that decides what a call launches, its tensors and their addresses; ``None`` if the
    call is not recorded.

    :param context: Values beside the arguments that decide, too.
    """
    kinds = tuple(map(type, values))
    describe = _describers.get(kinds) or _describers.setdefault(kinds, _describer(kinds))

    try:
        return describe(values, context)
    except RuntimeError:
        # Sparse and nested tensors have no strides or no address; the function itself refuses them.
        return None


def _describer(kinds):
    """Return the function ``(values, context) -> (key, tensors, pointers)`` for arguments of these types.

    It is generated as source, like the repetition. A number distinguishes calls with arguments of other types.
    """
    scope = {
        "grad": torch.is_grad_enabled,
        "default_dtype": torch.get_default_dtype,
        "types": type,
        "int_only": replay.INT,
    }
    lines, key, places = [], [str(next(_numbers))], []

    for place, kind in enumerate(kinds):
        name = f"value{place}"

        if kind in replay.TENSORS:
            lines += [
                f"if {name}.is_neg() or {name}.requires_grad and grad(): return None",
                f"pointer{place} = {name}.data_ptr()",
            ]
            key += [
                f"{name}.dtype",
                f"{name}.shape",
                f"{name}.stride()",
                f"{name}.get_device()",
                f"pointer{place} & 15",
                # What inference mode made may not be written outside of it.
                f"{name}.is_inference()",
            ]
            # The recording checks which arguments are the same memory.
            key += [f"pointer{place} == pointer{other}" for other in places]
            places.append(place)
        elif kind is float:
            # Zeros of both signs are equal as keys.
            key.append(f"{name} or str({name})")
        elif kind in replay.SHAPES:
            lines.append(f"if {name} and {{*map(types, {name})}} != int_only: return None")
            key.append(f"(*{name},)")
        elif kind in _NUMBERS or issubclass(kind, enum.Enum):
            key.append(name)
        else:
            return lambda values, context: None

    tensors, pointers = (replay.listed(name, places) for name in ("value", "pointer"))
    lines = [
        *([f"{replay.listed('value', range(len(kinds)))}= values"] if kinds else []),
        *lines,
        # Functional tensors, among others, have no memory, and freed ones no longer.
        *([f"if not ({' and '.join(f'pointer{place}' for place in places)}): return None"] if places else []),
        f"return ({', '.join(key)}, default_dtype(), context), ({tensors}), ({pointers})",
    ]
    return replay.function("describe(values, context)", lines, scope)
