"""Turn calls with the signatures of ``ntops.torch`` into calls of the overloads of ``torch.ops.ntops``.

torch.compile traces these functions instead of those of ``ntops.torch``, so they use only Python that it supports. An
argument that no schema holds (a string for a tensor, a number of 65 bits) goes to the function itself, which refuses
it.
"""

import inspect
import numbers
import operator

import torch

from ntops.host.attention_arguments import check_call
from ntops.host.cross_entropy_arguments import reduction_of
from ntops.host.fp8 import GRANULARITIES
from ntops.launch import boundary, replay

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
_INTEGERS = (int, torch.SymInt)
_READ = ("alpha", "beta")
"""Numbers that may be 0-d tensors, like those of type ``float``."""


class _Unfit:
    """The marker for a value that does not fit a type. Dynamo of torch 2.11 can only compare the type of a symbolic
    number, so it is a class."""


_UNFIT = _Unfit()


def make(name, implementation, overloads):
    """Return the function with an operator's signature that calls ``torch.ops.ntops``.

    :param implementation: The function of ``ntops.torch``, which refuses calls that no overload takes.
    :param overloads: Pairs of each :class:`ntops.library.schemas.Overload` of the operator and its ``OpOverload``.
    """
    implementation = inspect.unwrap(implementation)
    signature = inspect.signature(implementation)
    ops = {overload.name: op for overload, op in overloads}
    written = {overload.functional: op for overload, op in overloads if overload.writes}
    forms = [
        (op, written.get(overload.name), [(*argument, place) for place, argument in enumerate(overload.arguments)])
        for overload, op in overloads
        if overload.writes is None
    ]
    call = _MAKERS.get(name, _ordinary)(_binding(signature), [*signature.parameters], implementation, forms, ops)
    # Reductions take further names of their arguments.
    return implementation.decorate(call) if hasattr(implementation, "decorate") else call


def _binding(signature):
    """Return a function with this signature that returns its arguments, in order."""
    parameters, scope = [], {}

    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")

        if parameter.default is inspect.Parameter.empty:
            parameters.append(parameter.name)
        else:
            scope[f"default_{parameter.name}"] = parameter.default
            parameters.append(f"{parameter.name}=default_{parameter.name}")

    source = f"def bind({', '.join(parameters)}):\n    return ({', '.join(signature.parameters)},)\n"
    exec(compile(source, __file__, "exec"), scope)
    return scope["bind"]


def _ordinary(bind, parameters, implementation, forms, ops):
    """Return the call of an operator whose overloads differ in which operands are tensors, and in ``out`` and
    ``inplace``."""
    forms = [(op, wr, [(name, kind, parameters.index(name)) for name, kind, _ in args]) for op, wr, args in forms]
    out = parameters.index("out") if "out" in parameters else None
    inplace = parameters.index("inplace") if "inplace" in parameters else None

    def call(*args, **kwargs):
        values = bind(*args, **kwargs)

        for op, writing, arguments in forms:
            inputs = _fitting(values, arguments)

            if inputs is None:
                continue

            if inplace is not None and values[inplace]:
                if _is_lazy(values[0]):
                    return values[0].copy_(op(*inputs))

                writing(*inputs)
                return values[0]

            if out is None or values[out] is None:
                return op(*inputs)

            if _is_lazy(values[out]):
                return _copied(values[out], op(*inputs))

            if isinstance(values[out], torch.Tensor):
                writing(*inputs, out=values[out])
                return values[out]

        return implementation(*args, **kwargs)

    return call


def _is_lazy(written):
    """Tell whether torch tracks writes to a tensor only for its own operators: it is functional, negated, or of a
    transform of :mod:`torch.func`."""
    if torch.compiler.is_compiling() or not isinstance(written, torch.Tensor):
        return False

    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(written)
    return wrapped or written.is_neg() or torch._is_functional_tensor(written)


def _copied(out, result):
    """Copy a separately computed result to ``out``, and return ``out``."""
    if not torch.can_cast(result.dtype, out.dtype):
        raise RuntimeError(f"argument 'out' has dtype {out.dtype}, to which a result of {result.dtype} can't be cast")

    if out.shape != result.shape:
        out.resize_(result.shape)

    return out.copy_(result)


def _fitting(values, arguments):
    """Return the values of a form's arguments, or ``None`` if one does not fit."""
    inputs = []

    for name, kind, place in arguments:
        value = _as(values[place], kind, name)

        if isinstance(value, _Unfit):
            return None

        inputs.append(value)

    return inputs


