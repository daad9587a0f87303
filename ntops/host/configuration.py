"""Which configurations there are: a heuristic chooses one for each call, and another one can be had instead.

Results do not depend on the configuration but for rounding, which :func:`fixed` is there to show; and of calls in one
configuration, those of parts of a batch have the bits of the whole.
"""

import contextlib
import functools
import inspect

from ntops.host import repetition

_fixed = None


class _Fixed:
    def __init__(self, number):
        self.number = number
        self.names = []
        self.properties = {}


class Heuristic:
    """A function that chooses a configuration, and the others that it could choose."""

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
        """What is chosen for any sizes, all else equal, and allowed for these; each once."""
        known = self._signature.bind(*args, **kwargs).arguments
        points = (dict(zip(self._sizes, point, strict=True)) for point in self._points)
        found = dict.fromkeys(self._choose(**known | point) for point in points)
        return [one for one in found if self._allows(one, *(known[name] for name in self._sizes))]


def heuristic(sizes, points, allows=lambda options, *sizes: True):
    """A decorator for a function that chooses a configuration.

    :param sizes: The names of its arguments that are sizes of a call: a kernel is right in whatever configuration they
        give.
    :param points: Values for them, a tuple each, at which every configuration is chosen.
    :param allows: Whether a configuration is accurate for sizes other than those that it is chosen for.
    """
    return lambda choose: Heuristic(choose, sizes, points, allows)


@contextlib.contextmanager
def fixed(number=None):
    """A context in which each call has the ``number``-th configuration (counted round) that there is for its dtypes and
    properties, whatever its sizes; ``None``: the one that the library chooses. It holds for all threads.

    It gives a list, which holds the names of the configurations that the last kernel could have; none where none ran.
    """
    global _fixed
    # A call that is repeated chooses nothing.
    repetition.forget()
    outer, _fixed = _fixed, _Fixed(number)

    try:
        yield _fixed.names
    finally:
        _fixed = outer

        if number is not None:
            repetition.forget()


def is_fixed():
    """Whether calls have a configuration of a number, not the one that the library chooses."""
    return _fixed is not None and _fixed.number is not None


def settled(name, value):
    """Whether a property that a kernel may take advantage of holds: not where the configuration is fixed and it did not
    hold for the first call."""
    if _fixed is None or _fixed.number is None:
        return value

    return _fixed.properties.setdefault(name, value) and value
