"""Python control flow over values of many programs at once, and the exceptions that give it up."""

import numpy as np

from ntops.interpreter import _triton


class Diverged(Exception):
    """Programs that run together would take different ways; ``values`` has the way of each."""

    def __init__(self, values):
        super().__init__("programs take different ways")
        self.values = values


class NeedsSequential(Exception):
    """These programs can only run one by one, in order; the message says why."""


def agreed(data):
    """Return the one value that all programs have, as a Python number.

    :raises Diverged: They have several.
    """
    flat = data.reshape(data.shape[0], -1)

    if flat.shape[1] != 1:
        raise TypeError(
            f"a block of shape {data.shape[1:]} was used where Python needs one value, as in an `if` or a range; "
            "compiled, that is refused too"
        )

    first = flat[0, 0]

    if len(flat) > 1 and (flat != first).any():
        raise Diverged(flat[:, 0])

    return first.item()


def truth(value):
    """Return the truth of the condition of an `if`, `while` or `assert` of kernel code."""
    condition = getattr(value, "condition", value)  # tl.condition of Triton 3.9

    if isinstance(condition, _triton.tl.tensor):
        handle = condition.handle

        if len(handle.shape) and np.prod(handle.shape) > 1:
            raise TypeError(
                f"the truth of a block of shape {handle.shape} is not one value; compiled, an `if` of a block is "
                "refused too"
            )

        return agreed(handle.data.astype(bool))

    return bool(condition)


def index_of(tensor):
    """Return a scalar as a Python integer, for ranges."""
    if np.prod(tensor.handle.shape) > 1:
        raise TypeError(f"a block of shape {tensor.handle.shape} is no single integer")

    return int(agreed(tensor.handle.data))


class Number(int):
    """A Python integer of kernel code that, as in compiled code, has a dtype and can be cast."""

    def to(self, dtype, *args, **kwargs):
        return _as_tensor(int(self)).to(dtype, *args, **kwargs)

    @property
    def dtype(self):
        return _as_tensor(int(self)).dtype

    @property
    def type(self):
        return self.dtype


def _as_tensor(value):
    return _triton.semantic().to_tensor(value, False)


class Runtime:
    """The functions that rewritten kernel code calls, under the name ``_rt``."""

    truth = staticmethod(truth)

    @staticmethod
    def not_(value):
        if isinstance(value, _triton.tl.tensor):
            return value.__not__()

        return not truth(value)

    @staticmethod
    def both(first, second):
        """Compute `first and second`; for tensors and blocks elementwise, without short circuit."""
        if not isinstance(first, _triton.tl.tensor):
            return second() if first else first

        other = second()

        if isinstance(other, _triton.tl.tensor):
            return first.logical_and(other)

        return first if other else other

    @staticmethod
    def either(first, second):
        """Compute `first or second`, likewise."""
        if not isinstance(first, _triton.tl.tensor):
            return first if first else second()

        other = second()

        if isinstance(other, _triton.tl.tensor):
            return first.logical_or(other)

        return other if other else first

    @staticmethod
    def tensor(value):
        """Convert a value that a loop carries to a tensor, as compiled code does from the start."""
        if isinstance(value, tuple):
            return tuple(map(Runtime.tensor, value))

        return _as_tensor(value)

    @staticmethod
    def minimum(*values, **options):
        return _fold(min, "minimum", values, options)

    @staticmethod
    def maximum(*values, **options):
        return _fold(max, "maximum", values, options)

    @staticmethod
    def range(*limits, **hints):
        """Run Triton's range or Python's; hints such as ``num_stages`` have no effect."""
        limits = [index_of(x) if isinstance(x, _triton.tl.tensor) else int(_plain(x)) for x in limits]
        limits += [int(_plain(hints[name])) for name in ("step",) if hints.get(name) is not None]

        return map(Number, range(*limits))

    @staticmethod
    def print(*values, **options):
        _triton.builder().require_sequential("it prints")
        print(*values, **options)


def _plain(value):
    return getattr(value, "value", value)


def _fold(builtin, name, values, options):
    if not any(isinstance(value, _triton.tl.tensor) for value in values):
        return builtin(*map(_plain, values))

    result = values[0]

    for value in values[1:]:
        result = getattr(_triton.tl, name)(result, value, **options)

    return result