def _as(value, kind, name):
    """Return the value converted to a schema's type, or ``_UNFIT``."""
    if value is None:
        return None if kind.endswith("?") else _UNFIT

    kind = kind.rstrip("?")

    if isinstance(value, torch.Tensor):
        if kind == "Tensor":
            return value

        if (kind == "float" or name in _READ) and value.ndim == 0 and not value.is_complex():
            return value.item()

        # An integer tensor may stand for a dim.
        if kind not in ("int", "int[]"):
            return _UNFIT

    if kind == "Tensor":
        return _UNFIT

    if kind in ("Scalar", "float"):
        value = _number_of_python(value)
        return value if isinstance(value, _NUMBERS) and (kind == "float" or _is_narrow(value)) else _UNFIT

    if kind in ("SymInt[]", "int[]"):
        items = [_integer(item) for item in (value if isinstance(value, (tuple, list)) else [value])]
        fits = (kind == "int[]" or len(items)) and not any(isinstance(item, _Unfit) for item in items)
        return items if fits else _UNFIT

    if kind in ("int", "SymInt"):
        return _integer(value)

    # A flag of operators that torch lacks may be 0 or 1.
    if name == "interleaved" and isinstance(value, int):
        return bool(value)

    return value if isinstance(value, {"bool": bool, "str": str, "ScalarType": torch.dtype}[kind]) else _UNFIT


def _integer(value):
    """Return a whole number as one of a schema: of NumPy and 0-d tensors, too, as the kernels' functions take it."""
    if _is_integer(value) or torch.compiler.is_compiling() or isinstance(value, bool):
        return value if _is_integer(value) else _UNFIT

    try:
        return operator.index(value)
    except TypeError:
        return _UNFIT


def _number_of_python(value):
    """Return a number of another class, such as one of NumPy, as Python's; anything else as it is."""
    if isinstance(value, _NUMBERS) or torch.compiler.is_compiling() or not isinstance(value, numbers.Real):
        return value

    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _is_integer(value):
    return isinstance(value, _INTEGERS) and not isinstance(value, bool)


def _is_narrow(value):
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _clamp(bind, parameters, implementation, forms, ops):
    """Convert a bound that is a 0-d tensor to a number if the other bound is a number."""
    ordinary = _ordinary(bind, parameters, implementation, forms, ops)

    def call(*args, **kwargs):
        input, low, high, out = map(_number_of_python, bind(*args, **kwargs))

        if isinstance(low, _NUMBERS) and isinstance(high, torch.Tensor) and high.ndim == 0:
            high = _number(high, "max", "min")
        elif isinstance(high, _NUMBERS) and isinstance(low, torch.Tensor) and low.ndim == 0:
            low = _number(low, "min", "max")

        return implementation(input, out=out) if low is None and high is None else ordinary(input, low, high, out=out)

    return call


def _number(bound, name, other):
    if bound.requires_grad:
        raise TypeError(f"argument '{name}' requires grad, and beside a number for '{other}' it is taken for a number")

    value = bound.item()

    if torch.compiler.is_compiling() and not bound.is_floating_point():
        # Of a symbol torch does not know that 64 bits hold it.
        torch._check(value >= -(2**63))
        torch._check(value < 2**63)

    return value


def _cross_entropy(bind, parameters, implementation, forms, ops):
    op = ops["cross_entropy"]
    ((_, _, arguments),) = forms
    arguments = [(name, kind, place) for place, (name, kind, _) in enumerate(arguments)]

    def call(*args, **kwargs):
        input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing = bind(*args, **kwargs)
        reduction = reduction_of(size_average, reduce, reduction)
        inputs = _fitting((input, target, weight, reduction, ignore_index, label_smoothing), arguments)

        if inputs is None:
            numbers = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
            return implementation(input, target, weight, reduction=reduction, **numbers)

        return op(*inputs)[0]

    return call


def _linear_cross_entropy(bind, parameters, implementation, forms, ops):
    op = ops["linear_cross_entropy"]
    ((_, _, arguments),) = forms
    # Nobody but autocast gives a dtype.
    arguments = [(name, kind, place) for place, (name, kind, _) in enumerate(arguments[:-1])]

    def call(*args, **kwargs):
        *values, reduction, ignore_index, label_smoothing, _options = bind(*args, **kwargs)
        reduction = reduction_of(None, None, reduction)
        inputs = _fitting((*values, reduction, ignore_index, label_smoothing), arguments)
        return implementation(*args, **kwargs) if inputs is None else op(*inputs)[0]

    return call


