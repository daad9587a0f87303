"""List the configurations that a heuristic can choose for a call, and fix one of them.

Results depend on the configuration only by rounding, which :func:`fixed` serves to show; and in one configuration,
calls on parts of a batch compute the same bits as the call on the whole batch.
"""

import contextlib
import functools
import inspect

from ntops.launch import recorder

_fixed = None


class _Fixed:
    def __init__(self, number):
        self.number = number
        self.names = []
        self.properties = {}


class Heuristic:
    """A function that chooses a configuration, with the other configurations that it could choose."""

    def __init__(self, choose, sizes, points, allows):
        self._choose = choose
        self._sizes = sizes
        self._points = points
        self._allows = allows
        self._signature = inspect.signature(choose)
        functools.update_wrapper(self, choose)

    def __call__(self, *args, **kwargs):
        if _fixed is not None:
            known = self.alternatives(*args, **kwargs)
            _fixed.names[:] = map(str, known)

            if _fixed.number is not None:
                return known[_fixed.number % len(known)]

        return self._choose(*args, **kwargs)

    def alternatives(self, *args, **kwargs):
        """Return the configurations chosen for any sizes, all else equal, that are allowed for these sizes; each
        once."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        known = bound.arguments
        points = (dict(zip(self._sizes, point, strict=True)) for point in self._points)
        found = dict.fromkeys(self._choose(**known | point) for point in points)
        return [one for one in found if self._allows(one, *(known[name] for name in self._sizes))]


def heuristic(sizes, points, allows=lambda options, *sizes: True):
    """Decorate a function that chooses a configuration.

    :param sizes: The names of its arguments that are sizes; a kernel is right in a configuration chosen for any sizes.
    :param points: Tuples of sizes at which, together, the function chooses every configuration.
    :param allows: Tells whether a configuration is accurate for sizes for which it is not chosen.
    """
    return lambda choose: Heuristic(choose, sizes, points, allows)


@contextlib.contextmanager
def fixed(number=None):
    """Return a context in which each call has the ``number``-th configuration (modulo their number) for its dtypes and
    properties, whatever its sizes; ``None``: the library's choice. It holds for all threads.

    The context yields a list with the names of the configurations that the last kernel could have; it is empty if none
    ran.
    """
    global _fixed
    # A repeated call chooses nothing.
    recorder.forget()
    outer, _fixed = _fixed, _Fixed(number)

    try:
        yield _fixed.names
    finally:
        _fixed = outer

        if number is not None:
            recorder.forget()


def is_fixed():
    """Tell whether a configuration is fixed by number."""
    return _fixed is not None and _fixed.number is not None


def settled(name, value):
    """Return whether a kernel may use a property of the call. With a fixed configuration, the property must have held
    for the first call, too."""
    if _fixed is None or _fixed.number is None:
        return value

    return _fixed.properties.setdefault(name, value) and value