def _dropout(bind, parameters, implementation, forms, ops):
    op = ops["dropout"]

    def call(*args, **kwargs):
        input, p, training, inplace = bind(*args, **kwargs)
        p = _as(p, "float", "p")
        is_typed = isinstance(training, bool) and isinstance(input, torch.Tensor)

        if isinstance(p, _Unfit) or not 0 <= p <= 1 or not is_typed:
            return implementation(*args, **kwargs)

        if not training or p == 0 or input.numel() == 0:
            return input

        if p < 1 and not input.is_floating_point():
            return implementation(*args, **kwargs)

        # The tensor is of the kind of ``input``: fake, functional, or one for each part of a batch.
        seed = input.new_zeros((), dtype=torch.int64)

        if p < 1:
            seed = torch.randint_like(seed, replay.SEEDS)

        result = op(input, seed, p)
        return input.copy_(result) if inplace else result

    return call


def _quantize_fp8(bind, parameters, implementation, forms, ops):
    found, given = ops["quantize_fp8"], ops["quantize_fp8.scale"]

    def call(*args, **kwargs):
        tensor, scale, dtype, granularity = bind(*args, **kwargs)

        if (
            not isinstance(tensor, torch.Tensor)
            or not isinstance(dtype, torch.dtype)
            or granularity not in GRANULARITIES
            or not (scale is None or isinstance(scale, torch.Tensor))
            or (tensor.ndim == 0 and granularity != "tensor")
        ):
            return implementation(*args, **kwargs)

        return found(tensor, dtype, granularity) if scale is None else (given(tensor, scale, dtype), scale)

    return call


def _attention(bind, parameters, implementation, forms, ops):
    plain, *_ = (arguments for op, _, arguments in forms if op is ops["scaled_dot_product_attention"])
    attend = ops["scaled_dot_product_attention"]
    at_position = ops["scaled_dot_product_attention.positions"]
    by_sequence = ops["scaled_dot_product_attention.sequences"]

    def call(*args, **kwargs):
        values = bind(*args, **kwargs)
        variant = values[8]
        # torch's enumeration is another class with the same members.
        named = variant.name if type(variant).__name__ == "CausalVariant" else None
        inputs = _fitting((*values[:8], named), plain)
        key, value, key_slot, value_slot = values[9:]

        if inputs is None or (variant is not None and named is None):
            return implementation(*args, **kwargs)

        if key is None and value is None and key_slot is None and value_slot is None:
            return attend(*inputs)

        if not isinstance(key, torch.Tensor) or not isinstance(value, torch.Tensor):
            return implementation(*args, **kwargs)

        if isinstance(key_slot, torch.Tensor) and key_slot.is_floating_point():
            if not isinstance(value_slot, torch.Tensor):
                return implementation(*args, **kwargs)

            # While Dynamo traces nothing is written, and the operator below refuses other unfit values.
            if torch.compiler.is_dynamo_compiling():
                _check_views(key, value, key_slot, value_slot)
            else:
                with boundary.inside(abstract=True):
                    check_call(*values[:9], (key, value), (key_slot, value_slot))

            # Attention may read the memory that is written: torch tracks that only for its own operators.
            key_slot.copy_(key)
            value_slot.copy_(value)
            return attend(*inputs)

        if _is_lazy(key) or _is_lazy(value):
            raise NotImplementedError(
                "arguments 'present_key' and 'present_value' are functional or of a transform, which caches of "
                "positions leave out; give views of a cache"
            )

        if isinstance(key_slot, torch.Tensor) and (value_slot is None or isinstance(value_slot, torch.Tensor)):
            return by_sequence(*inputs, key, value, key_slot, value_slot)

        if _is_integer(key_slot) and (value_slot is None or (_is_integer(value_slot) and value_slot == key_slot)):
            return at_position(*inputs, key, value, key_slot)

        return implementation(*args, **kwargs)

    return call


def _check_views(key, value, key_slot, value_slot):
    """Refuse rows that ``copy_`` would broadcast or cast."""
    for name, present, slot in (("present_key", key, key_slot), ("present_value", value, value_slot)):
        if present.shape != slot.shape or present.dtype is not slot.dtype:
            raise RuntimeError(
                f"arguments '{name}' and '{name}_slot' must have one shape and dtype, not {tuple(present.shape)} of "
                f"{present.dtype} and {tuple(slot.shape)} of {slot.dtype}"
            )


_MAKERS = {
    "clamp": _clamp,
    "cross_entropy": _cross_entropy,
    "dropout": _dropout,
    "linear_cross_entropy": _linear_cross_entropy,
    "quantize_fp8": _quantize_fp8,
    "scaled_dot_product_attention": _attention,
}
